"""The router's ledger: what a dispatch adds is what its end takes away."""

from __future__ import annotations

import pytest
from routing_cases import BLOCK_SIZE, VARIANTS, conversations, drive, request, router_and_view

from simulator.routing import View
from simulator.routing.fleet import Fleet
from simulator.routing.prefix_index import PrefixIndex


@pytest.mark.parametrize("entry", VARIANTS, ids=str)
def test_the_ledger_is_empty_when_all_is_over(entry):
    router, view = router_and_view(entry, 4)
    requests = conversations()
    drive(router, view, requests)
    assert sum(view.num_in_flight) == 20
    for one in requests[-20:]:
        one.block_keys.append(10**9)  # the engine appends the answer's blocks to its list
        view.finished(one, 1e3)  # some without a first token: aborted
    assert view.num_in_flight == view.prefill_tokens == view.active_blocks == [0] * 4
    assert len(view.active) == 0


def test_the_ledger_counts_what_was_believed_at_dispatch():
    view = View(Fleet(2, BLOCK_SIZE), tracks_active_blocks=True)
    view.kv_events(1, [5, 6])
    first, second = request(1, [5, 6, 7], num_prompt_tokens=200), request(2, [5, 6, 8])
    view.dispatched(first, 1, 0.0)
    assert view.prefill_tokens == [0, 200 - 2 * BLOCK_SIZE]
    view.kv_events(1, [~6])
    view.dispatched(second, 1, 0.0)
    assert view.prefill_tokens == [0, 200 - 2 * BLOCK_SIZE + 2 * BLOCK_SIZE]
    assert view.active_blocks == [0, 4]  # 5, 6, 7 and 8: shared blocks count once
    view.first_token(first, 1.0)
    view.first_token(first, 2.0)
    assert view.prefill_tokens == [0, 2 * BLOCK_SIZE]
    view.finished(first, 3.0)
    assert (view.num_in_flight, view.active_blocks) == ([0, 1], [0, 3])


def test_a_request_in_flight_cannot_be_dispatched_again():
    view = View(Fleet(2, BLOCK_SIZE))
    view.dispatched(request(1, [1]), 0, 0.0)
    with pytest.raises(ValueError, match="dispatched twice"):
        view.dispatched(request(1, [1]), 1, 0.0)


def test_a_dispatched_block_lives_for_its_ttl_after_the_latest_dispatch():
    view = View(Fleet(1, BLOCK_SIZE), fills_at_dispatch=True, ttl_s=120.0)
    view.dispatched(request(1, [1, 2]), 0, 0.0)
    view.dispatched(request(2, [1, 3]), 0, 100.0)
    asked = request(9, [1, 2])
    assert view.cached_levels(asked, 119.9) == [(1, 2)]
    assert view.cached_levels(asked, 120.0) == [(1, 1)]
    assert view.cached_levels(asked, 219.9) == [(1, 1)]
    assert view.cached_levels(asked, 220.0) == []


def test_nothing_in_a_dispatch_index_is_counted_twice():
    view = View(Fleet(1, BLOCK_SIZE), fills_at_dispatch=True)
    for i in range(5):
        view.dispatched(request(i, [1, 2, 3]), 0, 0.0)
    fresh = PrefixIndex()
    fresh.store(0, [1, 2, 3])
    view.index.remove(0, [1, 2, 3])
    assert len(view.index) == 0


def test_what_is_copied_need_not_be_computed():
    view = View(Fleet(2, BLOCK_SIZE))
    view.kv_events(1, [5])
    view.dispatched(request(1, [5, 6, 7]), 1, 0.0, num_copied=2)
    view.dispatched(request(2, [5, 6, 7]), 0, 0.0)
    assert view.prefill_tokens == view.uncached_tokens == [3 * BLOCK_SIZE, BLOCK_SIZE]


def test_expected_seconds_go_with_the_first_token_and_uncached_tokens_with_the_last():
    view = View(Fleet(1, BLOCK_SIZE))
    requests = [request(number, [number]) for number in range(4)]
    for one, prefill_s in zip(requests, (0.1, 0.2, 0.3, 1e-9), strict=True):
        view.dispatched(one, 0, 0.0, prefill_s=prefill_s)
    assert view.prefill_s == [pytest.approx(0.6 + 1e-9)]
    view.first_token(requests[0], 1.0)
    assert view.prefill_s == [pytest.approx(0.5 + 1e-9)]
    assert (view.prefill_tokens, view.uncached_tokens) == ([3 * BLOCK_SIZE], [4 * BLOCK_SIZE])
    view.first_token(requests[1], 1.0)
    view.first_token(requests[3], 1.0)
    view.finished(requests[2], 2.0)
    assert view.prefill_s == [0.0]  # exactly: no rounding is left of what is over
    for number in (0, 1, 3):
        view.finished(requests[number], 2.0)
    assert view.uncached_tokens == [0]
