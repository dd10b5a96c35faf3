"""vLLM's balancer between data-parallel engines, least tokens, and vllm-ascend's proxy."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from routing_cases import fleet, request, router_and_view, send

from simulator.routing import Router, Send, View, make_routers, parse_routing
from simulator.routing.polled import PolledMetrics

PYTHON = os.environ.get("KVCAST_ENGINE_PYTHON")


class Engine:
    """An engine that reports what it is told to."""

    def __init__(self, waiting: int = 0, running: int = 0, usage: float = 0.0) -> None:
        self.now = waiting, running, usage

    def metrics_at(self, time_s: float) -> tuple[int, int, float]:
        return self.now


def clients(entry: Any, engines: list[Engine]) -> list[tuple[Router, View]]:
    routers = make_routers(parse_routing(entry), len(engines), random.Random(0))
    polled = PolledMetrics(engines, routers[0].poll_s, routers[0].poll_delay_s)
    views = [router.make_view(fleet(len(engines))) for router in routers]
    for view in views:
        view.polled = polled
    return list(zip(routers, views, strict=True))


def dispatch(router: Router, view: View, number: int, now_s: float) -> int:
    view.polled.refresh(now_s)
    return send(router, view, request(number, []), now_s)


def test_vllm_023_by_hand():
    """4 * waiting + running, and each choice counts as one waiting until the next report."""
    engines = [Engine(1, 2), Engine(0, 5), Engine(0, 7)]
    ((router, view),) = clients("vllm-dp-0.23", engines)
    # 6, 5, 7; then 6, 9, 7; 10, 9, 7; 10, 9, 11.
    assert [dispatch(router, view, number, 0.01) for number in range(4)] == [1, 0, 2, 1]
    engines[2].now = 0, 1, 0.0
    assert dispatch(router, view, 4, 0.1) == 2


def test_vllm_032_by_hand():
    """The greater of own in flight and what is reported; a queue before a full cache counts more."""
    engines = [Engine(2, 3, 0.5), Engine(2, 2, 0.75), Engine(0, 7, 1.0)]
    ((router, view),) = clients("vllm-dp", engines)
    # 5; 4 + 2 * 6 * 0.25 = 7; 7 without a queue. Then 6, 7, 7, then 7, 7, 7, from the third on.
    assert [dispatch(router, view, number, 0.01) for number in range(3)] == [0, 0, 2]


def test_equal_engines_are_taken_in_turn_since_the_start_rotates():
    """PR #47420: one request after the other, each over before the next, at reports that show nothing."""
    for entry, expected in (("vllm-dp", [0, 1, 2, 3, 0, 1]), ("vllm-dp-0.23", [0] * 6)):
        ((router, view),) = clients(entry, [Engine() for _ in range(4)])
        chosen = []
        for number in range(6):
            chosen.append(dispatch(router, view, number, float(number)))
            view.finished(request(number, []), number + 0.5)
        assert chosen == expected


def test_clients_start_apart_and_count_for_each_other():
    pairs = clients({"policy": "vllm-dp-0.23", "replicas": 2}, [Engine() for _ in range(4)])
    assert [dispatch(*pair, number, 0.01) for number, pair in enumerate(pairs)] == [0, 2]
    pairs = clients({"policy": "vllm-dp", "replicas": 3}, [Engine(0, 2), Engine(0, 3)])
    router, view = pairs[0]
    # 2 against 3, then 3 * 1 own (2 + 3 reported and raised: 5) against 3.
    assert [dispatch(router, view, number, 0.01) for number in range(2)] == [0, 1]
    assert router._waiting == [3, 3]


def test_a_report_takes_the_place_of_what_was_counted():
    ((router, view),) = clients("vllm-dp-0.23", [Engine(), Engine(0, 3)])
    assert [dispatch(router, view, number, 0.0) for number in range(2)] == [0, 1]
    assert dispatch(router, view, 2, 0.05) == 0
    assert dispatch(router, view, 3, 0.1) == 0


SCRIPT = """
import json, sys
from collections import Counter
from types import SimpleNamespace
import vllm
from vllm.v1.engine.core_client import DPLBAsyncMPClient
old = vllm.__version__.startswith("0.23")  # reports without the usage
found = []
for case in json.load(sys.stdin):
    client = object.__new__(DPLBAsyncMPClient)
    client.core_engines = [str(i) for i in range(case["engines"])]
    client.client_count, client.client_index = case["count"], case["index"]
    client.eng_start_index = case["engines"] * case["index"] // case["count"]
    client.reqs_in_flight, client.engine_inflight = {}, Counter()
    chosen = []
    for number, step in enumerate(case["steps"]):
        if step["report"]:
            client.lb_engines = [row[: 2 if old else 3] for row in step["report"]]
        for over in step["over"]:
            engine = client.reqs_in_flight.pop(str(over))
            client.engine_inflight[engine] -= 1
        asked = SimpleNamespace(request_id=str(number), data_parallel_rank=None, pooling_params=None)
        chosen.append(int(client.get_core_engine_for_request(asked)))
    found.append(chosen)
print(json.dumps([old, found]))
"""


