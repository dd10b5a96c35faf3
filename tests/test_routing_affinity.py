"""llm-d's filter by prefix, then by load."""

from __future__ import annotations

from collections import Counter

import pytest
from routing_cases import BLOCK_SIZE, request, router_and_view

from simulator.routing import Send

KEYS = list(range(10))
ENTRY = {"policy": "llmd_affinity", "precise": True}


def sticky(entry, cached: dict[int, int], in_flight: dict[int, int], num_instances: int = 3):
    """A router that knows so many leading blocks of `KEYS` cached, and so many other blocks in flight, uncached."""
    router, view = router_and_view(entry, num_instances)
    for instance, depth in cached.items():
        view.kv_events(instance, KEYS[:depth])
    for instance, num_blocks in in_flight.items():
        other = [1000 * (instance + 1) + i for i in range(num_blocks)]
        view.dispatched(request(100 + instance, other), instance, 0.0)
    return router, view


@pytest.mark.parametrize(("depth", "chosen"), [(7, {1, 2}), (8, {0})])
def test_from_80_percent_of_the_prompt_on_an_instance_is_sticky(depth, chosen):
    """With 7 of 10 blocks it would have 20 in flight and 3 to compute, the others 2 and 10; with 8 load is not looked
    at.
    """
    router, view = sticky(ENTRY, {0: depth}, {0: 20, 1: 2, 2: 2})
    assert {router.choose(request(1, KEYS), view, 0.0).instance for _ in range(50)} == chosen


def test_among_sticky_ones_the_fewest_tokens():
    router, view = sticky(ENTRY, {0: 10, 1: 8}, {0: 5, 1: 2})
    assert router.choose(request(1, KEYS), view, 0.0) == Send(1)  # 2 + 2 blocks against 5
    router, view = sticky(ENTRY, {0: 10, 1: 8}, {0: 3, 1: 2})
    assert router.choose(request(1, KEYS), view, 0.0) == Send(0)  # 3 against 2 + 2


@pytest.mark.parametrize(("penalty", "num_blocks", "chosen"), [("11 s", 13, 0), ("10.9 s", 13, 1), ("0 s", 999, 0)])
def test_waiting_costs_at_most_the_penalty(penalty, num_blocks, chosen):
    """13 blocks of 64 tokens in flight against 2, at 64 tokens a second: 11 s more. Beyond the penalty only load
    counts, 13 blocks against 2 and 10 of the request's own. Penalty 0: always sticky.
    """
    entry = ENTRY | {"max_ttft_penalty": penalty}
    if penalty != "0 s":
        entry["peak_prefill_throughput"] = f"{BLOCK_SIZE}/s"
    router, view = sticky(entry, {0: 10}, {0: num_blocks, 1: 2, 2: 50})
    assert router.choose(request(1, KEYS), view, 0.0) == Send(chosen)


def test_defaults_break_at_287_thousand_tokens():
    """15,928 tokens/s times 18 s, about 35 batches of 8,192 tokens."""
    params = router_and_view("llmd-affinity", 2)[0].params
    assert params.peak_prefill_throughput * params.max_ttft_penalty == pytest.approx(286_704)


def test_no_tokens_count_once_the_first_one_has_passed():
    router, view = sticky(ENTRY, {}, {0: 5})
    assert router.choose(request(1, KEYS), view, 0.0) != Send(0)
    view.first_token(request(100, []), 1.0)
    assert {router.choose(request(1, KEYS), view, 0.0).instance for _ in range(60)} == {0, 1, 2}


def test_exploration_ignores_the_filter_so_often():
    router, view = sticky(ENTRY | {"exploration_probability": "25 %"}, {0: 8}, {0: 5})
    counts = Counter(router.choose(request(1, KEYS), view, 0.0).instance == 0 for _ in range(4000))
    # Unfiltered too the first one wins: 5 + 2 blocks against 10.
    assert counts == {True: 4000}
    view.dispatched(request(300, list(range(5000, 5009))), 0, 0.0)
    counts = Counter(router.choose(request(1, KEYS), view, 0.0).instance == 0 for _ in range(4000))
    assert abs(counts[True] - 3000) < 4 * (4000 * 0.25 * 0.75) ** 0.5


def test_the_approximate_one_knows_what_it_sent():
    router, view = router_and_view("llmd-affinity", 4)
    one = request(1, KEYS)
    view.dispatched(one, 2, 0.0)
    assert router.choose(request(2, KEYS), view, 0.0) == Send(2)
