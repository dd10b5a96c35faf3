"""What naive simulators of vLLM get wrong: one law a test. Each holds whether decodes move as a group or one by one."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest
from engine import DIALECTS, V23, V32, Engine, ask, text

from simulator.block_pool import CLEARED
from simulator.engine_args.config import SpeculativeConfig
from simulator.request import FINISHED

BOTH_DIALECTS = pytest.mark.parametrize("dialect", DIALECTS)


@pytest.fixture(params=[True, False], ids=["grouped", "one-by-one"])
def engine(request):
    return partial(Engine, grouping=request.param)


def test_rule_01_blocks_are_found_in_the_pass_that_schedules_them(engine):
    """Blocks are published at schedule time: a second request with the same prompt hits them in the same pass."""
    e = engine()
    e.add(ask(0, text(1, 13)), ask(1, text(1, 13)))
    step = e.step()
    assert step.admitted == {0: 0, 1: 12}
    assert step.scheduled == {0: 13, 1: 1}


def test_rule_01_only_the_chunk_scheduled_so_far_is_found(engine):
    """With chunked prefill a prompt becomes findable chunk by chunk, not when it is complete and not all at once."""
    e = engine(long_prefill_token_threshold=4)
    e.add(ask(0, text(1, 13)), ask(1, text(1, 13)))
    step = e.step()
    assert step.admitted == {0: 0, 1: 4}
    assert step.scheduled == {0: 4, 1: 4}
    assert e.hit(text(1, 13)) == 8


def test_rule_01_answers_are_cached_like_prompts(engine):
    """An answer's block is found from the step that computes its last token on; synchronously, at that schedule."""
    e = engine()
    e.add(ask(0, text(1, 6), answer=8, output_segment=9))
    found = []
    for _ in range(3):  # the prompt's 6 tokens, then positions 6 and 7
        e.schedule()
        found.append(e.hit(text(1, 6), text(9, 3)))
        e.complete()
    assert found == [4, 4, 8]


def test_rule_02_eviction_is_by_release_tail_first(engine):
    """The next block to go is keyless, then the oldest released request's last, then its first, then the next one's."""
    e = engine(num_gpu_blocks=9)
    e.run(ask(0, text(1, 9)))
    assert e.free() == [3, 4, 5, 6, 7, 8, 2, 1]
    e.run(ask(1, text(2, 9)))
    assert e.free() == [5, 6, 7, 8, 2, 1, 4, 3]
    e.run(ask(2, 20))  # five blocks
    assert (e.hit(text(1, 9)), e.hit(text(2, 9))) == (4, 8)


def test_rule_02_every_block_goes_to_the_tail_in_0_23(engine):
    """0.23 puts keyless blocks behind the others, so that content is evicted while they still wait."""
    e = engine(num_gpu_blocks=9, dialect=V23)
    e.run(ask(0, text(1, 9)))
    assert e.free() == [4, 5, 6, 7, 8, 3, 2, 1]
    e.run(ask(1, text(2, 9)))
    assert e.free() == [7, 8, 3, 2, 1, 6, 5, 4]


@BOTH_DIALECTS
def test_rule_02_lookups_do_not_refresh(engine, dialect):
    """A prompt that is looked up in every step and never admitted leaves its hit where it stood in the free list."""
    e = engine(num_gpu_blocks=9, dialect=dialect)
    e.run(ask(0, text(1, 9)), ask(1, text(2, 9)))
    order = e.free()
    e.add(ask(2, text(1, 9), 40))  # more than the pool holds
    assert all(not e.step().scheduled for _ in range(3))
    assert e.free() == order


def test_rule_02_a_hit_does_not_refresh_before_its_release(engine):
    """Blocks return by the time their last holder lets go: hit early and released late, they outlive later content."""
    e = engine(num_gpu_blocks=12)
    e.run(ask(0, text(1, 9)))
    holder = ask(1, text(1, 9), answer=3)
    e.add(holder, ask(2, text(2, 9)))
    steps = e.run()
    assert steps[0].admitted == {1: 8, 2: 0}
    assert (steps[0].finished, steps[2].finished) == ([2], [1])
    e.run(ask(3, 4 * 9))
    assert (e.hit(text(1, 9)), e.hit(text(2, 9))) == (8, 0)


