"""How long a thousand replications of a thousand requests take on two processes, starting them included."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import simulator
from simulator.executors import Processes
from simulator.sweep import grid, read_axis, run

pytestmark = pytest.mark.benchmark

SCENARIO = Path(__file__).parent.parent.parent / "scenarios" / "shared_prefix.yaml"


def test_a_thousand_replications_of_a_thousand_requests(tmp_path: Path) -> None:
    scenario = simulator.load(SCENARIO)
    scenario = scenario.changed(routing=scenario.routing[:1], replications=500)
    design = grid(scenario, [read_axis("cluster.instances=2,3")])
    began_s = time.perf_counter()
    found = run(scenario, design, tmp_path, Processes(2))
    elapsed_s = time.perf_counter() - began_s
    size_kb = sum(path.stat().st_size for path in (tmp_path / "rows").iterdir()) / 1000
    print(f"\n1,000 replications of 1,000 requests: {elapsed_s:.1f} s on two processes, rows of {size_kb:.0f} kB")
    assert len(found.rows) == 1000
