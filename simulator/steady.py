"""Whether a run has a steady state, from when on, and whether it is long enough to show it.

All three look at one number a request in order of arrival (its wait or its TTFT), one row a replication, and at the
time in which they came. References:

* White and Spratt (2000), "A comparison of five steady-state truncation heuristics for simulation", Proc. Winter
  Simulation Conference, pp. 755-760: MSER-5. Applied to the mean over replications, so that one cut serves all of them
  (Welch's averaging; Law (2015), "Simulation Modeling and Analysis", section 9.5.1).
* Batch means: Law (2015), section 9.5.3. Means of batches that are many relaxation times long are uncorrelated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from simulator.counts import counted
from simulator.errors import InputError
from simulator.statistics import t_interval

_BATCH = 5  # MSER-5's
LEAST_REQUESTS = 20 * _BATCH  # of fewer nothing can be said
_NUM_BATCHES = 20
_CORRELATED = 0.3
_NARROW = 0.1
_LEAST_LONGER = 2
_HIDDEN = 3
_GROWTH = 1.5
_GROWTH_LEVEL = 0.99
_GROWTH_RATE = 0.001


class Waits(NamedTuple):
    """Of one run: a number a request (seconds) in order of arrival, the seconds in which they came, and who sent each,
    by number. ``is_overloaded``: waits are long beside that time (see ``RunResult.is_overloaded``).
    """

    values_s: np.ndarray
    span_s: float
    tenant: np.ndarray
    is_overloaded: bool = False


@dataclass(frozen=True)
class SteadyState:
    """What is known of the long run of several settings that serve the same arrivals.

    ``num_skipped`` first requests are left out of every run, one number for all; ``method`` says who chose it: MSER-5,
    the scenario, or nobody. ``unstable`` settings have no steady state, ``too_short`` ones not been watched for long
    enough: ``lengthen`` times as many requests may do.
    """

    num_skipped: int = 0
    method: Literal["MSER-5", "given", "none"] = "none"
    unstable: frozenset[str] = frozenset()
    too_short: frozenset[str] = frozenset()
    lengthen: int = 1


def judge(series: Mapping[str, Sequence[Waits]], warmup: int | str = "auto", *, is_stationary: bool) -> SteadyState:
    """``series``: of each setting the waits of every replication. ``warmup``: how many requests to leave out, or auto.

    Never more than half of any tenant's requests in any run is left out (see `half_of_each`): what begins after the
    last request of a steady load, or of one of its tenants, is no sample of it. Settings whose runs are too short say
    nothing of a warm-up, unless all are. Without several replications, or of a workload that is not ``is_stationary``,
    nothing is found: then a run is not a sample of a long one but the thing itself; but too much is too much.
    """
    overloaded = frozenset(name for name, runs in series.items() if runs and all(run.is_overloaded for run in runs))
    tables = {name: _table([run.values_s for run in runs]) for name, runs in series.items()}
    judged = {name: table for name, table in tables.items() if len(table) > 1 and table.shape[1] >= LEAST_REQUESTS}
    if not is_stationary or not judged:
        return SteadyState(*((0, "none") if warmup == "auto" else (int(warmup), "given")), unstable=overloaded)
    unstable = overloaded | {name for name in judged if grows_for_somebody(list(map(quarters_by_sender, series[name])))}
    stable = {name: table for name, table in judged.items() if name not in unstable}
    cut = min(_found(stable), half_of_all(series)) if warmup == "auto" else int(warmup)
    runs = {name: _batches(table, cut) for name, table in stable.items()}
    short = {name: lengthen(found) for name, found in runs.items() if is_too_short(found)}
    method: Literal["MSER-5", "given"] = "MSER-5" if warmup == "auto" else "given"
    return SteadyState(cut, method, unstable, frozenset(short), max(short.values(), default=1))


def _found(tables: Mapping[str, np.ndarray]) -> int:
    """The longest warm-up that the settings have alone."""
    own = {name: mser5(table.mean(axis=0)) for name, table in tables.items()}
    long = [cut for name, cut in own.items() if not is_too_short(_batches(tables[name], cut))]
    return max(long or own.values(), default=0)


def _batches(table: np.ndarray, cut: int) -> list[Batches]:
    return [batches(row[cut:]) for row in table]


def half_of_all(series: Mapping[str, Sequence[Waits]]) -> int:
    """The most that a warm-up may be which nobody stated: half of any tenant's requests in any run."""
    return min((half_of_each(run.tenant) for runs in series.values() for run in runs), default=0)


