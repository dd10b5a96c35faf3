"""Eviction policies one by one, each on a case worked out by hand, and what holds for all of them.

A request is its block names in order; `leaves` gives back all its blocks, last one first, as an engine does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import eviction
from simulator.block_pool import BlockPool
from simulator.errors import InputError
from simulator.eviction import POLICIES, Policy, make_policy, parse_eviction
from simulator.eviction.replay import Visitor, hits
from simulator.ordered_pool import OrderedPool
from simulator.prefix import PRIVATE

SOMEONE = Visitor()
TENANTS = ("red", "blue")
ENTRIES: dict[str, Any] = {
    "ttl": {"policy": "ttl", "ttl": "10 s"},
    "quota": {"policy": "quota", "limit": {"red": 0.5}, "reserve": {"blue": 0.25}},
}
ALL = [ENTRIES.get(name, name) for name in POLICIES] + [{"policy": "lfu", "counts": "kept"}]


def made(entry: Any, num_blocks: int = 100) -> Policy:
    return make_policy(parse_eviction(entry), num_blocks, TENANTS)


def leaves(policy: Policy, names: Sequence[int], who: Visitor = SOMEONE, at_s: float = 0.0) -> None:
    """A request gives back all its blocks, which nobody else holds."""
    policy.now_s = at_s
    policy.keep(names[::-1], names[::-1], range(len(names) - 1, -1, -1), who)


def returns(policy: Policy, names: Sequence[int], who: Visitor = SOMEONE, at_s: float = 0.0) -> None:
    """A request finds these idle blocks, and gives them back at once."""
    policy.now_s = at_s
    policy.use(names, names, who)
    leaves(policy, names, who, at_s)


def gone(policy: Policy, number: int, who: Visitor = SOMEONE, at_s: float = 0.0) -> list[int]:
    policy.now_s = at_s
    return [policy.evict(who) for _ in range(number)]


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_lru_goes_by_how_long_blocks_are_idle_and_within_a_prompt_from_its_end() -> None:
    policy = made("lru")
    leaves(policy, [1, 2, 3])
    leaves(policy, [4, 5])
    returns(policy, [1, 2])
    assert gone(policy, 5) == [3, 5, 4, 2, 1]


def test_fifo_goes_by_insertion_whatever_was_used_since() -> None:
    policy = made("fifo")
    leaves(policy, [1, 2, 3])
    leaves(policy, [4, 5])
    returns(policy, [1, 2])
    assert gone(policy, 5) == [3, 2, 1, 5, 4]


def test_lfu_goes_by_use_and_forgets_it_with_the_content_or_not() -> None:
    for counts, expected in (("lost", [1, 2]), ("kept", [2, 1])):
        policy = made({"policy": "lfu", "counts": counts})
        leaves(policy, [1])
        returns(policy, [1])
        assert gone(policy, 1) == [1]
        leaves(policy, [1])
        leaves(policy, [2])
        assert gone(policy, 2) == expected


def test_lfu_counts_uses_by_several_at_once() -> None:
    """Block 1 is found twice while its first holder has it still; block 2 once, when idle."""
    policy = made("lfu")
    policy.use([1], [1], SOMEONE)
    policy.use([1], [1], SOMEONE)
    leaves(policy, [2])
    returns(policy, [2])
    leaves(policy, [1])
    assert gone(policy, 2) == [2, 1]


def test_kept_counts_know_no_content_that_has_no_name() -> None:
    """Private blocks share one name: the count of one says nothing of the next."""
    policy = made({"policy": "lfu", "counts": "kept"})
    for block in (1, 2):
        policy.keep([block], [PRIVATE], [0], SOMEONE)
        policy.use([block], [PRIVATE], SOMEONE)
        policy.keep([block], [PRIVATE], [0], SOMEONE)
        assert gone(policy, 1) == [block]
    policy.keep([3], [PRIVATE], [0], SOMEONE)
    leaves(policy, [4])
    returns(policy, [4])
    assert gone(policy, 2) == [3, 4]


def test_slru_spares_what_was_used_again_once_or_often() -> None:
    policy = made("slru")
    leaves(policy, [1])
    leaves(policy, [2])
    leaves(policy, [3])
    for name in (2, 2, 2, 1):
        returns(policy, [name])
    assert gone(policy, 3) == [3, 2, 1]


def test_length_aware_takes_the_deepest_of_the_least_used() -> None:
    policy = made("length_aware")
    leaves(policy, [1, 2])
    leaves(policy, [3, 4, 5])
    returns(policy, [3])
    assert gone(policy, 5) == [5, 2, 4, 1, 3]


def test_s3fifo_by_hand() -> None:
    """Ten places, one of them the small queue's. 1 is used twice, and moves to the main queue when it comes up; 2 is
    not, and is remembered: when it returns it enters the main queue.
    """
    policy = made("s3fifo", 10)
    for name in (1, 2, 3):
        leaves(policy, [name])
    returns(policy, [1])
    returns(policy, [1])
    assert gone(policy, 1) == [2]
    leaves(policy, [2])
    assert gone(policy, 1) == [3]
    assert gone(policy, 2) == [1, 2]


def test_s3fifo_gives_what_is_used_another_round_in_the_main_queue() -> None:
    policy = made("s3fifo", 10)
    for name in (1, 2):
        leaves(policy, [name])
        returns(policy, [name])
        returns(policy, [name])
    leaves(policy, [3])
    assert gone(policy, 1) == [3]
    returns(policy, [1])
    assert gone(policy, 2) == [2, 1]


def test_s3fifo_passes_over_what_is_held() -> None:
    policy = made("s3fifo", 10)
    for name in (1, 2):
        leaves(policy, [name])
    policy.use([1], [1], SOMEONE)
    assert gone(policy, 1) == [2]
    leaves(policy, [1])
    assert gone(policy, 1) == [1]


def test_ttl_spares_a_session_until_its_time_is_over() -> None:
    """The session's blocks are the oldest. For ten seconds the others go first; then they go in their turn."""
    talk = Visitor(session=7)
    for at_s, expected in ((9.0, [3, 2, 1]), (11.0, [2, 1, 3])):
        policy = made({"policy": "ttl", "ttl": "10 s"})
        leaves(policy, [1, 2], talk, at_s=0.0)
        leaves(policy, [3], at_s=5.0)
        assert gone(policy, 3, at_s=at_s) == expected


