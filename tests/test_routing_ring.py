"""Hash rings: evenness, stability, and the bound on loads."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from cluster_cases import request as asks
from hypothesis import given
from hypothesis import strategies as st
from routing_cases import router_and_view

from simulator.routing import Send, View
from simulator.routing.ring import Ring, prompt_key


def prompt(head: int, tail: int, num_head: int = 300) -> tuple:
    """``num_head`` tokens of one text, then 50 of another."""
    return ((head, 0, num_head), (10_000 + tail, 0, 50))


def load(view: View, loads: list[int]) -> None:
    for instance, number in enumerate(loads):
        for i in range(number):
            view.dispatched(asks(10_000 * (instance + 1) + i, 0.0, 8, 1), instance, 0.0)


# ---- the ring


def test_virtual_nodes_share_out_the_keys():
    """An instance's share varies by about 1 / sqrt(virtual nodes) of itself."""
    ring, rng = Ring(8, 256), random.Random(0)
    counts = Counter(ring.owner(rng.getrandbits(64)) for _ in range(40_000))
    assert set(counts) == set(range(8))
    assert all(abs(count / 5000 - 1) < 4 / math.sqrt(256) for count in counts.values())


@given(st.integers(0, 2**64 - 1), st.integers(1, 12))
def test_one_more_instance_only_takes(point, num_instances):
    assert Ring(num_instances + 1, 20).owner(point) in (Ring(num_instances, 20).owner(point), num_instances)


@given(st.integers(0, 2**64 - 1), st.integers(1, 5))
def test_a_walk_goes_once_around_from_the_owner(point, num_instances):
    ring = Ring(num_instances, 7)
    walk = list(ring.walk(point))
    assert walk[0] == ring.owner(point)
    assert Counter(walk) == dict.fromkeys(range(num_instances), 7)


def test_a_key_is_the_beginning_however_it_was_cut():
    assert prompt_key(((1, 0, 10), (1, 10, 30), (2, 0, 5)), 25) == prompt_key(((1, 0, 40), (3, 0, 9)), 25)
    assert prompt_key(((1, 0, 20), (2, 0, 9)), 25) != prompt_key(((1, 0, 20), (3, 0, 9)), 25)
    assert prompt_key(((1, 0, 20), (None, 0, 9)), 25) is None


# ---- consistent hashing


@pytest.mark.parametrize("key", ["session", "tenant", "prompt"])
def test_equal_keys_go_to_one_instance_and_different_ones_spread(key):
    router, view = router_and_view({"policy": "consistent_hash", "key": key}, 8)
    homes = {}
    for number in range(200):
        one = asks(number, 0.0, prompt(number % 50, number % 50), 1, session=number % 50, tenant=number % 50)
        homes.setdefault(number % 50, set()).add(router.choose(one, view, 0.0).instance)
    assert all(len(home) == 1 for home in homes.values())
    assert len(set.union(*homes.values())) == 8


def test_only_the_beginning_of_a_prompt_is_hashed_if_it_says_so():
    whole, view = router_and_view({"policy": "consistent_hash", "key": "prompt"}, 8)
    first, _ = router_and_view({"policy": "consistent_hash", "key": "prompt", "prefix_tokens": 300}, 8)
    asked = [asks(number, 0.0, prompt(1, number), 1) for number in range(40)]
    assert len({whole.choose(one, view, 0.0).instance for one in asked}) > 4
    assert len({first.choose(one, view, 0.0).instance for one in asked}) == 1


def test_a_prompt_that_nobody_else_has_goes_anywhere():
    router, view = router_and_view({"policy": "consistent_hash", "key": "prompt"}, 4)
    assert {router.choose(asks(number, 0.0, 30, 1), view, 0.0).instance for number in range(60)} == {0, 1, 2, 3}


def test_a_request_without_a_session_goes_by_its_prompt():
    """As upstream, where its body is hashed: equal prompts have one home, and sessions keep theirs."""
    by_session, view = router_and_view("consistent_hash", 8)
    by_prompt, _ = router_and_view({"policy": "consistent_hash", "key": "prompt"}, 8)
    for number in range(60):
        text = prompt(number % 20, 0)
        plain, ours = (asks(number, 0.0, text, 1, session=session) for session in (None, 7))
        assert by_session.choose(plain, view, 0.0) == by_prompt.choose(plain, view, 0.0)
        assert by_session.choose(ours, view, 0.0) == by_session.choose(asks(0, 0.0, 30, 1, session=7), view, 0.0)


# ---- bounded loads


