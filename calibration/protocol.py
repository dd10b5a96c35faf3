"""How often to ask, when to stop, and what the answers are worth.

A case is measured in several launches of the engine, since two launches differ by more than two repeats do; its
interval is that of the mean over launch means (Student t). Within a launch it is repeated until the mean of its takes
is known well enough, or often enough. Every number here is a convention.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from calibration.measurement import Measurements, RequestRow, Row, SummaryRow
from calibration.probes import Case
from simulator.counts import counted

_CONFIDENCE = 0.95
_LEAST_FOR_TREND = 6


@dataclass(frozen=True)
class Rules:
    """``interval`` is the relative half-width at which a mean counts as known, ``usable`` that beyond which it is lost.

    ``settled`` is the relative spread of three takes in a row below which warm-up is over.
    """

    num_launches: int = 3
    min_repeats: int = 3
    max_repeats: int = 8
    interval: float = 0.05
    usable: float = 0.15
    settled: float = 0.10
    max_warmups: int = 12


def relative_interval(values: Sequence[float]) -> float | None:
    """Half the 95 % interval of the mean over the mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    from scipy.stats import t

    spread = statistics.stdev(values) / len(values) ** 0.5
    return float(t.ppf((1 + _CONFIDENCE) / 2, len(values) - 1)) * spread / statistics.fmean(values)


def known_well(values: Sequence[float], rules: Rules) -> bool:
    """Whether these takes of one launch suffice."""
    if len(values) < rules.min_repeats:
        return False
    interval = relative_interval(values)
    return len(values) >= rules.max_repeats or (interval is not None and interval <= rules.interval)


def settling(times: Sequence[float], rules: Rules) -> str | None:
    """How warm-up went in words, None while it should go on. ``times`` are those of the same take, in order."""
    last = times[-3:]
    if len(last) == 3 and max(last) / min(last) - 1 <= rules.settled:
        return f"settled after {len(times)} takes"
    before = statistics.fmean(times[-6:-3]) if len(times) >= _LEAST_FOR_TREND else float("inf")
    if statistics.fmean(last) >= before * (1 - rules.settled):
        return f"no longer falling after {len(times)} takes, but {max(last) / min(last) - 1:.0%} apart"
    if len(times) >= rules.max_warmups:
        return f"still falling after {len(times)} takes"
    return None


def order(cases: Iterable[Case], seed: int, launch: int) -> list[list[Case]]:
    """The cases of a launch in one or two phases, shuffled.

    Those that clear the cache are apart from those that rest on it; which phase comes first alternates with the launch.
    """
    draw = random.Random(f"{seed} {launch}")  # noqa: S311 (no secret)
    phases: list[list[Case]] = [[], []]
    for case in sorted(cases, key=lambda case: case.key):
        phases[case.resets].append(case)
    for phase in phases:
        draw.shuffle(phase)
    return [phase for phase in (phases if launch % 2 == 0 else phases[::-1]) if phase]


def take_means(rows: Iterable[Row]) -> dict[str, float]:
    """The times of one take, by what they are of: a request's TTFT, else the mean over the take's steps."""
    means: dict[str, list[float]] = {}
    for name, _, time_s in _timed(rows):
        if not name.endswith("TPOT"):
            means.setdefault(name, []).append(time_s)
    return {name: statistics.fmean(times) for name, times in means.items()}


@dataclass(frozen=True)
class Judgement:
    """One measured thing: its mean over launch means, the relative half-width of its interval, and a verdict in words.

    Outliers count in no mean; ``num_outliers`` says how many there are. ``stable``: known within the rules' interval.
    """

    name: str
    mean_s: float
    interval: float | None
    num_launches: int
    num_values: int
    num_outliers: int
    stable: bool
    verdict: str


@dataclass(frozen=True)
class Verdict:
    """All judgements, and what they say about the machine. ``quiet``: most of them are stable. ``interval``: within
    what share of itself the typical mean is known (None: too few launches to say).
    """

    judgements: tuple[Judgement, ...]
    quiet: bool
    machine: str
    interval: float | None


