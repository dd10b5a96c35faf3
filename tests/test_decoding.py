"""Decoding as a group equals decoding one by one, advancing equals stepping, and what drafts add to a step.

The cases are those which parity with vLLM is checked with (``simulator.parity.cases``): bursts, shared prefixes, pools
just above one request's need, priorities, aborts, resets.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque

import pytest
from engine import DIALECTS, V23, V32, Engine, ask, free_blocks, text
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine_args.config import SpeculativeConfig
from simulator.parity.cases import FAMILIES, generate_cases
from simulator.parity.replay import Replay
from simulator.prefix import PRIVATE, Prefixes
from simulator.request import ABORTED, FINISHED
from simulator.scheduler import Scheduler

CASES = [(family, dialect) for family in FAMILIES for dialect in ("0.32", "0.23")]


# --- the group --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "dialect"), CASES)
def test_grouping_changes_nothing(family, dialect):
    """Every record of a case is the same when each running request is visited in each step."""
    for case in generate_cases(family, 12, first_seed=1000, dialect=dialect):
        assert Replay(case).run() == Replay(case, grouping=False).run()


class Watched(Replay):
    """A replay that checks, after every schedule, what must hold in any step."""

    def _schedule_record(self, plan):
        record = super()._schedule_record(plan)
        scheduler, config, pool = self.scheduler, self.scheduler.config, self.scheduler.pool
        rows = scheduler.scheduled(plan)
        # Law 2: free plus held is the pool, and reference counts are holders.
        holders = Counter(itertools.chain.from_iterable(request.blocks for request in scheduler.running))
        assert sorted([*free_blocks(pool), *holders]) == list(range(1, config.num_gpu_blocks))
        assert pool.ref_cnt == [holders[block] for block in range(config.num_gpu_blocks)]
        # Limits, and the order of the running list.
        assert sum(num_tokens for _, num_tokens, _ in rows) <= config.max_num_batched_tokens
        assert all(num_tokens > 0 for _, num_tokens, _ in rows)
        assert len(scheduler.running) <= config.max_num_active_seqs
        places = {request: place for place, request in enumerate(scheduler.running)}
        assert [places[request] for request, _, _ in rows] == sorted(places[request] for request, _, _ in rows)
        # Law 6, and room for all that is computed.
        assert all(0 <= hit < request.num_prompt_tokens + request.num_output_tokens for request, hit in plan.admitted)
        size = config.block_size
        assert all(len(r.blocks) * size >= scheduler.num_computed_tokens(r) for r, _, _ in rows)
        self._check_sums(plan, rows)
        return record

    def _check_sums(self, plan, rows):
        """The plan's sums are those over its requests; known tokens that are alone in a step are decodes."""
        computed = [self.scheduler.num_computed_tokens(request) for request, _, _ in rows]
        pairs = [sum(range(end - num_new + 1, end + 1)) for end, (_, num_new, _) in zip(computed, rows, strict=True)]
        decodes = [num_new == 1 or num_drafts > 0 for _, num_new, num_drafts in rows]
        tokens = [num_new for _, num_new, _ in rows]
        assert plan.num_decodes == sum(itertools.compress(tokens, decodes))
        assert plan.decode_context == sum(itertools.compress(pairs, decodes))
        prefills = [not decode for decode in decodes]
        assert plan.num_prefills == sum(prefills)
        assert plan.num_prefill_tokens == sum(itertools.compress(tokens, prefills))
        assert plan.prefill_pairs == sum(itertools.compress(pairs, prefills))
        assert plan.max_context == max(computed, default=0)


