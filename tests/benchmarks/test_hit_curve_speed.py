"""What a hit curve costs in CPU seconds, printed by ``make bench``."""

from __future__ import annotations

import time

import pytest

from simulator import scenario
from simulator.hit_curve.asked import Counting
from simulator.hit_curve.lru import lru
from simulator.hit_curve.source import of_scenario
from simulator.hit_curve.static_routing import RuleSpec, route
from simulator.hit_curve.study import study

pytestmark = pytest.mark.benchmark

SCENARIO = """
name: conversations
engine: {dialect: vllm-0.32, max_model_len: 32K, async_scheduling: false}
profile: qwen3-0.6b-ascend910-a3
cluster: {instances: 8}
workload:
  tenants:
    - name: chat
      conversations:
        arrivals: {process: poisson, rate_per_s: 10}
        num_conversations: 25000
        layers: [{name: service, tokens: 800}, {name: documents, tokens: 3000, texts: 200, zipf_exponent: 1}]
        turns: {distribution: geometric, mean: 4, high: 20}
        question_tokens: {distribution: lognormal, mean: 80, cv: 1}
        output_tokens: {distribution: lognormal, mean: 200, cv: 0.7, high: 2000}
        think_time: {distribution: lognormal, mean: 30 s, cv: 1}
routing: [round_robin]
"""


def test_a_hundred_thousand_requests() -> None:
    source = of_scenario(scenario.parse(SCENARIO), Counting(16))
    began_s = time.process_time()
    num_requests = sum(1 for _ in source.asked())
    drawn_s = time.process_time()
    found = lru(source.asked(), source.counting, source.name)
    curve_s = time.process_time()
    whole = study(source)
    study_s = time.process_time()
    routed = route(source.asked(), RuleSpec("match", 0.3), 8, 30_000, 16)
    routed_s = time.process_time()
    print(
        f"\n{num_requests:,} requests, {found.num_tokens:,} prompt tokens in blocks of 16: drawn in "
        f"{drawn_s - began_s:.1f} s; drawn and LRU at every size {curve_s - drawn_s:.1f} s; with Belady at "
        f"{len(whole.points)} sizes {study_s - curve_s:.1f} s; 8 instances behind match {routed_s - study_s:.1f} s"
    )
    assert found.ceiling >= routed.num_hits > 0
