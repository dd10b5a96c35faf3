"""Which blocks a request may have: the longest hit, the test before an allocation, no trace of a refusal."""

from __future__ import annotations

from math import inf

import pytest
from engine import ask, free_blocks, text
from hypothesis import given
from hypothesis import strategies as st

from simulator.block_pool import BlockPool
from simulator.kv_cache import KVCache
from simulator.prefix import Prefixes

SIZE = 4


def make_cache(num_usable, *, keyless_first=True, max_model_len=400, **options):
    """A cache of blocks of 4 tokens with that many usable blocks."""
    pool = BlockPool(num_usable + 1, keyless_first=keyless_first, announce_below=inf)
    values = {"caching": True, "reserve_full": True, **options}
    return KVCache(pool, Prefixes(SIZE), max_model_len, **values)


def asked(kv, *runs, **fields):
    """A request whose keys are computed."""
    request = ask(0, *runs, **fields)
    root = kv.prefixes.root(request.cache_salt, request.lora)
    request.block_keys, request.prompt_end = kv.prefixes.keys(request.prompt, root)
    return request


def admit(kv, request, num_new=None, running=False):
    """Look up, take blocks for the hit and ``num_new`` tokens more (default all), publish; the hit or None."""
    length = request.num_prompt_tokens
    hit = kv.longest_hit(request, length)
    end = length if num_new is None else len(hit) * SIZE + num_new
    if not kv.admit(request, hit, length, end, running):
        return None
    kv.publish(request, end)
    return len(hit)


def serve(kv, *runs, **fields):
    """A request comes, computes its prompt and goes; its hit blocks."""
    request = asked(kv, *runs, **fields)
    hit = admit(kv, request)
    assert hit is not None
    kv.release(request)
    return hit


def state(kv, *requests):
    """Everything an allocation could change."""
    pool = kv.pool
    tables = [(list(request.blocks), request.num_published) for request in requests]
    copies = list(pool.ref_cnt), list(pool.key), dict(pool.cached), list(pool.events)
    return free_blocks(pool), pool.num_free, pool.num_evictions, copies, tables


@pytest.mark.parametrize(("length", "hit"), [(1, 0), (4, 0), (5, 1), (8, 1), (9, 2), (12, 2), (13, 3), (15, 3)])
def test_full_hit_recomputes_a_block(length, hit):
    """One token must always be computed: a prompt of m full blocks, all cached, hits m - 1; with one token more, m."""
    kv = make_cache(20)
    serve(kv, text(1, 20))
    assert serve(kv, text(1, length)) == hit


@pytest.mark.parametrize(("drops", "hits"), [(False, [0, 1, 2, 3]), (True, [0, 0, 1, 2])])
def test_eagle_drops_the_last_hit_block(drops, hits):
    """A drafter that needs the last hidden state makes every hit one block shorter, never negative."""
    kv = make_cache(20, drop_last_hit_block=drops)
    serve(kv, text(1, 20))
    assert [serve(kv, text(1, length)) for length in (4, 5, 9, 13)] == hits


def test_hit_ends_at_the_first_miss():
    """Blocks behind a gap stay in the pool and cannot be hit."""
    kv = make_cache(6)
    serve(kv, text(1, 17))
    blocks = [kv.pool.cached[key] for key in kv.prefixes.keys((text(1, 16),))[0]]
    kv.pool.touch(blocks[:1] + blocks[2:])
    kv.pool.take(kv.pool.num_free)  # evicts the second block alone
    assert len([key for key in kv.prefixes.keys((text(1, 16),))[0] if key in kv.pool.cached]) == 3
    assert kv.longest_hit(asked(kv, text(1, 17)), 17) == blocks[:1]


def test_without_caching_nothing_is_found_nor_kept():
    kv = make_cache(20, caching=False)
    assert [serve(kv, text(1, 17)) for _ in range(2)] == [0, 0]
    assert not kv.pool.cached
    assert not kv.pool.events


def test_request_that_skips_reading_still_fills_the_cache():
    """A prompt-logprob request reads nothing and publishes everything."""
    kv = make_cache(20)
    serve(kv, text(1, 17))
    assert serve(kv, text(1, 17), skip_reading_prefix_cache=True) == 0
    serve(kv, text(2, 17), skip_reading_prefix_cache=True)
    assert serve(kv, text(2, 17)) == 4