@pytest.mark.parametrize("grouping", [True, False], ids=["grouped", "one-by-one"])
@pytest.mark.parametrize(("family", "dialect"), CASES)
def test_laws_hold_in_every_step(family, dialect, grouping):
    """Laws 1, 2 and 6, limits and sums, in every step of every case; in the end all blocks are free."""
    for case in generate_cases(family, 6, first_seed=2000, dialect=dialect):
        replay = Watched(case, grouping=grouping)
        replay.run()
        assert len(free_blocks(replay.scheduler.pool)) == case["engine"]["num_gpu_blocks"] - 1
        for row in case["requests"]:
            request = replay.requests[row["id"]]
            room = max(1, case["engine"]["max_model_len"] - request.num_prompt_tokens)
            length = min(row["num_output_tokens"], row["max_tokens"], room)
            assert request.state in (FINISHED, ABORTED)
            missing = length - request.num_output_tokens
            assert missing == 0 if request.state == FINISHED else missing > 0


@pytest.mark.parametrize("asynchronous", [False, True])
def test_caching_decides_nothing_without_repeats(asynchronous):
    """Law 9: where no prefix repeats and nothing is preempted, every step is the same with caching off."""
    steps = {}
    for caching in (True, False):
        e = Engine(enable_prefix_caching=caching, async_scheduling=asynchronous, max_num_batched_tokens=32)
        steps[caching] = []
        for number in range(12):
            e.add(ask(number, text(number, 5 + 7 * number % 23), answer=3 + number * 5 % 11))
            steps[caching] += [(step.scheduled, step.admitted, step.preempted) for step in (e.step(), e.step())]
        steps[caching] += [(step.scheduled, step.admitted, step.preempted) for step in e.run()]
    assert steps[True] == steps[False]


class Drive:
    """An engine on a clock of steps, which either takes each step by itself or as many at once as are allowed."""

    def __init__(self, config, requests, splits):
        self.scheduler = Scheduler(config, Prefixes(config.block_size), announce_below=PRIVATE)
        self.arrivals = deque(requests)
        self.splits = splits  # where to settle in the middle of an advance; None: step
        self.flights = deque()
        self.ended = []
        self.plans = []
        self.num_batches = 0

    def run(self):
        now, scheduler = 0, self.scheduler
        while self.arrivals or self.flights or scheduler.has_work():
            if not self.flights and not scheduler.has_work():
                now = max(now, self.arrivals[0][0])
            while self.arrivals and self.arrivals[0][0] <= now:
                scheduler.add(self.arrivals.popleft()[1])
            while len(self.flights) < scheduler.depth and scheduler.has_work():
                plan = scheduler.schedule()
                self.flights.append(plan)
                self.plans.append((plan.index, plan.num_tokens))
            num_steps = self._num_steps(now)
            first_event = self._first_event(num_steps)
            split = next(self.splits) % num_steps if self.splits and num_steps > 1 else 0
            if split:
                scheduler.settle(split)
            finished = scheduler.complete(num_steps - split)
            self.flights.popleft()
            # Whoever waits for events wakes when they are promised, or at the end of the advance: none may be earlier.
            assert all(index >= first_event for index, _ in scheduler.event_batches[self.num_batches :])
            self.num_batches = len(scheduler.event_batches)
            now += num_steps
            self.ended += [(now, request.request_id, request.num_output_tokens) for request in finished]
            if not self.flights and not finished and not scheduler.running and not plan.num_tokens:
                break  # requests wait and none can ever run
        return self

    def _first_event(self, num_steps):
        """The completion with which KV events may leave at the earliest, if that is within the advance."""
        promised = self.scheduler.stretch.steps_to_events()
        return self.scheduler.completing + min(promised or num_steps, num_steps) - 1

    def _num_steps(self, now):
        if self.splits is None or not all(plan.continues for plan in itertools.islice(self.flights, 1, None)):
            return 1
        until = self.arrivals[0][0] - now if self.arrivals else 10**9
        return max(1, min(self.scheduler.max_steps(), until))

    def outcome(self):
        scheduler = self.scheduler
        events = {}
        for index, batch in scheduler.event_batches:
            events.setdefault(index, []).extend(batch)
        state = free_blocks(scheduler.pool), scheduler.pool.num_evictions, scheduler.num_preemptions
        return self.ended, state, scheduler.completing, scheduler.statistics, events


