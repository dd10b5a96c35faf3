"""The scheduler against vLLM's own tests: order, budgets, limits, preemption, priorities, ends.

Names in docstrings are those of vLLM's ``tests/v1/core``. Each test holds whether decodes move as a group or singly.
"""

from __future__ import annotations

from functools import partial

import pytest
from engine import DIALECTS, V23, V32, Engine, ask, text

from simulator.request import ABORTED, FINISHED, WAITING

BOTH_DIALECTS = pytest.mark.parametrize("dialect", DIALECTS)


@pytest.fixture(params=[True, False], ids=["grouped", "one-by-one"])
def engine(request):
    return partial(Engine, grouping=request.param)


# --- budgets and order ------------------------------------------------------------------------------------------------


def test_all_prompts_that_fit_are_scheduled_in_order(engine):
    """``test_schedule``: ten prompts of ten tokens, all in the first step, in order of arrival."""
    e = engine(max_num_seqs=16, max_num_batched_tokens=8192, num_gpu_blocks=10_000)
    e.add(*(ask(number, 10, answer=16) for number in range(10)))
    assert list(e.step().scheduled.items()) == [(number, 10) for number in range(10)]
    assert (e.running(), e.waiting()) == (list(range(10)), [])


@pytest.mark.parametrize(("chunked", "scheduled"), [(True, {0: 800, 1: 224}), (False, {0: 800})])
def test_long_prompt_is_chunked_or_stops_the_pass(engine, chunked, scheduled):
    """``test_schedule_order``: without chunked prefill the second prompt waits, and nothing behind it is let past."""
    limits = {"max_num_batched_tokens": 1024, "max_num_seqs": 3, "max_model_len": 1024, "num_gpu_blocks": 1000}
    e = engine(enable_chunked_prefill=chunked, **limits)
    e.add(ask(0, 800), ask(1, 800), ask(2, 10), ask(3, 10))
    assert e.step().scheduled == scheduled


@pytest.mark.parametrize("caching", [True, False])
def test_partial_prompts_go_on_together(engine, caching):
    """``test_schedule_concurrent_partial_requests``: budget 1024, threshold 400, three prompts of 800 tokens."""
    e = engine(
        max_num_batched_tokens=1024,
        long_prefill_token_threshold=400,
        enable_prefix_caching=caching,
        max_model_len=1024,
        num_gpu_blocks=1000,
    )
    e.add(*(ask(number, 800, answer=16) for number in range(3)))
    assert e.step().scheduled == {0: 400, 1: 400, 2: 224}
    assert e.step().scheduled == {0: 400, 1: 400, 2: 224}
    assert e.step().scheduled == {0: 1, 1: 1, 2: 352}
    assert e.step().scheduled == {0: 1, 1: 1, 2: 1}


@pytest.mark.parametrize(
    ("dialect", "others", "adaptive", "chunk"),
    [(V32, 0, False, 40), (V23, 0, False, 8), (V32, 1, False, 8), (V32, 1, True, 32), (V32, 15, True, 8)],
    ids=["alone", "alone-0.23", "with-others", "fair-share", "many-others"],
)
def test_long_prefill_threshold(engine, dialect, others, adaptive, chunk):
    """``test_long_prefill_threshold_*``: not for a lone request (0.32), and at least a fair share if adaptive."""
    e = engine(
        dialect=dialect,
        max_num_seqs=20,
        long_prefill_token_threshold=8,
        long_prefill_token_threshold_adaptive=adaptive,
    )
    e.add(ask(0, 40), *(ask(1 + number, 2) for number in range(others)))
    assert e.step().scheduled[0] == chunk


@pytest.mark.parametrize(("limits", "admitted"), [({"max_num_active_seqs": 2}, 2), ({"max_num_seqs": 3}, 3)])
def test_admission_is_limited_by_number(engine, limits, admitted):
    """``test_max_num_active_seqs_caps_admission``: a place is free again in the step after its request ended."""
    e = engine(**limits)
    e.add(ask(0, 4, answer=2), *(ask(number, 4, answer=9) for number in range(1, 6)))
    counts = [len(e.step().admitted) for _ in range(4)]
    assert counts == [admitted, 0, 1, 0]


def test_adapter_limit_lets_others_past(engine):
    """``max_loras`` = 1: a request for a second adapter is set aside, in place, and those behind it come in."""
    for dialect in DIALECTS:
        e = engine(dialect=dialect, max_loras=1)
        adapters = ["x", "y", None, "x", "z"]
        e.add(*(ask(number, 4, answer=3, lora=lora) for number, lora in enumerate(adapters)))
        assert list(e.step().admitted) == [0, 2, 3]
        own_queue = [request.request_id for request in e.scheduler.skipped]
        assert (e.waiting(), own_queue) == (([1, 4], []) if dialect == V32 else ([], [1, 4]))
        assert [list(e.step().admitted) for _ in range(6)] == [[], [], [1], [], [], [4]]


