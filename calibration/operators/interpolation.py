"""Values between the points of a table, linear along each axis; nothing is extrapolated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from scipy.interpolate import RegularGridInterpolator

from simulator.errors import InputError


class Grid:
    """One value a point of a full grid, multilinear in between."""

    def __init__(self, name: str, axes: Sequence[str], points: Mapping[tuple[float, ...], float]) -> None:
        """``axes`` name the coordinates of ``points``; ``name`` is what an InputError calls the table.

        Raises InputError without points, or where a point of the grid is missing.
        """
        if not points:
            raise InputError(f"{name}: no rows")
        self._name, self._axes = name, axes
        self._sizes = [sorted({point[axis] for point in points}) for axis in range(len(axes))]
        missing = next((point for point in product(*self._sizes) if point not in points), None)
        if missing is not None:
            where = ", ".join(f"{axis} {size:g}" for axis, size in zip(axes, missing, strict=True))
            raise InputError(f"{name}: no row for {where}, expected a full grid")
        values = np.array([points[point] for point in product(*self._sizes)])
        # Axes of one size are not axes to interpolate along.
        self._long = [axis for axis, sizes in enumerate(self._sizes) if len(sizes) > 1]
        self._only = float(values[0])
        self._between = (
            RegularGridInterpolator(
                [self._sizes[axis] for axis in self._long],
                values.reshape([len(self._sizes[axis]) for axis in self._long]),
            )
            if self._long
            else None
        )

    def covers(self, *point: float) -> bool:
        """Whether ``point`` lies within the measured sizes."""
        return all(sizes[0] <= size <= sizes[-1] for size, sizes in zip(point, self._sizes, strict=True))

    def __call__(self, *point: float) -> float:
        """The value at ``point``. Raises InputError outside the measured sizes."""
        for axis, size, sizes in zip(self._axes, point, self._sizes, strict=True):
            if not sizes[0] <= size <= sizes[-1]:
                raise InputError(
                    f"{self._name}: {axis}: got {size:g}, expected {sizes[0]:g} to {sizes[-1]:g} as measured"
                )
        if self._between is None:
            return self._only
        return float(self._between([point[axis] for axis in self._long])[0])