@pytest.mark.parametrize(("length", "hit", "computed"), [(12, 8, 4), (13, 12, 1), (15, 12, 3), (4, 0, 4)])
def test_rule_03_full_hit_computes_at_least_a_token_usually_a_block(engine, length, hit, computed):
    """A prompt that is cached whole recomputes its last block; with one token more than full blocks, that one token."""
    e = engine()
    e.run(ask(0, text(1, 16)))
    e.add(ask(1, text(1, length)))
    step = e.step()
    assert (step.admitted, step.scheduled) == ({1: hit}, {1: computed})


@BOTH_DIALECTS
@pytest.mark.parametrize(("num_usable", "admitted"), [(10, {1: 0}), (11, {1: 0, 2: 24})])
def test_rule_04_idle_hit_blocks_consume_free_space(engine, dialect, num_usable, admitted):
    """Six idle hit blocks and a new one do not fit into six free blocks, though only one is taken from others."""
    e = engine(num_gpu_blocks=num_usable + 1, dialect=dialect)
    e.run(ask(0, text(1, 24)))
    e.add(ask(1, 16), ask(2, text(1, 25)))
    assert e.step().admitted == admitted


def test_rule_05_equal_blocks_are_kept_twice_and_evicted_twice(engine):
    """A full hit recomputes a block that exists: both copies stay, the older is found, each is evicted by itself."""
    e = engine(num_gpu_blocks=9)
    e.run(ask(0, text(1, 8)), ask(1, text(1, 8)))
    twice = e.prefixes.keys((text(1, 8),))[0][1]
    assert [block for block in range(9) if e.pool.key[block] == twice] == [2, 3]
    assert e.free() == [4, 5, 6, 7, 8, 2, 3, 1]
    e.run(ask(2, 24))
    assert e.hit(text(1, 9)) == 8  # the copy is left
    e.run(ask(3, 4))
    assert e.hit(text(1, 9)) == 4
    events = Counter(event for _, batch in e.scheduler.event_batches for event in batch)
    assert (events[twice], events[~twice], events[CLEARED]) == (2, 2, 0)


def test_rule_06_running_order_whatever_the_phase(engine):
    """A decode in front of a prefill comes first, and a prefill chunk in front of a decode does, too."""
    e = engine(max_num_batched_tokens=8)
    e.add(ask(0, 4, answer=9))
    e.step()
    e.add(ask(1, 20))
    assert list(e.step().scheduled.items()) == [(0, 1), (1, 7)]

    e = engine(max_num_batched_tokens=8, long_prefill_token_threshold=4)
    e.add(ask(0, 20), ask(1, 4, answer=9))
    assert list(e.step().scheduled.items()) == [(0, 4), (1, 4)]
    assert list(e.step().scheduled.items()) == [(0, 4), (1, 1)]


def test_rule_06_a_chunk_in_front_starves_decodes_when_the_budget_runs_out(engine):
    """With a budget of 8, a chunk of 4 and a decode with three drafts leave nothing for the decode at the end."""
    ngram = SpeculativeConfig("ngram", 3)
    limits = {"max_num_batched_tokens": 8, "long_prefill_token_threshold": 4}
    e = engine(speculative=ngram, **limits)
    e.add(ask(0, 20), ask(1, 2, answer=9), ask(2, 2, answer=9))
    assert e.step().scheduled == {0: 4, 1: 2, 2: 2}
    assert e.step().scheduled == {0: 4, 1: 4}


def pressed(engine, **changes):
    """Five usable blocks, two prompts of two: in the second step one gets the last block, the other is preempted."""
    e = engine(num_gpu_blocks=6, **changes)
    first, second = ask(0, text(1, 8), answer=5, priority=1), ask(1, text(2, 8), answer=6, priority=9)
    e.add(first, second)
    assert e.step().scheduled == {0: 8, 1: 8}
    return e, second


@BOTH_DIALECTS
def test_rule_07_no_admission_in_a_step_with_a_preemption(engine, dialect):
    """The blocks that a preemption frees are given to nobody before the next step, though the head would fit."""
    e, _ = pressed(engine, dialect=dialect, policy="priority")
    e.add(ask(2, 1, priority=0))
    step = e.step()
    assert (step.preempted, step.scheduled) == ([1], {0: 1})
    assert e.pool.num_free == 2
    assert e.waiting() == [2, 1]
    assert e.step().admitted == {2: 0}


