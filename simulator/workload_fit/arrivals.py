"""Arrivals as a gamma process, or as a profile of rates where the rate drifts more than bursts explain."""

from __future__ import annotations

from typing import Any

import numpy as np

_A_BURST = 20  # requests a short window: bursts show, drift hardly
_LUMPED, _FEWEST_TICKS = 2, 5
_A_PART = 200  # requests a part of a profile
_MOST_PARTS = 24
_NEAR_POISSON = 0.1
_DRIFT = 4.0  # times as dispersed in long windows as in short ones


def fitted(times_s: np.ndarray) -> dict[str, Any]:
    """The ``arrivals`` of a source, from times in order.

    A gamma process with coefficient of variation cv has, over long windows, variance / mean of its counts = cv²; so
    the dispersion tells cv even where a coarse clock lumps arrivals together, over windows of several ticks.
    """
    span_s = float(times_s[-1] - times_s[0])
    rate = (times_s.size - 1) / span_s
    burst = dispersion(times_s, burst_window_s(times_s))
    num_parts = min(_MOST_PARTS, times_s.size // _A_PART)
    if num_parts > 2 and dispersion(times_s, span_s / num_parts) > _DRIFT * max(1.0, burst):
        counts = np.histogram(times_s, num_parts, (times_s[0], times_s[-1]))[0]
        rates = [float(f"{count * num_parts / span_s:.4g}") for count in counts]
        return {"process": "profile", "rates_per_s": rates, "period": float(f"{span_s:.6g}")}
    cv = max(0.1, burst**0.5)
    if abs(cv - 1) < _NEAR_POISSON:
        return {"process": "poisson", "rate_per_s": float(f"{rate:.5g}")}
    return {"process": "gamma", "rate_per_s": float(f"{rate:.5g}"), "cv": float(f"{cv:.3g}")}


def burst_window_s(times_s: np.ndarray) -> float:
    """A window that shows bursts and hardly drift; of whole ticks of the clock, whose beat would show otherwise."""
    window_s = _A_BURST * float(times_s[-1] - times_s[0]) / times_s.size
    distinct = np.unique(times_s)
    if times_s.size < _LUMPED * distinct.size:
        return window_s
    tick_s = float(np.median(np.diff(distinct)))
    return tick_s * max(_FEWEST_TICKS, np.ceil(window_s / tick_s))


def dispersion(times_s: np.ndarray, window_s: float) -> float:
    """Variance over mean of the arrivals in windows of ``window_s`` seconds; 1 for a Poisson process."""
    num = max(1, int((times_s[-1] - times_s[0]) / window_s))
    counts = np.histogram(times_s, num, (times_s[0], times_s[0] + num * window_s))[0]
    return float(counts.var() / counts.mean()) if num > 1 and counts.any() else 1.0
