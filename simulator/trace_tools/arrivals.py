"""When requests arrive: the rate, and how far it is from a Poisson process.

Index of dispersion for counts, variance over mean of the arrivals in windows of one length: 1 for a Poisson process at
every length, growing with the length where bursts or trends do (Gusella (1991), "Characterizing the variability of
arrival processes with indexes of dispersion", IEEE JSAC 9(2)). Coefficient of variation of the gaps: 1 for Poisson.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

WINDOWS_S = (1, 10, 60, 600, 3600)
_FEWEST_WINDOWS = 5
_FEWEST_REQUESTS_A_TIME = 2


@dataclass(frozen=True)
class Window:
    """The requests in consecutive windows of one length. ``dispersion`` is None without arrivals."""

    length_s: int
    num_windows: int
    least_per_s: float
    most_per_s: float
    dispersion: float | None


@dataclass(frozen=True)
class Arrivals:
    """``tick_s`` is the median step between distinct times, None where there is one; ``gap_cv`` None without gaps."""

    span_s: float
    mean_per_s: float | None
    gap_cv: float | None
    num_distinct_times: int
    tick_s: float | None
    lumped: bool
    windows: tuple[Window, ...]


def arrivals(times_s: np.ndarray) -> Arrivals:
    """Statistics of one or more times, in any order."""
    ordered = np.sort(times_s) - times_s.min()
    span_s = float(ordered[-1])
    gaps, distinct = np.diff(ordered), np.unique(ordered)
    return Arrivals(
        span_s=span_s,
        mean_per_s=ordered.size / span_s if span_s else None,
        gap_cv=float(gaps.std() / gaps.mean()) if span_s else None,
        num_distinct_times=distinct.size,
        tick_s=float(np.median(np.diff(distinct))) if distinct.size > 1 else None,
        lumped=ordered.size >= _FEWEST_REQUESTS_A_TIME * distinct.size and ordered.size > 1,
        windows=tuple(_window(ordered, length) for length in WINDOWS_S if span_s >= _FEWEST_WINDOWS * length),
    )


def per_window(times_s: np.ndarray, length_s: float) -> np.ndarray:
    """Requests in each whole window from the first time on."""
    since = times_s - times_s.min()
    num = max(1, int(since.max() / length_s))
    inside = (since / length_s).astype(int)
    return np.bincount(inside[inside < num], minlength=num)


def _window(times_s: np.ndarray, length_s: int) -> Window:
    counts = per_window(times_s, length_s)
    mean = counts.mean()
    return Window(
        length_s=length_s,
        num_windows=counts.size,
        least_per_s=float(counts.min() / length_s),
        most_per_s=float(counts.max() / length_s),
        dispersion=float(counts.var() / mean) if mean else None,
    )