def judge(measurements: Measurements, rules: Rules | None = None) -> Verdict:
    """What the rows of a file are worth, case by case and as a whole."""
    rules = rules or Rules()
    groups: dict[str, dict[int, list[float]]] = {}
    outliers: dict[str, int] = {}
    for name, row, time_s in _timed(measurements.rows):
        launches = groups.setdefault(name, {})
        outliers.setdefault(name, 0)
        if row.outlier:
            outliers[name] += 1
        else:
            launches.setdefault(row.launch or 0, []).append(time_s)
    judgements = tuple(
        _judgement(name, launches, outliers[name], rules) for name, launches in groups.items() if launches
    )
    return Verdict(judgements, *_machine(judgements, rules))


def _judgement(name: str, launches: Mapping[int, Sequence[float]], num_outliers: int, rules: Rules) -> Judgement:
    means = [statistics.fmean(times) for times in launches.values()]
    interval = relative_interval(means)
    enough = len(means) >= rules.num_launches
    stable = enough and interval is not None and interval <= rules.interval
    return Judgement(
        name=name,
        mean_s=statistics.fmean(means),
        interval=interval,
        num_launches=len(means),
        num_values=sum(len(times) for times in launches.values()) + num_outliers,
        num_outliers=num_outliers,
        stable=stable,
        verdict=_words(means, interval, rules),
    )


def _words(means: Sequence[float], interval: float | None, rules: Rules) -> str:
    if len(means) < rules.num_launches:
        return f"too few launches: {len(means)} of {rules.num_launches}"
    if interval is None:
        return "a single launch: how far another would differ is not known"
    known = f"within {interval:.1%} over {len(means)} launches"
    if interval <= rules.interval:
        return f"stable: {known}"
    apart = max(means) / min(means) - 1
    if interval <= rules.usable:
        return f"usable: {known}, which differ by up to {apart:.0%}"
    return f"noisy: {known}, which differ by up to {apart:.0%}; no difference below that means anything"


def _machine(judgements: Sequence[Judgement], rules: Rules) -> tuple[bool, str, float | None]:
    if not judgements:
        return False, "nothing measured", None
    known = [judgement.interval for judgement in judgements if judgement.interval is not None]
    num_missing = sum(judgement.num_launches < max(rules.num_launches, 2) for judgement in judgements)
    if num_missing:
        means = counted(num_missing, "mean")
        return False, f"not judged: {means} of fewer than {max(rules.num_launches, 2)} launches", None
    share = sum(judgement.stable for judgement in judgements) / len(judgements)
    noise = sum(interval > rules.usable for interval in known)
    num_values = sum(judgement.num_values for judgement in judgements)
    outliers = sum(judgement.num_outliers for judgement in judgements) / num_values
    typical = statistics.median(known)
    facts = (
        f"{share:.0%} of {len(judgements)} means known within {rules.interval:.0%}, median interval {typical:.1%}, "
        f"{outliers:.1%} outliers"
    )
    if share >= 0.8:
        return True, f"quiet machine: {facts}", typical
    if noise <= 0.2 * len(judgements):
        return False, f"restless machine: {facts}; usable, with wider errors", typical
    return False, f"noisy machine: {facts}; measure again when nothing else runs", typical


def _timed(rows: Iterable[Row]) -> Iterable[tuple[str, Row, float]]:
    """(what it is of, row, seconds) of every row with a case. A ttft case's steps are judged through its requests."""
    for row in rows:
        if row.case is None or isinstance(row, SummaryRow):
            continue
        if isinstance(row, RequestRow):
            warm = "warm" if row.num_cached_tokens else "cold"
            if row.ttft_s is not None:
                yield f"{row.case}: {warm} TTFT", row, row.ttft_s
            if row.tpot_s is not None:
                yield f"{row.case}: {warm} TPOT", row, row.tpot_s
        elif not row.case.startswith("ttft"):
            yield f"{row.case}: step", row, row.duration_s
