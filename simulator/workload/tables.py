"""Distributions as tables: a few equally likely values, and everything between them."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, Field

from simulator.units import Number


def _ascending(values: tuple[float, ...]) -> tuple[float, ...]:
    if any(low > high for low, high in pairwise(values)):
        raise ValueError("a table's values never fall")
    return values


Table = Annotated[
    tuple[Annotated[Number, Field(ge=0)], ...], Field(min_length=1, max_length=200), AfterValidator(_ascending)
]
"""n values, none above the next: the k-th (from 0) is reached with probability (k + 1/2) / n, straight lines between.

Below the first and above the last there is nothing, so the mean of what is drawn is the mean of the table.
"""


def value_at(table: tuple[float, ...], chance: float) -> float:
    """The value that is reached with probability ``chance`` (0 <= chance < 1)."""
    place = chance * len(table) - 0.5
    if place <= 0:
        return table[0]
    below = int(place)
    if below + 1 >= len(table):
        return table[-1]
    return table[below] + (place - below) * (table[below + 1] - table[below])


def table_of(values: np.ndarray, num_points: int) -> list[float]:
    """The table of a sample (not empty): the means of ``num_points`` equal parts of it, so that its mean stays."""
    ordered = np.sort(np.asarray(values, dtype=float))
    num_points = min(num_points, ordered.size)
    total = np.concatenate(([0.0], np.cumsum(ordered)))
    edges = np.linspace(0, ordered.size, num_points + 1)  # an edge may cut an observation in two
    means = np.diff(np.interp(edges, np.arange(total.size), total)) * num_points / ordered.size
    return list(np.maximum.accumulate(means).tolist())