# Lengths that recur, so that prompts repeat and quote answers; long ones, so that the queue's head is often blocked.
LENGTHS, ANSWERS = st.sampled_from([1, 4, 7, 8, 13, 30, 45]), st.integers(1, 40)
ROWS = st.tuples(st.integers(0, 30), st.integers(0, 1), LENGTHS, st.integers(0, 9), ANSWERS, st.booleans())
LOADS = st.lists(ROWS, min_size=1, max_size=7)


@settings(max_examples=400, deadline=None)
@given(
    LOADS,
    st.booleans(),
    st.sampled_from(DIALECTS),
    st.sampled_from(["fcfs", "priority"]),
    st.integers(17, 60),
    st.lists(st.integers(0, 9), min_size=1, max_size=4),
)
def test_advancing_equals_stepping(load, asynchronous, dialect, policy, num_usable, splits):
    """Law 7 of the scheduler: equal ends, free list, statistics and dated KV events, however many steps at once."""
    config = Engine(
        async_scheduling=asynchronous, dialect=dialect, policy=policy, num_gpu_blocks=num_usable + 1, max_model_len=64
    ).config

    def requests():
        now = 0
        for number, (gap, segment, length, quoted, answer, named) in enumerate(load):
            now += gap
            runs = [text(segment, length), text(10 + segment, quoted)] if quoted < 9 else [length]
            fields = {"output_segment": 10 + segment if named else None, "max_tokens": answer + number % 3}
            yield now, ask(number, *runs, answer=answer, priority=segment, **fields)

    stepped = Drive(config, requests(), None).run()
    advanced = Drive(config, requests(), itertools.cycle(splits)).run()
    assert advanced.outcome() == stepped.outcome()
    assert len(advanced.plans) <= len(stepped.plans)


def test_blocked_head_may_gain_from_a_running_answer():
    """Its prompt quotes an answer: when the block with the quoted part fills, the hit grows, and the head fits."""
    config = Engine(num_gpu_blocks=11, max_model_len=40).config

    def requests():
        yield 0, ask(0, text(1, 8), answer=12, output_segment=9)
        yield 2, ask(1, text(1, 8), text(9, 12), 19)  # 10 blocks, as many as there are

    stepped = Drive(config, requests(), None).run()
    assert next(index for index, num_tokens in stepped.plans[3:] if num_tokens > 1) == 4  # position 11 is computed
    assert Drive(config, requests(), itertools.repeat(0)).run().outcome() == stepped.outcome()


def test_a_long_decode_is_one_advance():
    """Sixty steps in which nothing is decided take two schedules, not sixty."""
    config = Engine(max_model_len=100).config
    drive = Drive(config, [(0, ask(0, text(1, 5), answer=60))], itertools.repeat(0)).run()
    assert drive.ended == [(60, 0, 60)]
    assert len(drive.plans) == 2


# --- drafts -----------------------------------------------------------------------------------------------------------


def drafting(method="ngram", num_drafts=3, **changes):
    return Engine(speculative=SpeculativeConfig(method, num_drafts), **changes)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("accepted", "num_steps"), [(0, 13), (1, 7), (3, 4)])
def test_accepted_drafts_are_delivered_with_the_token(asynchronous, accepted, num_steps):
    """Of K drafts a step delivers those accepted and one; 1 + 12 tokens take 1 + 12 / (1 + accepted) useful steps."""
    e = drafting("mtp", async_scheduling=asynchronous)
    request = ask(0, 6, answer=13, accepted=accepted)
    steps = e.run(request)
    assert request.num_output_tokens == 13
    useful = [step for step in steps if step.scheduled]
    assert [step.scheduled[0] for step in useful[:num_steps]] == [6] + [4] * (num_steps - 1)
    assert len(useful) == num_steps or (asynchronous and len(useful) == num_steps + 1)


def test_rejected_drafts_are_computed_again():
    """Each step has one token and K drafts; what was rejected is no longer computed, and blocks taken for it stay."""
    e = drafting()
    request = ask(0, 6, answer=40, accepted=1)
    e.add(request)
    computed = []
    for _ in range(4):
        e.step()
        computed.append((e.scheduler.num_computed_tokens(request), request.num_output_tokens))
    assert computed == [(6, 1), (8, 3), (10, 5), (12, 7)]
    assert len(request.blocks) == 4  # the last step began at 10 and wrote 4 tokens