def test_lookup_changes_nothing():
    kv = make_cache(20)
    serve(kv, text(1, 17))
    before = state(kv)
    assert len(kv.longest_hit(asked(kv, text(1, 17)), 17)) == 4
    assert state(kv) == before


@pytest.mark.parametrize("keyless_first", [True, False])
def test_order_after_two_requests_as_in_vllm(keyless_first):
    """``test_prefill``: 55 and 53 tokens in blocks of 16, the first 3 blocks shared, 10 usable blocks."""
    pool = BlockPool(11, keyless_first=keyless_first)
    kv = KVCache(pool, Prefixes(16), 8192, caching=True, reserve_full=True)
    zero, one = asked(kv, text(1, 48), 7), asked(kv, text(1, 48), 5)
    for request, hit in ((zero, 0), (one, 3)):
        found = kv.longest_hit(request, request.num_prompt_tokens)
        assert len(found) == hit
        assert kv.admit(request, found, request.num_prompt_tokens, request.num_prompt_tokens, False)
        kv.publish(request, request.num_prompt_tokens)
    assert (zero.blocks, one.blocks) == ([1, 2, 3, 4], [1, 2, 3, 5])
    kv.release(zero)
    kv.release(one)
    expected = [5, 4, 6, 7, 8, 9, 10, 3, 2, 1] if keyless_first else [6, 7, 8, 9, 10, 4, 5, 3, 2, 1]
    assert free_blocks(pool) == expected


def test_own_hit_is_not_evicted_for_the_rest():
    """A request that hits idle blocks and needs more gets others, though its hit was next in line."""
    kv = make_cache(4)
    serve(kv, text(1, 8))
    serve(kv, text(2, 8))
    assert free_blocks(kv.pool)[:2] == [2, 1]
    request = asked(kv, text(1, 12), 1)
    assert admit(kv, request) == 2
    assert request.blocks == [1, 2, 4, 3]


@pytest.mark.parametrize(("num_usable", "admitted"), [(10, False), (11, True)])
def test_idle_hit_blocks_count_against_free_space(num_usable, admitted):
    """A hit on idle blocks takes them from the free list; one on blocks in use costs nothing."""
    kv = make_cache(num_usable)
    serve(kv, text(1, 24))  # 6 idle blocks with content
    busy = asked(kv, 16)
    assert admit(kv, busy) == 0  # 4 blocks
    request = asked(kv, text(1, 24), 1)
    before = state(kv, request)
    assert (admit(kv, request) is not None) == admitted
    assert admitted or state(kv, request) == before


def test_hit_blocks_in_use_cost_nothing():
    kv = make_cache(7)
    holder = asked(kv, text(1, 24))
    admit(kv, holder)
    assert kv.pool.num_free == 1
    assert admit(kv, asked(kv, text(1, 24), 1)) == 6
    assert kv.pool.num_free == 0


