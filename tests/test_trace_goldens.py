"""Published traces through the pool and the cache: integers made without kvcast.

One cache of C blocks of 512 tokens serves the Mooncake traces in file order, one request at a time. The figures come
from an independent program; how they are counted is said in each test.
"""

from functools import cache
from pathlib import Path

import pytest

from simulator.block_pool import BlockPool
from simulator.kv_cache import KVCache
from simulator.prefix import Prefixes
from simulator.request import Request
from simulator.workload import mooncake

TRACES = Path(__file__).parents[1] / "scenarios" / "traces"
BLOCK_SIZE = 512
CAPACITIES = (1_000, 10_000, 50_000)
UNIQUE_BLOCKS = {"conversation": 182_790, "synthetic": 43_924}


@cache
def records(trace: str) -> tuple[mooncake.Record, ...]:
    return tuple(record for _, record in mooncake.read(TRACES / f"mooncake_{trace}.jsonl.gz"))


@cache
def requests(trace: str) -> tuple[Prefixes, tuple[Request, ...]]:
    """The trace's requests with one output token each, and the table that their keys come from."""
    prefixes = Prefixes(BLOCK_SIZE)
    made = []
    for number, record in enumerate(records(trace)):
        request = Request(
            request_id=number,
            arrival_s=0.0,
            prompt=mooncake.prompt(record, 0),
            num_prompt_tokens=record.input_length,
            max_tokens=1,
            oracle_num_output_tokens=1,
        )
        request.block_keys, request.prompt_end = prefixes.keys(request.prompt)
        made.append(request)
    return prefixes, tuple(made)


def hits_by_id(trace: str, capacity: int) -> list[int]:
    """Hit blocks of each request where every id is one block, the partial last one too, and any may hit."""
    pool = BlockPool(capacity + 1)  # and the null block
    find = pool.cached.get
    hits = []
    for record in records(trace):
        ids = record.hash_ids
        blocks = []
        for name in ids:
            block = find(name)
            if block is None:
                break
            blocks.append(block)
        hit = len(blocks)
        pool.touch(blocks)
        new = pool.take(len(ids) - hit)
        pool.publish(new, ids[hit:])
        pool.release(blocks + new)
        hits.append(hit)
    assert pool.num_free == capacity
    return hits


def hits_as_vllm(trace: str, capacity: int, keyless_first: bool) -> int:
    """Hit blocks of all requests where only full blocks are cached and one token is always computed."""
    prefixes, served = requests(trace)
    pool = BlockPool(capacity + 1, keyless_first=keyless_first)
    kv = KVCache(pool, prefixes, 10**9, caching=True, reserve_full=True)
    num_hits = 0
    for request in served:
        length = request.num_prompt_tokens
        blocks = kv.longest_hit(request, length)
        num_hits += len(blocks)
        assert kv.admit(request, blocks, length, length, running=False)
        kv.publish(request, length)
        kv.release(request)  # the one output token never has KV
    assert pool.num_free == capacity
    return num_hits


@pytest.mark.parametrize(
    ("trace", "num_requests", "num_ids", "longest", "input_tokens", "output_tokens"),
    [
        ("conversation", 12_031, 288_500, 247, 144_793_823, 4_122_048),
        ("synthetic", 3_993, 121_877, 374, 61_194_628, 595_432),
    ],
)
def test_traces_have_their_published_sizes(trace, num_requests, num_ids, longest, input_tokens, output_tokens):
    rows = records(trace)
    assert len(rows) == num_requests
    assert sum(len(row.hash_ids) for row in rows) == num_ids
    assert len({name for row in rows for name in row.hash_ids}) == UNIQUE_BLOCKS[trace]
    assert max(len(row.hash_ids) for row in rows) == longest
    assert sum(row.input_length for row in rows) == input_tokens
    assert sum(row.output_length for row in rows) == output_tokens


@pytest.mark.parametrize(
    ("trace", "num_hits", "share", "token_share"),
    [("conversation", 105_710, 0.3664, 0.3736), ("synthetic", 77_953, 0.6396, 0.6512)],
)
def test_unbounded_pool_gives_the_ideal_reuse(trace, num_hits, share, token_share):
    """With room for every distinct block nothing is evicted: the first of each id is a miss, all others may hit."""
    hits = hits_by_id(trace, UNIQUE_BLOCKS[trace])
    rows = records(trace)
    assert sum(hits) == num_hits
    assert sum(hits) / sum(len(row.hash_ids) for row in rows) == pytest.approx(share, abs=5e-5)
    hit_tokens = sum(min(BLOCK_SIZE * hit, row.input_length) for hit, row in zip(hits, rows, strict=True))
    assert hit_tokens / sum(row.input_length for row in rows) == pytest.approx(token_share, abs=5e-5)


@pytest.mark.parametrize(
    ("trace", "expected"),
    [("conversation", (12_847, 61_046, 102_290)), ("synthetic", (10_252, 51_669, 77_953))],
)
def test_pool_alone_is_lru_by_release(trace, expected):
    """Evict before insert, own blocks pinned, free in reverse order; a hit is the contiguous prefix present."""
    assert tuple(sum(hits_by_id(trace, capacity)) for capacity in CAPACITIES) == expected


@pytest.mark.parametrize(
    ("trace", "keyless_first", "expected"),
    [
        ("conversation", True, (12_988, 62_001, 102_723)),
        ("synthetic", True, (10_366, 52_950, 77_740)),
        ("conversation", False, (12_837, 60_971, 102_165)),
        ("synthetic", False, (10_239, 51_548, 77_740)),
    ],
    ids=["conversation-0.32", "synthetic-0.32", "conversation-0.23", "synthetic-0.23"],
)
def test_cache_hits_as_vllm_would(trace, keyless_first, expected):
    """The block of the partial tail is held while its request is served, and returned keyless."""
    assert tuple(hits_as_vllm(trace, capacity, keyless_first) for capacity in CAPACITIES) == expected