def test_surplus_drafts_are_cut_at_the_end():
    """An answer ends at its length, whatever else was accepted in that step."""
    e = drafting()
    request = ask(0, 6, answer=3, accepted=3)
    assert len(e.run(request)) == 2
    assert request.num_output_tokens == 3


def test_no_drafts_for_prefill_chunks():
    """``test_no_spec_tokens_scheduled_for_prefill_chunks``"""
    e = drafting(max_num_batched_tokens=8)
    e.add(ask(0, 20, answer=9))
    steps = [e.step() for _ in range(4)]
    assert [step.scheduled[0] for step in steps] == [8, 8, 4, 4]
    assert [step.drafts.get(0, 0) for step in steps] == [0, 0, 0, 3]


@pytest.mark.parametrize(("dialect", "scheduled"), [(V32, {0: 4, 1: 4}), (V23, {0: 4, 1: 1})])
def test_an_admission_of_one_token_is_padded(dialect, scheduled):
    """``test_spec_decode_padding_*``: it gets K dummy drafts, all rejected, so that the step stays uniform (0.32)."""
    e = drafting(dialect=dialect)
    e.run(ask(9, text(1, 12)))
    request = ask(1, text(1, 13), answer=9, accepted=3)
    e.add(ask(0, 5, answer=30))
    e.step()
    e.add(request)
    assert e.step().scheduled == scheduled
    assert request.num_output_tokens == 1


@pytest.mark.parametrize(("ahead", "scheduled"), [(True, {0: 4, 1: 1}), (False, {0: 4, 1: 4})])
def test_no_padding_beside_a_running_chunk(ahead, scheduled):
    """An admission is not padded where a running prompt has a chunk in the step; one admitted in it does not count."""
    e = drafting(long_prefill_token_threshold=4)
    e.run(ask(9, text(1, 12)))
    e.add(ask(0, 20, answer=9))
    if ahead:
        e.add(ask(8, 1))  # or request 0 would be alone, and not be cut into chunks
        e.step()
    e.add(ask(1, text(1, 13), answer=9))
    assert e.step().scheduled == scheduled


def test_padding_that_exceeds_the_budget_stops_the_pass():
    """Seven tokens are left, eight would be needed: the request waits, and so do those behind it."""
    e = drafting(num_drafts=7, max_num_batched_tokens=15)
    e.run(ask(9, text(1, 12)))
    e.add(ask(0, 5, answer=30))
    e.step()
    e.add(ask(1, text(1, 13), answer=9), ask(2, 2))
    assert e.step().scheduled == {0: 8}


@pytest.mark.parametrize(("dialect", "scheduled"), [(V32, {0: 6, 1: 6, 2: 1}), (V23, {0: 6, 1: 6})])
def test_draft_slots_are_budgeted(dialect, scheduled):
    """``test_draft_slots_budgeted_per_scheduled_request``: 0.23 sets a slot apart for each of max_num_seqs, here 4."""
    e = drafting("draft_model", dialect=dialect, max_num_batched_tokens=16, max_num_seqs=4)
    e.add(*(ask(number, 6, answer=9) for number in range(3)))
    assert e.step().scheduled == scheduled


@pytest.mark.parametrize(("method", "hit", "num_blocks"), [("ngram", 12, 4), ("draft_model", 12, 5), ("eagle", 8, 5)])
def test_methods_differ_in_blocks(method, hit, num_blocks):
    """Drafters that write their own KV look ahead K slots, and EAGLE and MTP lose the last hit block."""
    e = drafting(method, num_drafts=3)
    e.run(ask(0, text(1, 16)))
    request = ask(1, text(1, 14), answer=9)
    e.add(request)
    assert e.step().admitted == {1: hit}
    assert len(request.blocks) == num_blocks
