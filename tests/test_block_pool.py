"""The block pool against vLLM's worked example, and against a model made of plain lists."""

from __future__ import annotations

import itertools
from collections import Counter
from math import inf

import pytest
from engine import free_blocks
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from simulator.block_pool import CLEARED, BlockPool


def test_first_blocks_are_the_first_and_the_null_block_is_never_handed_out():
    pool = BlockPool(5)
    assert pool.take(4) == [1, 2, 3, 4]
    assert pool.num_free == 0


@pytest.mark.parametrize(
    ("keyless_first", "order"),
    [(True, [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]), (False, [6, 7, 8, 9, 10, 4, 5, 3, 2, 1])],
    ids=["0.32", "0.23"],
)
def test_worked_example_of_vllm(keyless_first, order):
    """``test_prefill``, 10 usable: request 0 has 1-4 (4 partial), request 1 shares 1-3 and has 5; 0 ends first."""
    pool = BlockPool(11, keyless_first=keyless_first)
    zero = pool.take(4)
    pool.publish(zero[:3], [100, 101, 102])
    pool.touch(zero[:3])
    one = zero[:3] + pool.take(1)
    pool.release(zero)
    assert [pool.ref_cnt[block] for block in (1, 2, 3, 4, 5)] == [1, 1, 1, 0, 1]
    pool.release(one)
    assert free_blocks(pool) == order


@pytest.mark.parametrize(("keyless_first", "order"), [(True, [3, 2, 1, 4, 5]), (False, [4, 5, 3, 2, 1])])
def test_table_without_keys_comes_back_tail_first(keyless_first, order):
    """Without caching the pool of 0.32 is a stack, that of 0.23 a queue; either way the last block goes in first."""
    pool = BlockPool(6, keyless_first=keyless_first)
    pool.release(pool.take(3))
    assert free_blocks(pool) == order


def test_taking_a_block_is_the_only_eviction():
    """Released content stays findable, may be touched back to life, and goes when its block is handed out."""
    pool = BlockPool(4)
    blocks = pool.take(3)
    pool.publish(blocks, [10, 11, 12])
    pool.release(blocks)
    assert dict(pool.cached) == {10: 1, 11: 2, 12: 3}
    pool.touch([1, 2])
    assert free_blocks(pool) == [3]
    assert pool.take(1) == [3]
    assert dict(pool.cached) == {10: 1, 11: 2}
    assert pool.num_evictions == 1


def test_shared_block_returns_with_its_last_holder():
    pool = BlockPool(4)
    shared = pool.take(1)
    pool.publish(shared, [10])
    pool.touch(shared)
    other = pool.take(1)
    pool.publish(other, [11])
    pool.release(shared)
    assert free_blocks(pool) == [3]
    pool.release(other)
    pool.release(shared)
    assert free_blocks(pool) == [3, 2, 1]


def test_equal_blocks_are_not_merged():
    """Two blocks of one content are two blocks: the older one is found, either may go, and each goes by itself."""
    pool = BlockPool(4, announce_below=inf)
    for _ in range(3):
        pool.publish(pool.take(1), [10])
    assert pool.cached[10] == 1
    pool.release([2])
    pool.take(1)
    assert pool.cached[10] == 1
    pool.release([1])
    pool.take(1)
    assert pool.cached[10] == 3
    pool.release([3])
    pool.take(1)
    assert 10 not in pool.cached
    assert pool.num_evictions == 3


def test_each_copy_is_reported():
    """Stored and removed are reported for every block, even where another with the same key remains."""
    pool = BlockPool(3, announce_below=inf)
    pool.publish(pool.take(1), [10])
    pool.publish(pool.take(1), [10])
    pool.release([1])
    pool.take(1)
    assert pool.cached[10] == 2
    assert pool.events == [10, 10, ~10]


@pytest.mark.parametrize("keyless_first", [True, False])
def test_reset_is_refused_while_a_block_is_held(keyless_first):
    pool = BlockPool(5, keyless_first=keyless_first, announce_below=inf)
    blocks = pool.take(3)
    pool.publish(blocks[:2], [10, 11])
    pool.release(blocks[1:])
    before = (free_blocks(pool), dict(pool.cached), list(pool.key), list(pool.events))
    assert not pool.reset()
    assert (free_blocks(pool), dict(pool.cached), list(pool.key), list(pool.events)) == before


def test_reset_forgets_content_and_keeps_the_order():
    pool = BlockPool(5, announce_below=inf)
    blocks = pool.take(3)
    pool.publish(blocks[:2], [10, 10])
    pool.release(blocks)
    order = free_blocks(pool)
    assert order != sorted(order)
    assert pool.reset()
    assert free_blocks(pool) == order
    assert not pool.cached
    assert pool.events == [10, 10, CLEARED]
    assert pool.take(4) == order  # and nothing is left to evict
    assert pool.num_evictions == 0
    pool.publish(order[:1], [10])
    assert pool.cached[10] == order[0]


def test_events_are_off_unless_asked_for():
    pool = BlockPool(3)
    pool.publish(pool.take(1), [10])
    assert pool.events is None


