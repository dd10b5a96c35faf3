"""The answer to one question of what if, in a sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulator.comparison import Comparison, listed
from simulator.whatif.answer import WITHIN_TARGETS, Row, rows, tenant_rows
from simulator.whatif.asked import BEFORE, Case

_TWICE = 2.0  # from here on people say times, below it per cent


def sentence(comparison: Comparison, case: Case) -> str:
    """What the changes do: every tested metric that is shown to change, and by how much; targets; who is busy."""
    tested = [row for row in rows(comparison, case.label) if row.is_tested]
    parts = [*_unstable(comparison, case.label), *_changes(comparison, case.label, tested)]
    parts += _targets(comparison, case)
    parts.append(_busiest(comparison, case.label))
    return f"{case.words[:1].upper()}{case.words[1:]} {'; '.join(parts)}."


def _amount(row: Row) -> str:
    """The change with its interval: "3.1 times (2.8 to 3.4)", "24 % (20 to 28)" or "12 points (10 to 14)", unsigned."""
    bounds = row.bounds()
    assert bounds is not None  # who calls has looked
    if not row.as_ratio:
        values, unit = [row.shown.scale * value for value in bounds], "points" if row.shown.unit == "%" else ""
        if bounds[0] < 0:
            values = [-values[0], -values[2], -values[1]]
    elif bounds[0] >= _TWICE:
        values, unit = list(bounds), "times"
    else:
        values, unit = [100 * (value - 1) for value in bounds], "%"
        if bounds[0] < 1:
            values = [-values[0], -values[2], -values[1]]
    said = " ".join(filter(None, (_number(values[0]), unit or row.shown.unit)))
    return f"{said} ({_number(values[1])} to {_number(values[2])})" if row.has_interval else said


def _values(row: Row) -> str:
    """``from 0.42 to 1.3 s``."""
    assert row.before is not None  # who calls has looked
    assert row.after is not None
    before, after = (_number(row.shown.scale * one.mean) for one in (row.before, row.after))
    return f"from {before} to {after} {row.shown.unit}".rstrip()


def _rises(row: Row) -> bool:
    return row.change is not None and row.change.estimate.mean > 0


def _unstable(comparison: Comparison, label: str) -> Iterator[str]:
    unstable = comparison.steady_state.unstable
    left_out = "waits grow as long as requests come and are left out"
    if {BEFORE, label} <= unstable:
        yield f"the cluster is unstable, as it was before: {left_out}"
    elif label in unstable:
        yield f"the cluster is unstable, which it was not before: {left_out}"
    elif BEFORE in unstable:
        yield f"the cluster is stable, which it was not before, where {left_out}"


def _changes(comparison: Comparison, label: str, tested: Sequence[Row]) -> Iterator[str]:
    known = [row for row in tested if row.change is not None]
    if not any(row.has_interval and row.change is not None and row.change.p_value is not None for row in known):
        yield from _without_intervals(comparison, label, known)
        return
    for row in known:
        if row.is_shown:
            by = "" if row.as_ratio and (bounds := row.bounds()) and bounds[0] >= _TWICE else "by "
            yield f"{row.shown.label} {'rises' if _rises(row) else 'falls'} {by}{_amount(row)}, {_values(row)}"
    untested = [row for row in known if row.change is not None and row.change.p_value is None]
    for row in untested:
        yield f"{row.shown.label} goes {_values(row)}, by as much in every replication"
    if alike := [row.shown.label for row in known if not row.is_shown and row not in untested]:
        yield f"no change is shown in {listed(alike, 'or')}"


def _without_intervals(comparison: Comparison, label: str, known: Sequence[Row]) -> Iterator[str]:
    """Values only, and why they have no interval."""
    if {BEFORE, label} & comparison.steady_state.too_short:
        why = "runs are too short for the load to say how sure that is"
    else:
        why = "for these requests only (one replication, or replications that do not vary)"
    moved = [f"{row.shown.label} goes {_values(row)}" for row in known if row.change and row.change.estimate.mean]
    yield f"{', '.join(moved)}: {why}" if moved else f"nothing that is compared changes: {why}"


def _targets(comparison: Comparison, case: Case) -> Iterator[str]:
    """Shares of requests within targets; of an overload they say as little of the long run as its waits do."""
    for row in tenant_rows(comparison, case.label):
        if row.shown is WITHIN_TARGETS and row.after is not None:
            was = f" ({_percent(row.before.mean)} before)" if row.before is not None else ""
            grown = ", in runs of this length" if case.label in comparison.steady_state.unstable else ""
            yield f"{row.tenant} has {_percent(row.after.mean)} of its requests within its targets{grown}{was}"


def _busiest(comparison: Comparison, label: str) -> str:
    """How busy the busiest instance is, by the mean over replications."""
    shares: dict[str, list[float]] = {BEFORE: [], label: []}
    numbers: dict[str, int] = {}
    for run in comparison.counted:
        if run.policy in shares:
            numbers[run.policy] = run.num_instances
            shares[run.policy].append(max(one["busy_share"] or 0.0 for one in run.by_instance()))
    before, after = (sum(shares[side]) / len(shares[side]) for side in (BEFORE, label))
    who = "its instance" if numbers[label] == 1 else f"the busiest of {numbers[label]} instances"
    of = "" if numbers[BEFORE] == numbers[label] else f" (of {numbers[BEFORE]})"
    return f"{who} works {_percent(after)} of the time, before{of} {_percent(before)}"


def _percent(share: float) -> str:
    return f"{_number(100 * share)} %"


def _number(value: float) -> str:
    """Three digits, and whole numbers from 100 on."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
