"""Whether a setting meets its targets: shown to, shown not to, or not to be told from so many replications.

Each target is held against an end of the interval of its mean over replications: of a share Student's, of a latency,
which is skewed, that of a log-normal mean (Cox's, with Student's t: Olsson (2005), "Confidence intervals for the mean
of a log-normal distribution", Journal of Statistics Education 13). To meet all targets each must be shown, so that no
correction for their number is needed (an intersection-union test: Berger (1982), "Multiparameter hypothesis testing and
acceptance sampling", Technometrics 24). A setting is looked at several times, with more replications each time, until
it is decided: the error is shared equally among the looks (Bonferroni), so that it holds whichever of them decides.

Waits of queues are more skewed still, and finite runs err to the low side. Of M/M/1 and M/M/4 whose mean or 90th
percentile is the very limit, at loads of 0.5 to 0.8, of 16 replications, 3 to 9 % are said to meet it with 2,000
requests a run (with Student's interval up to 12 %), and 2 to 5 % with 10,000, where 95 % confidence promises 2.5 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from simulator.errors import InputError
from simulator.planning.evidence import Evidence
from simulator.planning.outcome import Outcome
from simulator.planning.space import Candidate
from simulator.scenario.plan_spec import Target
from simulator.steady import SteadyState, check_shorter, half_of_all
from simulator.steady import judge as steady_state

FIRST_LOOK = 4
LEAST = 3  # replications without which nothing can be told
_CLEARLY = 1.1


class Verdict(StrEnum):
    """What is known of a setting or a target."""

    MEETS = "meets"
    MISSES = "misses"
    OPEN = "may meet"


@dataclass(frozen=True)
class Value:
    """Mean over replications of what a target is about, and the ends of its interval; seconds, or a share."""

    target: Target
    mean: float
    low: float
    high: float

    @property
    def wants_more(self) -> bool:
        """Whether more is better."""
        return self.target.latency is None

    @property
    def verdict(self) -> Verdict:
        """Which side of its limit the value is shown to lie on."""
        limit = self.target.limit
        if (self.low >= limit) if self.wants_more else (self.high <= limit):
            return Verdict.MEETS
        if (self.high < limit) if self.wants_more else (self.low > limit):
            return Verdict.MISSES
        return Verdict.OPEN

    @property
    def is_met(self) -> bool:
        """Whether the mean meets the target, shown or not."""
        return self.mean >= self.target.limit if self.wants_more else self.mean <= self.target.limit

    @property
    def strain(self) -> float:
        """Above 1 beyond the target: the latency over its limit, or the share that fails over what may fail."""
        return strain_of(self.target, self.mean)

    @property
    def margin(self) -> float:
        """The share of what the target allows that is left; below 0 beyond it."""
        return 1 - self.strain


def strain_of(target: Target, value: float) -> float:
    """How strained the target is by this value (see ``Value.strain``)."""
    return (1 - value) / (1 - target.limit) if target.latency is None else value / target.limit


@dataclass(frozen=True)
class Judgement:
    """What ``num_replications`` tell of a setting. ``unstable``: waits grow as long as requests come. ``too_short``:
    its runs are, for an interval, and ``lengthen`` times as many requests may do. ``num_skipped`` first requests of
    each run were a warm-up. ``strains``: of each replication, that of the target that is strained most in it.
    """

    candidate: Candidate
    verdict: Verdict
    values: tuple[Value, ...]
    num_replications: int
    unstable: bool = False
    too_short: bool = False
    lengthen: int = 1
    num_skipped: int = 0
    strains: tuple[float, ...] = ()

    def is_clearly_more_strained(self, other: Judgement) -> bool:
        """Whether its targets are strained more than those of the other setting, by a tenth at least and in every
        replication that both have (of the same draws), or meets and misses tell.
        """
        if self.unstable != other.unstable:
            return self.unstable
        if (self.verdict, other.verdict) == (Verdict.MISSES, Verdict.MEETS):
            return True
        pairs = zip(self.strains, other.strains, strict=False)
        return self.strain > _CLEARLY * other.strain and all(mine > theirs for mine, theirs in pairs)

    @property
    def strain(self) -> float:
        """That of the target that is strained most (see ``Value.strain``)."""
        return max((value.strain for value in self.values), default=0.0)

    @property
    def worst(self) -> Value:
        """The target that is strained most."""
        return max(self.values, key=lambda value: value.strain)


@dataclass(frozen=True)
class Rules:
    """When something counts as shown: targets, confidence, how many replications there may be, and how a warm-up is
    found (see ``steady.judge``). ``shared_warmup``: how many requests it is for all settings, where that is known.
    """

    targets: tuple[Target, ...]
    confidence: float
    most_replications: int
    warmup: int | str
    is_stationary: bool
    shared_warmup: int | None = None

    @property
    def looks(self) -> list[int]:
        """How many replications each look at a setting has: 4, 8, 16 ... and the most that there may be."""
        found = []
        number = FIRST_LOOK
        while number < self.most_replications:
            found.append(number)
            number *= 2
        return [*found, self.most_replications]

    @property
    def error(self) -> float:
        """The probability with which each look may err to one side: intervals have two."""
        return (1 - self.confidence) / 2 / len(self.looks)


def decide(candidate: Candidate, rules: Rules, evidence: Evidence) -> Judgement:
    """Replicate the setting until it is decided or there may be no more replications."""
    for number in rules.looks:
        found = judge(candidate, rules, evidence.need(candidate, number))
        if found.verdict != Verdict.OPEN:
            break
    return found


def judge(candidate: Candidate, rules: Rules, outcomes: Sequence[Outcome]) -> Judgement:
    """What these replications, two at least, tell of the setting: nothing before there are as many as the first look
    has. Raises InputError for a target about nothing, and for a warm-up as long as a run.
    """
    steady = _steady_state({"": outcomes}, rules)
    is_looked_at = len(outcomes) >= rules.looks[0]
    unstable, too_short, skipped = bool(steady.unstable), is_looked_at and bool(steady.too_short), steady.num_skipped
    if number := min(len(outcome.within) for outcome in outcomes):
        check_shorter(skipped, number)
    values = tuple(_value(target, outcomes, skipped, rules.error) for target in rules.targets)
    verdicts = {value.verdict for value in values}
    if not is_looked_at:
        verdict = Verdict.OPEN
    elif unstable or Verdict.MISSES in verdicts:
        verdict = Verdict.MISSES
    elif too_short or Verdict.OPEN in verdicts:
        verdict = Verdict.OPEN
    else:
        verdict = Verdict.MEETS
    strains = tuple(_strain(outcome, rules, skipped) for outcome in outcomes)
    return Judgement(candidate, verdict, values, len(outcomes), unstable, too_short, steady.lengthen, skipped, strains)


def _strain(outcome: Outcome, rules: Rules, num_skipped: int) -> float:
    """Of the target that is strained most in this run, as far as it says something of any."""
    strains = [strain_of(target, outcome.value(target, num_skipped)) for target in rules.targets]
    return max((strain for strain in strains if not math.isnan(strain)), default=0.0)


def shared_warmup(runs: Mapping[str, Sequence[Outcome]], rules: Rules) -> int:
    """How many first requests count in none of these settings, which are compared (see ``steady.judge``)."""
    return _steady_state(runs, replace(rules, shared_warmup=None)).num_skipped


def _steady_state(runs: Mapping[str, Sequence[Outcome]], rules: Rules) -> SteadyState:
    """Of several settings, each with its replications. Another load may have fewer requests, of which a warm-up that
    was found leaves half.
    """
    series = {name: [outcome.waits for outcome in outcomes] for name, outcomes in runs.items()}
    warmup = rules.warmup
    if warmup == "auto" and rules.shared_warmup is not None:
        warmup = min(rules.shared_warmup, half_of_all(series))
    return steady_state(series, warmup, is_stationary=rules.is_stationary)


def meets(rules: Rules, outcome: Outcome, num_skipped: int) -> bool:
    """Whether every target is met in this one run, as far as it says something of it."""
    values = ((target, outcome.value(target, num_skipped)) for target in rules.targets)
    return all(value >= one.limit if one.latency is None else not value > one.limit for one, value in values)


def _value(target: Target, outcomes: Sequence[Outcome], num_skipped: int, error: float) -> Value:
    found = np.array([outcome.value(target, num_skipped) for outcome in outcomes])
    found = found[~np.isnan(found)]
    if not len(found):
        what = "requests" if target.latency is None else f"requests with a {target.latency.upper()}"
        if num_skipped:
            what += f" after the first {num_skipped:,} requests, a warm-up (another is stated as warmup)"
        raise InputError(f"plan.targets.{target.tenant}.{target.name}: the tenant has no {what}")
    if np.isinf(found).any():
        return Value(target, math.inf, math.inf, math.inf)
    mean = float(found.mean())
    if len(found) < 2:
        return Value(target, mean, -math.inf, math.inf)
    spread = float(found.std(ddof=1)) / math.sqrt(len(found))
    if target.latency is None and mean == 1:
        # Nothing failed, so nothing varies: of n requests a share of 1 - error ** (1 / n) may still fail (Clopper and
        # Pearson, 1934, for no failure).
        number = sum(outcome.num_requests(target.tenant) for outcome in outcomes)
        return Value(target, 1.0, error ** (1 / number), 1.0)
    if spread <= 1e-9 * mean:
        return Value(target, mean, mean, mean)
    from scipy import stats

    t = float(stats.t.ppf(1 - error, len(found) - 1))
    if target.latency is None or not found.min() > 0:
        return Value(target, mean, mean - t * spread, mean + t * spread)
    return Value(target, mean, *_lognormal_bounds(found, t))


def _lognormal_bounds(found: np.ndarray, t: float) -> tuple[float, float]:
    """Ends of the interval for the mean of a log-normal sample: exp(y + s² / 2 ± t √(s² / n + s⁴ / 2 (n − 1)))."""
    logs, number = np.log(found), len(found)
    variance = float(logs.var(ddof=1))
    middle = float(logs.mean()) + variance / 2
    half = t * math.sqrt(variance / number + variance**2 / (2 * (number - 1)))
    return math.exp(middle - half), math.exp(min(middle + half, 700.0))  # e ** 710 is no number
