"""Threshold gates: the worked cases of SGLang's gateway and AIBrix, and their ties."""

from __future__ import annotations

from collections import Counter

import pytest
from routing_cases import request, router_and_view, send

from simulator.routing import Send, View

ALL = [0, 1, 2, 3]


def load(view: View, *loads: int) -> None:
    """Requests in flight that share nothing with anything."""
    for instance, number in enumerate(loads):
        for i in range(number):
            view.dispatched(request(10_000 * (instance + 1) + i, [], num_prompt_tokens=1), instance, 0.0)


def warmed(entry, loads: tuple[int, ...], holder: int, keys: list[int]):
    """A router that once sent a prompt of these keys to ``holder``, and what is in flight now."""
    router, view = router_and_view(entry, len(loads))
    first = request(1, keys)
    view.dispatched(first, holder, 0.0)
    view.finished(first, 0.0)
    load(view, *loads)
    return router, view


# ---- SGLang gateway


@pytest.mark.parametrize(
    ("loads", "chosen"),
    [
        ((100, 20), 1),  # 80 > 64 and 100 > 30: imbalanced, the second worker
        ((100, 40), 0),  # 60 <= 64: the tree
        ((200, 135), 0),  # 65 > 64, but 200 <= 202.5: the tree
        ((200, 133), 1),  # 67 > 64 and 200 > 199.5
        ((100, 36), 0),  # 64 is not more than 64
        ((198, 132), 0),  # nor is 198 more than 1.5 * 132
    ],
)
def test_sglang_worked_cases(loads, chosen):
    router, view = warmed("sglang-cli", loads, 0, ALL)
    assert router.choose(request(2, ALL), view, 1.0) == Send(chosen)


def test_sglang_rust_trips_earlier():
    """Absolute 32, relative 1.1: (100, 40) is imbalanced there."""
    router, view = warmed("sglang-rust", (100, 40), 0, ALL)
    assert router.choose(request(2, ALL), view, 1.0) == Send(1)


@pytest.mark.parametrize(("num_shared", "chosen"), [(3, 1), (4, 0)])
def test_a_match_counts_from_more_than_the_threshold_on(num_shared, chosen):
    """Of 10 blocks 3 are 30 %, which is not more than 0.3: the least loaded; with 4 the owner, loaded as it is."""
    keys = [*range(num_shared), *range(100, 110 - num_shared)]
    router, view = warmed("sglang-cli", (5, 2), 0, [*range(num_shared), 50])
    assert router.choose(request(2, keys), view, 1.0) == Send(chosen)


def test_the_text_is_noted_for_whoever_gets_it_even_if_imbalanced():
    router, view = warmed("sglang-cli", (100, 20), 0, ALL)
    assert send(router, view, request(2, ALL), 1.0) == 1
    for instance in range(2):
        for i in range((100, 20)[instance]):
            view.finished(request(10_000 * (instance + 1) + i, [], num_prompt_tokens=1), 2.0)
    assert router.choose(request(3, ALL), view, 3.0) == Send(1)  # the last owner, though 1 has the only one in flight


@pytest.mark.parametrize(("entry", "chosen"), [("sglang-cli", 0), ("sglang-2024", 1)])
def test_a_miss_goes_to_the_least_loaded_and_went_to_the_smallest_tree(entry, chosen):
    """SGLang issues #14305 and #14532: the smallest tree may be the most loaded worker."""
    router, view = warmed(entry, (2, 9), 0, list(range(40)))
    assert router.choose(request(2, [500, 501]), view, 1.0) == Send(chosen)


def test_an_old_text_is_forgotten_when_the_tree_is_too_big():
    """256 tokens are 1,024 characters; looked after each 10 s."""
    entry = {"policy": "cache_aware", "max_tree_size": 1024, "eviction_interval_secs": 10}
    router, view = warmed(entry, (5, 0), 0, ALL)
    other = request(2, [7, 8])
    view.dispatched(other, 0, 5.0)
    assert router.choose(request(3, ALL), view, 9.0) == Send(0)
    assert router.choose(request(3, ALL), view, 10.0) == Send(1)


# ---- AIBrix


@pytest.mark.parametrize(
    ("loads", "chosen"),
    [
        ((9, 0), 1),  # 9 > 8: the gate
        ((8, 0), 0),  # no gate, and 8 <= mean 4 + sigma 4
        ((8, 1, 0), 2),  # no gate, but 8 > 3 + 3.56: not the owner, and nobody else has it: the least running
    ],
)
@pytest.mark.parametrize("events", [False, True])
def test_aibrix_worked_cases(loads, chosen, events):
    entry = {"policy": "aibrix_prefix_cache", "use_kv_events": True} if events else "aibrix-prefix"
    router, view = warmed(entry, loads, 0, ALL)
    assert router.choose(request(2, ALL), view, 1.0) == Send(chosen)


def test_aibrix_takes_the_best_match_that_is_not_overloaded():
    router, view = router_and_view("aibrix-prefix", 4)
    for number, (instance, depth) in enumerate([(0, 4), (1, 3), (2, 3)]):
        one = request(number, ALL[:depth])
        view.dispatched(one, instance, 0.0)
        view.finished(one, 0.0)
    load(view, 8, 2, 1, 0)  # mean 2.75, sigma 3.11: the first has 8 > 5.86
    assert router.choose(request(9, ALL), view, 1.0) == Send(2)  # 75 % twice: the less loaded of them


def test_aibrix_matches_within_the_least_loaded_when_the_gate_is_shut():
    router, view = warmed("aibrix-prefix", (20, 3, 3), 2, ALL)
    assert {router.choose(request(2, ALL), view, 1.0).instance for _ in range(50)} == {2}
    router, view = warmed("aibrix-prefix", (20, 3, 3), 0, ALL)
    assert {router.choose(request(2, ALL), view, 1.0).instance for _ in range(50)} == {1, 2}


def test_aibrix_shuffles_ties():
    router, view = router_and_view("aibrix-prefix", 4)
    for instance in (0, 1, 2):
        one = request(instance, ALL)
        view.dispatched(one, instance, 0.0)
        view.finished(one, 0.0)
    counts = Counter(router.choose(request(9, ALL), view, 1.0).instance for _ in range(3000))
    assert set(counts) == {0, 1, 2}
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 13.8  # 99.9 %, 2 degrees of freedom


def test_aibrix_forgets_after_twenty_minutes_and_beyond_200_000_tokens():
    router, view = warmed("aibrix-prefix", (1, 0), 0, ALL)
    assert router.choose(request(2, ALL), view, 1200.0) == Send(0)
    assert router.choose(request(2, ALL), view, 1201.5) == Send(1)
    router, view = warmed("aibrix-prefix", (1, 0), 0, ALL)
    view.dispatched(request(2, list(range(1000, 1000 + 3125))), 1, 1.0)  # 200,000 tokens, for any instance
    view.finished(request(2, []), 1.0)
    assert router.choose(request(3, ALL), view, 2.0) == Send(1)