def test_ttl_takes_spared_blocks_where_there_are_no_others() -> None:
    policy = made({"policy": "ttl", "ttl": "10 s"})
    leaves(policy, [1], Visitor(session=1), at_s=0.0)
    leaves(policy, [2], Visitor(session=2), at_s=1.0)
    returns(policy, [1], Visitor(session=1), at_s=2.0)
    assert gone(policy, 2, at_s=3.0) == [2, 1]


def test_a_limit_gives_up_ones_own_and_a_reserve_keeps_it() -> None:
    """Ten places. Red may fill two: of its three the oldest goes first, whoever takes; at its limit its own goes."""
    red, blue = Visitor(tenant=0), Visitor(tenant=1)
    policy = made({"policy": "quota", "limit": {"red": 0.2}}, 10)
    leaves(policy, [1], blue)
    leaves(policy, [2, 3, 4], red)
    assert gone(policy, 1, blue) == [4]
    assert gone(policy, 1, red) == [3]
    assert gone(policy, 1, blue) == [1]
    policy = made({"policy": "quota", "reserve": {"blue": 0.2}}, 10)
    leaves(policy, [1, 2, 3], blue)
    leaves(policy, [4, 5], red)
    assert gone(policy, 3, red) == [3, 5, 4]  # blue is above its reserve by one; its two others are left
    assert gone(policy, 1, red) == [2]  # there is nothing else
    leaves(policy, [6], red)
    assert gone(policy, 1, blue) == [1]  # which one may take oneself


def test_workload_aware_learns_who_comes_back() -> None:
    """Red's prompt is asked for again after a second, blue's never: after three of each, red's that is idle for half a
    second, e^(−1/2), is worth more than blue's new one, 1/4 (none used of three, and one beyond).
    """
    red, blue = Visitor(tenant=0), Visitor(tenant=1)
    policy = made("workload_aware")
    leaves(policy, [10], red, at_s=0.0)
    for second in (1.0, 2.0, 3.0):
        leaves(policy, [20], blue, at_s=second - 0.5)
        policy.now_s = second
        policy.use([10], [10], red)
        assert gone(policy, 1, at_s=second) == [20]
        leaves(policy, [10], red, at_s=second)
    leaves(policy, [21], blue, at_s=3.5)
    assert gone(policy, 1, at_s=3.5) == [21]


def test_workload_aware_worth_to_the_digit() -> None:
    """Tenant red's idle times that ended in a use: 1 s and 3 s, rate 1/2; one block evicted after 4 s. A block idle for
    2 s is worth 3/4 (two uses and one beyond, of three idle times and one beyond) · e^(−2/2) · (1 − e^(−4/2)).
    """
    policy = made("workload_aware")
    leaves(policy, [1], at_s=0.0)
    returns(policy, [1], at_s=1.0)
    returns(policy, [1], at_s=4.0)
    leaves(policy, [2], at_s=4.0)
    policy.use([1], [1], SOMEONE)
    assert gone(policy, 1, at_s=8.0) == [2]
    leaves(policy, [3], at_s=8.0)
    policy.now_s = 10.0
    worth, place = policy._worth((0, 1))  # type: ignore[attr-defined]
    # The use that took block 1 out at once, at 4 s, is a third one, after 0 s.
    assert math.exp(worth) == pytest.approx(4 / 5 * math.exp(-2 * 3 / 4) * (1 - math.exp(-4 * 3 / 4)))
    assert place == 0


