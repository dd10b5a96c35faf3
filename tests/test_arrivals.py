"""Arrival processes against theory."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError
from scipy import stats

from simulator.workload.arrivals import arrival_times_s
from simulator.workload.distributions import ArrivalSpec

DAY = {"process": "profile", "rates_per_s": [1.0, 0.0, 4.0, 3.0], "period": "400 s"}
ON_OFF = {"process": "on_off", "rate_per_s": 2.0, "on_for": "30 s", "off_for": "90 s"}


def times_s(spec: dict[str, object], count: int, seed: int = 1) -> np.ndarray:
    found = []
    for times in arrival_times_s(ArrivalSpec.model_validate(spec), np.random.default_rng(seed), 512):
        found.append(times)
        if sum(map(len, found)) >= count:
            return np.concatenate(found)[:count]
    raise AssertionError("arrivals end")


def test_times_never_go_back() -> None:
    for spec in (DAY, ON_OFF, {"process": "batch", "size": 7, "every": "10 s"}):
        assert np.all(np.diff(times_s(spec, 5000)) >= 0)


def test_a_profile_has_its_rate_in_each_part() -> None:
    """Counts over 200 periods: 100 s a part, so 20,000, none, 80,000 and 60,000, each a Poisson number."""
    times = times_s(DAY, 200_000)
    times = times[times < 200 * 400]
    counts = np.histogram(times % 400, bins=[0, 100, 200, 300, 400])[0]
    expected = np.array([20_000, 0, 80_000, 60_000])
    assert np.all(np.abs(counts - expected) <= 4 * np.sqrt(expected))


def test_within_a_part_of_a_profile_arrivals_are_poisson() -> None:
    times = times_s(DAY, 50_000)
    gaps = np.diff(times[(times % 400 > 200) & (times % 400 < 300)])
    gaps = gaps[gaps < 100]
    assert stats.kstest(gaps[:2000], "expon", args=(0, 1 / 4)).pvalue > 0.01


def test_on_off_has_its_mean_rate_and_its_burstiness() -> None:
    """Rate 2 in all, 8 while on. Counts in long windows have the index of dispersion 1 + 2 h² s / mean with h = 8: the
    covariance of the state is p (1 - p) = 3/16 and decays at 1/30 + 1/90 a second, so it is
    1 + 2 x 64 x (3/16) x 22.5 / 2 = 271.
    """
    times = times_s(ON_OFF, 400_000)
    assert len(times) / times[-1] == pytest.approx(2.0, rel=0.06)
    counts = np.histogram(times, bins=np.arange(0, times[-1], 1000))[0][:-1]
    assert counts.var() / counts.mean() == pytest.approx(271, rel=0.25)


def test_batches_come_at_once() -> None:
    times = times_s({"process": "batch", "size": 3, "every": "10 s"}, 9)
    assert times.tolist() == [0, 0, 0, 10, 10, 10, 20, 20, 20]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"process": "poisson"}, "need rate_per_s"),
        ({"process": "poisson", "rate_per_s": 1, "cv": 2}, "cv would change nothing .*gamma takes it"),
        ({"process": "on_off", "rate_per_s": 1}, "need off_for and on_for"),
        ({"process": "profile", "rates_per_s": [0, 0], "period": "1 h"}, "above 0"),
        ({"process": "profile", "rates_per_s": [1, -1], "period": "1 h"}, "greater than or equal to 0"),
        ({"process": "batch", "size": 5, "every": "1 s", "rate_per_s": 1}, "rate_per_s would change nothing"),
    ],
)
def test_what_does_not_fit_the_process_is_refused(spec: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ArrivalSpec.model_validate(spec)


def test_rare_arrivals_need_no_more_periods_than_lie_before_them() -> None:
    """One arrival in nine hours, on and off for a second each: the first few come without drawing a thousand more."""
    spec = {"process": "on_off", "rate_per_s": 3e-5, "on_for": "1 s", "off_for": "1 s"}
    drawn = arrival_times_s(ArrivalSpec.model_validate(spec), np.random.default_rng(1), 1024)
    first = np.concatenate([next(drawn) for _ in range(40)])
    assert len(first) < 200
    assert first[-1] / len(first) == pytest.approx(1 / 3e-5, rel=4 / len(first) ** 0.5)
