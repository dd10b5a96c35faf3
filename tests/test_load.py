"""More load is the same clients beginning more often, of every kind of tenant, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.scenario import load
from simulator.scenario.offered_load import at_load, load_changes
from simulator.workload import WorkloadSpec, open_workload

SCENARIOS = Path(__file__).parent.parent / "scenarios"
TRACE = {"format": "mooncake", "path": "traces/mooncake_synthetic.jsonl.gz", "limit": 300}
WEKA = {"format": "weka", "path": "traces/weka_sample.jsonl.gz"}
STARTS = {"process": "gamma", "rate_per_s": 0.1, "cv": 2}


def drawn(**arrivals: Any) -> dict[str, Any]:
    return {"synthetic": {"num_requests": 4_000, "arrivals": arrivals, "suffix_tokens": 9, "output_tokens": 9}}


def talks(**begin: Any) -> dict[str, Any]:
    return {"conversations": {"num_conversations": 50, "question_tokens": 9, "output_tokens": 9, **begin}}


def times_s(tenant: dict[str, Any], factor: float) -> np.ndarray:
    """Arrivals of the requests that wait for nobody, at ``factor`` times the tenant's load."""
    spec = WorkloadSpec.model_validate({"tenants": [scaled({"name": "a", **tenant}, factor)]})
    return np.array([request.arrival_s for request in open_workload(spec, 1, 0, SCENARIOS)])


def scaled(tenant: dict[str, Any], factor: float) -> dict[str, Any]:
    for path, value in load_changes(WorkloadSpec.model_validate({"tenants": [tenant]}), factor).items():
        assert path[:3] == ("workload", "tenants", "0")
        holder = tenant = {**tenant}
        for part in path[3:-1]:
            holder[part] = {**holder[part]}
            holder = holder[part]
        holder[path[-1]] = value
    return tenant


@pytest.mark.parametrize(
    "tenant",
    [
        drawn(process="poisson", rate_per_s=2), drawn(process="gamma", rate_per_s="90/min", cv=3),
        drawn(process="fixed", rate_per_s=2), drawn(process="batch", size=3, every="10 s"),
        talks(arrivals={"process": "poisson", "rate_per_s": 2}),
        {"trace": TRACE}, {"trace": {**TRACE, "rate_scale": 2, "window": "5 min"}},
    ],
    ids=["poisson", "gamma", "fixed", "batch", "conversations", "trace", "window"],
)  # fmt: skip
@pytest.mark.parametrize("factor", [0.5, 3])
def test_the_same_requests_come_so_many_times_as_fast(tenant: dict[str, Any], factor: float) -> None:
    """And, where they are drawn, so many times as many."""
    as_it_is, faster = times_s(tenant, 1), times_s(tenant, factor)
    number = len(as_it_is)
    assert number > 40
    assert len(faster) == (number if "trace" in tenant else number * factor)
    both = min(number, len(faster))
    assert faster[:both] == pytest.approx(as_it_is[:both] / factor)


@pytest.mark.parametrize(
    "arrivals",
    [
        {"process": "on_off", "rate_per_s": 20, "on_for": "10 s", "off_for": "10 s"},
        {"process": "profile", "rates_per_s": [10, 0, 30], "period": "30 s"},
    ],
    ids=["on_off", "profile"],
)
def test_a_changing_rate_keeps_its_clock_and_is_multiplied(arrivals: dict[str, Any]) -> None:
    """In the same time three times as many come (some 4,000 draws: within 10 %), and none when there were none."""
    tenant = drawn(**arrivals)
    tenant["synthetic"] = {**tenant["synthetic"], "num_requests": None, "duration": "10 min"}
    as_it_is, more = times_s(tenant, 1), times_s(tenant, 3)
    assert len(more) / len(as_it_is) == pytest.approx(3, rel=0.15)
    if arrivals["process"] == "profile":
        quiet = (more % 30 // 10) == 1
        assert not quiet.any()


def test_sessions_of_a_trace_begin_more_often_and_go_on_as_recorded() -> None:
    spec = WorkloadSpec.model_validate({"tenants": [{"name": "a", "trace": {**WEKA, "session_arrivals": STARTS}}]})
    assert load_changes(spec, 2) == {("workload", "tenants", "0", "trace", "session_arrivals", "rate_per_s"): 0.2}


@pytest.mark.parametrize(("factor", "expected"), [(2, 6), (1.1, 3), (1.2, 4), (0.1, 1)])
def test_a_closed_loop_has_more_or_fewer_users_and_one_at_least(factor: float, expected: int) -> None:
    spec = WorkloadSpec.model_validate({"tenants": [{"name": "a", **talks(users={"number": 3})}]})
    changes = load_changes(spec, factor)
    assert changes["workload", "tenants", "0", "conversations", "users", "number"] == expected
    assert changes["workload", "tenants", "0", "conversations", "num_conversations"] == round(50 * factor)


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_ready_scenario_can_have_another_load_and_says_all_else_as_before(path: Path) -> None:
    scenario = load(path)
    double = at_load(scenario, 2)
    double.check()
    assert double.workload != scenario.workload
    assert double.engine_config == scenario.engine_config
    back = at_load(double, 0.5)
    assert back.workload == scenario.workload


def test_a_tenants_limit_grows_with_its_load_and_that_of_the_command_line_does_not() -> None:
    tenant = {"name": "a", "limit": 100, **drawn(process="poisson", rate_per_s=2)}
    assert scaled(tenant, 3)["limit"] == 300
    scenario = load(SCENARIOS / "shared_prefix.yaml").changed(limit=7)
    assert at_load(scenario, 2).workload.tenants[0].limit == 7


@pytest.mark.parametrize("factor", [0, -1, float("nan"), "twice"])
def test_a_factor_is_a_number_above_0(factor: Any) -> None:
    with pytest.raises(InputError, match="expected"):
        load_changes(load(SCENARIOS / "shared_prefix.yaml").workload, factor)


def test_a_load_that_the_file_alone_knows_is_one_clear_line() -> None:
    spec = WorkloadSpec.model_validate({"tenants": [{"name": "a", "trace": {"format": "aiperf", "path": "x.jsonl",
                                                                            "pace": "answers"}}]})  # fmt: skip
    with pytest.raises(InputError, match=r"^workload.tenants\[0\].trace: sessions begin .* expected session_arrivals"):
        load_changes(spec, 2)
