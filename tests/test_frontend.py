"""The routers in front of the instances: who is told what and when, who waits, and what copies bring.

Unless said otherwise a step takes 1 s, a block holds 4 tokens, and a prompt fits into one step.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from cluster_cases import config, request, step_time
from hypothesis import given
from hypothesis import strategies as st

from simulator.cluster import Cluster
from simulator.metrics import Metrics
from simulator.request import Request
from simulator.routing import Hold, Router, Send, View, make_routers, parse_routing
from simulator.routing.decision import Copy, Decision
from simulator.routing.dispatch_index import DispatchIndex
from simulator.routing.prefix_index import PrefixIndex, deepest, instances

Decide = Callable[[Request, View, float], Decision]


class Scripted(Router):
    """Does as it is told, and writes down when it was asked for whom."""

    summary = source = "for tests"

    def __init__(self, decide: Decide, **attributes: Any) -> None:
        super().__init__(None, 2, random.Random(0))
        self.decide = decide
        self.asked: list[tuple[float, int]] = []
        for name, value in attributes.items():
            setattr(self, name, value)

    def choose(self, request: Request, view: View, now_s: float) -> Decision:
        self.asked.append((now_s, request.request_id))
        return self.decide(request, view, now_s)

    def rank(self, request: Request) -> float:
        return request.priority


def run(routers: Router | list[Router], *requests: Request, **engine: Any) -> Cluster:
    cluster = Cluster(config(**engine), step_time(step_s=1.0), routers, 2, Metrics(2))
    cluster.run(iter(requests))
    return cluster


def prompt(num_shared: int, own: int = 1, number: int = 100) -> list[tuple[int, int, int]]:
    """``num_shared`` tokens of a text that several begin with, and some of one's own."""
    return [(7, 0, num_shared), (number, 0, own)]


# ---- replicas