@BOTH_DIALECTS
def test_rule_07_a_blocked_head_is_not_skipped(engine, dialect):
    """Requests behind a head that finds no blocks wait, though they would fit."""
    e = engine(num_gpu_blocks=11, dialect=dialect)
    e.add(ask(0, 16, answer=3), ask(1, 28), ask(2, 4))
    assert e.step().admitted == {0: 0}
    assert e.step().admitted == {}
    assert e.step().finished == [0]
    assert e.step().admitted == {1: 0, 2: 0}


def test_rule_08_max_tokens_is_not_reserved(engine):
    """Five one-block prompts enter a pool of five blocks, though their answers may need four times as many."""
    e = engine(num_gpu_blocks=6, max_model_len=20)
    e.add(*(ask(number, 4, answer=16) for number in range(5)))
    assert len(e.step().admitted) == 5


@pytest.mark.parametrize(("gate", "admitted"), [(True, {}), (False, {1: 0})])
def test_rule_08_the_whole_known_sequence_must_fit_now(engine, gate, admitted):
    """A prompt of 8 blocks is refused with 5 free ones, though its chunk needs one; without the gate it is not."""
    e = engine(num_gpu_blocks=11, long_prefill_token_threshold=4, scheduler_reserve_full_isl=gate)
    e.add(ask(0, 16, answer=9))
    e.step()
    e.add(ask(1, 32))
    assert e.step().admitted == admitted


def test_rule_08_the_gate_reserves_nothing(engine):
    """Two prompts of 6 blocks both enter a pool of 10 in one step, and collide later."""
    e = engine(num_gpu_blocks=11, long_prefill_token_threshold=4)
    e.add(ask(0, 24), ask(1, 24))
    assert e.step().admitted == {0: 0, 1: 0}
    assert [step.preempted for step in e.run() if step.preempted] == [[1]]


@BOTH_DIALECTS
def test_rule_09_resume_is_recompute_minus_what_is_still_cached(engine, dialect):
    """A preempted request keeps its answer, waits first in the queue and comes back over its own blocks."""
    e, victim = pressed(engine, dialect=dialect)
    steps = e.run(ask(2, 1))
    assert victim.num_preemptions == 1
    resumed = next(step for step in steps if 1 in step.admitted)
    assert resumed.admitted == {1: 8, 2: 0}
    assert resumed.scheduled == {1: 1, 2: 1}  # prompt and one answer token, less two blocks
    assert (victim.state, victim.num_output_tokens) == (FINISHED, 6)


def test_rule_09_resume_without_cache_computes_prompt_and_answer(engine):
    """What was decoded before the preemption is computed again, with the prompt, as one prefill."""
    e, _ = pressed(engine, enable_prefix_caching=False)
    assert e.step().preempted == [1]
    resumed = next(step for step in e.run() if 1 in step.admitted)
    assert (resumed.admitted[1], resumed.scheduled[1]) == (0, 9)


def test_rule_09_hits_of_a_resumption_are_counted_apart(engine):
    """What a resumed request hits is invisible in the ordinary statistics, and so is its query."""
    e, victim = pressed(engine)
    e.run()
    expected = {"requests": 2, "queries": 16, "hits": 0}
    expected |= {"preempted_requests": 1, "preempted_queries": 9, "preempted_hits": 8}
    assert e.scheduler.statistics == expected
    assert victim.num_cached_tokens == 0  # that of the first admission


@BOTH_DIALECTS
@pytest.mark.parametrize("limit", [{"max_num_seqs": 1}, {"num_gpu_blocks": 6}])
def test_rule_10_nothing_is_preempted_for_a_waiting_request(engine, dialect, limit):
    """An urgent request waits for the end of a lazy one, whether a place or blocks are missing."""
    e = engine(policy="priority", dialect=dialect, **limit)
    e.add(ask(0, 12, answer=6, priority=9))
    e.step()
    steps = e.run(ask(1, 12, priority=0))
    assert not any(step.preempted for step in steps)
    assert [number for number, step in enumerate(steps) if 1 in step.admitted] == [5]


def test_rule_11_an_arrival_waits_for_two_batches(engine):
    """Asynchronously batch k+1 is composed while k runs, so that an arrival during k is first considered for k+2."""
    considered = {}
    for asynchronous in (False, True):
        e = engine(async_scheduling=asynchronous)
        e.add(ask(0, 5, answer=20))
        for _ in range(6):
            e.step()
        while len(e.flights) < e.scheduler.depth:
            e.schedule()
        running = e.flights[0].index  # this batch runs now
        e.add(ask(1, 5))
        e.complete()
        considered[asynchronous] = next(s.plan.index for s in iter(e.step, None) if 1 in s.admitted) - running
    assert considered == {False: 1, True: 2}


