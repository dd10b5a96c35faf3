"""Running policies and replications: what they share, and that processes change nothing.

The cluster is replaced by a function that serves every request in a drawn time: what is tested is around it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from simulator import experiment
from simulator.errors import InputError
from simulator.metrics import Metrics
from simulator.request import Request
from simulator.scenario import Scenario, parse

SCENARIO = """
name: small
question: Which is better?
seed: 5
engine:
  dialect: vllm-0.32
  async_scheduling: false
  max_model_len: 4096
  num_gpu_blocks_override: 1001
  max_num_batched_tokens: 2048
  max_num_seqs: 16
  disable_log_stats: true
profile: linear-8ms-50us
cluster: {instances: 2}
workload:
  tenants:
    - name: chat
      synthetic:
        num_requests: 40
        arrivals: {process: poisson, rate_per_s: 5}
        suffix_tokens: 100
        output_tokens: {distribution: geometric, mean: 20}
routing: [round_robin, random]
replications: 2
"""


@pytest.fixture
def scenario() -> Scenario:
    return parse(SCENARIO)


def serve(
    config: Any, profile: Any, routers: Any, requests: Iterable[Request], num_instances: int, metrics: Metrics,
    **streams: int,
) -> int:  # fmt: skip
    """Every request takes as long as it is long, and as the router's stream says."""
    for request in requests:
        request.state, request.instance = "finished", routers[0].rng.randrange(num_instances)
        request.queued_s = request.first_scheduled_s = request.arrival_s
        request.first_token_s = request.arrival_s + 0.1 * (1 + routers[0].rng.random())
        request.num_output_tokens = request.oracle_num_output_tokens
        request.finish_s = request.first_token_s + 0.01 * request.num_output_tokens
        metrics.request(request)
    return metrics.num_requests


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiment, "_simulate", serve)


@pytest.mark.usefixtures("served")
def test_policies_of_one_replication_serve_the_same_requests(scenario: Scenario) -> None:
    described = ["request_id", "arrival_s", "num_prompt_tokens", "num_output_tokens", "tenant"]
    comparison = experiment.compare(scenario, jobs=1)
    first, again, other, _ = (run.requests[described] for run in comparison.results)
    assert [(run.policy, run.replication) for run in comparison.results] == [
        ("round_robin", 0), ("round_robin", 1), ("random", 0), ("random", 1),
    ]  # fmt: skip
    assert first.equals(other)
    assert not first.equals(again)


@pytest.mark.usefixtures("served")
def test_the_same_seed_gives_the_same_numbers_and_another_seed_others(scenario: Scenario) -> None:
    once, twice = (experiment.compare(scenario, jobs=1).to_json() for _ in range(2))
    assert once == twice
    other = experiment.compare(scenario.changed(seed=6), jobs=1)
    assert other.to_json()["runs"] != once["runs"]


@pytest.mark.usefixtures("served")
def test_a_run_alone_is_the_run_of_the_comparison(scenario: Scenario) -> None:
    alone = experiment.run(scenario, router="random", replication=1)
    together = experiment.compare(scenario, jobs=1).results[3]
    assert alone.requests.equals(together.requests)
    assert alone.num_blocks == 1000  # the null block is not one that can be held


@pytest.mark.usefixtures("served")
def test_limit_cuts_every_tenant(scenario: Scenario) -> None:
    assert len(experiment.run(scenario, router="random", replication=0, limit=7).requests) == 7


@pytest.mark.usefixtures("served")
def test_an_unknown_policy_is_one_line(scenario: Scenario) -> None:
    with pytest.raises(InputError, match="no policy 'randon' \\(did you mean 'random'"):
        experiment.run(scenario, router="randon", replication=0)


def test_a_request_that_never_ends_is_an_error(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose_one(config: Any, profile: Any, routers: Any, requests: Any, num: int, metrics: Metrics, **_: int) -> int:
        served = iter(requests)
        next(served)
        return 1 + serve(config, profile, routers, served, num, metrics)

    monkeypatch.setattr(experiment, "_simulate", lose_one)
    with pytest.raises(RuntimeError, match="40 requests arrived and 39 ended"):
        experiment.run(scenario, router="random", replication=0)


def test_the_provenance_says_what_the_numbers_rest_on(scenario: Scenario) -> None:
    found = experiment.describe(scenario)
    assert (found.name, found.seed, found.digest) == ("small", 5, scenario.digest)
    assert found.profile["name"] == "linear-8ms-50us"
    assert scenario.device_profile.identity.device in found.profile["identity"]
    assert found.workload == "every request drawn anew (seeded)"
    assert found.ignored_arguments == {"disable_log_stats": True}
    assert {"python", "simpy", "numpy"} <= found.versions.keys()


def test_outcomes_come_in_the_order_of_their_tasks_whatever_the_number_of_processes() -> None:
    def slower_first(task: int) -> tuple[int, bool]:
        time.sleep(0.3 if task == 0 else 0.0)
        return task * task, os.getpid() == parent

    parent = os.getpid()
    alone = experiment.run_all(slower_first, range(6), jobs=1)
    together = experiment.run_all(slower_first, range(6), jobs=2)
    assert [value for value, _ in alone] == [value for value, _ in together] == [0, 1, 4, 9, 16, 25]
    assert all(here for _, here in alone)
    assert not any(here for _, here in together)


def test_progress_is_told_once_a_run() -> None:
    done = []
    experiment.run_all(abs, [-1, -2, -3], jobs=1, progress=lambda: done.append(1))
    assert len(done) == 3


def test_bad_input_found_by_a_process_keeps_its_message() -> None:
    def complain(task: int) -> int:
        raise InputError(f"trace.jsonl:{task}: not JSON")

    with pytest.raises(InputError, match="^trace.jsonl:3: not JSON$"):
        experiment.run_all(complain, [3, 3], jobs=2)


def test_processes_change_nothing_in_a_comparison(scenario: Scenario) -> None:
    pytest.importorskip("simulator.cluster")
    alone, together = (experiment.compare(scenario, jobs=jobs) for jobs in (1, 2))
    assert alone.to_json() == together.to_json()
    for one, other in zip(alone.results, together.results, strict=True):
        assert one.requests.equals(other.requests)


SLEEPER = """
import os, sys, time
from pathlib import Path
from simulator.experiment import run_all

def sleep(task):
    Path(sys.argv[1], str(os.getpid())).touch()
    time.sleep(60)

try:
    run_all(sleep, range(4), jobs=2)
except KeyboardInterrupt:
    sys.exit(130)
"""


def is_running(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks /proc whether a process still runs")
@pytest.mark.parametrize("tell", [os.killpg, os.kill], ids=["all processes, as Ctrl-C does", "the parent alone"])
def test_an_interrupt_stops_every_process_without_noise(tell: Callable[[int, int], None], tmp_path: Path) -> None:
    script, started = tmp_path / "sleeper.py", tmp_path / "started"
    script.write_text(SLEEPER)
    started.mkdir()
    root = str(Path(experiment.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, str(script), str(started)],
        env={**os.environ, "PYTHONPATH": root},
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline_s = time.monotonic() + 60
    while len(list(started.iterdir())) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    workers = [int(path.name) for path in started.iterdir()]
    assert len(workers) == 2
    tell(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in errors
    deadline_s = time.monotonic() + 5
    while any(map(is_running, workers)) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not any(map(is_running, workers))
