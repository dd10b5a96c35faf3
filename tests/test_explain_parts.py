"""Where the time to first token goes: hand-worked runs, and what must hold in every run."""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from cluster_cases import MODES, Case, Seen, serve
from drawn_clusters import cases
from hypothesis import HealthCheck, given, settings

from simulator.explain.journey import Journey, Span
from simulator.explain.parts import NAMES, OWN, STEP, settle
from simulator.explain.recorder import Recorder
from simulator.request import Request
from tests.test_instance import asks, tiny


def watched(case: Case, **mode: Any) -> tuple[Seen, Recorder]:
    """The run, and who looked on."""
    recorder = Recorder(case.num_instances)
    return serve(case, watcher=recorder, **mode), recorder


def parts(case: Case, **mode: bool) -> dict[int, dict[str, float]]:
    """By request, the parts that are not 0."""
    table = watched(case, **mode)[1].table()
    return {
        int(row["request_id"]): {name: row[name] for name in NAMES if row[name]} for row in table.to_dict("records")
    }


# --- laws -------------------------------------------------------------------------------------------------------------


def test_the_parts_sum_to_the_time_to_first_token_exactly_in_every_run() -> None:
    """On drawn engines, routers and workloads, however steps are taken: no part is negative, the exact sum is TTFT,
    those before and in the queue are what the request's own times say, and all ways of taking steps tell the same.
    """
    met: Counter[str] = Counter()

    @settings(
        max_examples=int(os.environ.get("KVCAST_EXAMPLES", "120")), deadline=None, derandomize=True, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(cases() | cases(pressed=True))
    def hold(case: Case) -> None:
        tables = {}
        for name, mode in MODES.items():
            seen, recorder = watched(case, **mode)
            table = tables[name] = recorder.table().set_index("request_id").sort_index()
            answered = {one.request_id: one for one in seen.requests if one.first_token_s is not None}
            assert set(table.index) == set(answered)
            for request_id, *found in table[list(NAMES)].itertuples():
                _check_parts(answered[request_id], found)
        for name, table in tables.items():
            assert table.equals(tables["plain"]), name
        for part in NAMES:
            met[part] += int((tables["plain"][part] > 0).sum())

    hold()
    # The others are rare: worked by hand below.
    assert {part for part in NAMES if met[part] < 5} <= {"queue_adapter_s", "copy_s", "router_s", "preempted_s"}, met


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("dialect", ["vllm-0.23", "vllm-0.32"])
def test_the_parts_sum_exactly_where_prompts_are_preempted(dialect: str, asynchronous: bool) -> None:
    """Prompts in chunks, in a pool that they outgrow, of requests that the router holds and copies blocks for."""
    rng = Random(3)
    now_s, few = 0.0, []
    for number in range(120):
        now_s += rng.choice([0.0, 0.25, rng.expovariate(1)])
        prompt = ((rng.randrange(4), 0, rng.randint(1, 60)), (100 + number, 0, rng.randint(1, 90)))
        few.append(asks(number, now_s, sum(run[2] for run in prompt), rng.randint(1, 40), prompt=prompt))
    case = replace(tiny(
        *few, dialect=dialect, async_scheduling=asynchronous, block_size=8, max_model_len=256, num_gpu_blocks=40,
        max_num_batched_tokens=32, max_num_seqs=8, scheduler_reserve_full_isl=False,
    ), routing="nosy", num_instances=2, coefficients={"step_s": 0.01, "prefill_token_s": 0.002})  # fmt: skip
    tables = []
    for mode in MODES.values():
        seen, recorder = watched(case, **mode)
        tables.append(recorder.table().set_index("request_id").sort_index())
        for one, (_, *found) in zip(seen.requests, tables[-1][list(NAMES)].itertuples(), strict=True):
            _check_parts(one, found)
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])
    for part in ("router_s", "copy_s", "queue_blocks_s", "preempted_s"):
        assert (tables[0][part] > 0).sum() > 5, part


@pytest.mark.parametrize("asynchronous", [False, True])
def test_who_has_hung_up_when_the_first_token_comes_has_no_parts(asynchronous: bool) -> None:
    """A prompt of 8 tokens takes a step of 3 s, and as all have their time-outs some clients go in the middle of it."""
    few = [asks(number, 0.7 * number, 8, 3, timeout_s=2 + number % 7) for number in range(40)]
    tables = []
    for mode in MODES.values():
        seen, recorder = watched(tiny(*few, async_scheduling=asynchronous), **mode)
        table = recorder.table().set_index("request_id").sort_index()
        answered = {one.request_id: one for one in seen.requests if one.first_token_s is not None}
        assert set(table.index) == set(answered)
        for request_id, *found in table[list(NAMES)].itertuples():
            _check_parts(answered[request_id], found)
        for one in seen.requests:
            if one.first_token_s is not None and one.hung_up_s is not None:
                assert one.first_token_s < one.hung_up_s
        unseen = [one for one in seen.requests if one.first_token_s is None and one.num_output_tokens]
        assert {one.state for one in unseen} == {"aborted"}
        tables.append(table)
    assert tables[0].equals(tables[1])
    assert tables[0].equals(tables[2])


