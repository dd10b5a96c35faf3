"""How fast the scheduler decides, printed by ``make bench``, beside vLLM's own if KVCAST_ENGINE_PYTHON names a Python
with vLLM. Nothing fails here for being slow.

A request-step is one request scheduled in one step. Of ours the CPU seconds of the whole play are counted, reception of
requests and the loop included (asking the CPU clock in every step would cost as much as a step); of vLLM only what the
harness counts, the seconds inside ``schedule`` and ``update_from_output``. KV events are off, vLLM's default. Each
number is that of the best of three runs, vLLM's of two.
"""

from __future__ import annotations

import gc
import os
import random
import time
from collections import Counter, deque
from functools import partial
from typing import Any

import pytest

from simulator.parity.cases import FAMILIES, FORMAT, Case, generate_case
from simulator.parity.engine import Engine
from simulator.parity.replay import Replay, engine_config, make_request
from simulator.parity.verify import dialect_of
from simulator.prefix import Prefixes
from simulator.scheduler import Scheduler

pytestmark = pytest.mark.benchmark

PYTHON = os.environ.get("KVCAST_ENGINE_PYTHON")
SEEDS = range(3)


class Stepping(Replay):
    """Plays a case step by step and keeps nothing but the time."""

    def __init__(self, case: Case, *, grouping: bool = True) -> None:
        super().__init__(case, grouping=grouping)
        self.scheduler = Scheduler(self.scheduler.config, self.scheduler.prefixes, grouping=grouping)

    def _schedule_record(self, plan: Any) -> dict:
        pieces = plan.pieces
        decoding = sum([piece.num_tokens for piece in pieces if piece.num_tokens == 1 or piece.num_drafts])
        self.num_request_steps += len(pieces) + plan.num_decodes - decoding  # the group's have no pieces
        return {}

    def _update_record(self, of: int, plan: Any) -> dict:
        self.tells_finished |= bool(self.scheduler.complete())
        return {}


class Advancing:
    """Plays a case without actions as the simulation does: as many steps at once as decide nothing."""

    def __init__(self, case: Case) -> None:
        config = engine_config(case)
        self.scheduler = Scheduler(config, Prefixes(config.block_size))
        self.arrivals = deque((row["step"], make_request(row)) for row in case["requests"])
        self.num_finished = 0

    def run(self) -> None:
        now, scheduler, arrivals, flights = 0, self.scheduler, self.arrivals, deque()
        while arrivals or flights or scheduler.has_work():
            if not flights and not scheduler.has_work():
                now = max(now, arrivals[0][0])
            while arrivals and arrivals[0][0] <= now:
                scheduler.add(arrivals.popleft()[1])
            while len(flights) < scheduler.depth and scheduler.has_work():
                flights.append(scheduler.schedule())
            num_steps = 1
            if len(flights) == 1 or flights[1].continues:
                num_steps = max(1, min(scheduler.max_steps(), arrivals[0][0] - now if arrivals else 1 << 62))
            self.num_finished += len(scheduler.complete(num_steps))
            flights.popleft()
            now += num_steps


def decode_heavy(seed: int, dialect: str, *, asynchronous: bool) -> Case:
    """Few arrivals, long answers: 128 requests, up to 64 at once, each decoding 500 to 3,000 tokens."""
    rng = random.Random(f"decode-heavy/{seed}")
    case = generate_case("basic", seed, dialect, "large")
    case["engine"] |= {
        "max_num_seqs": 64, "max_num_batched_tokens": 8192, "async_scheduling": asynchronous, "speculative": None,
    }  # fmt: skip
    rows = []
    for number in range(128):
        length = rng.randint(500, 3000)
        rows.append({
            "id": number, "step": 200 * (number // 8), "prompt": [[number, 0, rng.randint(50, 1000)]],
            "output_segment": None, "max_tokens": length, "num_output_tokens": length, "priority": 0,
            "arrival_time": float(number), "salt": None, "lora": None, "skip_reading_prefix_cache": False,
            "acceptance": None,
        })  # fmt: skip
    return case | {"format": FORMAT, "family": "decode-heavy", "requests": rows, "actions": []}


@pytest.fixture(scope="module")
def vllm():
    """vLLM's dialect and, for cases, its (seconds, request-steps) for each; None for both without an interpreter."""
    if not PYTHON:
        yield "0.32", None
        return
    with Engine(PYTHON) as engine:
        version = engine.version()
        print(f"\nvLLM {version}")
        yield dialect_of(version)[0], partial(time_vllm, engine)


def time_vllm(engine: Engine, cases: list[Case]) -> list[tuple[float, int]]:
    found = [answer["summary"] for answer in engine.play(cases * 2, "time-only")]
    pairs = zip(found[: len(cases)], found[len(cases) :], strict=True)
    return [(min(one["seconds"], other["seconds"]), one["num_request_steps"]) for one, other in pairs]


def time_ours(play: Any, case: Case) -> tuple[float, Any]:
    """The least CPU seconds of three runs of the case, and one run's end."""
    seconds = []
    for _ in range(3):
        played = play(case)
        gc.collect()
        began_s = time.process_time()
        played.run()
        seconds.append(time.process_time() - began_s)
    return min(seconds), played


def show(name: str, num_request_steps: int, ours_s: float, theirs_s: float | None) -> None:
    line = f"    {name:<24} {num_request_steps:>9,} request-steps  {num_request_steps / ours_s:>12,.0f}/s"
    if theirs_s:
        line += f"   vLLM {num_request_steps / theirs_s:>9,.0f}/s   {theirs_s / ours_s:6.1f} times"
    print(line)


def test_stepping(vllm) -> None:
    """Step by step, grouping where that is allowed, on the comparison's own large cases."""
    dialect, time_theirs = vllm
    cases = [generate_case(family, seed, dialect, "large") for family in FAMILIES for seed in SEEDS]
    theirs = time_theirs(cases) if time_theirs else [(0.0, None)] * len(cases)
    print("\nstepping: large cases of 500 requests")
    sums: dict[str, Counter] = {}
    for case, (theirs_s, expected) in zip(cases, theirs, strict=True):
        ours_s, ours = time_ours(Stepping, case)
        assert expected in (None, ours.num_request_steps)
        for name in (case["family"], "all"):
            sums.setdefault(name, Counter()).update(num=ours.num_request_steps, ours_s=ours_s, theirs_s=theirs_s)
    for name in (*FAMILIES, "all"):
        show(name, sums[name]["num"], sums[name]["ours_s"], sums[name]["theirs_s"])


@pytest.mark.parametrize("asynchronous", [False, True], ids=["synchronous", "asynchronous"])
def test_advancing(vllm, asynchronous: bool) -> None:
    """As many steps at once as decide nothing, on long answers with few arrivals."""
    dialect, time_theirs = vllm
    case = decode_heavy(0, dialect, asynchronous=asynchronous)
    ((theirs_s, expected),) = time_theirs([case]) if time_theirs else [(None, None)]
    (stepping_s, stepped), (advancing_s, advanced) = time_ours(Stepping, case), time_ours(Advancing, case)
    assert expected in (None, stepped.num_request_steps)
    assert advanced.num_finished == len(case["requests"])
    assert advanced.scheduler.completing <= stepped.scheduler.completing  # which also takes steps to tell who finished
    print(f"\nlong answers, {'asynchronous' if asynchronous else 'synchronous'}")
    show("stepping", stepped.num_request_steps, stepping_s, theirs_s)
    show("advancing", stepped.num_request_steps, advancing_s, theirs_s)