def test_keys_that_nobody_can_ask_for_are_not_announced():
    """What is stored under keys from ``announce_below`` on is reported neither when it comes nor when it goes."""
    pool = BlockPool(4, announce_below=100)
    blocks = pool.take(3)
    pool.publish(blocks[:2], [10, 100])
    pool.publish_one(blocks[2], 101)
    pool.release(blocks)
    pool.take(3)
    assert pool.num_evictions == 3
    assert pool.events == [10, ~10]


def test_quiet_takes_are_certain():
    """A block that was hit is no longer next in line: what is promised is about those that will really be taken."""
    pool = BlockPool(4, keyless_first=False, announce_below=100)
    blocks = pool.take(3)
    pool.publish([1, 3], [200, 10])
    pool.release(blocks[::-1])
    assert free_blocks(pool) == [1, 2, 3]
    assert pool.quiet_takes(3) == 2  # the third announces that key 10 is lost
    pool.touch([1])
    assert pool.quiet_takes(2) == 1


class PoolMachine(RuleBasedStateMachine):
    """The pool and a model in lists, side by side. A *table* is what one request holds."""

    @initialize(num_blocks=st.integers(2, 12), keyless_first=st.booleans(), announce_below=st.sampled_from([4, inf]))
    def start(self, num_blocks, keyless_first, announce_below):
        self.pool = BlockPool(num_blocks, keyless_first=keyless_first, announce_below=announce_below)
        self.announce_below = announce_below
        self.num_blocks = num_blocks
        self.keyless_first = keyless_first
        self.free = list(range(1, num_blocks))
        self.tables = []
        self.registered = []  # (key, block), oldest first
        self.events = []
        self.num_evictions = 0

    def find(self, key):
        return next((block for name, block in self.registered if name == key), None)

    @rule(hits=st.lists(st.integers(0, 7), max_size=4, unique=True), data=st.data())
    def admit(self, hits, data):
        """A request touches what it hits and takes some more, as many as there are then."""
        blocks = [block for block in map(self.find, hits) if block is not None]
        assert blocks == [self.pool.cached[key] for key in hits if key in self.pool.cached]
        self.pool.touch(blocks)
        self.free = [block for block in self.free if block not in blocks]
        count = data.draw(st.integers(0, len(self.free)))
        taken = [self.pool.take_one()] if count == 1 else self.pool.take(count)
        assert taken == self.free[:count]
        del self.free[:count]
        evicted = {block: key for key, block in self.registered if block in taken}
        self.registered = [row for row in self.registered if row[1] not in taken]
        lost = [evicted[block] for block in taken if block in evicted]
        self.events += [~key for key in lost if key < self.announce_below]
        self.num_evictions += len(evicted)
        self.tables.append(blocks + taken)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def publish(self, data):
        """The leading blocks without content get some, as a request's blocks do when they fill."""
        table = data.draw(st.sampled_from(self.tables))
        named = {block for _, block in self.registered}
        bare = [block for block in table if block not in named]
        keys = data.draw(st.lists(st.integers(0, 7), max_size=len(bare), unique=True).map(sorted))  # as in a prompt
        if len(keys) == 1:
            self.pool.publish_one(bare[0], keys[0])
        elif keys:
            self.pool.publish(bare[: len(keys)], keys)
        self.registered += zip(keys, bare, strict=False)
        self.events += [key for key in keys if key < self.announce_below]

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data):
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(table)
        held = set(itertools.chain.from_iterable(self.tables))
        named = {block for _, block in self.registered}
        idle = [block for block in reversed(table) if block not in held]
        front = [block for block in idle if self.keyless_first and block not in named]
        self.free = front + self.free + [block for block in idle if block not in front]

    @rule()
    def reset(self):
        if self.pool.reset():
            self.registered = []
            self.events.append(CLEARED)
            assert not any(self.tables)
        else:
            assert any(self.tables)

    @invariant()
    def free_list_is_the_models(self):
        assert free_blocks(self.pool) == self.free
        assert self.pool.num_free == len(self.free)

    @invariant()
    def free_plus_held_is_the_pool(self):
        """Law 2: every block but the null block is either free, once, or held, and as often as it has holders."""
        holders = Counter(itertools.chain.from_iterable(self.tables))
        assert sorted([*self.free, *holders]) == list(range(1, self.num_blocks))
        assert [self.pool.ref_cnt[block] for block in range(self.num_blocks)] == [
            holders[block] for block in range(self.num_blocks)
        ]

    @invariant()
    def oldest_registered_block_is_found(self):
        assert dict(self.pool.cached) == {key: self.find(key) for key, _ in self.registered}

    @invariant()
    def quiet_takes_are_certain(self):
        announced = {block for key, block in self.registered if key < self.announce_below}
        quiet = next((place for place, block in enumerate(self.free) if block in announced), len(self.free))
        assert self.pool.quiet_takes(len(self.free)) <= quiet

    @invariant()
    def events_tell_what_is_stored(self):
        assert self.pool.events == self.events
        assert self.pool.num_evictions == self.num_evictions


TestPoolMachine = PoolMachine.TestCase