def test_refused_prefill_leaves_hits_untouched_as_in_vllm():
    """``test_prefill_not_enough_free_blocks_with_computed_blocks``: 10 usable blocks, the hit is partly idle."""
    kv = make_cache(10)
    holder, guest = asked(kv, text(1, 12)), asked(kv, text(1, 24))
    assert (admit(kv, holder), admit(kv, guest)) == (0, 3)
    kv.release(guest)  # blocks 1-3 stay with the holder, the other three are idle, 7 blocks are free
    assert admit(kv, asked(kv, 8)) == 0  # 5 free
    request = asked(kv, text(1, 24), 12)  # 3 busy and 3 idle hit blocks, 3 new ones: 6 of the free ones
    before = state(kv, request)
    assert admit(kv, request) is None
    assert state(kv, request) == before
    assert [kv.pool.ref_cnt[block] for block in kv.longest_hit(request, 36)] == [1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize(("reserve_full", "admitted"), [(True, False), (False, True)])
def test_gate_asks_for_the_whole_known_sequence(reserve_full, admitted):
    """With ``scheduler_reserve_full_isl`` all known tokens must fit now, though only a chunk is computed."""
    kv = make_cache(5, reserve_full=reserve_full)
    request = asked(kv, 24)
    assert (admit(kv, request, num_new=4) is not None) == admitted
    assert len(request.blocks) == (1 if admitted else 0)


def test_gate_reserves_nothing():
    """Two prompts of 4 blocks pass the gate of a pool of 6, one after the other; the second to grow is refused."""
    kv = make_cache(6)
    first, second = asked(kv, 16), asked(kv, 16)
    assert (admit(kv, first, num_new=4), admit(kv, second, num_new=4)) == (0, 0)
    assert kv.pool.num_free == 4
    assert kv.grow(first, 16)
    before = state(kv, first, second)
    assert not kv.grow(second, 16)
    assert state(kv, first, second) == before


@pytest.mark.parametrize(("running", "watermark", "admitted"), [(False, 9, True), (True, 2, True), (True, 3, False)])
def test_watermark_applies_where_something_runs(running, watermark, admitted):
    """Ten blocks, eight needed: the watermark must stay free as well, unless the request would run alone."""
    kv = make_cache(10, watermark_blocks=watermark)
    assert (admit(kv, asked(kv, 32), running=running) is not None) == admitted


def test_watermark_does_not_bind_running_requests():
    kv = make_cache(3, watermark_blocks=2)
    request = asked(kv, 4)
    assert admit(kv, request) == 0
    assert kv.grow(request, 12)
    assert kv.pool.num_free == 0


def test_growth_stops_at_max_model_len():
    """Slots beyond the longest sequence are never taken, neither at admission nor later."""
    kv = make_cache(10, max_model_len=10)
    request = asked(kv, 6)
    assert kv.admit(request, [], 6, 14, False)
    assert len(request.blocks) == 3
    assert kv.grow(request, 40)
    assert len(request.blocks) == 3


def test_each_full_block_is_published_once():
    kv = make_cache(10)
    request = asked(kv, text(1, 14))
    assert kv.admit(request, [], 14, 14, False)
    for num_tokens in (3, 4, 7, 11, 12, 14):
        kv.publish(request, num_tokens)
    assert kv.pool.events == request.block_keys
    assert len(request.block_keys) == 3


PROMPTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(1, 30)), min_size=1, max_size=2)
COMMANDS = st.lists(st.tuples(st.integers(0, 3), PROMPTS, st.integers(1, 30), st.booleans()), max_size=25)


@given(COMMANDS, st.integers(1, 14), st.integers(0, 3), st.booleans(), st.booleans(), st.booleans())
def test_check_then_change(commands, num_usable, watermark, keyless_first, reserve_full, drops):
    """A refused allocation leaves no trace; a granted one gives just what was asked for; a hit is known and cached."""
    kv = make_cache(
        num_usable,
        keyless_first=keyless_first,
        reserve_full=reserve_full,
        watermark_blocks=watermark,
        drop_last_hit_block=drops,
    )
    held = []
    for action, prompt, num_new, flag in commands:
        if action < 2:
            request = asked(kv, *prompt)
            length = request.num_prompt_tokens
            hit = kv.longest_hit(request, length)
            assert len(hit) * SIZE < length
            assert [kv.pool.key[block] for block in hit] == request.block_keys[: len(hit)]
            end = min(len(hit) * SIZE + num_new, length)
            before, num_free = state(kv, request, *held), kv.pool.num_free
            idle = sum(kv.pool.ref_cnt[block] == 0 for block in hit)
            whole = length if reserve_full else end
            fits = -(-whole // SIZE) - len(hit) + idle + (watermark if flag else 0) <= num_free
            assert kv.admit(request, hit, length, end, flag) == fits
            if not fits:
                assert state(kv, request, *held) == before
                continue
            assert len(request.blocks) == len(set(request.blocks)) == -(-end // SIZE)
            assert request.blocks[: len(hit)] == hit
            kv.publish(request, end)
            held.append(request)
        elif held and action == 2:
            request = held[num_new % len(held)]
            before, missing = state(kv, *held), -(-request.num_prompt_tokens // SIZE) - len(request.blocks)
            fits = missing <= kv.pool.num_free
            assert kv.grow(request, request.num_prompt_tokens) == fits
            assert fits or state(kv, *held) == before
        elif held:
            kv.release(held.pop(num_new % len(held)))
    for request in held:
        kv.release(request)
    assert sorted(free_blocks(kv.pool)) == list(range(1, num_usable + 1))
