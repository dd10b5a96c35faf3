"""vLLM production-stack's policies: the longest prefix in chunks, what LMCache says, and the load-aware proposal."""

from __future__ import annotations

from collections import Counter

import pytest
from cluster_cases import request as asks
from routing_cases import BLOCK_SIZE, request, router_and_view, send

from simulator.routing import Send
from simulator.routing.dispatch_rate import DispatchRate
from simulator.routing.hashing import home_of

KEYS = list(range(40))


def test_prefixaware_draws_among_the_longest_and_looks_at_no_load():
    router, view = router_and_view("prodstack-prefix", 4)
    for number, instance in enumerate([0, 0, 0, 0, 2, 2, 3]):
        depth = 10 if instance != 3 else 9
        view.dispatched(request(number, KEYS[:depth]), instance, 0.0)
    counts = Counter(router.choose(request(99, KEYS), view, 0.0).instance for _ in range(2000))
    assert set(counts) == {0, 2}
    assert abs(counts[0] - 1000) < 4 * (2000 * 0.25) ** 0.5


def test_prefixaware_never_forgets():
    router, view = router_and_view("prodstack-prefix", 4)
    view.dispatched(request(0, KEYS), 2, 0.0)
    for number in range(1, 50):
        view.dispatched(request(number, list(range(1000 * number, 1000 * number + 100))), number % 4, float(number))
    assert router.choose(request(99, KEYS), view, 1e9) == Send(2)


def test_prefixaware_compares_chunks_of_32_tokens_and_the_end():
    """40 common tokens are one chunk of 32; the last chunk of a prompt counts however short it is."""
    router, view = router_and_view("prodstack-prefix", 8)
    view.dispatched(asks(0, 0.0, ((1, 0, 40), (2, 0, 60)), 1), 3, 0.0)
    view.dispatched(asks(1, 0.0, ((1, 0, 32), (3, 0, 60)), 1), 4, 0.0)
    view.dispatched(asks(2, 0.0, ((5, 0, 31), (6, 0, 60)), 1), 5, 0.0)
    assert {router.choose(asks(9, 0.0, ((1, 0, 40), (9, 0, 60)), 1), view, 0.0).instance for _ in range(60)} == {3, 4}
    assert {router.choose(asks(9, 0.0, ((5, 0, 31), (9, 0, 60)), 1), view, 0.0).instance for _ in range(200)} == set(
        range(8)
    )
    view.dispatched(asks(10, 0.0, ((7, 0, 40),), 1), 6, 0.0)
    view.dispatched(asks(11, 0.0, ((7, 0, 39),), 1), 7, 0.0)
    assert {router.choose(asks(12, 0.0, ((7, 0, 40),), 1), view, 0.0).instance for _ in range(60)} == {6}


def test_prefixaware_without_a_match_goes_anywhere_or_to_the_fewest_dispatches():
    """Upstream's least match is 0 characters, which no match at all has: all endpoints tie."""
    router, view = router_and_view("prodstack-prefix", 4)
    assert {router.choose(request(n, [n]), view, 0.0).instance for n in range(60)} == {0, 1, 2, 3}
    router, view = router_and_view({"policy": "prodstack-prefix", "prefix_min_match_length": 256}, 3)
    assert [send(router, view, request(n, [100 + n])) for n in range(6)] == [0, 1, 2, 0, 1, 2]
    assert send(router, view, request(9, [102, 7]), 1.0) == 2  # 64 tokens are 256 characters
    short = asks(10, 1.0, ((103, 0, 32), (9, 0, 60)), 1)
    assert send(router, view, short, 1.0) == 0  # 128 characters: too short, and 0 has had two, as 1; 2 has three


def test_kvaware_follows_whoever_caches_all_but_the_threshold():
    """Of 2,560 tokens all but 2,000 are 560: nine blocks of 64 are 576 and enough, eight are 512 and are not."""
    router, view = router_and_view("prodstack-kv", 4)
    asked = request(99, KEYS)
    assert asked.num_prompt_tokens == 2560
    view.kv_events(3, KEYS[:9])
    assert router.choose(asked, view, 0.0) == Send(3)
    router, view = router_and_view("prodstack-kv", 4)
    view.kv_events(3, KEYS[:8])
    assert router.choose(asked, view, 0.0) == Send(0)  # the first that was never sent anything


@pytest.mark.parametrize(("threshold", "chosen"), [(1984, 3), (1983, 0)])
def test_kvaware_takes_a_match_of_just_enough(threshold, chosen):
    """Nine blocks are 576 tokens, 2,560 - 1,984."""
    router, view = router_and_view({"policy": "prodstack-kv", "threshold": threshold}, 4)
    view.kv_events(3, KEYS[:9])
    assert router.choose(request(99, KEYS), view, 0.0) == Send(chosen)


def test_kvaware_takes_a_short_prompt_that_anybody_knows_at_all():
    router, view = router_and_view("prodstack-kv", 4)
    view.kv_events(2, KEYS[:1])
    assert router.choose(request(1, KEYS[:3]), view, 0.0) == Send(2)
    assert router.choose(request(2, [77]), view, 0.0) == Send(0)


def test_kvaware_falls_back_on_the_sessions_instance_if_told_so():
    router, view = router_and_view({"policy": "kvaware", "fallback": "session"}, 8)
    for session in range(20):
        assert send(router, view, request(session, [500 + session], session=session)) == home_of(session, 8)


def test_dispatches_are_counted_over_the_window():
    rate = DispatchRate(3, window_s=60.0)
    assert rate.lowest(0.0) == 0
    for instance, now_s in ((0, 0.0), (1, 1.0), (1, 2.0), (2, 3.0), (2, 4.0)):
        rate.sent(instance, now_s)
    assert rate.lowest(59.9) == 0
    rate.sent(0, 59.9)
    rate.sent(0, 59.9)
    assert rate.lowest(60.0) == 0  # 2, 2, 2: the one of second 0 is out
    rate.sent(0, 60.0)
    assert rate.lowest(60.9) == 1
    assert rate.lowest(1000.0) == 0


@pytest.mark.parametrize(
    ("beta", "num_busy", "chosen"),
    [(1, 1, 0), (1, 3, 1), (0, 30, 0), (0.5, 3, 0)],
)
def test_loadaware_by_its_formula(beta, num_busy, chosen):
    """The whole prompt was sent to the first: 1 - beta * (load - mean) / max(1, mean) against 0 - beta * (0 - mean) /
    max(1, mean). Two instances, one with ``num_busy``: 1 - .5 > .5 is a tie (lowest index); with 3: 1 - 1 < 1.
    """
    router, view = router_and_view({"policy": "loadaware", "beta": beta}, 2)
    view.dispatched(request(0, KEYS), 0, 0.0)
    for number in range(1, num_busy):
        view.dispatched(request(number, [1000 + number]), 0, 0.0)
    assert router.choose(request(99, KEYS), view, 0.0) == Send(chosen)


def test_loadaware_gives_part_of_a_match_its_share():
    router, view = router_and_view("loadaware", 3)
    for number, (instance, depth) in enumerate([(0, 10), (1, 20), (2, 10)]):
        one = request(number, KEYS[:depth])
        view.dispatched(one, instance, 0.0)
        view.finished(one, 0.0)
    assert router.choose(request(99, KEYS), view, 0.0) == Send(1)
    view.dispatched(request(100, [999], num_prompt_tokens=BLOCK_SIZE), 1, 0.0)
    # Mean 1/3: 0.5 - 2/3 is less than 0.25 + 1/3.
    assert router.choose(request(99, KEYS), view, 0.0) == Send(0)
