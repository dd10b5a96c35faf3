"""Arrival times of drawn tenants."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.workload.spec import ArrivalSpec


def arrival_times_s(spec: ArrivalSpec, rng: np.random.Generator, num_per_draw: int) -> Iterator[np.ndarray]:
    """Yield arrays of ``num_per_draw`` arrival times in seconds, ascending, without end: the running sums of gaps."""
    last_s = 0.0
    while True:
        gaps_s = draw_gaps_s(spec, rng, num_per_draw)
        gaps_s[0] += last_s
        times_s = np.cumsum(gaps_s)
        last_s = float(times_s[-1])
        yield times_s


def draw_gaps_s(spec: ArrivalSpec, rng: np.random.Generator, size: int) -> np.ndarray:
    """``size`` gaps in seconds.

    With mean m = 1 / rate: exponential (poisson), gamma with shape 1 / cv² and scale m cv² (gamma), or m (fixed).
    """
    mean_s = 1 / spec.rate_per_s
    if spec.process == "poisson":
        return rng.exponential(mean_s, size)
    if spec.process == "gamma":
        assert spec.cv is not None  # the specification demands it
        return rng.gamma(spec.cv**-2, mean_s * spec.cv**2, size)
    return np.full(size, mean_s)
