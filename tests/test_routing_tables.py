"""The published hit rates of static routing on the Mooncake conversation trace: 512-token blocks, no timing."""

from __future__ import annotations

import gzip
import json
from collections import OrderedDict
from pathlib import Path
from statistics import mean

import pytest
from routing_cases import request, router_and_view, send

TRACE = Path(__file__).parents[1] / "scenarios" / "traces" / "mooncake_conversation.jsonl.gz"


@pytest.fixture(scope="module")
def conversation_trace() -> list[list[int]]:
    with gzip.open(TRACE, "rt") as lines:
        return [json.loads(line)["hash_ids"] for line in lines]


class Worker:
    """A cache of ``capacity`` blocks: least recently used leaves, own blocks are pinned, freed deepest first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.blocks: OrderedDict[int, None] = OrderedDict()

    def serve(self, ids: list[int]) -> int:
        num_hits = next((i for i, key in enumerate(ids) if key not in self.blocks), len(ids))
        for key in ids:
            self.blocks.pop(key, None)
        while self.blocks and len(self.blocks) + len(ids) > self.capacity:
            self.blocks.popitem(last=False)
        self.blocks.update(dict.fromkeys(reversed(ids)))
        return num_hits


def static_routing(entry, trace: list[list[int]], num_workers: int, capacity: int) -> tuple[int, list[int]]:
    """(hit blocks, uncached blocks assigned to each worker)."""
    router, view = router_and_view(entry, num_workers)
    workers = [Worker(capacity) for _ in range(num_workers)]
    num_hits, assigned = 0, [0] * num_workers
    for i, ids in enumerate(trace):
        instance = send(router, view, request(i, ids))
        hit = workers[instance].serve(ids)
        num_hits += hit
        assigned[instance] += len(ids) - hit
    return num_hits, assigned


@pytest.mark.parametrize(("capacity", "num_hits"), [(1_000, 12_847), (10_000, 61_046), (50_000, 102_290)])
def test_one_worker_gives_the_published_lru_hits(conversation_trace, capacity, num_hits):
    """The yardstick of the tests below, against the published integers for a single cache."""
    worker = Worker(capacity)
    assert sum(worker.serve(ids) for ids in conversation_trace) == num_hits


@pytest.mark.parametrize(
    ("policy", "hit_rate", "imbalance"),
    [("round_robin", 0.1041, 1.04), ("random", 0.1007, 1.09), ("longest_prefix", 0.1361, 10.0)],
)
def test_static_routing_of_the_conversation_trace(conversation_trace, policy, hit_rate, imbalance):
    """10 workers of 5,859 blocks; ``random`` is ``random.Random(0).randrange(10)`` there too."""
    num_hits, assigned = static_routing(policy, conversation_trace, 10, 5_859)
    assert num_hits / sum(map(len, conversation_trace)) == pytest.approx(hit_rate, abs=5e-5)
    assert max(assigned) / mean(assigned) == pytest.approx(imbalance, abs=5e-3)


def test_longest_prefix_sends_a_shared_first_block_to_one_instance(conversation_trace):
    router, view = router_and_view("longest_prefix", 8)
    assert {send(router, view, request(i, ids)) for i, ids in enumerate(conversation_trace)} == {0}


def test_dynamo_believes_the_published_reuse_of_the_conversation_trace(conversation_trace):
    """Dynamo's documents: 36.64 % of the trace's blocks are reused. One worker, own dispatches, nothing forgotten."""
    router, view = router_and_view({"policy": "dynamo", "use_kv_events": False, "router_ttl_secs": "1 d"}, 1)
    reused = 0
    for i, ids in enumerate(conversation_trace):
        one = request(i, ids)
        reused += sum(depth for _, depth in view.cached_levels(one, float(i)))
        send(router, view, one, float(i))
        view.finished(one, float(i))
    assert reused == 105_710
    assert reused / sum(map(len, conversation_trace)) == pytest.approx(0.3664, abs=5e-5)