def _check_parts(one: Request, found: list[float]) -> None:
    assert one.first_token_s is not None
    assert one.first_scheduled_s is not None
    assert one.queued_s is not None
    assert math.fsum(found) == one.first_token_s - one.arrival_s
    assert min(found) >= 0
    assert math.fsum(found[:STEP]) == pytest.approx(one.queued_s - one.arrival_s, abs=1e-9)
    assert math.fsum(found[STEP:OWN]) == pytest.approx(one.first_scheduled_s - one.queued_s, abs=1e-9)


def test_what_rounding_leaves_over_is_settled_where_it_fits() -> None:
    """Three parts of thirds and tenths, whose sum as floats is off by units in the last place."""
    for seconds, total_s in (((0.1, 0.2, 0.0), 0.3), ((1 / 3, 1e-17, 0.7), 1.0333333333333332), ((0.0, 0.0), 0.0)):
        found = settle(seconds, total_s)
        assert math.fsum(found) == total_s
        assert found == pytest.approx(seconds, abs=1e-15)


# --- hand-worked: a step takes 1 s and a quarter more a prefill token, 8 tokens a step, blocks of 4 -------------------


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_request_alone_has_overhead_and_its_own_prefill(mode: dict[str, bool]) -> None:
    """Twenty tokens at 8 a step: 3 + 3 + 2 s; half a second and a quarter a prompt token before."""
    case = tiny(asks(0, 1.0, 20, 2), overhead=(0.5, 0.25))
    assert parts(case, **mode) == {0: {"overhead_s": 5.5, "own_s": 8.0}}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_who_comes_during_a_step_waits_for_its_end_and_shares_the_next(mode: dict[str, bool]) -> None:
    """Request 0: 8 of its 10 tokens from 0 to 3; the last 2, alone 1.5 s, beside the 5 of request 1 (alone 2.25 s) from
    3 to 5.75. Request 1 came at 0.5.
    """
    assert parts(tiny(asks(0, 0.0, 10, 3), asks(1, 0.5, 5, 2)), **mode) == {
        0: {"own_s": 4.5, "shared_s": 1.25},
        1: {"queue_step_s": 2.5, "own_s": 2.25, "shared_s": 0.5},
    }


def test_a_long_prompt_in_front_uses_up_the_budget() -> None:
    """Twenty-four tokens in front: three whole steps of 3 s. Request 1 comes in the first, is passed over at 3 and 6,
    and has 4 tokens computed from 9 to 11, beside one decode.
    """
    assert parts(tiny(asks(0, 0.0, 24, 3), asks(1, 1.0, 4, 1))) == {
        0: {"own_s": 9.0},
        1: {"queue_step_s": 2.0, "queue_budget_s": 6.0, "own_s": 2.0},
    }


def test_all_places_are_taken() -> None:
    """One place: request 0 has its first token at 2, its last at 5. Request 1, there since 1, is passed over at 2."""
    found = parts(tiny(asks(0, 0.0, 4, 4), asks(1, 1.0, 4, 1), max_num_seqs=1))
    assert found[1] == {"queue_step_s": 1.0, "queue_seats_s": 3.0, "own_s": 2.0}


def test_no_blocks_are_free() -> None:
    """Four usable blocks: request 0 holds three from the beginning (10 + 2 tokens), request 1 wants two."""
    found = parts(tiny(asks(0, 0.0, 10, 2), asks(1, 1.0, 5, 1), num_gpu_blocks=5, max_model_len=16))
    assert found[0] == {"own_s": 4.5}
    assert found[1] == {"queue_step_s": 2.0, "queue_blocks_s": 2.5, "own_s": 2.25}


def test_no_place_for_its_adapter() -> None:
    """One adapter at a time: request 1 wants another than request 0, which ends at 3."""
    found = parts(tiny(asks(0, 0.0, 4, 2, lora="a"), asks(1, 0.5, 4, 1, lora="b"), max_loras=1))
    assert found[1] == {"queue_step_s": 1.5, "queue_adapter_s": 1.0, "own_s": 2.0}


def test_running_without_a_token_computed() -> None:
    """Asynchronous: the step that computes request 1 is scheduled at 3, and begins when the one before it has ended.

    Request 0: 4 tokens, then decodes. Request 1 is there at 2.5, scheduled at 3, computed from 4 to 6.
    """
    found = parts(tiny(asks(0, 0.0, 4, 30), asks(1, 2.5, 4, 2), async_scheduling=True))
    assert found[1] == {"queue_step_s": 0.5, "others_s": 1.0, "own_s": 2.0}


