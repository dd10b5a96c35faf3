"""What the rows of a sweep say: estimates of each setting, the best one, and how far each is from it or another."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from simulator.comparison import COMPARED, GROWING, Provenance, Shown
from simulator.statistics import TOO_SHORT, Difference, Estimate, t_interval
from simulator.steady import LEAST_REQUESTS, Batches, Quarters, grows_for_somebody, is_too_short, lengthen
from simulator.sweep.axes import label
from simulator.sweep.design import Design
from simulator.sweep.differences import against
from simulator.sweep.effects import Effects, find_effects, tells_apart
from simulator.sweep.metrics import shown_of


@dataclass
class Findings:
    """``rows`` has the settings of the design in their order, each with all its replications. ``metric`` (a column
    of the rows, see ``metrics.shown_of``) is what settings are judged by; ``against`` the place of the setting that all
    are compared with, None for the best. ``num_found`` rows were there before.
    """

    provenance: Provenance
    design: Design
    num_replications: int
    rows: Sequence[Mapping[str, Any]]
    num_found: int = 0
    metric: str = "ttft_p90_s"
    against: int | None = None
    _values: dict[str, np.ndarray] = field(default_factory=dict, repr=False)

    @property
    def shown(self) -> Shown:
        """The metric that settings are judged by, as people read it."""
        return shown_of(self.metric)

    @property
    def metrics(self) -> list[Shown]:
        """What is told of every setting: first what they are judged by."""
        return [self.shown, *(shown for shown in COMPARED if shown.key != self.metric)]

    @property
    def as_ratio(self) -> bool:
        """Whether settings are compared by ratios, as ``Comparison`` compares times and rates."""
        return self.shown.unit != "%" and bool(np.nanmin(self.values(self.metric), initial=np.inf) > 0)

    def values(self, metric: str) -> np.ndarray:
        """One row a setting, one column a replication; NaN where a run has no such value, or waits grow without end."""
        if metric not in self._values:
            found = self._column(metric)
            if metric.rpartition(".")[2].startswith(GROWING):
                found[sorted(self.unstable)] = np.nan
            self._values[metric] = found
        return self._values[metric]

    @cached_property
    def unstable(self) -> frozenset[int]:
        """Places of the settings under overload (see ``steady.judge``): their waits are as long as the run."""
        overloaded = self._column("is_overloaded").min(axis=1) > 0
        return frozenset(
            place for place, point in enumerate(self.design.points)
            if overloaded[place] or (point.scenario.workload.is_stationary and self._grows(place))
        )  # fmt: skip

    def _grows(self, place: int) -> bool:
        first, count = place * self.num_replications, self.num_replications
        runs = [_quarters(row) for row in self.rows[first : first + count]]
        return all(runs) and grows_for_somebody(runs)

    @cached_property
    def too_short(self) -> frozenset[int]:
        """Places of the settings whose runs are too short for their load (see ``steady.is_too_short``): their means
        stand without interval.
        """
        num_requests = self._column("num_requests") + self._column("num_skipped")
        if self.num_replications < 2:
            return frozenset()
        return frozenset(
            place for place, point in enumerate(self.design.points)
            if point.scenario.workload.is_stationary and place not in self.unstable
            and num_requests[place].min() >= LEAST_REQUESTS and is_too_short(self._batches[place])
        )  # fmt: skip

    @property
    def lengthen(self) -> int:
        """How many times as many requests may do where runs are too short (see ``steady.lengthen``)."""
        return max((lengthen(self._batches[place]) for place in self.too_short), default=1)

    @cached_property
    def _batches(self) -> list[list[Batches]]:
        columns = np.stack([self._column(f"ttft_batches_{name}") for name in Batches._fields], axis=2)
        return [[Batches(*run) for run in runs] for runs in columns.tolist()]

    @property
    def num_skipped(self) -> list[int]:
        """How many of the first requests of each run are a warm-up, which counts nowhere."""
        return [int(row["num_skipped"]) for row in self.rows]

    def _column(self, name: str) -> np.ndarray:
        found = np.array([row.get(name, math.nan) for row in self.rows], dtype=float)
        return found.reshape(len(self.design.points), self.num_replications)

    def estimate(self, place: int, metric: str) -> Estimate | None:
        """Mean over replications with its interval; None if some replication has no such value."""
        values = self.values(metric)[place]
        if np.isnan(values).any():
            return None
        found = t_interval(values.tolist())
        return replace(found, half_width=None, without=TOO_SHORT) if place in self.too_short else found

    @cached_property
    def best(self) -> int | None:
        """The place of the setting with the best mean; None if no setting has one."""
        means = self.values(self.metric).mean(axis=1)
        if np.isnan(means).all():
            return None
        return int(np.nanargmin(means) if self.shown.lower_is_better else np.nanargmax(means))

    @cached_property
    def reference(self) -> int | None:
        """The setting that all others are compared with."""
        return self.best if self.against is None else self.against

    @cached_property
    def differences(self) -> dict[int, Difference]:
        """Each setting against the reference, by its place; those without a value in some replication left out."""
        if self.reference is None:
            return {}
        labels = [self.label(place) for place in range(len(self.design.points))]
        return against(
            self._compared(), self.reference, labels, self.metric, self.too_short,
            chosen_from_these=self.against is None,
        )  # fmt: skip

    @property
    def lacks_values(self) -> bool:
        """Whether some varied setting has no value of what settings are judged by in some replication."""
        return bool(np.isnan(self.values(self.metric)[: self.design.num_varied]).any())

    @cached_property
    def effects(self) -> Effects | None:
        """What each varied key does on the average over the others; None for one key, where some value lacks or its
        runs are too short, or where the settings do not tell the keys apart.
        """
        values = self._compared()[: self.design.num_varied]
        rows = [point.values for point in self.design.points[: self.design.num_varied]]
        if len(self.design.axes) < 2 or self.lacks_values or self.too_short or not tells_apart(rows):
            return None
        return find_effects(self.design.axes, rows, values, lower_is_better=self.shown.lower_is_better)

    def label(self, place: int) -> str:
        """The setting's values in words."""
        return ", ".join(label(value) for value in self.design.points[place].values)

    def to_json(self) -> dict[str, Any]:
        """Everything a machine needs, as JSON types; times in seconds, shares between 0 and 1."""
        settings = []
        for place, point in enumerate(self.design.points):
            estimates = {shown.key: self.estimate(place, shown.key) for shown in self.metrics}
            difference = self.differences.get(place)
            settings.append({
                "values": {axis.name: value for axis, value in zip(self.design.axes, point.values, strict=True)},
                "digest": point.digest,
                "estimates": {name: None if found is None else asdict(found) for name, found in estimates.items()},
                "difference": None if difference is None
                else asdict(difference) | {"significant": difference.significant},
            })
        return {
            **asdict(self.provenance),
            "varied": [axis.name for axis in self.design.axes],
            "design": "grid" if self.design.is_grid else "latin hypercube",
            "num_replications": self.num_replications,
            "num_skipped": max(self.num_skipped),
            "metric": self.metric,
            "best": self.best,
            "reference": self.reference,
            "unstable": sorted(self.unstable),
            "too_short": sorted(self.too_short),
            "settings": settings,
            "effects": None if self.effects is None else self.effects.to_json(),
        }

    def _compared(self) -> np.ndarray:
        values = self.values(self.metric)
        return np.log(values) if self.as_ratio else values


def _quarters(row: Mapping[str, Any]) -> dict[str, Quarters]:
    """By the tenant, or "" for all, what ``steady.quarters_by_sender`` found in the run."""
    early = {name.removesuffix("ttft_early_s"): row[name] for name in row if name.endswith("ttft_early_s")}
    return {
        whose: Quarters(early_s, row[f"{whose}ttft_late_s"], row["arriving_s"])
        for whose, early_s in early.items() if not math.isnan(early_s)
    }  # fmt: skip