def half_of_each(tenant: np.ndarray) -> int:
    """Of how many of the first requests no tenant has more than half, where ``tenant`` has the sender of each request,
    by number, in order of arrival: more than that is no warm-up.
    """
    middles = [np.flatnonzero(tenant == one) for one in np.unique(tenant)]
    return min((int(found[len(found) // 2]) for found in middles), default=0)


def check_shorter(num_skipped: int, num_requests: int) -> None:
    """Raise InputError for a warm-up that leaves nothing of a run."""
    if num_skipped >= num_requests:
        long = counted(num_requests, "request")
        raise InputError(f"warmup: got {num_skipped:,}, a run has {long}, expected fewer than that")


def _table(rows: Sequence[np.ndarray]) -> np.ndarray:
    """One row a replication, as long as the shortest."""
    length = min(map(len, rows), default=0)
    return np.array([row[:length] for row in rows])


def mser5(series: np.ndarray) -> int:
    """How many of the first observations of ``series`` (one number a request, any unit) to leave out: MSER-5.

    The cut minimises the squared standard error of what is left, in means of five; it is at most half of the series,
    and 0 where there are fewer than 100 observations.
    """
    if len(series) < LEAST_REQUESTS:
        return 0
    number = len(series) // _BATCH
    means = np.asarray(series[: number * _BATCH], dtype=float).reshape(number, _BATCH).mean(axis=1)
    left = np.arange(number, 0, -1)
    from_end = means[::-1] - means.mean()
    squares = (np.cumsum(from_end**2) - np.cumsum(from_end) ** 2 / np.arange(1, number + 1))[::-1]
    statistic = squares / left.astype(float) ** 2
    return int(np.argmin(statistic[: number // 2 + 1])) * _BATCH


class Batches(NamedTuple):
    """Of the waits of one run: their mean, and of the means of twenty batches of them how these vary (the variance, and
    the mean product of neighbours' deviations). NaN without waits, or with fewer than batches.
    """

    mean: float
    variance: float
    covariance: float


def batches(waits_s: np.ndarray) -> Batches:
    """One run's waits, in order of arrival, reduced to what `is_too_short` asks of it."""
    mean = float(waits_s.mean()) if len(waits_s) else math.nan
    size = len(waits_s) // _NUM_BATCHES
    if not size:
        return Batches(mean, math.nan, math.nan)
    means = np.asarray(waits_s[: size * _NUM_BATCHES], dtype=float).reshape(_NUM_BATCHES, size).mean(axis=1)
    deviations = means - means.mean()
    return Batches(mean, float((deviations**2).mean()), float((deviations[1:] * deviations[:-1]).mean()))


def is_too_short(runs: Sequence[Batches]) -> bool:
    """Whether runs are too short for their load: an interval for the long-run mean would cover it too seldom.

    ``runs`` are replications. Twenty batches of each are compared: where neighbouring means are correlated by more
    than 0.3 a batch is about one relaxation time of the queue or less, the run twenty at most, and its mean rests
    on a few busy periods. (M/M/1, ten replications: with 2,000 requests at load 0.9, where a 95 % interval covers
    84 %, 97 of 100 are found too short; with 10,000 at load 0.8, where it covers 93 %, none is.) Deviations are
    from the mean of their own replication: each may have a profile of its own, and would then be above or below the
    others throughout, however long it is. An interval within 10 % of the mean is let pass, and one that would be if
    replications differed no more than batches do: replications are independent, so that slow waits cost coverage
    only where they are many. Of a run of which nothing is left nothing can be told.
    """
    levels, variances, covariances = np.array(runs).T
    if np.isnan(levels).any():
        return True
    share = t_interval(levels.tolist()).half_width_share
    if share <= _NARROW:
        return False
    if np.isnan(variances).any():
        return True
    variance = float(variances.mean())
    if share * math.sqrt(variance) / float(levels.std(ddof=1)) <= _NARROW:
        return False
    return float(covariances.mean()) > _CORRELATED * variance


def lengthen(runs: Sequence[Batches]) -> int:
    """About how many times as many requests would do for runs that are too short: so many that neighbouring batches,
    whose correlation falls by a power with their length, were correlated by no more than 0.3, and three times that,
    since short runs hide how slowly they move. (M/M/1 at load 0.9: of runs of 2,000 requests, that many times as many,
    none of 15 experiments is too short; at 0.95 some are.)
    """
    _, variances, covariances = np.array(runs).T
    correlation = float(covariances.mean() / variances.mean()) if np.nanmax(variances, initial=0) > 0 else math.nan
    if not _CORRELATED < correlation < 1:
        return _LEAST_LONGER
    return max(_LEAST_LONGER, math.ceil(_HIDDEN * math.log(_CORRELATED) / math.log(correlation)))


class Quarters(NamedTuple):
    """Of the waits of one run: the means of the second and of the last quarter of them, and the seconds in which they
    came.
    """

    early_s: float
    late_s: float
    span_s: float


def quarters(waits_s: np.ndarray, span_s: float) -> Quarters:
    """One run's waits, in order of arrival, reduced to what `grows` asks of it (NaN of fewer than four)."""
    size = len(waits_s) // 4
    if not size:
        return Quarters(math.nan, math.nan, span_s)
    return Quarters(float(waits_s[size : 2 * size].mean()), float(waits_s[3 * size : 4 * size].mean()), span_s)


def quarters_by_sender(run: Waits) -> dict[int, Quarters]:
    """Of all requests (-1) and, where there are several, of those of each tenant, if they are enough to tell."""
    found = {-1: run.values_s}
    tenants = np.unique(run.tenant)
    if len(tenants) > 1:
        found |= {int(tenant): run.values_s[run.tenant == tenant] for tenant in tenants}
    return {who: quarters(values, run.span_s) for who, values in found.items() if len(values) >= LEAST_REQUESTS}


def grows_for_somebody(runs: Sequence[Mapping[Any, Quarters]]) -> bool:
    """Whether the waits of all requests grow, or those of a tenant: one of low priority may starve while others are
    served (see `quarters_by_sender`).
    """
    everybody, *tenants = sorted(set.intersection(*(set(run) for run in runs))) or [None]
    if everybody is not None and grows([run[everybody] for run in runs]):
        return True
    return any(grows([run[who] for run in runs], num_tests=len(tenants)) for who in tenants)


def grows(runs: Sequence[Quarters], num_tests: int = 1) -> bool:
    """Whether waits grow all the time, so that there is no steady state: work comes faster than it is done.

    ``runs`` are replications, three at least. The last quarter's mean is compared with the second one's, and must be
    1.5 times it: waits under an overload grow in proportion to time, 2.3 times from quarter to quarter. A one-sided t
    test at 1 % (over ``num_tests`` such tests together) of their differences or of the logarithms of their ratios must
    show that they grow: one very long wait makes differences uncertain, and one very short one ratios. (M/M/1, 2,000
    requests, ten replications: at load 0.9 and below none is found growing, at 0.95 4 %, at 1.05 93 %, at 1.1 all.)

    They must also have gained a thousandth of the time in between. At ``load`` times what is served the wait of who
    comes after t is (load - 1) t (a fluid queue: Kleinrock (1976), "Queueing Systems", volume 2, section 2.7), a tenth
    of that where requests are turns of conversations of ten, which wait for each other: what gains less is no overload
    by a hundredth, but a start that takes long.
    """
    early, late, spans = np.array(runs).T
    if len(runs) < 3 or np.isnan(early).any():
        return False
    from scipy import stats

    least_s = _GROWTH_RATE * spans / 2
    if late.mean() <= _GROWTH * early.mean() or (late - early).mean() <= least_s.mean():
        return False
    limit = float(stats.t.ppf(1 - (1 - _GROWTH_LEVEL) / num_tests, len(runs) - 1))
    # The logarithms of what is as short as the least gain differ by nothing.
    gains = late - early, np.log(late + least_s) - np.log(early + least_s)
    return any(gain.mean() > limit * gain.std(ddof=1) / math.sqrt(len(gain)) for gain in gains)
