"""Running a sweep: every setting in every replication that its results file lacks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from simulator import experiment
from simulator.executors import Executor
from simulator.result import RunResult
from simulator.scenario import Scenario
from simulator.steady import batches, quarters_by_sender
from simulator.sweep import warmup, workers
from simulator.sweep.axes import Axis, label
from simulator.sweep.design import Design
from simulator.sweep.findings import Findings
from simulator.sweep.metrics import OF_TENANT
from simulator.sweep.row_store import Key, RowStore, locked
from simulator.uncertainty import uncertainty_of

ROWS = "rows"
_KIND = 2  # goes up with every change in what a row has or means


def run(
    scenario: Scenario,
    design: Design,
    folder: Path,
    executor: Executor,
    progress: Callable[[], None] | None = None,
    *,
    draws_profile: bool = True,
) -> Findings:
    """Compute what ``folder`` does not hold yet, and read the design's rows.

    All settings of a replication are drawn from the same streams, and the profile's errors too with ``draws_profile``;
    one warm-up is cut from all (see ``warmup``).
    ``progress()`` is called after each run. Raises InputError for a folder with results of something else, or that
    cannot be written.
    """
    draws_profile &= any(uncertainty_of(point.scenario.device_profile) is not None for point in design.points)
    settings = {point.digest: point for point in design.points}
    keys = [(digest, number) for digest in settings for number in range(scenario.replications)]
    with locked(folder), RowStore(folder / ROWS, identity(scenario, design, draws_profile=draws_profile)) as found:
        missing = found.missing(keys)
        num_skipped = found.agreed("warm-up", lambda: warmup.find(scenario, executor, draws_profile=draws_profile))
        # Replication by replication, so that what is there early can be compared.
        tasks = sorted(missing, key=lambda key: key[1])
        if progress is not None:
            for _ in range(len(keys) - len(missing)):
                progress()
        _compute(
            found, tasks, scenario, design, executor, progress, num_skipped=num_skipped, draws_profile=draws_profile
        )
        rows = [found.rows[key] for key in keys]
    num_found = len(keys) - len(missing)
    provenance = experiment.describe(scenario, draws_profile=draws_profile)
    return Findings(provenance, design, scenario.replications, rows, num_found=num_found)


def identity(scenario: Scenario, design: Design, *, draws_profile: bool) -> dict[str, Any]:
    """Of what the rows are: anything else in the same file would be a mixture."""
    return {
        "scenario": scenario.changed(replications=1).digest,
        "input": _inputs(scenario),
        "version": experiment.versions(),
        "kind of rows": _KIND,
        "use of the profile": "errors drawn" if draws_profile else "as fitted",
        "set of varied keys": [axis.name for axis in design.axes],
        "kind of values": ["number" if axis.is_plain else "text" for axis in design.axes],
    }


def _inputs(scenario: Scenario) -> dict[str, str]:
    """Digests of the files that the scenario names, whose content its own digest does not cover."""
    found = {"profile": hashlib.sha256(scenario.device_profile.model_dump_json().encode()).hexdigest()}
    for tenant in scenario.workload.tenants:
        if tenant.trace is not None:
            path = scenario.base_dir / tenant.trace.path
            found[f"trace {tenant.trace.path}"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _compute(
    found: RowStore, tasks: list[Key], scenario: Scenario, design: Design, executor: Executor,
    progress: Callable[[], None] | None, *, num_skipped: int, draws_profile: bool,
) -> None:  # fmt: skip
    settings = {point.digest: point for point in design.points}
    origin = {"scenario": found.identity["scenario"], "versions": json.dumps(found.identity["version"], sort_keys=True)}
    jobs = [(settings[digest].scenario, number, num_skipped, draws_profile) for digest, number in tasks]
    with closing(workers.each(executor, simulate, jobs, found.identity["version"])) as outcomes:
        for place, summary in outcomes:
            digest, number = tasks[place]
            point = settings[digest]
            varied = {axis.name: _cell(axis, value) for axis, value in zip(design.axes, point.values, strict=True)}
            row = {**origin, "setting": digest, "seed": scenario.seed, "replication": number, **varied, **summary}
            found.add(tasks[place], row)
            if progress is not None:
                progress()


def simulate(task: tuple[Scenario, int, int, bool]) -> tuple[dict[str, str], dict[str, float]]:
    """One setting in one replication, with so many of its first requests cut, and with the profile's errors drawn or
    not: the versions that ran it, and its headline numbers (NaN for none).
    """
    scenario, replication, num_skipped, draws_profile = task
    result = experiment.run(
        scenario, router=scenario.routing[0], replication=replication, draws_profile=draws_profile
    )
    if scenario.workload.is_stationary:
        result = result.before_cooldown()
    return workers.versions(), _numbers(result, warmup.without(result, scenario, num_skipped))


def _numbers(uncut: RunResult, counted: RunResult) -> dict[str, float]:
    """Of what counts, but for what tells an overload, in which the warm-up counts too; and what tells whether runs are
    long enough (see ``steady.batches``).
    """
    found = {"num_skipped": float(counted.num_skipped), "num_cooldown": float(counted.num_cooldown)}
    found["num_late"] = float(counted.num_late)
    found |= {name: _number(value) for name, value in counted.summary().items()}
    found |= {f"busy_{name}_s": seconds for name, seconds in counted.support_s().items()}
    waits = uncut.waits()
    found |= {"arriving_s": waits.span_s, "is_overloaded": float(waits.is_overloaded)}
    for who, (early_s, late_s, _) in quarters_by_sender(waits).items():
        whose = "" if who < 0 else f"{uncut.tenants[who]}."
        found |= {f"{whose}ttft_early_s": early_s, f"{whose}ttft_late_s": late_s}
    of_counted = batches(counted.waits().values_s)
    found |= {f"ttft_batches_{name}": value for name, value in of_counted._asdict().items()}
    for tenant in counted.by_tenant() if len(counted.tenants) > 1 or any(counted.targets_s) else ():
        found |= {f"{tenant['tenant']}.{key}": _number(tenant[key]) for key in OF_TENANT if key in tenant}
    return found


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _cell(axis: Axis, value: Any) -> float | str:
    """A number where all values of the axis are plain ones, else what people write: one type a column. What a scenario
    has of its own may be no plain number, and is NaN among them.
    """
    if axis.is_plain:
        return float(value) if isinstance(value, int | float) else float("nan")
    return label(value)
