"""Replay of the published measurement of vLLM-Ascend's prefix cache on one NPU (articles and data as cited there).

Hits and computed positions are exact. The eight median times are the ones to which the shipped profile was fitted:
agreement with them is *in sample* and shows that the simulator adds nothing of its own, not how well it predicts.
"""

from __future__ import annotations

import csv
import importlib.resources
from typing import NamedTuple

import pytest
from cluster_cases import config, request, step_time

from simulator.cluster import Cluster
from simulator.metrics import Metrics
from simulator.profile import Profile, load_profile
from simulator.request import Request
from simulator.routing import make_router, parse_routing
from simulator.step_time import StepTime
from simulator.streams import python_stream

DOCUMENT, QUESTION_A, QUESTION_B, CHANGED, TAIL = range(5)  # segments: texts
NUM_COMMON = 2  # tokens with which both questions begin
NUM_SUFFIX = 14
BLOCK_SIZE = 128
CHANGED_AT = 17
BETWEEN_S = 60.0  # one request at a time


class Published(NamedTuple):
    """Medians of one prompt length, seconds; totals where they were published."""

    num_prefix_tokens: int
    num_prompt_tokens: int
    num_output_tokens: int
    cold_ttft_s: float
    warm_ttft_s: float
    cold_total_s: float | None
    warm_total_s: float | None


def published() -> dict[int, Published]:
    path = importlib.resources.files("calibration") / "data/ascend_article/prefix_cache_ttft.csv"
    found = {}
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        times = [
            float(row[name]) / 1000 if row[name] else None
            for name in ("cold_ttft_ms", "warm_ttft_ms", "cold_total_ms", "warm_total_ms")
        ]
        lengths = [int(row[name]) for name in ("prefix_tokens", "input_tokens", "output_tokens")]
        found[lengths[0]] = Published(*lengths, *times)
    return found


@pytest.fixture(scope="module")
def profile() -> Profile:
    return load_profile("qwen3-0.6b-ascend910-a3")


def serve(requests: list[Request], times: StepTime, num_instances: int = 1, **engine: int) -> Metrics:
    """The article's engine: one instance, synchronous, blocks of 128, budget and longest model length 18,432."""
    settings = {
        "block_size": BLOCK_SIZE, "num_gpu_blocks": 1001, "max_model_len": 18_432, "max_num_batched_tokens": 18_432,
        "max_num_seqs": 256,
    } | engine  # fmt: skip
    metrics = Metrics(num_instances)
    router = make_router(parse_routing("round_robin"), num_instances, python_stream(0, "router"))
    Cluster(config(**settings), times, router, num_instances, metrics).run(iter(requests))
    return metrics


def prompt_b(num_prefix_tokens: int, *, changed: bool = False) -> tuple:
    """Document and question B; ``changed``: with another token at index 17."""
    question = ((TAIL, 0, NUM_COMMON), (QUESTION_B, 0, NUM_SUFFIX - NUM_COMMON))
    if not changed:
        return ((DOCUMENT, 0, num_prefix_tokens), *question)
    rest = num_prefix_tokens - CHANGED_AT - 1
    return ((DOCUMENT, 0, CHANGED_AT), (CHANGED, 0, 1), (DOCUMENT, CHANGED_AT + 1, rest), *question)


def ask_b(profile: Profile, num_prefix_tokens: int, *, warm: bool, changed: bool = False) -> Request:
    """Question B, cold or after question A about the same document; A and B share 2 more tokens than the document."""
    requests = []
    if warm:
        prompt = ((DOCUMENT, 0, num_prefix_tokens), (TAIL, 0, NUM_COMMON), (QUESTION_A, 0, 10))
        requests.append(request(0, 0.0, prompt, 3))
    last = request(len(requests), BETWEEN_S, prompt_b(num_prefix_tokens, changed=changed), 64)
    requests.append(last)
    serve(requests, profile.step_time())
    assert last.state == "finished"
    return last


@pytest.mark.parametrize("prefix", [1024, 4096, 8192, 16384])
def test_hits_are_those_reported_by_the_engine(profile: Profile, prefix: int) -> None:
    """None cold; warm all full blocks of the shared prefix (2 more shared tokens fill none); none after a change."""
    assert prompt_b(prefix) != prompt_b(prefix, changed=True)
    assert published()[prefix].num_prompt_tokens == prefix + NUM_SUFFIX
    assert ask_b(profile, prefix, warm=False).num_cached_tokens == 0
    assert ask_b(profile, prefix, warm=True).num_cached_tokens == prefix
    assert ask_b(profile, prefix, warm=True, changed=True).num_cached_tokens == 0


@pytest.mark.parametrize("prefix", [1024, 4096, 8192, 16384])
def test_in_sample_times_to_the_first_token_are_the_published_medians(profile: Profile, prefix: int) -> None:
    expected = published()[prefix]
    for warm, median_s in ((False, expected.cold_ttft_s), (True, expected.warm_ttft_s)):
        one = ask_b(profile, prefix, warm=warm)
        assert one.first_token_s - one.arrival_s == pytest.approx(median_s, rel=0.03)


def test_in_sample_totals_at_16k_are_the_published_medians(profile: Profile) -> None:
    expected = published()[16384]
    for warm, median_s in ((False, expected.cold_total_s), (True, expected.warm_total_s)):
        assert median_s is not None
        one = ask_b(profile, 16384, warm=warm)
        assert one.num_output_tokens == expected.num_output_tokens
        assert one.finish_s - one.arrival_s == pytest.approx(median_s, rel=0.03)


def test_a_change_costs_what_a_cold_prompt_costs(profile: Profile) -> None:
    cold = ask_b(profile, 4096, warm=False)
    changed = ask_b(profile, 4096, warm=True, changed=True)
    assert changed.first_token_s - changed.arrival_s == pytest.approx(cold.first_token_s - cold.arrival_s, rel=1e-9)


@pytest.mark.parametrize(("caching", "num_computed"), [(True, 1152 + 9 * 128), (False, 10 * 1152)])
def test_ten_questions_to_one_document(caching: bool, num_computed: int) -> None:
    """1,024 shared and 128 own tokens, 10 requests: 2,304 instead of 11,520 computed positions.

    The example of the article on cache-aware routing, in blocks of 128.
    """
    requests = [
        request(number, BETWEEN_S * number, ((DOCUMENT, 0, 1024), (100 + number, 0, 128)), 1) for number in range(10)
    ]
    metrics = serve(requests, step_time(prefill_token_s=1.0 / 1024), enable_prefix_caching=caching)
    assert metrics.timeline()["num_prefill_tokens"].sum() == num_computed
    # A step takes 1/1024 s a token here and nothing else, so that busy time counts the positions once more.
    assert sum(metrics.busy_s) * 1024 == num_computed
    assert sum(metrics.prefix_hits) == (9 * 1024 if caching else 0)