@pytest.mark.parametrize(("asynchronous", "wasted"), [(False, 0), (True, 1)])
def test_rule_11_an_early_stop_wastes_a_slot(engine, asynchronous, wasted):
    """A request that ends by a stop token was scheduled once more; one that ends by max_tokens was not."""
    for max_tokens, expected in ((5, 0), (50, wasted)):
        e = engine(async_scheduling=asynchronous)
        request = ask(0, 6, answer=5, max_tokens=max_tokens)
        steps = e.run(request)
        assert sum(step.scheduled.get(0, 0) for step in steps) == 6 + 5 - 1 + expected
        assert request.num_output_tokens == 5


@pytest.mark.parametrize(("asynchronous", "index"), [(False, 3), (True, 4)])
def test_rule_11_an_end_is_seen_one_batch_later(engine, asynchronous, index):
    """Three tokens take batches 0 to 2; who waits for the place gets into batch 3, or 4 when asynchronous."""
    e = engine(async_scheduling=asynchronous, max_num_seqs=1)
    steps = e.run(ask(0, 4, answer=3), ask(1, 4))
    assert next(step.plan.index for step in steps if 1 in step.admitted) == index


@pytest.mark.parametrize(("asynchronous", "index"), [(False, 2), (True, 3)])
def test_rule_11_answers_are_published_one_batch_later(engine, asynchronous, index):
    """Batch 2 computes a block's last token. Asynchronously it is unknown then: the block is found from batch 3 on."""
    e = engine(async_scheduling=asynchronous)
    e.add(ask(0, text(1, 6), answer=8, output_segment=9))
    found = {}
    while e.hit(text(1, 6), text(9, 3)) < 8:
        step = e.schedule()
        found[step.plan.index] = e.hit(text(1, 6), text(9, 3))
        if len(e.flights) == e.scheduler.depth:
            e.complete()
    assert found == dict.fromkeys(range(index), 4) | {index: 8}


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("num_output_tokens", range(1, 10))
def test_rule_12_the_last_sampled_token_is_never_cached(engine, asynchronous, num_output_tokens):
    """A finished request leaves floor((P + O - 1) / B) blocks, which is what the next turn hits."""
    e = engine(async_scheduling=asynchronous)
    e.run(ask(0, text(1, 6), answer=num_output_tokens, output_segment=9))
    e.add(ask(1, text(1, 6), text(9, num_output_tokens), 5))
    assert e.step().admitted == {1: (6 + num_output_tokens - 1) // 4 * 4}


def test_rule_13_a_hit_rate_counts_all_tokens(engine):
    """Queries are all known tokens, the tail that can never hit included: a rate of one is out of reach."""
    e = engine()
    e.run(ask(0, text(1, 13)))
    e.run(ask(1, text(1, 13)), ask(2, text(1, 12)))
    statistics = e.scheduler.statistics
    assert (statistics["requests"], statistics["queries"], statistics["hits"]) == (3, 13 + 13 + 12, 12 + 8)


@pytest.mark.parametrize(("dialect", "times"), [(V32, 1), (V23, 6)])
def test_rule_13_retries_count_in_0_23_only(engine, dialect, times):
    """A head refused in five steps counts once, at admission; in 0.23 in every step in which it is looked up."""
    e = engine(num_gpu_blocks=11, dialect=dialect)
    e.run(ask(0, text(1, 4)))
    e.add(ask(1, 16, answer=5), ask(2, text(1, 4), 24))
    steps = e.run()
    assert next(number for number, step in enumerate(steps) if 2 in step.admitted) == 5
    statistics = e.scheduler.statistics
    assert statistics["requests"] == 2 + times
    assert statistics["queries"] == 4 + 16 + 28 * times
    assert statistics["hits"] == 4 * times


@BOTH_DIALECTS
@pytest.mark.parametrize(("num_gpu_blocks", "admitted"), [(6, {0: 0}), (5, {})])
def test_rule_15_the_null_block_holds_nothing(engine, dialect, num_gpu_blocks, admitted):
    """Of N blocks N - 1 are usable: five blocks of tokens need six, and block 0 is in nobody's table."""
    e = engine(num_gpu_blocks=num_gpu_blocks, dialect=dialect)
    request = ask(0, 20)
    e.add(request)
    step = e.schedule()
    assert step.admitted == admitted
    assert request.blocks == ([1, 2, 3, 4, 5] if admitted else [])
