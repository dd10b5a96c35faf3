"""What an eviction policy costs a request, beside vLLM's own order; printed by ``make bench``, CPU time of one core."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest

from simulator.eviction import POLICIES
from tests.cost_cases import prepare

pytestmark = pytest.mark.benchmark

NUM_REQUESTS = 12_000
PARAMETERS: dict[str, dict[str, Any]] = {"ttl": {"ttl": 60}, "quota": {"limit": {"tenant": 0.5}}}


def request_s(eviction: Any) -> tuple[float, float]:
    """CPU seconds and evictions a request; the better of two runs."""
    best = float("inf")
    for _ in range(2):
        prepared = prepare("b", NUM_REQUESTS, eviction=eviction)
        gc.collect()
        began_s = time.process_time()
        prepared.run()
        best = min(best, time.process_time() - began_s)
    pools = [instance.scheduler.pool for instance in prepared.cluster.instances]
    return best / NUM_REQUESTS, sum(pool.num_evictions for pool in pools) / NUM_REQUESTS


def test_cost_per_request_by_policy() -> None:
    own_s, _ = request_s("vllm")
    print(f"\n{'vllm':>15}: {own_s * 1e6:.1f} us a request")
    for name, policy in POLICIES.items():
        if not policy.needs_future:
            found_s, num_evictions = request_s({"policy": name, **PARAMETERS.get(name, {})})
            print(f"{name:>15}: {found_s * 1e6:.1f} us, x{found_s / own_s:.2f} ({num_evictions:.1f} evictions)")
            assert num_evictions > 1
