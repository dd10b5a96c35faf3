"""Token counts of drawn tenants."""

from __future__ import annotations

import math

import numpy as np

from simulator.workload.distributions import LengthSpec


def draw_lengths(spec: LengthSpec, rng: np.random.Generator, size: int) -> np.ndarray:
    """``size`` whole numbers of tokens, >= 1 unless fixed at 0.

    ``fixed``: the mean. ``uniform``: every whole number from low to high alike. ``geometric``: P(k) = p (1-p)^(k-1),
    p = 1 / mean. ``exponential`` and ``lognormal`` (sigma² = ln(1 + cv²), mu = ln mean - sigma²/2): the continuous
    draw, rounded to the nearest whole number and at least 1, which moves the mean by less than one token.
    """
    if spec.distribution == "fixed":
        return np.full(size, int(spec.mean or 0))
    if spec.distribution == "uniform":
        assert spec.low is not None  # the specification demands both
        assert spec.high is not None
        return rng.integers(spec.low, spec.high, size, endpoint=True)
    low, high = spec.low or 1, math.inf if spec.high is None else spec.high
    # Clipped as floats: the far tail of a wide lognormal does not fit an integer before it is clipped.
    drawn = np.clip(np.rint(_continuous(spec, rng, size)), low, min(high, 2**53))
    return np.asarray(drawn, dtype=np.int64)


def _continuous(spec: LengthSpec, rng: np.random.Generator, size: int) -> np.ndarray:
    assert spec.mean is not None  # the specification demands it
    if spec.distribution == "geometric":
        return rng.geometric(1 / spec.mean, size)
    if spec.distribution == "exponential":
        return rng.exponential(spec.mean, size)
    assert spec.cv is not None
    variance = math.log1p(spec.cv**2)
    return rng.lognormal(math.log(spec.mean) - variance / 2, math.sqrt(variance), size)
