"""Eviction policies over the Mooncake conversation trace: figures of an independent program.

Convention A: one cache of C blocks of 512 tokens, requests in file order, every id is a block, a hit is the contiguous
prefix present, evict before insert with own blocks pinned, stamped deepest first. S3-FIFO inserts block by block in
prompt order without pinning. `test_trace_goldens` has the pool's own order.
"""

from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from simulator.eviction import make_policy, parse_eviction
from simulator.eviction.replay import Visitor, hits
from simulator.ordered_pool import OrderedPool
from simulator.workload import mooncake

TRACES = Path(__file__).parents[1] / "scenarios" / "traces"
CAPACITIES = (1_000, 10_000, 50_000)


@cache
def ids(trace: str) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(record.hash_ids) for _, record in mooncake.read(TRACES / f"mooncake_{trace}.jsonl.gz"))


def hits_of_a_pool(entry: Any, capacity: int) -> int:
    """The conversation trace through an engine's pool under the policy, one request at a time."""
    pool = OrderedPool(capacity + 1, partial(make_policy, parse_eviction(entry), capacity))
    num_hits = 0
    for names in ids("conversation"):
        blocks = []
        for name in names:
            if name not in pool.cached:
                break
            blocks.append(pool.cached[name])
        num_hits += len(blocks)
        pool.touch(blocks, Visitor())
        new = pool.take(len(names) - len(blocks), Visitor())
        pool.publish(new, list(names[len(blocks) :]), Visitor())
        pool.release(blocks + new, Visitor())
    assert pool.num_free == capacity
    return num_hits


def hit_blocks(trace: str, entry: Any, capacity: int) -> int:
    return sum(hits(make_policy(parse_eviction(entry), capacity), ids(trace), capacity))


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("lru", (0.0445, 0.2116, 0.3546)),
        ("fifo", (0.0445, 0.1816, 0.3336)),
        ({"policy": "lfu", "counts": "lost"}, (0.0481, 0.1317, 0.3439)),
        ({"policy": "lfu", "counts": "kept"}, (0.0774, 0.1873, 0.3430)),
        ("length_aware", (0.0502, 0.1119, 0.2602)),
        ("slru", (0.0481, 0.1317, 0.3439)),
        ("s3fifo", (0.0556, 0.1952, 0.3490)),
        ("belady", (0.1907, 0.3664, 0.3664)),
    ],
    ids=["lru", "fifo", "lfu-lost", "lfu-kept", "length_aware", "slru", "s3fifo", "belady"],
)
def test_policies_hit_what_they_are_known_to(entry: Any, expected: tuple[float, ...]) -> None:
    num_ids = sum(map(len, ids("conversation")))
    found = tuple(round(hit_blocks("conversation", entry, capacity) / num_ids, 4) for capacity in CAPACITIES)
    assert found == expected


@pytest.mark.parametrize(
    ("trace", "expected"),
    [("conversation", (12_847, 61_046, 102_290)), ("synthetic", (10_252, 51_669, 77_953))],
)
def test_lru_to_the_block(trace: str, expected: tuple[int, ...]) -> None:
    assert tuple(hit_blocks(trace, "lru", capacity) for capacity in CAPACITIES) == expected


@pytest.mark.parametrize(
    ("entry", "expected"),
    [("lru", 0.2116), ("lfu", 0.1317), ({"policy": "lfu", "counts": "kept"}, 0.1873), ("length_aware", 0.1119),
     ("slru", 0.1317)],
    ids=["lru", "lfu-lost", "lfu-kept", "length_aware", "slru"],
)  # fmt: skip
def test_an_engines_pool_hits_the_same(entry: Any, expected: float) -> None:
    """Of policies that keep prefixes whole: with others a pool has what lies behind a gap twice, as vLLM would."""
    assert round(hits_of_a_pool(entry, 10_000) / sum(map(len, ids("conversation"))), 4) == expected
