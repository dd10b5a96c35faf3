"""What it buys that all policies serve the same requests, on a real trace.

The trace's windows differ in load by a few percent, and nearly all of that is common to the policies, as long as waits
do not depend on every single choice: so the intervals of differences must be far narrower than those of two experiments
that draw their windows apart (Law (2015), "Simulation Modeling and Analysis", section 11.2).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import simulator
from simulator.scenario import load

SHIPPED = Path(__file__).parents[1] / "scenarios" / "mooncake_conversation.yaml"


@pytest.mark.slow
def test_windows_of_a_trace_in_common_halve_the_intervals_of_differences_at_least(tmp_path: Path) -> None:
    scenario = yaml.safe_load(SHIPPED.read_text())
    scenario["workload"]["tenants"][0]["trace"] |= {
        "path": str(SHIPPED.parent / "traces" / "mooncake_conversation.jsonl.gz"), "rate_scale": 2,
    }  # fmt: skip
    scenario |= {"routing": ["least_requests", {"policy": "dynamo", "event_delay": "10 ms"}], "replications": 10}
    path = tmp_path / "windows.yaml"
    path.write_text(yaml.safe_dump(scenario))
    comparison = simulator.compare(load(path), jobs=1, draws_profile=False)
    ratios = {pair.metric: pair.width_ratio or 0.0 for pair in comparison.pairs()}
    for metric in ("ttft_p90_s", "e2e_p90_s", "output_tokens_per_s"):
        assert ratios[metric] >= 2, f"{metric}: {ratios}"