def test_skipped_queue_is_served_before_arrivals_and_the_preempted_in_0_23(engine):
    """0.23 keeps passed-over requests in a queue of their own, ahead of all others; 0.32 puts them back in place."""
    order = {}
    for dialect in DIALECTS:
        e = engine(dialect=dialect, max_loras=1, num_gpu_blocks=6)
        e.add(ask(0, text(1, 8), answer=4, lora="x"), ask(1, text(2, 8), answer=6), ask(2, 4, lora="y"))
        assert list(e.step().admitted) == [0, 1]
        assert e.step().preempted == [1]
        order[dialect] = [number for step in e.run() for number in step.admitted]
    assert order == {V32: [1, 2], V23: [2, 1]}


# --- preemption -------------------------------------------------------------------------------------------------------


@BOTH_DIALECTS
def test_output_in_flight_of_a_preempted_request_is_delivered(engine, dialect):
    """``test_preempt_during_execution``: its last step was computed, so its token counts while the request waits."""
    e = engine(dialect=dialect, async_scheduling=True, block_size=16, num_gpu_blocks=12, max_num_batched_tokens=100)
    first, second = ask(0, 80, answer=16), ask(1, 80, answer=16)
    e.add(first)
    e.schedule()
    e.add(second)
    assert e.schedule().scheduled == {0: 1, 1: 80}
    e.complete()
    step = e.schedule()
    assert (step.preempted, step.scheduled) == ([1], {0: 1})
    assert (second.state, second.num_output_tokens) == (WAITING, 0)
    e.complete()
    assert (second.state, second.num_output_tokens) == (WAITING, 1)
    e.run()
    assert (first.num_output_tokens, second.num_output_tokens) == (16, 16)


@BOTH_DIALECTS
def test_victim_that_was_already_scheduled_gives_its_tokens_back(engine, dialect):
    """A priority victim may stand before the one that needs space; it leaves the step, and others use its budget."""
    e = engine(
        policy="priority",
        dialect=dialect,
        num_gpu_blocks=8,
        max_num_batched_tokens=8,
        max_num_seqs=3,
        scheduler_reserve_full_isl=False,
    )
    scheduled = []
    for request in (ask(0, 8, answer=6, priority=5), ask(1, 7, answer=9), ask(2, 30)):
        e.add(request)
        scheduled.append(e.step().scheduled)
    assert scheduled == [{0: 8}, {0: 1, 1: 7}, {0: 1, 1: 1, 2: 6}]
    step = e.step()  # seven blocks are taken, and request 1 needs one
    assert step.preempted == [0]
    assert step.scheduled == {1: 1, 2: 7}


@pytest.mark.parametrize(("dialect", "scheduled"), [(V32, {1: 1, 2: 1}), (V23, {1: 1})])
def test_victim_before_the_scan_point_that_was_skipped(engine, dialect, scheduled):
    """``test_priority_preemption_bug``: in 0.23 such a victim makes the scan pass over one running request."""
    e = engine(policy="priority", dialect=dialect, async_scheduling=True, num_gpu_blocks=6)
    e.add(ask(0, 4, answer=2, priority=5))
    e.schedule()
    e.add(ask(1, 4, answer=9), ask(2, 5, answer=9))
    assert e.schedule().scheduled == {0: 1, 1: 4, 2: 5}
    e.complete()
    step = e.schedule()  # request 0 has its last token in flight, request 1 needs a block, none is free
    assert step.preempted == [0]
    assert step.scheduled == scheduled


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_several_victims_keep_their_order(engine, policy):
    """The last victim is put back first, so that the queue shows the preempted in order of age."""
    e = engine(policy=policy, num_gpu_blocks=9)
    e.add(*(ask(number, 8, answer=6) for number in range(4)))
    e.step()
    preempted = e.step().preempted
    assert preempted == [3, 2]
    assert e.waiting() == [2, 3]
    assert e.running() == [0, 1]


# --- priorities -------------------------------------------------------------------------------------------------------


def test_priority_order_and_ties(engine):
    """``test_priority_scheduling_*``: smaller priority first, then earlier arrival, then smaller id."""
    e = engine(policy="priority", max_num_seqs=1)
    rows = [(5, 1, 0.0), (4, 0, 2.0), (3, 0, 1.0), (2, 0, 1.0), (1, 1, 0.0), (0, 2, 0.0)]
    e.add(*(ask(number, 4, priority=priority, arrival_s=arrival_s) for number, priority, arrival_s in rows))
    assert [number for step in e.run() for number in step.admitted] == [2, 3, 4, 1, 5, 0]