def test_workload_aware_tells_turns_of_a_session_apart() -> None:
    policy = made("workload_aware")
    for request, block in ((1, 10), (2, 11), (2, 12), (3, 13)):
        leaves(policy, [block], Visitor(request_id=request, session=5))
    leaves(policy, [14], Visitor(request_id=9))
    kinds = policy._idle.queues  # type: ignore[attr-defined]
    assert {kind: list(queue) for kind, queue in kinds.items()} == {(0, 1): [10, 14], (0, 2): [11, 12], (0, 3): [13]}


def test_belady_by_hand() -> None:
    """Two places. The third prompt is never asked for again, and is refused; the others stay."""
    requests = [[1], [2], [3], [1], [2]]
    assert hits(made("belady", 2), requests, 2) == [0, 0, 0, 1, 1]
    assert hits(made("lru", 2), requests, 2) == [0, 0, 0, 0, 0]


# --- for all ----------------------------------------------------------------------------------------------------------


@st.composite
def prefix_trees(draw: st.DrawFn) -> list[list[int]]:
    """Prompts of blocks whose names stand for whole prefixes."""
    numbers: dict[tuple[int, ...], int] = {}
    prompts = draw(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=40))
    return [[numbers.setdefault(tuple(p[: n + 1]), len(numbers)) for n in range(len(p))] for p in prompts]


def visitors(number: int) -> Iterable[Visitor]:
    return [Visitor(n, n % 2, (n % 3) or None, time_s=float(n)) for n in range(number)]


@pytest.mark.parametrize("entry", ALL, ids=str)
def test_every_policy_hits_no_more_than_the_bound_and_everything_where_there_is_room(entry: Any) -> None:
    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(prefix_trees(), st.integers(1, 12))
    def hold(requests: list[list[int]], capacity: int) -> None:
        found = hits(made(entry, capacity), requests, capacity, visitors(len(requests)))
        bound = hits(made("belady", capacity), requests, capacity)
        assert sum(found) <= sum(bound)
        seen: set[int] = set()
        roomy = hits(made(entry, 10**4), requests, 10**4, visitors(len(requests)))
        for names, here in zip(requests, roomy, strict=True):
            assert here == sum(name in seen for name in names)
            seen.update(names)

    hold()


@given(prefix_trees(), st.integers(5, 12))
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
def test_lru_of_a_replay_is_the_pools(requests: list[list[int]], capacity: int) -> None:
    pool = BlockPool(capacity + 1)
    found = []
    for names in requests:
        blocks: list[int] = []
        for name in names:
            if name not in pool.cached:
                break
            blocks.append(pool.cached[name])
        found.append(len(blocks))
        pool.touch(blocks)
        new = pool.take(len(names) - len(blocks))
        pool.publish(new, names[len(blocks) :])
        pool.release(blocks + new)
    assert hits(made("lru", capacity), requests, capacity) == found


def test_a_reset_pool_forgets_content_and_policy() -> None:
    pool = OrderedPool(5, lambda: made("lfu", 4))
    blocks = pool.take(3, SOMEONE)
    pool.publish(blocks, [1, 2, 3], SOMEONE)
    assert not pool.reset()
    pool.release(blocks, SOMEONE)
    assert pool.quiet_takes(10) == 1
    before = pool.policy
    assert pool.reset()
    assert pool.policy is not before
    assert not pool.cached
    assert sorted(pool.free) == [1, 2, 3, 4]
    assert sorted(pool.take(4, SOMEONE)) == [1, 2, 3, 4]


def test_a_pool_uses_up_what_holds_nothing_before_it_asks_the_policy() -> None:
    pool = OrderedPool(6, lambda: made("lru", 5))
    blocks = pool.take(3, SOMEONE)
    pool.publish(blocks[:2], [10, 11], SOMEONE)
    pool.release(blocks, SOMEONE)
    assert set(pool.take(3, SOMEONE)) == {blocks[2], 4, 5}
    assert pool.num_evictions == 0
    assert pool.take(2, SOMEONE) == [blocks[1], blocks[0]]
    assert pool.num_evictions == 2


def test_policies_say_what_they_are() -> None:
    for name, policy in POLICIES.items():
        assert policy.summary
        assert policy.source, name
        if policy.Params.model_fields:
            assert all(info.description for info in policy.Params.model_fields.values())


def test_law_8_no_policy_reads_the_true_answer_length() -> None:
    files = list(Path(eviction.__file__).parent.glob("*.py"))
    assert len(files) > len(POLICIES) / 2
    assert not [file for file in files if "oracle" in file.read_text(encoding="utf-8")]


def test_names_and_labels() -> None:
    assert parse_eviction("lru").label == "lru"
    assert parse_eviction({"policy": "lfu", "counts": "kept"}).label == "lfu(counts=kept)"
    assert parse_eviction({"policy": "ttl", "ttl": "2 min"}).params.ttl == 120  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="eviction: unknown policy 'lfuu'"):
        parse_eviction("lfuu")
