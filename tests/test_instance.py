"""One serving instance on the clock: what happens when, literally."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_cases import MODES, Case, serve


def asks(number: int, arrival_s: float, num_prompt_tokens: int, num_outputs: int, **changes: Any) -> dict[str, Any]:
    return {
        "request_id": number, "arrival_s": arrival_s, "prompt": ((None, 0, num_prompt_tokens),),
        "num_prompt_tokens": num_prompt_tokens, "max_tokens": num_outputs, "oracle_num_output_tokens": num_outputs,
    } | changes  # fmt: skip


def tiny(*requests: dict[str, Any], overhead: tuple[float, float] = (0.0, 0.0), **engine: Any) -> Case:
    """One instance, a step of 1 s and a quarter more a prefill token; 8 tokens a step, blocks of 4."""
    return Case(
        engine={"max_num_batched_tokens": 8, "max_num_seqs": 4, "num_gpu_blocks": 51} | engine,
        formula="linear",
        coefficients={"step_s": 1.0, "prefill_token_s": 0.25},
        overhead=overhead,
        routing="round_robin",
        watch=False,
        num_instances=1,
        requests=requests,
    )


def log(case: Case, **mode: bool) -> list[tuple[float, str]]:
    """(time, what): plans as they are made, answers as they end; and first tokens in their place."""
    rows: list[tuple[float, str]] = []
    clusters: list[Any] = []

    def note(number: int, scheduler: Any, what: str, value: Any) -> None:
        now_s = clusters[0].clock.now
        if what == "plan":
            parts = (f"{one.request_id}:{tokens}" for one, tokens, _ in scheduler.scheduled(value))
            rows.append((now_s, "plan " + " ".join(parts)))
            rows.extend((now_s, f"preempted {one.request_id}") for one in value.preempted)
        elif what == "finished":
            rows.extend((now_s, f"finished {one.request_id}") for one in value)

    def started(cluster: Any) -> None:
        clusters.append(cluster)
        tell, hear = cluster.first_token, cluster.instances[0].submit

        def first_token(one: Any, now_s: float) -> None:
            rows.append((now_s, f"first token {one.request_id}"))
            tell(one, now_s)

        def submit(one: Any) -> None:
            rows.append((cluster.clock.now, f"queued {one.request_id}"))
            hear(one)

        cluster.first_token, cluster.instances[0].submit = first_token, submit

    serve(case, note, started, **mode)
    return rows


def test_the_whole_log_of_a_tiny_run() -> None:
    """Ten prompt tokens need two steps of at most 8; the second request shares the step in which the first goes on."""
    case = tiny(asks(0, 0.0, 10, 3), asks(1, 0.5, 5, 2))
    assert log(case, advancing=False) == [
        (0.0, "queued 0"),
        (0.0, "plan 0:8"),  # 1 + 8/4 s
        (0.5, "queued 1"),
        (3.0, "plan 0:2 1:5"),  # 1 + 7/4 s
        (5.75, "first token 0"),
        (5.75, "first token 1"),
        (5.75, "plan 0:1 1:1"),
        (6.75, "finished 1"),
        (6.75, "plan 0:1"),
        (7.75, "finished 0"),
    ]


def test_the_whole_log_of_a_preemption() -> None:
    """Four usable blocks of 4: when the first request needs a third block, the second, which has two, must go.

    It comes back when the first has ended, and computes its answer so far anew together with its prompt.
    """
    case = tiny(
        asks(0, 0.0, 4, 6), asks(1, 0.5, 4, 6),
        num_gpu_blocks=5, max_model_len=16, enable_prefix_caching=False, scheduler_reserve_full_isl=False,
    )  # fmt: skip
    assert log(case, advancing=False) == [
        (0.0, "queued 0"),
        (0.0, "plan 0:4"),
        (0.5, "queued 1"),
        (2.0, "first token 0"),
        (2.0, "plan 0:1 1:4"),
        (4.0, "first token 1"),
        (4.0, "plan 0:1 1:1"),
        (5.0, "plan 0:1 1:1"),
        (6.0, "plan 0:1 1:1"),
        (7.0, "plan 0:1"),
        (7.0, "preempted 1"),
        (8.0, "finished 0"),
        (8.0, "plan 1:8"),
        (11.0, "plan 1:1"),
        (12.0, "finished 1"),
    ]


def test_what_arrives_at_the_same_moment_is_seen_at_the_same_moment() -> None:
    """vLLM's engine empties its queue of arrivals before it schedules."""
    case = tiny(asks(0, 0.0, 4, 1), asks(1, 0.0, 4, 1))
    assert log(case, advancing=False)[:3] == [(0.0, "queued 0"), (0.0, "queued 1"), (0.0, "plan 0:4 1:4")]