def test_chwbl_worked_case():
    """n = 4, total 7: bound 1.25 * 8 / 4 = 2.5: with 3 in flight a worker is skipped, with 2 it is taken."""
    one = asks(1, 0.0, prompt(1, 1), 1)
    router, view = router_and_view("kubeai-chwbl", 4)
    home = router.choose(one, view, 0.0).instance
    others = [instance for instance in range(4) if instance != home]
    for in_flight, chosen in ((2, {home}), (3, set(others))):
        router, view = router_and_view("kubeai-chwbl", 4)
        loads = [0] * 4
        loads[home], loads[others[0]], loads[others[1]] = in_flight, 2, 5 - in_flight
        load(view, loads)
        assert sum(view.num_in_flight) == 7
        assert router.choose(one, view, 0.0).instance in chosen


@pytest.mark.parametrize("policy", ["kubeai-chwbl", "prefix_hash"])
@pytest.mark.parametrize(("in_flight", "stays"), [(5, True), (6, False)])
def test_a_load_at_the_bound_is_accepted(policy, in_flight, stays):
    """n = 4, total 15: the bound is 1.25 * 16 / 4 = 5, this request included in the mean."""
    one = asks(1, 0.0, prompt(1, 1), 1)
    router, view = router_and_view(policy, 4)
    home = router.choose(one, view, 0.0).instance
    rest = iter([4, 3, 15 - 7 - in_flight])
    load(view, [in_flight if instance == home else next(rest) for instance in range(4)])
    assert sum(view.num_in_flight) == 15
    assert (router.choose(one, view, 0.0).instance == home) is stays


def test_an_overloaded_home_passes_on_to_the_next_on_the_ring_always_the_same():
    router, view = router_and_view("kubeai-chwbl", 6)
    one = asks(1, 0.0, prompt(1, 1), 1)
    home = router.choose(one, view, 0.0).instance
    load(view, [9 if instance == home else 0 for instance in range(6)])
    following = {router.choose(one, view, 0.0).instance for _ in range(20)}
    assert len(following) == 1
    assert home not in following


@given(st.lists(st.integers(0, 20), min_size=1, max_size=6), st.integers(0, 50))
def test_no_load_exceeds_the_bound(loads, head):
    """The law of bounded loads: whoever takes the request has at most 1.25 times the mean, it included."""
    router, view = router_and_view({"policy": "kubeai_prefix_hash", "virtual_nodes": 8}, len(loads))
    load(view, loads)
    chosen = router.choose(asks(1, 0.0, prompt(head, 0), 1), view, 0.0).instance
    assert loads[chosen] <= 1.25 * (sum(loads) + 1) / len(loads)


def test_kubeai_looks_at_100_characters_and_the_adapter():
    router, view = router_and_view("kubeai-chwbl", 8)
    same = {router.choose(asks(n, 0.0, prompt(1, n, num_head=25), 1), view, 0.0).instance for n in range(40)}
    assert len(same) == 1
    differ = {router.choose(asks(n, 0.0, prompt(1, n, num_head=24), 1), view, 0.0).instance for n in range(40)}
    assert len(differ) > 4
    adapters = {router.choose(asks(n, 0.0, prompt(1, 1), 1, lora=f"a{n}"), view, 0.0).instance for n in range(40)}
    assert len(adapters) > 4


def test_sglang_looks_at_256_tokens_and_falls_back_on_the_least_loaded():
    router, view = router_and_view("prefix_hash", 4)
    same = {router.choose(asks(n, 0.0, prompt(1, n, num_head=256), 1), view, 0.0).instance for n in range(40)}
    assert len(same) == 1
    differ = {router.choose(asks(n, 0.0, prompt(1, n, num_head=255), 1), view, 0.0).instance for n in range(40)}
    assert len(differ) == 4
    home = same.pop()
    load(view, [9 if instance == home else 1 + instance for instance in range(4)])
    least = 0 if home else 1
    assert router.choose(asks(99, 0.0, prompt(1, 1, num_head=256), 1), view, 0.0) == Send(least)


def test_sglang_worked_loads():
    """Upstream's example: 100 in flight on 4 workers: mean 25.25, threshold 31.56: 31 is accepted and 32 is not."""
    one = asks(1, 0.0, prompt(1, 1), 1)
    home = router_and_view("prefix_hash", 4)[0].choose(one, router_and_view("prefix_hash", 4)[1], 0.0).instance
    for in_flight, stays in ((31, True), (32, False)):
        router, view = router_and_view("prefix_hash", 4)
        rest = iter([30, 30, 40 - in_flight])
        load(view, [in_flight if instance == home else next(rest) for instance in range(4)])
        assert (router.choose(one, view, 0.0).instance == home) is stays
