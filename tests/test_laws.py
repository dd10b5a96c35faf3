"""The laws of the design, each under its number; law 7 is in test_advancing, law 10 in test_queueing.

Law 4 has more in test_determinism, law 8 more in test_routing (policies, which this file leaves alone).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

from cluster_cases import MODES, Case, Seen, decisions, holders, intervals, record, serve
from drawn_clusters import cases
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simulator.plan import Plan
from simulator.prefix import PRIVATE
from simulator.scheduler import Scheduler

# Derandomised: the same examples everywhere, so that a red test is red for everyone.
few = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
modes = st.sampled_from(list(MODES.values()))


@few
@given(cases() | cases(pressed=True), modes)
def test_law_1_every_request_ends_in_exactly_one_state_and_the_counts_add_up(case: Case, mode: dict[str, bool]) -> None:
    seen = serve(case, **mode)
    limit = case.engine["max_model_len"]
    assert Counter(one.request_id for one in seen.ended) == Counter(range(len(case.requests)))
    for one in seen.requests:
        too_long = one.num_prompt_tokens + one.max_tokens > limit
        mood = case.routing == "moody" and one.request_id % 7 == 6
        may_refuse = any(word in str(case.routing) for word in ("_slo", "shed_from_priority"))
        if too_long or mood or (may_refuse and one.state == "refused"):
            assert (one.state, one.instance, one.num_output_tokens) == ("refused", None, 0)
            assert one.refusal
        else:
            assert (one.state, one.refusal) == ("finished", None)
            assert one.num_output_tokens == min(one.oracle_num_output_tokens, one.max_tokens)
    _check_tokens(case, seen)


def _check_tokens(case: Case, seen: Seen) -> None:
    """Every token of prompt and answer but the last is computed once or found, unless a preemption makes it twice."""
    computed = sum(one.num_steps * one.num_tokens for one in seen.advances)
    finished = [one for one in seen.requests if one.state == "finished"]
    wanted = sum(one.num_prompt_tokens + one.num_output_tokens - 1 for one in finished)
    found = sum(seen.metrics.prefix_hits) + sum(seen.metrics.preempted_hits)
    early = sum(one.num_output_tokens < one.max_tokens for one in finished)
    # Output that returns late: one more step is on its way when an answer ends early.
    wasted = early if case.engine["async_scheduling"] else 0
    if seen.num_preemptions:
        assert computed + found >= wanted
    else:
        assert wanted <= computed + found <= wanted + wasted
    assert sum(seen.metrics.prefix_queries) == sum(one.num_prompt_tokens for one in finished)


@few
@given(cases() | cases(pressed=True), modes)
def test_law_2_free_plus_held_equal_the_pool_and_reference_counts_equal_holders(
    case: Case, mode: dict[str, bool]
) -> None:
    seen: list[Any] = []

    def check(number: int, scheduler: Scheduler, what: str, value: Any) -> None:
        pool = scheduler.pool
        held = holders(scheduler.running)
        free = list(pool.free)
        assert len(free) == len(set(free)) == pool.num_free
        assert not held.keys() & set(free)
        assert held.keys() | set(free) == set(range(1, pool.num_blocks))
        assert {block: count for block, count in enumerate(pool.ref_cnt) if count} == held
        for key, block in pool.cached.items():
            assert pool.key[block] == key
        # What no other request can look up need not be findable, before its own has lost it and returns.
        shareable = {key for key in pool.key if key is not None and key < PRIVATE}
        assert shareable == {key for key in pool.cached if key < PRIVATE}
        assert not any(one.blocks for one in [*scheduler.waiting, *scheduler.skipped])
        seen.append(what)

    run = serve(case, check, **mode)
    assert seen or all(one.state == "refused" for one in run.requests)
    for instance in run.cluster.instances:
        assert instance.scheduler.pool.num_free == instance.scheduler.pool.num_blocks - 1
        assert not instance.scheduler.has_work()


@few
@given(cases() | cases(pressed=True), modes)
def test_law_3_times_come_in_order_and_the_clock_never_goes_back(case: Case, mode: dict[str, bool]) -> None:
    ticks: list[float] = []
    clocks: list[Any] = []
    tick: Any = lambda *_: ticks.append(clocks[0].now)  # noqa: E731
    seen = serve(case, tick, lambda cluster: clocks.append(cluster.clock), **mode)
    assert all(before <= after for before, after in pairwise(ticks))
    for one in seen.requests:
        if one.state == "finished":
            times = [one.arrival_s, one.queued_s, one.first_scheduled_s, one.first_token_s, one.finish_s]
            assert None not in times
            assert times == sorted(times)
            assert (one.num_output_tokens == 1) == (one.first_token_s == one.finish_s)
    for number in range(case.num_instances):
        mine = [one for one in seen.advances if one.instance == number]
        assert all(one.start_s <= one.end_s for one in mine)
        assert all(before.end_s <= after.start_s for before, after in pairwise(mine))


@few
@given(cases() | cases(pressed=True), modes)
def test_law_4_same_scenario_and_seed_same_records(case: Case, mode: dict[str, bool]) -> None:
    once, twice = serve(case, **mode), serve(case, **mode)
    assert record(once) == record(twice)
    assert [one.request_id for one in once.ended] == [one.request_id for one in twice.ended]


@few
@given(cases() | cases(pressed=True), modes)
def test_law_5_an_instance_with_work_it_may_run_is_never_idle(case: Case, mode: dict[str, bool]) -> None:
    seen = serve(case, **mode)
    for number in range(case.num_instances):
        mine = [one for one in seen.requests if one.instance == number]
        busy = intervals((one.start_s, one.end_s) for one in seen.advances if one.instance == number)
        present = intervals((one.queued_s, one.finish_s) for one in mine)
        for start_s, end_s in present:
            assert any(begin_s <= start_s and end_s <= stop_s for begin_s, stop_s in busy)
        assert all(one.num_tokens for one in seen.advances)
        if not case.engine["async_scheduling"]:  # there, a step may be on its way when its only answer ends
            assert busy == present


@few
@given(cases() | cases(pressed=True), modes)
def test_law_5_a_request_for_which_there_is_room_waits_for_the_step_in_progress_at_most(
    case: Case, mode: dict[str, bool]
) -> None:
    blocks = 20 * -(-case.engine["max_model_len"] // case.engine["block_size"])
    roomy = case.changed(
        num_gpu_blocks=blocks, max_num_seqs=20, max_num_active_seqs=20, long_prefill_token_threshold=0, watermark=0.0,
        max_num_batched_tokens=20 * case.engine["max_model_len"],
    )  # fmt: skip
    longest_s = max((one.end_s - one.start_s for one in serve(roomy, **MODES["plain"]).advances), default=0.0)
    for one in serve(roomy, **mode).requests:
        if one.state == "finished":
            assert one.first_scheduled_s - one.queued_s <= longest_s * (1 + 1e-9)


@few
@given(cases() | cases(pressed=True), modes)
def test_law_6_a_hit_is_never_longer_than_what_the_pool_holds_nor_than_the_known_tokens_minus_one(
    case: Case, mode: dict[str, bool]
) -> None:
    before: dict[int, set[int]] = {}
    size = case.engine["block_size"]

    def check(number: int, scheduler: Scheduler, what: str, value: Any) -> None:
        if what == "before":
            before[number] = {key for key in scheduler.pool.key if key is not None}
        elif what == "plan":
            _check_hits(scheduler, value, before[number], size)

    seen = serve(case, check, **mode)
    for one in seen.requests:
        assert one.num_cached_tokens % size == 0
        assert one.num_cached_tokens < one.num_prompt_tokens + one.num_output_tokens or one.state == "refused"
        if one.skip_reading_prefix_cache or not case.engine["enable_prefix_caching"]:
            assert one.num_cached_tokens == 0


def _check_hits(scheduler: Scheduler, plan: Plan, held: set[int], size: int) -> None:
    rows = scheduler.scheduled(plan)
    for request, hit in plan.admitted:
        # A block is findable from the schedule on that computes its last token, also to those admitted after it.
        earlier = [one for one, _, _ in rows if one.seq < request.seq]
        fresh = {key for one in earlier for key in one.block_keys[: one.num_published]}
        keys = request.block_keys[: hit // size]
        assert len(keys) == hit // size
        assert set(keys) <= held | fresh
        assert hit < request.num_prompt_tokens + request.num_output_tokens
        assert [scheduler.pool.key[block] for block in request.blocks[: len(keys)]] == keys


@few
@given(cases() | cases(pressed=True), st.booleans(), st.data())
def test_law_8_no_decision_depends_on_how_long_an_answer_will_be(
    case: Case, grouping: bool, data: st.DataObject
) -> None:
    """Two runs whose answers end at other times decide alike until the first answer that differs has ended.

    Only where answers end by themselves: that the last token which ``max_tokens`` allows comes next, the engine knows.
    """
    rows = [one | {"max_tokens": max(2, one["max_tokens"])} for one in case.requests]
    limit = case.engine["max_model_len"]
    first, second = (_ending_early(rows, limit, data) for _ in range(2))
    ends = []
    logs = []
    for requests in (first, second):
        changed = replace(case, requests=tuple(requests))
        seen = serve(changed, advancing=False, grouping=grouping)
        differing = [one for one, a, b in zip(seen.requests, first, second, strict=True) if a != b]
        ends.append(min((one.finish_s for one in differing if one.finish_s is not None), default=float("inf")))
        logs.append(decisions(changed, grouping=grouping))
    until_s = min(ends)
    one, other = ([row for row in log if row[0] < until_s] for log in logs)
    assert one == other


def _ending_early(rows: list[dict[str, Any]], limit: int, data: st.DataObject) -> list[dict[str, Any]]:
    found = []
    for row in rows:
        most = max(1, min(row["max_tokens"], limit - row["num_prompt_tokens"]) - 1)
        found.append(row | {"oracle_num_output_tokens": data.draw(st.integers(1, most))})
    return found


@few
@given(cases() | cases(pressed=True), modes, st.data())
def test_law_8_no_decision_depends_on_what_has_not_arrived(
    case: Case, mode: dict[str, bool], data: st.DataObject
) -> None:
    """Leaving out all requests from some time on leaves everything before that time as it was."""
    assume(len(case.requests) > 1)
    cut = data.draw(st.integers(1, len(case.requests) - 1))
    until_s = case.requests[cut]["arrival_s"]
    whole = serve(case, **mode)
    part = serve(replace(case, requests=case.requests[:cut]), **mode)
    assert _known_by(until_s, whole)[: 3 * cut] == _known_by(until_s, part)
    events = [sorted(event[:2] for event in run.events if event[0] < until_s) for run in (whole, part)]
    assert events[0] == events[1]


def _known_by(until_s: float, seen: Seen) -> list[float | None]:
    """First schedules, first tokens and ends before ``until_s``."""
    times = [(one.first_scheduled_s, one.first_token_s, one.finish_s) for one in seen.requests]
    return [time_s if time_s is not None and time_s < until_s else None for row in times for time_s in row]


@few
@given(cases() | cases(pressed=True), modes)
def test_law_9_without_repeats_and_preemptions_caching_changes_nothing(case: Case, mode: dict[str, bool]) -> None:
    fresh = tuple(
        one | {"prompt": ((None, 0, one["num_prompt_tokens"]),), "output_segment": None} for one in case.requests
    )
    roomy = 1 + 15 * -(-case.engine["max_model_len"] // case.engine["block_size"])
    case = replace(case, requests=fresh)
    for num_blocks in (case.engine["num_gpu_blocks"], roomy):
        on, off = (case.changed(num_gpu_blocks=num_blocks, enable_prefix_caching=caching) for caching in (True, False))
        seen = [serve(one, **mode) for one in (on, off)]
        if any(one.num_preemptions for one in seen):
            assert num_blocks != roomy
            continue
        assert seen[0].rows() == seen[1].rows()
        assert seen[0].advances == seen[1].advances
        assert decisions(on) == decisions(off)
