"""Routers by cost beside Dynamo's: LMetric, Mooncake's Conductor, Preble, TensorRT-LLM. Upstream's worked cases, and
cases worked by hand: a step of 1 ms and 0.1 ms a prompt token, blocks of 64 tokens and 64 kB.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from routing_cases import BLOCK_SIZE, fleet, request, router_and_view, send

from simulator.routing import Refuse, Send
from simulator.routing.decision import Copy

# ---- LMetric


def test_lmetric_multiplies_what_is_to_be_computed_by_what_runs():
    router, view = router_and_view("lmetric", 3)
    keys = [1, 2, 3, 4]
    view.kv_events(0, [1, 2, 3])
    running, prefilling = request(10, [50]), request(11, [60, 61])
    view.dispatched(running, 0, 0.0)
    view.first_token(running, 0.0)
    view.dispatched(prefilling, 1, 0.0)
    one = request(1, keys)
    # 1 block of 4 beside 1 request; 2 + 4 blocks beside 1; 4 blocks beside none.
    assert router.costs(one, view, 0.0) == [64 * 1 * 2, 64 * 6 * 2, 64 * 4 * 1]
    assert send(router, view, one) == 0
    assert router.costs(request(2, [7]), view, 0.0) == [64 * (1 + 1) * 3, 64 * 3 * 2, 64 * 1]


def test_lmetric_by_blocks_is_dynamos_policy():
    router, view = router_and_view({"policy": "lmetric", "load": "blocks"}, 2)
    running = request(10, [1, 2, 70])
    view.dispatched(running, 0, 0.0)
    view.first_token(running, 0.0)
    view.kv_events(0, [1, 2, 70])
    # Active after admission: 70 and the prompt's four; against the four alone.
    assert router.costs(request(1, [1, 2, 3, 4]), view, 0.0) == [2 * 64 * (5 + 1), 4 * 64 * (4 + 1)]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 6), st.booleans()), max_size=9), st.sampled_from([1, 2, 9]))
def test_lmetric_needs_no_weight(sent, factor):
    """All prompts ``factor`` times as long: the same order of instances, which a weighted sum would not keep."""
    orders = []
    for scale in (1, factor):
        router, view = router_and_view("lmetric", 3)
        for number, (instance, num_blocks, started) in enumerate(sent):
            one = request(number, [100 * number + i for i in range(num_blocks * scale)])
            view.dispatched(one, instance, 0.0)
            if started:
                view.first_token(one, 0.0)
        costs = router.costs(request(99, list(range(10_000, 10_000 + 3 * scale))), view, 0.0)
        orders.append([cost / scale for cost in costs])
    assert orders[0] == orders[1]


# ---- Conductor


def test_conductor_worked_cases():
    """Threshold 2, own 10 blocks: best 15 is computed, best 30 has 20 transferred; of nothing all is transferred."""
    router, _ = router_and_view("conductor", 2)
    assert router.num_transferred(10, 15) == 0
    assert router.num_transferred(10, 30) == 20
    assert router.num_transferred(0, 5) == 5
    assert router.num_transferred(0, 0) == 0
    assert router.num_transferred(10, 20) == 0  # not above the threshold


def test_conductor_copies_a_prefix_to_where_it_is_sooner():
    keys = list(range(10))
    router, view = router_and_view({"policy": "conductor", "transfer_bandwidth": "64 MB/s"}, 2)
    view.kv_events(0, keys)
    # Prefill of 640 tokens less all but one: 1.1 ms. A queue of 0.02 s at the first against 10 blocks of 64 kB: 10 ms.
    waiting = request(50, [77])
    view.dispatched(waiting, 0, 0.0, prefill_s=0.02)
    decision = router.choose(request(1, keys), view, 0.0)
    assert decision == Send(1, Copy(0, 10, pytest.approx(0.01)), pytest.approx(0.0011))
    view.first_token(waiting, 1.0)
    assert router.choose(request(1, keys), view, 1.0) == Send(0, None, pytest.approx(0.0011))
    slow, _ = router_and_view({"policy": "conductor", "transfer_bandwidth": "20 MB/s"}, 2)
    again, other = request(51, [78]), request(1, keys)
    view.dispatched(again, 0, 2.0, prefill_s=0.02)
    assert slow.choose(other, view, 2.0).instance == 0  # 32 ms of transfer


def test_conductor_computes_what_is_nearly_as_long_as_the_best():
    keys = list(range(10))
    router, view = router_and_view("conductor", 2)
    view.kv_events(0, keys)
    view.kv_events(1, keys[:6])
    view.dispatched(request(50, [77]), 0, 0.0, prefill_s=1.0)
    # 4 of 10 blocks to compute: 1 ms + 256 * 0.1 ms; no copy, for 10 / 6 is less than 2.
    assert router.choose(request(1, keys), view, 0.0) == Send(1, None, pytest.approx(0.001 + 0.0256))


def test_conductor_queues_by_predicted_seconds_until_the_first_token():
    router, view = router_and_view("conductor", 2)
    long, short = request(1, list(range(100))), request(2, list(range(200, 210)))
    assert send(router, view, long) == 0
    assert view.prefill_s == [pytest.approx(0.641), 0.0]
    assert [send(router, view, short)] == [1]
    assert send(router, view, request(3, list(range(300, 310)))) == 1
    view.first_token(long, 1.0)
    assert send(router, view, request(4, list(range(400, 410)))) == 0


def test_conductor_refuses_what_it_predicts_to_be_late():
    router, view = router_and_view({"policy": "conductor", "ttft_slo": "50 ms"}, 1)
    one, two = request(1, list(range(5))), request(2, list(range(10, 15)))
    assert router.choose(one, view, 0.0) == Send(0, None, pytest.approx(0.033))
    send(router, view, one)
    assert router.choose(two, view, 0.0) == Refuse("predicted TTFT above ttft_slo")
    view.first_token(one, 1.0)
    assert type(router.choose(two, view, 1.0)) is Send
    # A step of 2 decodes of 320 tokens: 1 + 2 + 0.64 ms.
    for limit, refused in (("3.6 ms", True), ("3.7 ms", False)):
        careful, _ = router_and_view({"policy": "conductor", "tbt_slo": limit}, 1)
        assert (type(careful.choose(two, view, 1.0)) is Refuse) == refused


# ---- Preble


def test_preble_exploits_a_prefix_that_is_most_of_the_prompt_and_explores_otherwise():
    router, view = router_and_view("preble", 3)
    first = send(router, view, request(1, [1, 2, 3, 4]))
    assert first == 0
    assert send(router, view, request(2, [1, 2, 3, 9])) == 0  # 3 of 4 blocks: exploited although 0 is the busiest
    assert send(router, view, request(3, [1, 2, 8, 9])) == 1  # half is not more than the rest: least load
    assert send(router, view, request(4, [5])) == 2


def test_preble_chooses_the_least_loaded_of_those_that_hold_the_prefix():
    router, view = router_and_view("preble", 3)
    for instance in (1, 2):
        view.dispatched(request(instance, [1, 2, 3]), instance, 0.0)
    view.dispatched(request(3, [7]), 1, 0.0)
    # Decode work of 2 requests against 1, 45 * 0.15 s each; the idle instance does not hold the prefix.
    assert router.loads(view) == [0.0, 13.5, 6.75]
    assert send(router, view, request(4, [1, 2, 3, 4])) == 2


def test_preble_work_counts_for_its_window():
    router, view = router_and_view({"policy": "preble", "window": "3 min"}, 2)
    one = request(1, list(range(100)))
    assert send(router, view, one, 0.0) == 0
    view.finished(one, 1.0)
    assert router.loads(view) == [pytest.approx(0.641), 0.0]
    two = request(2, list(range(200, 203)))
    assert send(router, view, two, 179.9) == 1
    view.finished(two, 179.95)
    assert send(router, view, request(3, list(range(300, 303))), 180.0) == 0  # nothing is left of the first
    assert router.loads(view)[0] == pytest.approx(0.0202 + 6.75)


def test_preble_relieves_the_busiest_instance_of_its_prefixes():
    router, view = router_and_view("preble", 2)
    for number in range(101):
        now_s = number / 20
        one = request(number, [1, 2, 3, 1000 + number])
        assert send(router, view, one, now_s) == 0
        view.finished(one, now_s)
    assert send(router, view, request(500, [1, 2, 3, 500]), 9.9) == 0
    assert send(router, view, request(501, [1, 2, 3, 501]), 10.0) == 1


def test_preble_knows_a_text_until_the_pool_is_too_small_for_it():
    router, view = router_and_view({"policy": "preble", "tokens_per_instance": 256}, 2)
    one, other = request(1, [1, 2, 3]), request(2, [4, 5, 6])
    view.dispatched(one, 1, 0.0)
    view.finished(one, 0.5)
    assert send(router, view, request(3, [1, 2, 3]), 0.9) == 1
    view.dispatched(other, 1, 0.9)
    view.finished(other, 0.9)
    assert view.own.matches(request(4, [1, 2, 3]), 1.0) == {1: 64}  # its end went first
    assert view.own.matches(request(4, [4, 5, 6]), 1.0) == {1: 192}


def test_preble_takes_the_engines_pool_unless_told():
    router, _ = router_and_view("preble", 2)
    view = router.make_view(fleet(2, num_gpu_blocks=4))
    for number in range(3):
        view.dispatched(request(number, [10 * number, 10 * number + 1]), 0, 0.0)
    view.own.matches(request(9, [0]), 1.0)
    assert view.own.num_tokens == [256, 0]


# ---- TensorRT-LLM


def test_adp_score_by_hand():
    """b = 1, a prompt of 4 blocks, active uncached tokens 64, 128 and 0: the load is 256 at least."""
    router, view = router_and_view("trtllm_adp", 3)
    view.dispatched(request(50, [70]), 0, 0.0)
    view.dispatched(request(51, [80, 81]), 1, 0.0)
    view.kv_events(1, [1, 2, 3])
    one = request(1, [1, 2, 3, 4])
    assert router.scores(one, view, 0.0) == [256 + 64, 64 + 128, 256]
    assert send(router, view, one) == 1
    for number in range(3):
        view.first_token(request(50 + number % 2, []), 1.0)  # a first token changes nothing: they are active
    # All is cached but one token; 64, 192 and 0 active.
    view.kv_events(1, [4])
    assert router.scores(request(2, [1, 2, 3, 4]), view, 1.0) == [256 + 64, 1 + 192, 256]


def test_adp_takes_a_small_match_for_none():
    """1 block of 10 is not above 0.1; 2 are."""
    router, view = router_and_view("trtllm_adp", 2)
    keys = list(range(10))
    view.kv_events(1, keys[:1])
    assert router.scores(request(1, keys), view, 0.0) == [640, 640]
    view.kv_events(1, keys[1:2])
    assert router.scores(request(1, keys), view, 0.0) == [640, 512]


def test_adp_leaves_out_who_has_twice_the_fair_share():
    """4 instances, 3 requests on one and the new one: 1 each is fair, 2 are the limit, 3 is the fullest."""
    router, view = router_and_view("trtllm_adp", 4)
    view.kv_events(0, [1, 2, 3, 4])
    for number in range(2):
        view.dispatched(request(number, [1, 2, 3, 4]), 0, 0.0)
    assert send(router, view, request(9, [1, 2, 3, 4])) != 0
    view.finished(request(0, [1, 2, 3, 4]), 1.0)
    assert send(router, view, request(10, [1, 2, 3, 4])) == 0


def test_adp_ties_go_to_the_fewest_active_tokens_and_then_to_any():
    router, view = router_and_view({"policy": "trtllm_adp", "load_balance_weight": 0}, 4)
    view.dispatched(request(1, [1]), 2, 0.0)
    counts = Counter(router.choose(request(9, [9]), view, 0.0).instance for _ in range(3000))
    assert set(counts) == {0, 1, 3}
    assert sum((count - 1000) ** 2 / 1000 for count in counts.values()) < 13.8  # 99.9 %, 2 degrees of freedom


@given(st.data())
def test_adp_score_equals_the_formula(data):
    """Written out, an instance at a time, against the code that treats most instances at once."""
    number, keys = 4, list(range(5))
    router, view = router_and_view({"policy": "trtllm_adp", "fair_share_multiplier": 1.5}, number)
    for one in range(data.draw(st.integers(0, 12))):
        view.dispatched(request(one, [100 + 10 * one]), data.draw(st.integers(0, number - 1)), 0.0)
    held = [data.draw(st.integers(0, 5)) for _ in range(number)]
    for instance, depth in enumerate(held):
        view.kv_events(instance, keys[:depth])
    one = request(99, keys)
    scores = router.scores(one, view, 0.0)
    fair = -(-(sum(view.num_in_flight) + 1) // number)
    limit = max(-(-3 * fair // 2), max(view.num_in_flight))
    able = [i for i in range(number) if view.num_in_flight[i] < limit]
    load = max(sum(view.uncached_tokens[i] for i in able), 320)
    cached = [min(depth * BLOCK_SIZE, 319) for depth in held]
    if max((cached[i] for i in able), default=0) <= 32:
        cached = [0] * number
    for i in range(number):
        if i in able:
            assert scores[i] == pytest.approx(320 - cached[i] + view.uncached_tokens[i] / load * 320)
        else:
            assert scores[i] == float("inf")