def test_fcfs_is_the_order_of_reception(engine):
    """FCFS looks at neither priority nor arrival time."""
    e = engine(max_num_seqs=1)
    e.add(ask(0, 4, priority=5, arrival_s=9.0), ask(1, 4, priority=0, arrival_s=1.0), ask(2, 4, arrival_s=0.0))
    assert [number for step in e.run() for number in step.admitted] == [0, 1, 2]


@pytest.mark.parametrize(
    ("rows", "victim"),
    [
        ([(0, 5, 0.0), (1, 0, 1.0), (2, 1, 2.0)], 0),
        ([(0, 1, 0.0), (1, 1, 9.0), (2, 1, 5.0)], 1),
        ([(0, 0, 0.0), (1, 1, 7.0), (2, 1, 7.0)], 1),
    ],
    ids=["least-urgent", "latest-arrival", "first-of-a-tie"],
)
@BOTH_DIALECTS
def test_priority_victim(engine, dialect, rows, victim):
    """The victim is the largest by (priority, arrival time), the first of those in the running list."""
    e = engine(policy="priority", dialect=dialect, num_gpu_blocks=7)
    for number, priority, arrival_s in rows:
        e.add(ask(number, 5, answer=9, priority=priority, arrival_s=arrival_s))
        e.step()
    assert e.running() == [0, 1, 2]
    preempted = []
    while not preempted:
        preempted = e.step().preempted
    assert preempted[0] == victim


def test_preempted_request_queues_by_priority(engine):
    """It re-enters the heap: a more urgent arrival goes first. Under FCFS it goes to the front."""
    order = {}
    for policy in ("fcfs", "priority"):
        e = engine(policy=policy, num_gpu_blocks=6)
        e.add(ask(0, 8, answer=5), ask(1, 8, answer=5, priority=3))
        e.step()
        e.add(ask(2, 8, priority=1))
        assert e.step().preempted == [1]
        order[policy] = e.waiting()
    assert order == {"fcfs": [1, 2], "priority": [2, 1]}


# --- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("fields", "num_output_tokens"),
    [
        ({"answer": 5, "max_tokens": 5}, 5),
        ({"answer": 3, "max_tokens": 5}, 3),
        ({"answer": 9, "max_tokens": 5}, 5),
        ({"answer": 99, "max_tokens": 99}, 14),
        ({"answer": 1, "max_tokens": 1}, 1),
    ],
    ids=["max_tokens", "stop", "limit-first", "max_model_len", "one"],
)
def test_ends(engine, asynchronous, fields, num_output_tokens):
    """``test_stop_via_update_from_output``: a stop token, ``max_tokens``, or L - P tokens, whatever comes first."""
    e = engine(async_scheduling=asynchronous, max_model_len=20)
    request = ask(0, 6, **fields)
    e.run(request)
    assert (request.state, request.num_output_tokens) == (FINISHED, num_output_tokens)
    assert sorted(e.free()) == list(range(1, 101))


def test_first_token_comes_with_the_last_prompt_token(engine):
    """Partial chunks deliver nothing."""
    e = engine(max_num_batched_tokens=8)
    request = ask(0, 20, answer=3)
    e.add(request)
    delivered = []
    for _ in range(5):
        e.step()
        delivered.append(e.num_delivered(request))
    assert delivered == [0, 0, 1, 2, 3]


def test_blocks_return_in_scheduling_order(engine):
    """Requests that end in one step go back one by one, so the free list shows the running order."""
    e = engine(num_gpu_blocks=6, enable_prefix_caching=True)
    e.run(ask(0, text(1, 5), answer=3), ask(1, text(2, 5), answer=3))
    # Tables 1-2 and 3-4, the second block of each without a key: 2 to the front, then 4; 1 to the back, then 3.
    assert e.free() == [4, 2, 5, 1, 3]


def test_abort(engine):
    """Blocks return at once; the request is in no queue, and what is in flight for it is dropped."""
    for asynchronous in (False, True):
        e = engine(async_scheduling=asynchronous, max_num_seqs=2)
        requests = [ask(number, 9, answer=9) for number in range(4)]
        e.add(*requests)
        e.schedule()
        e.scheduler.abort(requests[0])
        e.scheduler.abort(requests[3])
        assert e.pool.num_free == 100 - 3
        assert (e.running(), e.waiting()) == ([1], [2])
        e.complete()
        assert [request.num_output_tokens for request in requests if request.state == ABORTED] == [0, 0]
        e.run()
        assert [request.num_output_tokens for request in requests] == [0, 9, 9, 0]
        assert e.pool.num_free == 100


