"""Which settings a sweep runs: every combination of values, or a Latin hypercube over their ranges."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simulator.errors import InputError
from simulator.scenario import Scenario
from simulator.scenario.variants import SHARED, effect
from simulator.streams import stream
from simulator.sweep.axes import Axis, label

_MOST_POINTS = 100_000


@dataclass(frozen=True)
class Point:
    """One setting: a value for each axis, and the scenario with these."""

    values: tuple[Any, ...]
    scenario: Scenario

    @property
    def digest(self) -> str:
        """That of its scenario, whatever the number of replications."""
        return self.scenario.digest


@dataclass(frozen=True)
class Design:
    """The settings of a sweep, in their order. ``is_grid``: all combinations; ``num_drawn``: samples, else as many.
    ``has_base``: the last one is the scenario as it is, beside the others.
    """

    axes: tuple[Axis, ...]
    points: tuple[Point, ...]
    is_grid: bool
    num_drawn: int
    has_base: bool = False

    @property
    def num_varied(self) -> int:
        """How many settings there are without one that stands beside them."""
        return len(self.points) - self.has_base

    def with_base(self, scenario: Scenario) -> tuple[Design, int]:
        """The design with the scenario as it is, and its place: that of a setting which is the same or, where there is
        none, the last. Raises InputError for a scenario of several policies.
        """
        if len(scenario.routing) != 1:
            raise InputError(f"--against base: the scenario has {len(scenario.routing)} policies, expected one")
        wanted = effect(scenario, scenario.routing[0])
        for place, point in enumerate(self.points):
            if _effect(point) == wanted:
                return self, place
        base = Point(tuple(_own_value(scenario, axis) for axis in self.axes), scenario.changed(replications=1))
        return replace(self, points=(*self.points, base), has_base=True), len(self.points)


def grid(scenario: Scenario, axes: Sequence[Axis]) -> Design:
    """Every combination, the last axis changing fastest. Raises InputError for a setting that cannot be run."""
    for axis in axes:
        if axis.ends is not None:
            raise InputError(f"--vary {axis.name}: a range without a step needs --samples, expected start:stop:step")
    count = 1
    for axis in axes:
        count *= len(axis.values)
    if count > _MOST_POINTS:
        raise InputError(f"--vary: {count:,} combinations, expected at most {_MOST_POINTS:,} (or --samples)")
    points = _points(scenario, axes, itertools.product(*(axis.values for axis in axes)))
    seen: dict[tuple[object, ...], Point] = {}
    for point in points:
        if (other := seen.setdefault(_effect(point), point)) is not point:
            raise InputError(f"--vary: {describe(axes, point)} is the same setting as {describe(axes, other)}")
    return Design(tuple(axes), tuple(points), is_grid=True, num_drawn=count)


def hypercube(scenario: Scenario, axes: Sequence[Axis], num_samples: int) -> Design:
    """A Latin hypercube (McKay, Beckman & Conover, 1979): each axis is cut into as many parts as there are samples, and
    each part has one. Drawn from the scenario's seed; settings that come out twice are run once.

    Raises InputError for a setting that cannot be run.
    """
    from scipy.stats import qmc

    if not 2 <= num_samples <= _MOST_POINTS:
        raise InputError(f"--samples: got {num_samples}, expected 2 to {_MOST_POINTS:,}")
    drawn = qmc.LatinHypercube(len(axes), rng=stream(scenario.seed, "sweep", "hypercube")).random(num_samples)
    rows = [tuple(axis.at(share) for axis, share in zip(axes, shares, strict=True)) for shares in drawn.tolist()]
    distinct: dict[tuple[object, ...], Point] = {}
    for point in _points(scenario, axes, rows):
        distinct.setdefault(_effect(point), point)
    if len(distinct) < 2:
        raise InputError("--vary: nothing that is varied changes anything")
    return Design(tuple(axes), tuple(distinct.values()), is_grid=False, num_drawn=num_samples)


def describe(axes: Sequence[Axis], point: Point) -> str:
    """The setting in words."""
    return ", ".join(f"{axis.name}={label(value)}" for axis, value in zip(axes, point.values, strict=True))


def _points(scenario: Scenario, axes: Sequence[Axis], rows: Iterable[tuple[Any, ...]]) -> list[Point]:
    _check(axes)
    once = scenario.changed(replications=1)
    return [_point(once, axes, values) for values in rows]


def _check(axes: Sequence[Axis]) -> None:
    names = [axis.name for axis in axes]
    for axis in axes:
        if names.count(axis.name) > 1:
            raise InputError(f"--vary {axis.name}: given twice")
        if axis.path[0] in SHARED:
            raise InputError(f"--vary {axis.name}: {axis.path[0]} is the same for all settings")


def _point(scenario: Scenario, axes: Sequence[Axis], values: tuple[Any, ...]) -> Point:
    changed = scenario
    try:
        # One after the other, as given: a policy before its parameters.
        for axis, value in zip(axes, values, strict=True):
            changed = changed.with_changes({axis.path: value})
        changed.check()
    except InputError as error:
        shown = ", ".join(f"{axis.name}={label(value)}" for axis, value in zip(axes, values, strict=True))
        raise InputError(f"--vary {shown}: {error}") from None
    if len(changed.routing) != 1:
        raise InputError("--vary routing: one policy for each setting, expected no lists of them")
    return Point(values, changed)


def _own_value(scenario: Scenario, axis: Axis) -> Any:
    """What the scenario itself has there."""
    found = scenario.value_at(axis.path)
    return found[0] if axis.path == ("routing",) else found


def _effect(point: Point) -> tuple[object, ...]:
    return effect(point.scenario, point.scenario.routing[0])