def test_replicas_take_turns_and_know_their_own_dispatches_only():
    seen = []

    def decide(request: Request, view: View, now_s: float) -> Send:
        seen.append((request.replica, list(view.num_in_flight)))
        return Send(0)

    routers: list[Router] = [Scripted(decide) for _ in range(3)]
    run(routers, *(request(number, 0.0, 4, 3) for number in range(7)))
    assert seen == [(number % 3, [number // 3, 0]) for number in range(7)]


def test_replicas_share_the_block_events():
    seen = []

    def decide(request: Request, view: View, now_s: float) -> Send:
        seen.append((request.replica, view.cached_levels(request, now_s)))
        return Send(0)

    routers: list[Router] = [Scripted(decide, index="events") for _ in range(2)]
    run(routers, *(request(number, 3.0 * number, prompt(8, number=number + 100), 1) for number in range(3)))
    assert seen == [(0, []), (1, [(0b1, 2)]), (0, [(0b1, 2)])]


def test_a_policy_makes_replicas_that_know_their_number():
    routers = make_routers(parse_routing({"policy": "least_requests", "replicas": 3}), 2, random.Random(0))
    assert [router.replica for router in routers] == [0, 1, 2]
    assert len({id(router.rng) for router in routers}) == 1


# ---- events


def test_events_are_seen_after_the_step_and_their_delay():
    """Blocks computed from 0 to 1. Who comes at that very moment comes before the news."""
    for delay_s, expected in ((0.0, [[], [], [], [(1, 2)], [(1, 2)]]), (0.5, [[], [], [], [], [(1, 2)]])):
        seen = []

        def decide(request: Request, view: View, now_s: float) -> Send:
            seen.append(view.cached_levels(request, now_s))  # noqa: B023
            return Send(0)

        router = Scripted(decide, index="events", event_delay_s=delay_s)
        times = (0.0, 0.5, 1.0, 1.25, 1.5)
        run(router, *(request(number, time_s, prompt(8), 1) for number, time_s in enumerate(times)))
        assert seen == expected


# ---- those who wait


def one_at_a_time(request: Request, view: View, now_s: float) -> Decision:
    return Hold() if sum(view.num_in_flight) else Send(0)


def test_the_queue_goes_by_rank_and_is_asked_when_a_token_passes():
    """Each answer has 2 tokens, hence takes from k to k + 2: asked at both, and let through at the latter."""
    router = Scripted(one_at_a_time)
    ranks = (0, 5, 1, 5, 1)
    requests = [request(number, 0.1 * number, 4, 2, priority=rank) for number, rank in enumerate(ranks)]
    run(router, *requests)
    assert [one.queued_s for one in requests] == [0.0, 6.0, 2.0, 8.0, 4.0]  # equals in order of arrival
    # When somebody joins the queue its first is asked: 1; 2, which goes before; 2 again for 3 and for 4.
    arrivals = [(0.0, 0), (0.1, 1), (0.2, 2), (0.1 * 3, 2), (0.4, 2)]
    assert router.asked[:5] == arrivals
    assert router.asked[5:8] == [(1.0, 2), (2.0, 2), (2.0, 4)]


def test_as_many_leave_the_queue_as_may():
    def decide(request: Request, view: View, now_s: float) -> Decision:
        return Hold() if view.prompt_tokens[0] + request.num_prompt_tokens > 12 else Send(0)

    requests = [request(0, 0.0, 12, 1), *(request(number, 0.5, 6, 1) for number in (1, 2, 3))]
    run(Scripted(decide), *requests)
    assert [one.queued_s for one in requests] == [0.0, 1.0, 1.0, 2.0]


def test_nobody_overtakes_the_queue():
    """A request that could be sent at once waits behind the first of the queue, which may not."""

    def decide(request: Request, view: View, now_s: float) -> Decision:
        return Hold() if view.prompt_tokens[0] + request.num_prompt_tokens > 12 else Send(0)

    requests = [request(0, 0.0, 8, 3), request(1, 0.5, 12, 1), request(2, 0.75, 1, 1)]
    run(Scripted(decide), *requests)
    assert [one.queued_s for one in requests] == [0.0, 3.0, 4.0]


def test_each_replica_has_its_own_queue():
    routers: list[Router] = [Scripted(one_at_a_time) for _ in range(2)]
    requests = [request(number, 0.1 * number, 4, 2 + number) for number in range(4)]
    run(routers, *requests, max_num_seqs=4)
    assert [one.replica for one in requests] == [0, 1, 0, 1]
    # Request 1 comes during a step, hence has its three tokens at 2, 3 and 4.
    assert [one.queued_s for one in requests] == [0.0, 0.1, 2.0, 4.0]


def test_who_is_held_until_a_time_is_in_nobodys_way():
    def decide(request: Request, view: View, now_s: float) -> Decision:
        return Hold(10.0) if request.request_id == 0 and now_s < 10 else Send(0)

    router = Scripted(decide)
    requests = [request(0, 0.0, 4, 1), request(1, 1.0, 4, 1)]
    run(router, *requests)
    assert [one.queued_s for one in requests] == [10.0, 1.0]
    assert router.asked == [(0.0, 0), (1.0, 1), (10.0, 0)]


def test_whose_client_has_gone_is_not_asked_for_again():
    """One in the queue, and one held until a time: both give up at 0.5 and 1.5. The next in the queue goes at 2."""

    def decide(request: Request, view: View, now_s: float) -> Decision:
        if request.request_id == 3:
            return Hold(5.0)
        return one_at_a_time(request, view, now_s)

    router = Scripted(decide)
    requests = [
        request(0, 0.0, 4, 2), request(3, 0.05, 4, 1, timeout_s=1.45), request(1, 0.1, 4, 1, timeout_s=0.4),
        request(2, 0.2, 4, 1),
    ]  # fmt: skip
    run(router, *requests)
    assert [one.state for one in requests] == ["finished", "aborted", "aborted", "finished"]
    assert [one.finish_s for one in requests] == [2.0, 1.5, 0.5, 3.0]
    assert requests[3].queued_s == 2.0
    assert [number for time_s, number in router.asked if time_s > 0.5] == [2, 2]  # at the tokens of the first


# ---- copies


def copying(copy: Copy) -> Decide:
    """The first request to instance 0, the second to instance 1 with what is copied."""
    return lambda request, view, now_s: Send(0) if request.request_id == 0 else Send(1, copy)


def test_a_copy_is_there_before_its_request():
    router = Scripted(copying(Copy(0, 2, 0.7)), index="events")
    first, second = request(0, 0.0, prompt(8), 1), request(1, 4.0, prompt(8, own=3, number=101), 1)
    cluster = run(router, first, second)
    assert (second.queued_s, second.num_cached_tokens, second.first_token_s) == (4.7, 8, 5.7)
    view = cluster.frontend.views[0]
    cluster.frontend._deliver_events(10.0)
    assert view.index.overlaps(second.block_keys) == {0: 2, 1: 2}  # the engine tells of copied blocks as of any other


def test_only_what_the_source_has_is_copied():
    """Of five blocks asked for the first two are there; of a source that has none, none. The time is gone anyhow."""
    for source, num_cached in ((0, 8), (1, 0)):
        router = Scripted(copying(Copy(source, 5, 0.7)), index="events")
        first, second = request(0, 0.0, prompt(8), 1), request(1, 4.0, [(7, 0, 24)], 1)
        run(router, first, second)
        assert (second.queued_s, second.num_cached_tokens) == (4.7, num_cached)


def test_no_more_is_copied_than_is_asked_for():
    router = Scripted(copying(Copy(0, 1, 0.7)), index="events")
    first, second = request(0, 0.0, prompt(8), 1), request(1, 4.0, prompt(8, own=3, number=101), 1)
    run(router, first, second)
    assert second.num_cached_tokens == 4


def test_who_gives_up_on_the_way_leaves_nothing_behind():
    router = Scripted(copying(Copy(0, 2, 0.7)), index="events")
    first, second = request(0, 0.0, prompt(8), 1), request(1, 4.0, prompt(8, own=3), 1, timeout_s=0.3)
    cluster = run(router, first, second)
    assert (second.state, second.finish_s, second.queued_s) == ("aborted", 4.3, None)
    assert cluster.instances[1].scheduler.pool.cached == {}
    assert cluster.frontend.views[0].num_in_flight == [0, 0]


# ---- indexes

INSTANCES = (0, 1, 5, 70)
paths = st.lists(st.integers(0, 1), max_size=5).map(lambda turns: _keys(tuple(turns)))


def _keys(turns: tuple[int, ...]) -> list[int]:
    """Keys that stand for everything before them."""
    return [int("".join(map(str, (1, *turns[: depth + 1]))), 2) for depth in range(len(turns))]


@given(st.lists(st.lists(st.tuples(st.sampled_from(INSTANCES), paths), max_size=6), max_size=3), paths)
def test_deepest_is_the_most_that_any_index_knows(contents, asked):
    indexes = []
    for stored in contents:
        index = PrefixIndex()
        for instance, keys in stored:
            index.store(instance, keys[index.overlap(instance, keys) :])
        indexes.append(index)
    expected = {one: max((index.overlap(one, asked) for index in indexes), default=0) for one in INSTANCES}
    merged = deepest(*(index.levels(asked) for index in indexes))
    assert {one: depth for mask, depth in merged for one in instances(mask)} == {
        one: depth for one, depth in expected.items() if depth
    }
    depths = [depth for _, depth in merged]
    assert depths == sorted(set(depths))


@given(
    st.lists(st.tuples(st.integers(0, 20), st.sampled_from(INSTANCES), paths), max_size=20), paths,
    st.sampled_from([1.0, 3.0, 8.0, None]), st.integers(0, 30),
)  # fmt: skip
def test_a_dispatch_index_knows_what_was_sent_in_its_time(sent, asked, ttl_s, later_s):
    index = DispatchIndex(ttl_s)
    sent = sorted(sent, key=lambda one: one[0])
    for now_s, instance, keys in sent:
        index.expire(float(now_s))
        index.remember(instance, keys, float(now_s))
    now_s = float(later_s + (sent[-1][0] if sent else 0))
    index.expire(now_s)
    known = [(one, keys) for time_s, one, keys in sent if ttl_s is None or now_s < time_s + ttl_s]
    for instance in INSTANCES:
        held = {key for one, keys in known if one == instance for key in keys}
        depth = next((place for place, key in enumerate(asked) if key not in held), len(asked))
        assert index.overlap(instance, asked) == depth
    assert len(index) == len({key for _, keys in known for key in keys})