def drawn() -> list[dict[str, Any]]:
    """Clients that see reports and ends between their choices."""
    rng, cases = random.Random(7), []
    for _ in range(60):
        engines, count = rng.randrange(2, 9), rng.randrange(1, 4)
        in_flight: list[int] = []
        steps = []
        for number in range(40):
            report = [
                [rng.choice([0, 0, 1, 5]), rng.randrange(4), rng.choice([0.0, 0.4, 0.5, 0.6, 0.9, 1.0])]
                for _ in range(engines)
            ]
            over = [one for one in in_flight if rng.random() < 0.2]
            in_flight = [one for one in in_flight if one not in over] + [number]
            steps.append({"report": report if number == 0 or rng.random() < 0.2 else None, "over": over})
        cases.append({"engines": engines, "count": count, "index": rng.randrange(count), "steps": steps})
    return cases


def ours(case: dict[str, Any], dialect: str) -> list[int]:
    engines = [Engine() for _ in range(case["engines"])]
    entry = {"policy": "vllm_dp", "dialect": dialect, "replicas": case["count"]}
    router, view = clients(entry, engines)[case["index"]]
    now_s, chosen = 0.0, []
    for number, step in enumerate(case["steps"]):
        if step["report"]:
            now_s += 1.0
            for engine, row in zip(engines, step["report"], strict=True):
                engine.now = tuple(row)
        for over in step["over"]:
            view.finished(request(over, []), now_s)
        chosen.append(dispatch(router, view, number, now_s))
    return chosen


@pytest.mark.skipif(not PYTHON, reason="KVCAST_ENGINE_PYTHON names no Python with vLLM (README, 'Decisions equal to')")
def test_choices_equal_those_of_the_installed_vllm(tmp_path: Path) -> None:
    cases = drawn()
    done = subprocess.run(
        [str(PYTHON), "-c", SCRIPT], input=json.dumps(cases), capture_output=True, text=True, check=True, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.environ.get("KVCAST_ENGINE_PYTHONPATH", "")},
    )  # fmt: skip
    old, theirs = json.loads(done.stdout.splitlines()[-1])
    dialects = ("vllm-0.23", "vllm-0.32") if old else ("vllm-0.32", "vllm-0.23")
    same, other = ([ours(case, dialect) for case in cases] for dialect in dialects)
    assert theirs == same
    assert theirs != other


# ---- own counts of tokens


def test_least_tokens_by_hand():
    router, view = router_and_view("least_tokens", 3)
    long, short, shorter = request(1, [1, 2, 3, 4]), request(2, [5, 6]), request(3, [7])
    assert [send(router, view, one) for one in (long, short, shorter)] == [0, 1, 2]
    assert send(router, view, request(4, [8])) == 2
    # 128 tokens by one request against 128 by two.
    assert send(router, view, request(5, [9])) == 1
    view.first_token(long, 1.0)
    assert send(router, view, request(6, [10])) == 2  # a first token ends nothing
    early, _ = router_and_view({"policy": "least_tokens", "until": "first_token"}, 3)
    assert early.choose(request(7, [11]), view, 1.0) == Send(0)


def test_ascend_proxy_by_hand():
    """Prefill work of 4,000 tokens: 0.0345 * 4,000 + 120.0745 = 258.0745; of two of 640: 284.309."""
    router, view = router_and_view("ascend_proxy", 2)
    long = request(1, [], 4000)
    view.dispatched(long, 0, 0.0)
    for number in (2, 3):
        view.dispatched(request(number, [], 640), 1, 0.0)
    assert router.choose(request(9, []), view, 0.0) == Send(0)
    decode, _ = router_and_view({"policy": "ascend_proxy", "role": "decode"}, 2)
    assert decode.choose(request(9, []), view, 0.0) == Send(1)
    view.first_token(request(2, [], 640), 1.0)
    assert router.choose(request(9, []), view, 1.0) == Send(1)
    assert decode.choose(request(9, []), view, 1.0) == Send(1)


def test_ascend_proxy_does_not_know_of_caches():
    for policy in ("ascend_proxy", "vllm_dp", "least_tokens"):
        router, _ = router_and_view(policy, 2)
        assert not router.needs_block_keys
