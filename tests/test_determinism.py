"""Law 4: same scenario and seed, same bytes; a new router or tenant changes no other random stream."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simulator import experiment
from simulator.request import Request
from simulator.scenario import Scenario, parse
from simulator.workload import open_workload

SCENARIO = """
name: small
question: Is it the same?
seed: 5
engine:
  dialect: vllm-0.32
  async_scheduling: false
  max_model_len: 2048
  block_size: 16
  num_gpu_blocks_override: 400
  max_num_batched_tokens: 512
  max_num_seqs: 32
profile: linear-8ms-50us
cluster: {instances: 3}
workload:
  tenants:
    - name: chat
      synthetic:
        num_requests: 120
        arrivals: {process: poisson, rate_per_s: 20}
        num_prefixes: 5
        prefix_tokens: 200
        suffix_tokens: {distribution: lognormal, mean: 60, cv: 1, high: 500}
        output_tokens: {distribution: geometric, mean: 40, high: 400}
    - name: batch
      cache_salt: secret
      synthetic:
        duration: 4 s
        arrivals: {process: gamma, rate_per_s: 10, cv: 3}
        suffix_tokens: {distribution: exponential, mean: 300, high: 900}
        output_tokens: 20
routing: [random, power_of_two, dynamo, {policy: dynamo, temperature: 1, event_delay: 20 ms}]
replications: 2
"""
RUN = """
import json, sys
from pathlib import Path
import pandas as pd
from simulator import experiment
from simulator.scenario import load

comparison = experiment.compare(load(sys.argv[1]), jobs=int(sys.argv[2]))
folder = Path(sys.argv[3])
rows = pd.concat([run.requests.assign(policy=run.policy, replication=run.replication) for run in comparison.results])
rows.to_parquet(folder / "requests.parquet")
pd.concat([run.timeline for run in comparison.results]).to_parquet(folder / "timeline.parquet")
(folder / "summary.json").write_text(json.dumps(comparison.to_json()))
"""


@pytest.fixture
def scenario() -> Scenario:
    return parse(SCENARIO)


def one_tenant_more(*, first: bool) -> Scenario:
    """The scenario with another tenant, before or behind the others."""
    added = """    - name: added
      synthetic:
        num_requests: 50
        arrivals: {process: fixed, rate_per_s: 7}
        suffix_tokens: {distribution: geometric, mean: 50}
        output_tokens: {distribution: geometric, mean: 9}
"""
    mark = "    - name: chat\n" if first else "routing:"
    return parse(SCENARIO.replace(mark, added + mark, 1))


@pytest.mark.slow
def test_law_4_same_bytes_whatever_the_number_of_processes_and_the_hash_seed(tmp_path: Path) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(SCENARIO, encoding="utf-8")
    written: list[dict[str, bytes]] = []
    for jobs, hash_seed in (("1", "1"), ("2", "31337")):
        folder = tmp_path / jobs
        folder.mkdir()
        command = [sys.executable, "-c", RUN, str(file), jobs, str(folder)]
        environment = os.environ | {"PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        written.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert len(written[0]) == 3
    assert all(written[0].values())
    assert written[0] == written[1]


def test_law_4_another_seed_and_another_replication_are_others(scenario: Scenario) -> None:
    first = _arrivals(scenario, 0)
    assert first == _arrivals(scenario, 0)
    assert first != _arrivals(scenario, 1)
    assert first != _arrivals(scenario.changed(seed=6), 0)


def test_law_4_a_new_router_leaves_the_arrivals_untouched(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever policies a scenario names, and however much they draw: ids, times, prompts and answers stay."""
    seen: dict[str, list[Any]] = {}
    serve = experiment._simulate

    def watched(config: Any, profile: Any, routers: Any, requests: Any, *rest: Any, **streams: int) -> int:
        log = seen.setdefault(repr(routers[0].params) + type(routers[0]).__name__, [])

        def noted() -> Any:
            for one in requests:
                log.append(_described(one))
                yield one

        return serve(config, profile, routers, noted(), *rest, **streams)

    monkeypatch.setattr(experiment, "_simulate", watched)
    for spec in scenario.routing:
        experiment.run(scenario, router=spec, replication=1)
    assert len(seen) == len(scenario.routing)
    logs = list(seen.values())
    assert len(logs[0]) > 120
    assert all(log == logs[0] for log in logs)


def test_law_4_other_policies_in_the_list_change_no_policys_choices(scenario: Scenario) -> None:
    """Each policy draws from its own copy of the router's stream."""
    spec = scenario.routing[1]
    alone = parse(SCENARIO.replace("[random, power_of_two, dynamo,", "[power_of_two,"))
    assert alone.routing[0] == spec
    together, apart = (experiment.run(one, router=spec, replication=0).requests for one in (scenario, alone))
    assert together["instance"].nunique() == 3
    assert together.equals(apart)


@pytest.mark.parametrize("first", [True, False])
def test_law_4_a_new_tenant_leaves_the_draws_of_others_untouched(scenario: Scenario, first: bool) -> None:
    both = (scenario, one_tenant_more(first=first))
    before, after = ({name: _of(one, name) for name in ("chat", "batch")} for one in both)
    assert len(before["chat"]) == 120
    assert len(before["batch"]) > 10
    assert before == after
    assert len(_of(one_tenant_more(first=first), "added")) == 50


def _arrivals(scenario: Scenario, replication: int) -> list[tuple]:
    return [_described(one) for one in open_workload(scenario.workload, scenario.seed, replication)]


def _described(one: Request) -> tuple:
    return (
        one.request_id, one.arrival_s, one.prompt, one.num_prompt_tokens, one.max_tokens, one.oracle_num_output_tokens,
        one.tenant, one.session, one.priority, one.cache_salt,
    )  # fmt: skip


def _of(scenario: Scenario, name: str) -> list[tuple]:
    """What a tenant draws. Its segments are numbered by its place, so that they are told by order of appearance."""
    workload = open_workload(scenario.workload, scenario.seed, 0)
    texts: dict[int | None, int | None] = {None: None}
    found = []
    for one in workload:
        if workload.tenants[one.tenant] == name:
            prompt = tuple((texts.setdefault(run[0], len(texts)), *run[1:]) for run in one.prompt)
            found.append((one.arrival_s, prompt, one.num_prompt_tokens, one.max_tokens, one.oracle_num_output_tokens))
    return found