def test_abort_between_asynchronous_batches(engine):
    """``test_async_scheduler.test_abort``: one abort before each update; the i-th aborted request has i tokens."""
    e = engine(async_scheduling=True, max_num_seqs=16, max_num_batched_tokens=8192)
    requests = [ask(number, 10, answer=20) for number in range(10)]
    e.add(*requests)
    e.schedule()
    e.schedule()
    order = [0, 8, 3, 1, 6, 4, 2, 5, 7, 9]
    for number in order:
        e.scheduler.abort(requests[number])
        e.complete()
        e.schedule()
    assert [requests[number].num_output_tokens for number in order] == list(range(10))
    assert not e.scheduler.has_work()


# --- the prefix cache -------------------------------------------------------------------------------------------------


def test_reset_of_an_idle_engine(engine):
    """``test_scheduler_reset_prefix_cache``: refused while a request runs, and nothing is found afterwards."""
    e = engine()
    e.add(ask(0, text(1, 13), answer=3))
    e.step()
    assert not e.scheduler.reset_prefix_cache()
    assert e.hit(text(1, 13)) == 12
    e.run()
    assert e.scheduler.reset_prefix_cache()
    assert e.hit(text(1, 13)) == 0


@BOTH_DIALECTS
@pytest.mark.parametrize("asynchronous", [False, True])
def test_reset_with_running_requests(engine, dialect, asynchronous):
    """All are preempted in queue order, their output in flight is dropped, and they compute everything again."""
    e = engine(dialect=dialect, async_scheduling=asynchronous)
    requests = [ask(number, text(number, 13), answer=6, output_segment=10 + number) for number in range(3)]
    e.add(*requests)
    for _ in range(3):
        e.step()
    delivered = [e.num_delivered(request) for request in requests]
    assert e.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert (e.running(), e.waiting()) == ([], [0, 1, 2])
    while e.flights:
        e.complete()
    assert [request.num_output_tokens for request in requests] == delivered
    step = e.step()
    assert step.admitted == {0: 0, 1: 0, 2: 0}
    assert step.scheduled == {number: 13 + delivered[number] for number in range(3)}
    e.run()
    assert [request.num_output_tokens for request in requests] == [6, 6, 6]


def test_statistics_without_caching(engine):
    """``test_prefix_cache_stats_not_recorded_when_caching_disabled``"""
    e = engine(enable_prefix_caching=False)
    e.run(ask(0, text(1, 13)), ask(1, text(1, 13)))
    assert not any(e.scheduler.statistics.values())


def test_statistics_leave_out_who_does_not_read(engine):
    """A prompt-logprob request neither hits nor counts."""
    e = engine()
    e.run(ask(0, text(1, 13)))
    e.run(ask(1, text(1, 13), skip_reading_prefix_cache=True))
    assert e.scheduler.statistics["queries"] == 13


@pytest.mark.parametrize(("dialect", "cached"), [(V32, 0), (V23, 16)])
def test_cached_tokens_of_a_request_preempted_before_its_first_token(engine, dialect, cached):
    """0.32 reports the hit of its first admission, 0.23 that of the last look-up before the first token."""
    e = engine(dialect=dialect, num_gpu_blocks=8, long_prefill_token_threshold=8)
    victim = ask(1, text(2, 20), answer=2)
    steps = e.run(ask(0, text(1, 7), answer=4), victim)
    assert [step.admitted[1] for step in steps if 1 in step.admitted] == [0, 16]
    assert victim.num_preemptions == 1
    assert victim.num_cached_tokens == cached


def test_same_prompts_share_within_a_step(engine):
    """``test_prefix_caching_for_prefill_dedup``: 100 tokens in blocks of 16, then 100 % 16 for all that follow."""
    e = engine(async_scheduling=True, block_size=16, max_num_batched_tokens=1000)
    e.add(ask(0, text(1, 100), answer=3), ask(1, text(1, 100), answer=3))
    assert e.schedule().scheduled == {0: 100, 1: 4}
    e.schedule()
    for number in range(2, 5):
        e.add(ask(number, text(1, 100), answer=3))
        e.complete()
        assert e.schedule().scheduled[number] == 4


@pytest.mark.parametrize("asynchronous", [False, True])
def test_next_turns_hit_whole_conversations(engine, asynchronous):
    """``test_prefix_caching_for_multi_turn``: 100 + 200 tokens in blocks of 16; 300 % 16 of the next are new."""
    e = engine(async_scheduling=asynchronous, block_size=16, max_num_batched_tokens=1000, num_gpu_blocks=10_000)
    e.run(*(ask(number, text(number, 100), answer=200, output_segment=10 + number) for number in range(5)))
    e.add(*(ask(5 + number, text(number, 100), text(10 + number, 200), answer=9) for number in range(5)))
    assert e.step().scheduled == {5 + number: 12 for number in range(5)}
