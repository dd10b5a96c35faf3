"""How fast the simulation is, printed by ``make bench``. Nothing fails here for being slow: test_cost.py counts.

One core, CPU time. ``KVCAST_BENCH_MILLION=1`` adds runs of 1,000,000 requests to the scaling table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cost_cases import CASES, count, prepare

pytestmark = pytest.mark.benchmark

NUM_REQUESTS = {"a": 100_000, "b": 100_000, "c": 100_000, "d": 12_031}
NUM_COUNTED = 2_000


def measured(name: str, num_requests: int) -> dict[str, Any]:
    script = Path(__file__).with_name("measure.py")
    done = subprocess.run(
        [sys.executable, str(script), name, str(num_requests)], capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", CASES)
def test_requests_per_second(name: str) -> None:
    found = measured(name, NUM_REQUESTS[name])
    cost = count(prepare(name, NUM_COUNTED))
    request_s = found["cpu_s"] / found["num_requests"]
    print(
        f"\n({name}) {CASES[name].title}, {found['num_requests']:,} requests\n"
        f"    {1 / request_s:,.0f} requests/s, {request_s * 1e6:.1f} us a request = "
        f"{request_s / found['timeout_s']:.0f} bare SimPy timeouts ({1 / found['timeout_s']:,.0f}/s here), "
        f"peak {found['peak_mb']:.0f} MB\n"
        f"    a request: {cost.events:.2f} events, {cost.advances:.2f} advances, {cost.schedules:.2f} schedules, "
        f"{cost.block_operations:.1f} block operations (of the first {NUM_COUNTED:,})"
    )
    assert found["num_requests"] == NUM_REQUESTS[name]


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_cost_per_request_by_length_of_the_run(name: str) -> None:
    lengths = [10_000, 100_000] + ([1_000_000] if os.environ.get("KVCAST_BENCH_MILLION") else [])
    for num_requests in lengths:
        found = measured(name, num_requests)
        request_s = found["cpu_s"] / num_requests
        print(
            f"\n({name}) {num_requests:>9,} requests: {request_s * 1e6:.1f} us a request, "
            f"{request_s / found['timeout_s']:.0f} bare timeouts, peak {found['peak_mb']:.0f} MB",
            end="",
        )
        assert found["num_requests"] == num_requests
