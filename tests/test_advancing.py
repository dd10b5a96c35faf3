"""Law 7: advancing equals stepping, to the bit, in every record.

Three runs of each case: advancing; stepping with decodes moved as a group; and stepping with every request visited in
every step, which is the plain reference. KVCAST_EXAMPLES=10000 makes the first test a hunt of its own.
"""

from __future__ import annotations

import os
from collections import Counter
from random import Random
from typing import Any

import pytest
from cluster_cases import MODES, Case, Seen, check, serve
from drawn_clusters import cases
from hypothesis import HealthCheck, given, settings

DYADIC = ("linear", {"step_s": 0.25})


def test_law_7_advancing_equals_stepping() -> None:
    """Over drawn engines, workloads, step times and routers; and the draws do reach what they are for."""
    met: Counter[str] = Counter()

    @settings(
        max_examples=int(os.environ.get("KVCAST_EXAMPLES", "250")), deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(cases() | cases(pressed=True))
    def hold(case: Case) -> None:
        seen = check(case)
        advances = seen["advancing"].advances
        mine = case.engine
        met["stretches"] += sum(one.num_steps > 1 for one in advances)
        met["asynchronous stretches"] += sum(one.num_steps > 1 for one in advances if mine["async_scheduling"])
        met["preemptions"] += seen["plain"].num_preemptions
        met["asynchronous preemptions"] += seen["plain"].num_preemptions if mine["async_scheduling"] else 0
        met["preemptions by priority"] += seen["plain"].num_preemptions if mine["policy"] == "priority" else 0
        met["hits"] += sum(seen["plain"].metrics.prefix_hits)
        met["events"] += len(seen["advancing"].events)
        met["settled in between"] += _num_between(seen["advancing"])

    hold()
    assert len(met) == 8
    assert min(met.values()) > 5, met


def _num_between(seen: Seen) -> int:
    """Event batches dated within an advance."""
    spans: dict[int, list[tuple[float, float]]] = {}
    for one in seen.advances:
        if one.num_steps > 1:
            spans.setdefault(one.instance, []).append((one.start_s, one.end_s))
    return sum(any(start < time_s < end for start, end in spans.get(number, ())) for time_s, number, _ in seen.events)


def asks(number: int, arrival_s: float, num_prompt_tokens: int, num_outputs: int, **changes: Any) -> dict[str, Any]:
    return {
        "request_id": number, "arrival_s": arrival_s, "prompt": ((None, 0, num_prompt_tokens),),
        "num_prompt_tokens": num_prompt_tokens, "max_tokens": num_outputs, "oracle_num_output_tokens": num_outputs,
        "output_segment": 1000 + number,
    } | changes  # fmt: skip


def small(
    *requests: dict[str, Any],
    watch: bool = False,
    num_instances: int = 1,
    times: Any = DYADIC,
    routing: Any = "round_robin",
    **engine: Any,
) -> Case:
    """Blocks of 2, a pool that holds one request of the greatest length, a step of a quarter second."""
    return Case(
        engine={"block_size": 2, "max_model_len": 24, "num_gpu_blocks": 13, "dialect": "vllm-0.23"} | engine,
        formula=times[0], coefficients=times[1], overhead=(0.0, 0.0), routing=routing, watch=watch,
        num_instances=num_instances, requests=requests,
    )  # fmt: skip


def test_law_7_a_block_filled_by_the_first_step_of_a_stretch_is_announced_with_that_step() -> None:
    """Block of 2: the first answer token fills it in the step from 0.25 to 0.5; the stretch goes on to 0.75."""
    seen = check(small(asks(0, 0.0, 1, 3, prompt=((7, 0, 1),)), watch=True))
    assert [time_s for time_s, _, _ in seen["advancing"].events] == [0.5]


def test_law_7_an_arrival_at_the_end_of_a_step_does_not_let_its_stretch_skip_a_schedule() -> None:
    """Events of a step that ends as the request arrives have not left when the router is asked: arrivals are first."""
    few = [asks(0, 0.0, 1, 1), asks(1, 0.0, 1, 3), asks(2, 0.0, 1, 1), asks(3, 0.5, 1, 1)]
    check(small(*few, watch=True, num_instances=2))
    many = [asks(number, 0.25 * number, 3, 1 + 19 * (number % 3 == 0)) for number in range(40)]
    for routing in ({"policy": "longest_prefix", "index": "events"}, "dynamo"):
        check(small(*many, routing=routing, num_instances=2, num_gpu_blocks=60))


def test_law_7_the_gap_of_a_preempted_answer_is_the_same_however_its_request_moved() -> None:
    """Its last token before the preemption may still be on its way then (asynchronous)."""
    few = [asks(0, 0.0, 1, 23), asks(1, 0.0, 1, 1), asks(2, 0.0, 1, 1), asks(3, 0.0, 1, 1), asks(4, 0.0, 1, 23)]
    seen = check(small(
        *few, num_gpu_blocks=14, max_num_batched_tokens=2, max_num_seqs=2, async_scheduling=True,
        scheduler_reserve_full_isl=False,
    ))  # fmt: skip
    assert seen["plain"].num_preemptions


@pytest.mark.parametrize("dialect", ["vllm-0.23", "vllm-0.32"])
def test_law_7_an_answer_that_grows_may_let_in_the_request_that_waits_with_it_as_its_prompt(dialect: str) -> None:
    """Six usable blocks of 8. Request 2 asks for 29 tokens, four blocks; it waits, two of them being cached, until
    request 0's answer fills a third, in the step from 2.0: then one is enough. A stretch must not run over that moment.
    """
    seen = check(small(
        asks(0, 0.0, 16, 13, prompt=((7, 0, 16),)), asks(1, 0.1, 9, 20),
        asks(2, 1.6, 29, 2, prompt=((7, 0, 16), (1000, 0, 11), (None, 0, 2))),
        dialect=dialect, block_size=8, max_model_len=48, num_gpu_blocks=7,
    ))  # fmt: skip
    waiting = seen["plain"].requests[2]
    assert (waiting.first_scheduled_s, waiting.num_preemptions) == (2.0, 1)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("dialect", ["vllm-0.23", "vllm-0.32"])
@pytest.mark.parametrize(
    "routing",
    ["round_robin", {"policy": "dynamo", "event_delay": 0.03}, {"policy": "longest_prefix", "index": "events"}],
    ids=["round_robin", "dynamo", "longest_prefix"],
)
def test_law_7_on_longer_runs(routing: Any, dialect: str, asynchronous: bool) -> None:
    """A few hundred requests with long answers: shared beginnings, memory pressure, arrivals both tied and not."""
    rng = Random(7)
    now_s, found = 0.0, []
    for number in range(150):
        now_s += rng.choice([0.0, 0.25, 0.5, rng.expovariate(2)])
        own, answer = rng.randint(1, 60), rng.randint(1, 120)
        prompt = ((rng.randrange(5), 0, rng.randint(1, 70)), (100 + number, 0, own))
        found.append(asks(number, now_s, prompt[0][2] + own, answer, prompt=prompt, max_tokens=120))
    seen = check(small(
        *found, routing=routing, dialect=dialect, async_scheduling=asynchronous, num_instances=3, block_size=8,
        max_model_len=256, num_gpu_blocks=90, max_num_batched_tokens=64, max_num_seqs=16,
    ))  # fmt: skip
    assert seen["plain"].num_preemptions > 10
    assert len(seen["advancing"].advances) < 0.7 * len(seen["plain"].advances)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_the_timeline_counts_who_runs_and_who_waits_as_long_as_they_do(mode: dict[str, bool]) -> None:
    """However steps are taken together, means over time are those of the requests' own times: the running ones exactly,
    the waiting ones within the step in which they came. Blocks are between those of prompts and of whole requests.
    """
    rng = Random(1)
    now_s, found = 0.0, []
    for number in range(60):
        now_s += rng.expovariate(0.5)
        found.append(asks(number, now_s, 8, rng.randint(20, 200)))
    times = ("linear", {"step_s": 0.01})
    case = small(*found, block_size=8, max_model_len=256, num_gpu_blocks=2000, times=times, max_num_seqs=64)
    seen = serve(case, **mode)
    timeline = seen.metrics.timeline()

    def total(column: str) -> float:
        return (timeline[column] * timeline["width_s"]).sum()

    served_s = [one.finish_s - one.first_scheduled_s for one in seen.requests]
    waited_s = sum(one.first_scheduled_s - one.queued_s for one in seen.requests)
    assert total("mean_running") == pytest.approx(sum(served_s), rel=1e-6)
    assert total("mean_waiting") == pytest.approx(waited_s, abs=0.01 * len(found))
    most = [-(-(one.num_prompt_tokens + one.num_output_tokens) // 8) for one in seen.requests]
    whole = sum(time_s * blocks for time_s, blocks in zip(served_s, most, strict=True))
    assert sum(served_s) <= total("mean_used_blocks") <= whole
    assert seen.metrics.max_used_blocks[0] >= max(most) - 1


def test_law_7_most_blocks_in_use() -> None:
    """Blocks are returned at an answer's end: what it held until then is what was in use, for one request exactly."""
    seen = check(small(asks(0, 0.0, 3, 20)))
    found = {name: run.metrics.max_used_blocks for name, run in seen.items()}
    assert found == {name: [11] for name in MODES}  # 3 + 19 computed tokens in blocks of 2