def test_overhead_delays_and_does_not_occupy_the_device() -> None:
    """Half a second and a quarter a prompt token before the engine looks; meanwhile it serves another."""
    case = tiny(asks(0, 0.0, 4, 3), asks(1, 0.5, 4, 1), overhead=(0.5, 0.25))
    seen = serve(case)
    first, second = seen.requests
    assert (first.queued_s, first.first_scheduled_s, first.first_token_s) == (1.5, 1.5, 3.5)
    assert (second.queued_s, second.first_scheduled_s) == (2.0, 3.5)
    assert sum(seen.metrics.busy_s) == 2 + 2 + 1  # 1.5 s of waiting for the first request are nobody's
    assert [(one.start_s, one.end_s) for one in seen.advances] == [(1.5, 3.5), (3.5, 5.5), (5.5, 6.5)]


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_first_token_comes_out_of_the_step_that_computes_the_last_prompt_token(
    mode: dict[str, bool], asynchronous: bool
) -> None:
    """Twenty tokens at 8 a step: 3 + 3 + 2 s, and one answer token a second from there on."""
    one = serve(tiny(asks(0, 0.0, 20, 5), async_scheduling=asynchronous), **mode).requests[0]
    assert (one.first_token_s, one.finish_s) == (8.0, 12.0)


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize(
    ("asynchronous", "arrival_s", "scheduled_s", "first_token_s"),
    [
        (False, 10.5, 11.0, 13.0),  # waits for the step's end
        (True, 10.5, 11.0, 14.0),  # looked at then too, but the step from 11 to 12 was composed before
        (False, 11.0, 11.0, 13.0),  # a step's very end is in time
        (True, 11.0, 11.0, 14.0),
        (False, 11.25, 12.0, 14.0),
        (True, 11.25, 12.0, 15.0),
    ],
)
def test_a_request_that_comes_during_a_step(
    mode: dict[str, bool], asynchronous: bool, arrival_s: float, scheduled_s: float, first_token_s: float
) -> None:
    """It is considered when the step ends, and computed at once or, asynchronously, one step later."""
    case = tiny(asks(0, 0.0, 4, 30), asks(1, arrival_s, 4, 2), async_scheduling=asynchronous)
    one = serve(case, **mode).requests[1]
    assert (one.queued_s, one.first_scheduled_s, one.first_token_s) == (arrival_s, scheduled_s, first_token_s)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_stretch_is_one_advance(asynchronous: bool) -> None:
    """A lone answer of 101 tokens: a prefill, then one advance of 100 steps (one more where output returns late)."""
    seen = serve(tiny(asks(0, 0.0, 4, 101), max_model_len=200, async_scheduling=asynchronous))
    assert sum(one.num_steps for one in seen.advances) == 101
    assert len(seen.advances) == (3 if asynchronous else 2)
    assert seen.requests[0].finish_s == 102.0


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_a_step_in_which_all_must_go_is_followed_by_another(mode: dict[str, bool]) -> None:
    """Under the priority policy a request may be its own victim (of equals, the first in the list), and nothing is left
    of the step; the engine looks again. vLLM ``Scheduler.schedule``: its loop ends where a request preempted itself.
    """
    case = tiny(
        asks(0, 0.0, 2, 22), asks(1, 0.0, 1, 23),
        dialect="vllm-0.23", policy="priority", block_size=2, max_model_len=24, num_gpu_blocks=14, max_num_seqs=2,
        max_num_batched_tokens=2, scheduler_reserve_full_isl=False,
    )  # fmt: skip
    seen = serve(case, **mode)
    assert [(one.state, one.num_output_tokens) for one in seen.requests] == [("finished", 22), ("finished", 23)]
    assert seen.num_preemptions == 1


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("dialect", ["vllm-0.23", "vllm-0.32"])
def test_a_first_token_comes_though_its_request_was_preempted_on_the_way(dialect: str, mode: dict[str, bool]) -> None:
    """Three usable blocks. Both prompts are computed from 0 to 3; the step after it, composed at 0, has one block left
    for two requests, so that the second must go before its first token is there. It waits until the first has ended:
    8 tokens, at 3, 4, ..., 10.
    """
    case = tiny(
        asks(0, 0.0, 4, 8), asks(1, 0.0, 4, 2), dialect=dialect, async_scheduling=True, num_gpu_blocks=4,
        max_model_len=12, scheduler_reserve_full_isl=False, enable_prefix_caching=False,
    )  # fmt: skip
    seen = serve(case, **mode)
    second = seen.requests[1]
    assert (second.num_preemptions, second.first_token_s) == (1, 3.0)
    assert second.finish_s == 10.0 + 1.0 + 0.25 * 5
    gaps = seen.metrics.gaps
    assert (gaps.weight, gaps.total) == (8, 7 * 1.0 + (second.finish_s - 3.0))
