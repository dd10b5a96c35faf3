"""What differs between before and after: one row a metric, of the cluster and of each tenant."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simulator.comparison import COMPARED, GROWING, Comparison, Shown
from simulator.statistics import TOO_SHORT, Difference, Estimate, compare_all, t_interval
from simulator.whatif.asked import BEFORE

_ROWS = (
    Shown("ttft_p50_s", "p50 TTFT", "s", 1, True),
    COMPARED[0],
    Shown("ttft_p99_s", "p99 TTFT", "s", 1, True),
    *COMPARED[1:],
    Shown("busy_share", "busy", "%", 100, True),
    Shown("kv_usage_max", "KV use max", "%", 100, True),
    Shown("num_preemptions", "preemptions", "", 1, True),
)
WITHIN_TARGETS = Shown("within_targets", "within targets", "%", 100, False)
_TENANT_ROWS = (
    Shown("ttft_p90_s", "p90 TTFT", "s", 1, True),
    Shown("tpot_p90_s", "p90 TPOT", "ms", 1000, True),
    Shown("cached_share", "cached", "%", 100, False),
)
_TESTED = [shown.key for shown in COMPARED]

Samples = Sequence[float | None]


@dataclass(frozen=True)
class Row:
    """One metric (of a tenant, or of all). ``change`` is after against before, paired by replication: a difference or,
    where both are above 0 and no shares, a ratio; None where one of the two is not known in every replication.

    ``is_tested``: whether Holm's correction counts it; of other rows the interval stands for itself.
    """

    shown: Shown
    before: Estimate | None
    after: Estimate | None
    change: Difference | None
    is_tested: bool = False
    tenant: str | None = None

    @property
    def is_shown(self) -> bool:
        """Whether it is shown to differ, at a family-wise error of 5 %."""
        return self.is_tested and self.change is not None and self.has_interval and self.change.significant

    @property
    def has_interval(self) -> bool:
        """Whether the replications tell how sure the change is."""
        return self.change is not None and self.change.estimate.half_width is not None

    @property
    def as_ratio(self) -> bool:
        """Whether the change is a ratio."""
        return self.change is not None and self.change.as_ratio

    def bounds(self) -> tuple[float, float, float] | None:
        """The change with the ends of its 95 % interval, a ratio or in the metric's own unit; three times the same
        number where there is no interval.
        """
        if self.change is None:
            return None
        mean, half = self.change.estimate.mean, self.change.estimate.half_width or 0.0
        values = (mean, mean - half, mean + half)
        return tuple(map(math.exp, values)) if self.as_ratio else values  # type: ignore[return-value]

    def to_json(self) -> dict[str, Any]:
        """As JSON types: seconds, shares between 0 and 1."""
        bounds = self.bounds()
        kept = bounds if bounds is not None and self.has_interval else None
        return {
            "metric": self.shown.key,
            "before": _as_json(self.before),
            "after": _as_json(self.after),
            "kind": "ratio" if self.as_ratio else "difference",
            "change": bounds[0] if bounds else None,
            "low": kept[1] if kept else None,
            "high": kept[2] if kept else None,
            "adjusted_p": self.change.adjusted_p if self.change is not None and self.is_tested else None,
            "is_shown": self.is_shown if self.is_tested else None,
        }


def rows(comparison: Comparison, label: str) -> list[Row]:
    """Every metric of the cluster, before and in the case of this label."""
    sides = {side: comparison.summaries[side] for side in (label, BEFORE)}
    samples = {side: {shown.key: [one.get(shown.key) for one in found] for shown in _ROWS} for side, found in
               sides.items()}  # fmt: skip
    changes = _changes(samples, _ROWS)
    tested = {pair.metric: pair for pair in comparison.pairs() if {pair.first, pair.second} == {BEFORE, label}}
    found = []
    for shown in _ROWS:
        change, pair = changes.get(shown.key), tested.get(shown.key)
        if change is not None:
            change = replace(change, adjusted_p=pair.adjusted_p if pair is not None else None)
            change = _without_interval(change) if _is_too_short(comparison, label) else change
        before, after = comparison.estimate(BEFORE, shown.key), comparison.estimate(label, shown.key)
        found.append(Row(shown, before, after, change, shown.key in _TESTED))
    return found


def tenant_rows(comparison: Comparison, label: str) -> list[Row]:
    """Latencies, cached share and the share within targets of each tenant; of an only one the last, if it has any."""
    before, after = _by_tenant(comparison, BEFORE), _by_tenant(comparison, label)
    names = list(dict.fromkeys([*before, *after]))
    found = []
    for name in names:
        sides = {label: after.get(name, []), BEFORE: before.get(name, [])}
        wanted = _TENANT_ROWS if len(names) > 1 else ()
        for shown in (*wanted, WITHIN_TARGETS):
            samples = {side: {shown.key: [one.get(shown.key) for one in runs]} for side, runs in sides.items()}
            row = _tenant_row(comparison, label, name, shown, samples)
            if row.before is not None or row.after is not None:
                found.append(row)
    return found


def _tenant_row(
    comparison: Comparison, label: str, name: str, shown: Shown, samples: Mapping[str, Mapping[str, Samples]]
) -> Row:
    values = {side: found[shown.key] for side, found in samples.items()}
    change = _changes(samples, (shown,)).get(shown.key) if all(values.values()) else None
    before, after = _estimate(comparison, BEFORE, values[BEFORE]), _estimate(comparison, label, values[label])
    if change is not None and _is_too_short(comparison, label):
        change = _without_interval(change)
    return Row(shown, before, after, change, tenant=name)


def _changes(samples: Mapping[str, Mapping[str, Samples]], wanted: Sequence[Shown]) -> dict[str, Difference]:
    """What comes after against what was before, by metric. ``samples``: of the two sides, what comes after first."""
    ratios = [shown.key for shown in wanted if shown.unit != "%"]
    return {one.metric: one for one in compare_all(samples, [shown.key for shown in wanted], ratios)}


def _by_tenant(comparison: Comparison, side: str) -> dict[str, list[dict[str, Any]]]:
    """One entry a replication for each tenant; waits that grow as long as requests come are None."""
    found: dict[str, list[dict[str, Any]]] = {}
    for run in comparison.counted:
        if run.policy == side:
            for one in run.by_tenant():
                grown = dict.fromkeys(_growing(one), None) if side in comparison.steady_state.unstable else {}
                found.setdefault(one["tenant"], []).append(one | grown)
    return found


def _growing(row: Mapping[str, Any]) -> Iterator[str]:
    return (key for key in row if key.startswith(GROWING))


def _estimate(comparison: Comparison, side: str, values: Samples) -> Estimate | None:
    known = [value for value in values if value is not None]
    if not known or len(known) < comparison.num_replications:
        return None
    estimate = t_interval(known)
    if side in comparison.steady_state.too_short:
        return replace(estimate, half_width=None, without=TOO_SHORT)
    return estimate


def _is_too_short(comparison: Comparison, label: str) -> bool:
    return bool(comparison.steady_state.too_short & {BEFORE, label})


def _without_interval(change: Difference) -> Difference:
    return replace(change, estimate=replace(change.estimate, half_width=None, without=TOO_SHORT))


def _as_json(estimate: Estimate | None) -> dict[str, Any] | None:
    return None if estimate is None else {"mean": estimate.mean, "half_width": estimate.half_width}
