"""Dynamo's cost and choice: upstream's worked cases, and the formula written out."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_cases import BLOCK_SIZE, conversations, request, router_and_view, send

from simulator.routing import Hold, Send, View, make_router, parse_routing
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
    view.changed.update(range(2))
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
    cold, _ = router_and_view({"policy": "dynamo", "temperature": 0.01}, 3)
    assert {cold.choose(one, view, 0.0).instance for _ in range(100)} == {2}
    flat, view = router_and_view({"policy": "dynamo", "temperature": 0.5}, 3)
    assert {flat.choose(one, view, 0.0).instance for _ in range(100)} == {0, 1, 2}


weights = st.one_of(st.just(0.0), st.just(1.0), st.floats(0.0, 4.0, allow_subnormal=False))


@given(st.data(), weights, weights, weights, weights, st.booleans())
def test_dynamo_cost_equals_the_formula(data, credit, decay, scale, request_weight, floor):
    """The formula written out, one instance at a time, against the code that treats most instances at once."""
    num = 5
    entry = {
        "policy": "dynamo",
        "overlap_score_credit": credit,
        "overlap_score_credit_decay": decay,
        "prefill_load_scale": scale,
        "decode_active_request_weight": request_weight,
    }
    if credit > 1:
        entry["zero_floor"] = floor
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
        adjusted = raw - credit / (1 + decay * excess) * cached[i]
        if credit > 1 and floor:
            adjusted = max(0.0, adjusted)
        distinct = {key for instance, own in running if instance == i for key in own} | set(keys)
        load = len(distinct) + request_weight * view.num_in_flight[i]
        assert costs[i] == pytest.approx(scale * adjusted + load, rel=1e-12, abs=1e-9)


def test_dynamo_without_prefixes_spreads_like_the_least_loaded():
    """Equal prompts that share nothing: no instance is ever two requests ahead of another."""
    router, view = router_and_view("dynamo", 6)
    for i in range(60):
        send(router, view, request(i, [10 * i + j for j in range(5)]))
        assert max(view.num_in_flight) - min(view.num_in_flight) <= 1


@pytest.mark.parametrize(("zero_floor", "cost"), [(False, 0.0), (True, 4.0)])
def test_credit_above_one_pays_for_decode_load_or_stops_at_the_floor(zero_floor, cost):
    """PR #11714: 4 blocks cached count double. None of the prompt's 4 is left to pay, and 4 more are paid by the rest
    of the credit where there is no floor.
    """
    entry = {"policy": "dynamo", "overlap_score_credit": 2, "zero_floor": zero_floor}
    router, view = router_and_view(entry, 2)
    for instance in range(2):
        view.kv_events(instance, [1, 2, 3, 4])
    assert router.costs(request(1, [1, 2, 3, 4]), view, 0.0) == [cost, cost]


def test_a_predicted_prefix_keeps_a_pair_together_until_events_would_have_come():
    """Two requests with one new prefix, at once: scattered by events alone, together with a prediction."""
    one, two = request(1, [1, 2, 3, 4]), request(2, [1, 2, 3, 5])
    router, view = router_and_view({"policy": "dynamo", "router_predicted_ttl_secs": "5 s"}, 4)
    first = send(router, view, one, 0.0)
    # 7 blocks to compute in all on the first one's instance and 5 in use, against 4 and 4.
    assert router.costs(two, view, 1.0) == [5 + 5 if i == first else 8 for i in range(4)]
    assert router.costs(two, view, 5.0) == [8 + 5 if i == first else 8 for i in range(4)]
    view.first_token(one, 6.0)
    assert router.costs(two, view, 6.0) == [4 + 5 if i == first else 8 for i in range(4)]
    view.kv_events(first, [1, 2, 3, 4])
    assert router.costs(two, view, 7.0) == [1 + 5 if i == first else 8 for i in range(4)]
    assert send(router, view, two, 7.0) == first


def queueing(policy: str, threshold: float = 2.0):
    """Two instances that queue above so many batches of 64 tokens, with one block of prefill each in excess."""
    entry = {"policy": "dynamo", "router_queue_threshold": threshold, "router_queue_policy": policy}
    router = make_router(parse_routing(entry), 2, random.Random(0))
    return router, router.make_view(Fleet(2, BLOCK_SIZE, max_num_batched_tokens=64))


def test_requests_queue_at_the_router_while_all_instances_are_above_the_threshold():
    router, view = queueing("fcfs")
    one, two = request(1, [1, 2, 3]), request(2, [4, 5])
    assert {send(router, view, one), send(router, view, two)} == {0, 1}
    # 192 and 128 tokens: above 2 batches is the one only.
    assert router.choose(request(3, [6]), view, 0.0) == Send(view.prefill_tokens.index(128))
    three = request(3, [6])
    send(router, view, three)
    assert router.choose(request(4, [7]), view, 0.0) == Hold()
    view.first_token(two, 1.0)
    assert type(router.choose(request(4, [7]), view, 0.0)) is Send


def test_queue_policies_rank_as_upstream():
    early, late = request(1, [1, 2, 3, 4]), request(2, [1])
    early.arrival_time, late.arrival_time = 1.0, 2.0
    assert [queueing("fcfs")[0].rank(one) for one in (early, late)] == [0.0, 0.0]  # equals go by arrival
    lcfs = queueing("lcfs")[0]
    assert lcfs.rank(late) < lcfs.rank(early)
    wspt = queueing("wspt")[0]
    assert wspt.rank(late) < wspt.rank(early)
    early.priority = -7  # vLLM's: lower first; (1 + 7) / 256 tokens against 1 / 64
    assert wspt.rank(early) < wspt.rank(late)
    early.priority = -3
    assert wspt.rank(early) == wspt.rank(late) == -1 / 64


@pytest.mark.parametrize(
    "params",
    [
        {"overlap_score_credit_decay": 0.5},
        {"zero_floor": True, "overlap_score_credit": 1.5},
        {"overlap_score_credit_decay": 2, "overlap_score_credit": 1.5, "decode_active_request_weight": 3},
        {"overlap_score_credit_decay": 0.5, "zero_floor": True, "overlap_score_credit": 4, "prefill_load_scale": 0.5},
    ],
    ids=str,
)
def test_the_choice_is_one_of_the_least_cost_though_few_are_looked_at_closely(params):
    router, view = router_and_view({"policy": "dynamo", **params}, 12)
    chosen = Counter()
    for now_s, one in enumerate(conversations(num_requests=400)):
        costs = router.costs(one, view, float(now_s))
        instance = send(router, view, one, float(now_s))
        assert costs[instance] == pytest.approx(min(costs), abs=1e-9)
        chosen[instance] += 1
        view.kv_events(instance, one.block_keys[view.index.overlap(instance, one.block_keys) :])
        if now_s % 3 == 0:
            view.first_token(one, float(now_s))
    assert len(chosen) == 12
