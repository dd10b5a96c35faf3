"""Percentiles, intervals over replications, paired differences, and a correction for comparing many things at once.

A replication gives one number a metric (its p90, its mean ...); intervals are over replications, never over the
requests of one run, which are not independent. References:

* Hyndman & Fan (1996), "Sample quantiles in statistical packages", The American Statistician 50(4): definition 7.
* Law (2015), "Simulation Modeling and Analysis", 5th edition: t interval over independent replications (section 9.4.1),
  paired-t interval (10.2.1), common random numbers (11.2).
* Holm (1979), "A simple sequentially rejective multiple test procedure", Scandinavian Journal of Statistics 6(2).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

PERCENTILES = (50, 90, 95, 99)
LEVEL = 0.95
THIS_TRACE_ONLY = "this trace only"
TOO_SHORT = "runs too short for the load"


def percentiles(values: Sequence[float], wanted: Sequence[float] = PERCENTILES) -> list[float] | None:
    """Percentiles, linear between order statistics (Hyndman & Fan's definition 7); None if there are no values."""
    sample = np.asarray(values, dtype=float)
    if sample.size == 0:
        return None
    return [float(value) for value in np.percentile(sample, wanted)]


@dataclass(frozen=True)
class Estimate:
    """A mean over replications with the half width of its confidence interval, in the unit of the metric.

    ``half_width`` is None where the replications cannot tell: there is only one, or all of them agree to the last bit
    because nothing in them is random. The number then describes this trace only.
    """

    mean: float
    half_width: float | None
    num_replications: int
    without: str = THIS_TRACE_ONLY

    @property
    def half_width_share(self) -> float:
        """The half width as a share of the mean; 0 without a half width."""
        return abs(self.half_width / self.mean) if self.half_width and self.mean else 0.0

    @property
    def scope(self) -> str:
        """What the estimate speaks about: all replications of the workload, or why it has no interval."""
        if self.half_width is not None and self.num_replications > 1:
            return "replications"
        return self.without


@dataclass(frozen=True)
class Difference:
    """``first`` minus ``second`` in ``metric``, paired by replication.

    ``p_value`` is two-sided, from the paired t test; ``adjusted_p`` is Holm's over all differences looked at together.
    Both are None where no interval exists (see Estimate). ``as_ratio``: the difference is one of logarithms, so its
    exponential is the ratio of first to second (the geometric mean over replications). ``unpaired_half_width`` is that
    of Welch's interval, which takes the two for independent.
    """

    metric: str
    first: str
    second: str
    estimate: Estimate
    p_value: float | None
    adjusted_p: float | None = None
    as_ratio: bool = False
    unpaired_half_width: float | None = None

    @property
    def width_ratio(self) -> float | None:
        """How many times wider the interval would be if both had not served the same requests; None without one."""
        half_width = self.estimate.half_width
        return self.unpaired_half_width / half_width if self.unpaired_half_width and half_width else None

    @property
    def significant(self) -> bool:
        """Whether the difference is shown at a family-wise error of 5 %."""
        return self.adjusted_p is not None and self.adjusted_p < 1 - LEVEL


def t_interval(values: Sequence[float], level: float = LEVEL) -> Estimate:
    """Mean over independent replications with Student's interval: mean ± t(n−1, (1+level)/2) · s / √n (Law, 9.4.1).

    Raises ValueError for an empty sample.
    """
    if not len(values):
        raise ValueError("an interval needs at least one replication")
    sample = np.asarray(values, dtype=float)
    mean, error = _mean_and_error(sample)
    if not error:
        return Estimate(mean, None, sample.size)
    from scipy import stats

    return Estimate(mean, float(stats.t.ppf((1 + level) / 2, sample.size - 1)) * error, sample.size)


def paired_difference(metric: str, first: str, second: str, a: Sequence[float], b: Sequence[float]) -> Difference:
    """Compare two policies over replications that share their random numbers (Law, 10.2.1 and 11.2).

    The interval and the test are those of the differences replication by replication, so that what both policies suffer
    alike cancels. Two policies that agree exactly in every replication differ by 0 with p = 1; differences that are
    equal but not zero have no spread to judge by, hence no p-value. Raises ValueError for unequal numbers of values.
    """
    left, right = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    if left.shape != right.shape:
        raise ValueError(f"{left.size} and {right.size} replications do not pair up")
    differences = left - right
    differences[np.abs(differences) <= _rounding(np.maximum(np.abs(left), np.abs(right)))] = 0.0
    estimate = t_interval(differences)
    if estimate.num_replications > 1 and not differences.any():
        return Difference(metric, first, second, replace(estimate, half_width=0.0), 1.0)
    if estimate.half_width is None:
        return Difference(metric, first, second, estimate, None)
    from scipy import stats

    mean, error = _mean_and_error(differences)
    p_value = 2 * float(stats.t.sf(abs(mean / error), differences.size - 1))
    return Difference(metric, first, second, estimate, p_value, unpaired_half_width=_welch_half_width(left, right))


def _welch_half_width(left: np.ndarray, right: np.ndarray) -> float:
    """Half width of the interval for a difference of independent means (Welch 1947, "The generalization of 'Student's'
    problem when several different population variances are involved", Biometrika 34).
    """
    from scipy import stats

    parts = np.array([sample.var(ddof=1) / sample.size for sample in (left, right)])
    freedom = parts.sum() ** 2 / (parts**2 / (left.size - 1)).sum()
    return float(stats.t.ppf((1 + LEVEL) / 2, freedom) * math.sqrt(parts.sum()))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's (1979) adjusted p-values, in the order given: max over j ≤ i of min(1, (m − j + 1) · p(j))."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def compare_all(
    samples: Mapping[str, Mapping[str, Sequence[float | None]]],
    metrics: Sequence[str],
    ratios: Collection[str] = (),
    withheld: Collection[str] = (),
) -> list[Difference]:
    """All pairs of policies in all ``metrics``, with Holm's correction over the whole family.

    Times and rates, named in ``ratios``, are compared by their logarithms: a busier replication multiplies them for all
    policies alike, and only ratios take that out (the log transformation of Box and Cox, 1964). Differences from a
    policy in ``withheld`` are given without interval and p-value.

    ``samples[policy][metric]`` holds one number a replication, in the same order for every policy. A metric that some
    policy could not deliver in some replication (None) is left out for that policy's pairs.
    """
    found = []
    for metric in metrics:
        for first, second in itertools.combinations(samples, 2):
            a, b = samples[first][metric], samples[second][metric]
            if None in a or None in b:
                continue
            as_ratio = metric in ratios and min(*a, *b) > 0  # type: ignore[type-var, operator]
            if as_ratio:
                a, b = np.log(a), np.log(b)  # type: ignore[arg-type, assignment]
            difference = paired_difference(metric, first, second, a, b)  # type: ignore[arg-type]
            found.append(replace(difference, as_ratio=as_ratio))
            if {first, second} & set(withheld):
                estimate = replace(difference.estimate, half_width=None, without=TOO_SHORT)
                found[-1] = Difference(metric, first, second, estimate, None, as_ratio=as_ratio)
    tested = [index for index, difference in enumerate(found) if difference.p_value is not None]
    adjusted = holm([p for difference in found if (p := difference.p_value) is not None])
    for index, value in zip(tested, adjusted, strict=True):
        found[index] = replace(found[index], adjusted_p=value)
    return found


def _mean_and_error(sample: np.ndarray) -> tuple[float, float]:
    """Mean and standard error; the error is zero for one value or for values equal up to rounding."""
    mean = float(sample.mean())
    if sample.size < 2:
        return mean, 0.0
    error = float(sample.std(ddof=1)) / math.sqrt(sample.size)
    return mean, error if error > _rounding(np.abs(sample).max()) else 0.0


def _rounding(size: np.ndarray) -> np.ndarray:
    """What floating-point rounding alone may leave between two numbers of this size."""
    return 8 * np.finfo(float).eps * size
