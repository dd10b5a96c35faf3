"""Arrival times of drawn tenants."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile

import numpy as np

from simulator.request import Request
from simulator.workload.distributions import ArrivalSpec

_PERIODS_PER_DRAW = 10_000


def arrival_times_s(spec: ArrivalSpec, rng: np.random.Generator, num_per_draw: int) -> Iterator[np.ndarray]:
    """Yield arrays of ``num_per_draw`` arrival times in seconds, ascending, without end."""
    if spec.process == "profile":
        return _profile_times_s(spec, rng, num_per_draw)
    if spec.process == "on_off":
        return _on_off_times_s(spec, rng, num_per_draw)
    if spec.process == "batch":
        return _batch_times_s(spec, num_per_draw)
    return _sums(_gaps_s(spec, rng, num_per_draw))


def until(requests: Iterator[Request], num_requests: int | None, end_s: float | None) -> Iterator[Request]:
    """The first ``num_requests`` or, where that is None, all that arrive before ``end_s``."""
    if num_requests is not None:
        return islice(requests, num_requests)
    assert end_s is not None  # the specification demands one of the two
    return takewhile(lambda request: request.arrival_s < end_s, requests)


def draw_gaps_s(spec: ArrivalSpec, rng: np.random.Generator, size: int) -> np.ndarray:
    """``size`` gaps in seconds of a process that has independent ones.

    With mean m = 1 / rate: exponential (poisson), gamma with shape 1 / cv² and scale m cv² (gamma), or m (fixed).
    """
    assert spec.rate_per_s is not None  # the specification demands it
    mean_s = 1 / spec.rate_per_s
    if spec.process == "poisson":
        return rng.exponential(mean_s, size)
    if spec.process == "gamma":
        assert spec.cv is not None  # the specification demands it
        return rng.gamma(spec.cv**-2, mean_s * spec.cv**2, size)
    return np.full(size, mean_s)


def _gaps_s(spec: ArrivalSpec, rng: np.random.Generator, num_per_draw: int) -> Iterator[np.ndarray]:
    while True:
        yield draw_gaps_s(spec, rng, num_per_draw)


def _sums(gaps: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    """The running sums of gaps."""
    last = 0.0
    for drawn in gaps:
        drawn[0] += last
        sums = np.cumsum(drawn)
        last = float(sums[-1])
        yield sums


def _unit_times(rng: np.random.Generator, num_per_draw: int) -> Iterator[np.ndarray]:
    """A Poisson process of rate 1, which any other is once its clock is bent by the expected number of arrivals."""

    def gaps() -> Iterator[np.ndarray]:
        while True:
            yield rng.exponential(1.0, num_per_draw)

    return _sums(gaps())


def _profile_times_s(spec: ArrivalSpec, rng: np.random.Generator, num_per_draw: int) -> Iterator[np.ndarray]:
    """Poisson with a rate that repeats: the inverse of the expected number of arrivals, straight within a part."""
    assert spec.rates_per_s is not None  # the specification demands both
    assert spec.period is not None
    edges_s = np.linspace(0.0, spec.period, len(spec.rates_per_s) + 1)
    expected = np.concatenate([[0.0], np.cumsum(np.array(spec.rates_per_s) * np.diff(edges_s))])
    for number in _unit_times(rng, num_per_draw):
        periods, rest = np.divmod(number, expected[-1])
        yield periods * spec.period + np.interp(rest, expected, edges_s)


def _on_off_times_s(spec: ArrivalSpec, rng: np.random.Generator, num_per_draw: int) -> Iterator[np.ndarray]:
    """Arrivals on the clock that runs while on, then the time off before each."""
    assert spec.rate_per_s is not None  # the specification demands all three
    assert spec.on_for is not None
    assert spec.off_for is not None
    rate_per_s = spec.rate_per_s * (spec.on_for + spec.off_for) / spec.on_for
    # Rare arrivals lie many periods apart: fewer are drawn at once.
    num_per_draw = max(1, min(num_per_draw, int(_PERIODS_PER_DRAW * rate_per_s * spec.on_for)))
    ends_on_s, off_s = np.zeros(1), np.zeros(1)  # ends of times on, on their own clock, and all time off before each
    for number in _unit_times(rng, num_per_draw):
        on_s = number / rate_per_s
        while (missing_s := on_s[-1] - ends_on_s[-1]) >= 0:
            number_of_periods = 64 + int(1.1 * missing_s / spec.on_for)
            on_times = ends_on_s[-1] + np.cumsum(rng.exponential(spec.on_for, number_of_periods))
            off_times = off_s[-1] + np.cumsum(rng.exponential(spec.off_for, number_of_periods))
            ends_on_s, off_s = np.concatenate([ends_on_s, on_times]), np.concatenate([off_s, off_times])
        place = np.searchsorted(ends_on_s, on_s, side="right") - 1
        yield on_s + off_s[place]
        first = int(place[-1])  # what is over will not be asked for again
        ends_on_s, off_s = ends_on_s[first:], off_s[first:]


def _batch_times_s(spec: ArrivalSpec, num_per_draw: int) -> Iterator[np.ndarray]:
    assert spec.size is not None  # the specification demands both
    assert spec.every is not None
    first = 0
    while True:
        yield (np.arange(first, first + num_per_draw) // spec.size) * spec.every
        first += num_per_draw
