"""Dynamo's cost and choice: upstream's worked cases, and the formula written out."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_cases import BLOCK_SIZE, request, router_and_view, send

from simulator.routing import Send, View
from simulator.routing.fleet import Fleet


def dynamo_view(active: dict[int, int], cached: dict[int, int], keys: list[int], num_instances: int = 2) -> View:
    """A view with that many active blocks of other prompts, and leading blocks of ``keys`` cached."""
    view = View(Fleet(num_instances, BLOCK_SIZE), tracks_active_blocks=True)
    for instance, num_blocks in active.items():
        other = request(1000 + instance, [10_000 * (instance + 1) + i for i in range(num_blocks)])
        view.dispatched(other, instance, 0.0)
        view.first_token(other, 0.0)
    for instance, depth in cached.items():
        view.kv_events(instance, keys[:depth])
    return view


def test_dynamo_worked_case():
    """Block size 64, 6,400 tokens. A: 60 blocks cached, 150 active after admission. C: none cached, 70. C wins."""
    keys = list(range(100))
    view = dynamo_view({}, {0: 60}, keys)
    # The source gives the counts after admission as they are; 70 is less than the request's own 100 blocks.
    view.active_blocks[:] = [150 - 100, 70 - 100]
    router, _ = router_and_view("dynamo", 2)
    assert router.costs(request(1, keys), view, 0.0) == [190.0, 170.0]
    assert router.choose(request(1, keys), view, 0.0) == Send(1)


def test_dynamo_documented_case():
    """Upstream's example of three workers: 10 blocks, overlaps 2, 5, 8, decode 10, 5, 9: costs 18, 10, 11."""
    keys = list(range(10))
    view = dynamo_view({0: 10, 1: 5, 2: 9}, {0: 2, 1: 5, 2: 8}, keys, num_instances=3)
    router, _ = router_and_view("dynamo", 3)
    one = request(1, keys)
    assert [cost - len(keys) for cost in router.costs(one, view, 0.0)] == [18.0, 10.0, 11.0]
    assert router.choose(one, view, 0.0) == Send(1)


def test_dynamo_counts_a_shared_active_block_once():
    router, view = router_and_view("dynamo", 2)
    view.dispatched(request(1, [1, 2, 3]), 0, 0.0)
    view.first_token(request(1, [1, 2, 3]), 0.0)
    one = request(2, [1, 2, 3, 4])
    # Instance 0: 4 uncached + 4 active in all (3 of them shared); instance 1: 4 uncached + 4 active.
    assert router.costs(one, view, 0.0) == [8.0, 8.0]


def test_dynamo_charges_prefill_until_the_first_token():
    router, view = router_and_view("dynamo", 2)
    running = request(1, [1, 2])
    view.dispatched(running, 0, 0.0)
    one = request(2, [7], num_prompt_tokens=96)
    assert router.costs(one, view, 0.0) == [(128 + 96) / 64 + 3, 96 / 64 + 1]
    view.first_token(running, 1.0)
    assert router.costs(one, view, 1.0) == [96 / 64 + 3, 96 / 64 + 1]


def test_dynamo_breaks_exact_ties_uniformly_and_draws_for_nothing_else():
    router, view = router_and_view("dynamo", 4)
    view.dispatched(request(1, [1]), 2, 0.0)
    counts = Counter(router.choose(request(2, [9]), view, 0.0).instance for _ in range(3000))
    assert set(counts) == {0, 1, 3}
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 13.8  # 99.9 %, 2 degrees of freedom
    for instance in (0, 1):
        view.dispatched(request(10 + instance, [10 + instance]), instance, 0.0)
    before = router.rng.getstate()
    assert router.choose(request(2, [9]), view, 0.0) == Send(3)
    assert router.rng.getstate() == before


def test_dynamo_temperature_is_a_softmax_of_scaled_costs():
    router, view = router_and_view({"policy": "dynamo", "temperature": 0.5}, 3)
    view.kv_events(1, [1])
    view.kv_events(2, [1, 2])
    one = request(1, [1, 2, 3])
    assert router.costs(one, view, 0.0) == [6.0, 5.0, 4.0]
    weights = [math.exp(-scaled / 0.5) for scaled in (1.0, 0.5, 0.0)]
    counts = Counter(router.choose(one, view, 0.0).instance for _ in range(20_000))
    expected = [20_000 * weight / sum(weights) for weight in weights]
    assert sum((counts[i] - expected[i]) ** 2 / expected[i] for i in range(3)) < 13.8
    flat, view = router_and_view({"policy": "dynamo", "temperature": 0.5}, 3)
    assert {flat.choose(one, view, 0.0).instance for _ in range(100)} == {0, 1, 2}


weights = st.one_of(st.just(0.0), st.just(1.0), st.floats(0.0, 4.0, allow_subnormal=False))


@given(st.data(), weights, weights, weights, weights)
def test_dynamo_cost_equals_the_formula(data, credit, decay, scale, request_weight):
    """The formula written out, one instance at a time, against the code that treats most instances at once."""
    num = 5
    entry = {
        "policy": "dynamo",
        "overlap_score_credit": credit,
        "overlap_score_credit_decay": decay,
        "prefill_load_scale": scale,
        "decode_active_request_weight": request_weight,
    }
    router, view = router_and_view(entry, num)
    keys = list(range(6))
    running = []
    for number in range(data.draw(st.integers(0, 8))):
        instance = data.draw(st.integers(0, num - 1))
        own = [*keys[: data.draw(st.integers(0, 6))], 100 + number]
        running.append((instance, own))
        one = request(number, own, len(own) * BLOCK_SIZE + data.draw(st.integers(0, BLOCK_SIZE - 1)))
        view.dispatched(one, instance, 0.0)
        if data.draw(st.booleans()):
            view.first_token(one, 0.0)
    cached = [data.draw(st.integers(0, 6)) for _ in range(num)]
    for instance, depth in enumerate(cached):
        view.kv_events(instance, keys[:depth])
    one = request(99, keys, 6 * BLOCK_SIZE + data.draw(st.integers(0, BLOCK_SIZE - 1)))
    costs = router.costs(one, view, 0.0)
    least = min(view.prefill_tokens)
    for i in range(num):
        excess = (view.prefill_tokens[i] - least) / BLOCK_SIZE / math.ceil(one.num_prompt_tokens / BLOCK_SIZE)
        raw = (view.prefill_tokens[i] + one.num_prompt_tokens) / BLOCK_SIZE
        adjusted = max(0.0, raw - credit / (1 + decay * excess) * cached[i])
        distinct = {key for instance, own in running if instance == i for key in own} | set(keys)
        load = len(distinct) + request_weight * view.num_in_flight[i]
        assert costs[i] == pytest.approx(scale * adjusted + load, rel=1e-12)


def test_dynamo_without_prefixes_spreads_like_the_least_loaded():
    """Equal prompts that share nothing: no instance is ever two requests ahead of another."""
    router, view = router_and_view("dynamo", 6)
    for i in range(60):
        send(router, view, request(i, [10 * i + j for j in range(5)]))
        assert max(view.num_in_flight) - min(view.num_in_flight) <= 1


def test_dynamo_credit_above_one_stops_at_the_floor():
    router, view = router_and_view({"policy": "dynamo", "overlap_score_credit": 2}, 2)
    for instance in range(2):
        view.kv_events(instance, [1, 2, 3, 4])
    # 4 blocks cached count double: none of the prompt's 4 is left to pay, and no more than that.
    assert router.costs(request(1, [1, 2, 3, 4]), view, 0.0) == [4.0, 4.0]