def test_a_preemption_counts_until_all_is_computed_again() -> None:
    """Four usable blocks, no cache, chunks of 4. Request 1 computes 4 + 4 tokens from 2 to 6, beside decodes. At 6 no
    block is left for its third chunk: it preempts itself, twice more until request 0 ends at 13, and has its first 8
    tokens again at 16. The other 6 take 2.5 s.
    """
    case = tiny(
        asks(0, 0.0, 4, 8), asks(1, 0.5, 14, 1),
        num_gpu_blocks=5, max_model_len=16, enable_prefix_caching=False, scheduler_reserve_full_isl=False,
        long_prefill_token_threshold=4,
    )  # fmt: skip
    assert parts(case)[1] == {"queue_step_s": 1.5, "own_s": 2.0 + 2.0 + 2.5, "preempted_s": 16.0 - 6.0}
    assert watched(case)[1].table()["num_preemptions"].tolist() == [0, 3]


def test_a_step_that_goes_beyond_what_was_lost_is_divided_by_tokens() -> None:
    """Preempted at 3 with 4 tokens; computed again from 5 with 4 new ones in 4 s, alone 2 s: half of it is a loss."""
    journey = Journey(0.0, 0.0, 0.0, 0)
    journey.admitted(0.0, 0.0, 0, 0.0, [0.0] * 4)
    journey.computes(Span(0.0, 2.0, 2.0, 0, 4))
    journey.preempted(3.0)
    journey.resumed(5.0, 0)
    journey.computes(Span(5.0, 9.0, 2.0, 0, 8))
    found = dict(zip(NAMES, journey.arrives(9.0, 9.0), strict=True))
    assert {name: seconds for name, seconds in found.items() if seconds} == {
        "own_s": 2.0 + 1.0, "shared_s": 1.0, "others_s": 1.0, "preempted_s": 2.0 + 2.0,
    }  # fmt: skip


def test_what_is_found_again_after_a_preemption_is_not_lost() -> None:
    """All 4 tokens are cached as it resumes at 5: from there on it waits as any running request does."""
    journey = Journey(0.0, 0.0, 0.0, 0)
    journey.admitted(0.0, 0.0, 0, 0.0, [0.0] * 4)
    journey.computes(Span(0.0, 2.0, 2.0, 0, 4))
    journey.preempted(3.0)
    journey.resumed(5.0, 4)
    journey.computes(Span(6.0, 7.0, 1.0, 4, 5))
    found = dict(zip(NAMES, journey.arrives(7.0, 7.0), strict=True))
    assert (found["preempted_s"], found["others_s"], found["own_s"]) == (2.0, 1.0 + 1.0, 3.0)


def test_a_step_on_its_way_at_a_preemption_counts_until_then() -> None:
    """Asynchronous: two of the step's 4 s are over, which would be 1 s of 2 alone; the rest is in vain."""
    journey = Journey(0.0, 0.0, 0.0, 0)
    journey.admitted(0.0, 0.0, 0, 0.0, [0.0] * 4)
    journey.computes(Span(0.0, 4.0, 2.0, 0, 4))
    journey.preempted(2.0)
    journey.resumed(3.0, 0)
    journey.computes(Span(3.0, 5.0, 2.0, 0, 4))
    found = dict(zip(NAMES, journey.arrives(5.0, 5.0), strict=True))
    assert (found["own_s"], found["shared_s"], found["preempted_s"]) == (1.0, 1.0, 3.0)


def test_the_router_holds_and_blocks_are_copied() -> None:
    """`Nosy` queues what comes while all instances have three requests, and copies blocks in 0.07 s."""
    prompt = ((7, 0, 40),)
    few = [asks(number, 4.0 * number, 40, 60, prompt=prompt) for number in range(8)]
    case = replace(tiny(*few, overhead=(0.25, 0.0)), routing="nosy", num_instances=2)
    seen, recorder = watched(case)
    table = recorder.table()
    assert set(table["copy_s"][table["copy_s"] > 0].round(9)) == {0.07}
    assert set(table["overhead_s"]) == {0.25}
    queued_s = {one.request_id: one.queued_s - one.arrival_s for one in seen.requests}
    before = table["router_s"] + table["overhead_s"] + table["copy_s"]
    assert before.tolist() == pytest.approx([queued_s[number] for number in table["request_id"]])
    assert (table["router_s"] > 0).sum() >= 2


def test_what_the_cache_saved_is_the_prefill_of_what_it_held() -> None:
    """Of 20 tokens 16 are found: 3 + 3 + 2 s become 2 s. Nothing is saved for who finds nothing."""
    prompt = ((7, 0, 20),)
    case = tiny(asks(0, 0.0, 20, 1, prompt=prompt), asks(1, 20.0, 20, 1, prompt=prompt))
    table = watched(case)[1].table()
    assert table["saved_s"].tolist() == [0.0, 6.0]
    assert table["own_s"].tolist() == [8.0, 2.0]


def test_recording_changes_nothing() -> None:
    few = (asks(number, 0.7 * number, 3 + number, 5) for number in range(9))
    case = tiny(*few, num_gpu_blocks=12, max_model_len=40)
    assert watched(case)[0].rows() == serve(case).rows()
