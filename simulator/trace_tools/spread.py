"""Distributions in a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class Spread:
    """Mean, extremes and percentiles, in the unit of the values."""

    num: int
    total: float
    mean: float
    least: float
    p50: float
    p90: float
    p95: float
    p99: float
    most: float


def spread(values: Sequence[float] | np.ndarray) -> Spread | None:
    """Percentile q is the first value that more than q % of the values do not exceed: always one of them. None of no
    values.
    """
    ordered = np.sort(np.asarray(values))
    num = ordered.size
    if not num:
        return None
    total = ordered.sum().item()
    p50, p90, p95, p99 = ordered[[share * num // 100 for share in PERCENTILES]].tolist()
    return Spread(num, total, total / num, ordered[0].item(), p50, p90, p95, p99, ordered[-1].item())


def weighted_percentiles(values: np.ndarray, weights: np.ndarray) -> dict[str, float] | None:
    """The least values that the given shares of the weight do not exceed; None of no weight."""
    if not weights.sum():
        return None
    order = np.argsort(values, kind="stable")
    heaped = np.cumsum(weights[order])
    at = np.searchsorted(heaped, np.array(PERCENTILES) / 100 * heaped[-1])
    return {f"p{share}": float(values[order][index]) for share, index in zip(PERCENTILES, at, strict=True)}
