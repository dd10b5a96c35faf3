"""How much more load a setting takes until the first target breaks, and what is then used up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.errors import InputError
from simulator.planning.evidence import Evidence
from simulator.planning.judging import Judgement, Rules, Value, judge
from simulator.planning.outcome import Outcome
from simulator.planning.space import Candidate
from simulator.scenario.offered_load import load_changes

_LESS = (0.5, 0.75)  # looked at for the figure alone
_MORE = (1.25, 1.6, 2.0, 3.0, 4.0, 8.0, 16.0)
REPLICATIONS = 8
_NEAR = 1.05  # how far apart the loads are between which a target breaks

# When a resource counts as used up.
_FULL = 0.9
_UNEVEN = 1.5
_WAITING = 0.5
_OFTEN = 0.01


@dataclass(frozen=True)
class LoadPoint:
    """A setting at ``load`` times its load: targets and facts (see ``outcome``), means over replications."""

    load: float
    judgement: Judgement
    facts: dict[str, float]
    goodput_per_s: float

    @property
    def breaks(self) -> bool:
        """Whether some mean is beyond its target, or there is no steady state."""
        return self.judgement.unstable or not all(value.is_met for value in self.judgement.values)


@dataclass(frozen=True)
class Headroom:
    """``points`` by load. ``without``: why no other load was looked at."""

    points: tuple[LoadPoint, ...]
    without: str | None = None

    @property
    def met_at(self) -> float | None:
        """The highest load below the first that breaks a target."""
        met = [point.load for point in self._from_its_own if not self.broken or point.load < self.broken.load]
        return max(met, default=None)

    @property
    def broken(self) -> LoadPoint | None:
        """The lowest load, of its own and more, at which a target breaks."""
        return next((point for point in self._from_its_own if point.breaks), None)

    @property
    def _from_its_own(self) -> list[LoadPoint]:
        """Without the lower loads, whose shorter streams are for the figure alone."""
        return [point for point in self.points if point.load >= 1]

    @property
    def first_to_break(self) -> Value | None:
        """What is then strained most."""
        return self.broken.judgement.worst if self.broken else None


def headroom(candidate: Candidate, rules: Rules, evidence: Evidence, found: dict[float, LoadPoint]) -> None:
    """Look at loads around the point where the first target breaks, found to 5 % by bisection, and put them into
    ``found``. All loads are of the same few replications, so that they differ by the load alone. Raises OutOfBudget.
    """

    def breaks(load: float) -> bool:
        if load not in found:
            outcomes = evidence.need(candidate, min(REPLICATIONS, rules.most_replications), load)
            found[load] = at(candidate, rules, outcomes, load)
        return found[load].breaks

    low = 1.0
    if breaks(low):
        return
    for high in _MORE:
        if breaks(high):
            break
        low = high
    else:
        return
    while high / low > _NEAR:
        middle = float(f"{(low * high) ** 0.5:.3g}")
        low, high = (low, middle) if breaks(middle) else (middle, high)
    for load in _LESS:
        breaks(load)


def why_not(candidate: Candidate) -> str | None:
    """Why the setting cannot have another load, if it can't."""
    try:
        load_changes(candidate.scenario.workload, 2.0)
    except InputError as error:
        return str(error)
    return None


def at(candidate: Candidate, rules: Rules, outcomes: Sequence[Outcome], load: float) -> LoadPoint:
    """The setting at this load, as these replications show it."""
    judgement = judge(candidate, rules, outcomes)
    names = outcomes[0].facts
    facts = {name: float(np.mean([outcome.facts[name] for outcome in outcomes])) for name in names}
    return LoadPoint(load, judgement, facts, float(np.mean([_goodput(outcome, rules) for outcome in outcomes])))


def _goodput(outcome: Outcome, rules: Rules) -> float:
    """Good requests a second of the time in which requests arrive: those within their tenant's own targets and within
    every limit of the plan's latencies, taken for each request.
    """
    good = outcome.within.copy()
    for target in rules.targets:
        if target.latency is not None:
            mine = outcome.tenant == outcome.tenants.index(target.tenant)
            good &= ~(mine & (outcome.latencies_s[target.latency] > target.limit))
    return float(good.sum()) / outcome.facts["arriving_s"]


def binding(facts: dict[str, float]) -> str:
    """Which resource is used up, in words: the first of KV memory, routing, seats and compute that is."""
    each = facts["num_preemptions"] / facts["num_requests"]
    if each >= _OFTEN or facts["kv_usage_mean"] >= _FULL:
        return f"KV memory ({facts['kv_usage_mean']:.0%} in use on average, {each:.2g} preemptions a request)"
    if facts["held_max_over_mean"] >= _UNEVEN:
        return f"routing (the fullest instance holds {facts['held_max_over_mean']:.2g} times the mean of requests)"
    if facts["seats_share"] >= _FULL:
        return f"seats (max_num_seqs: {facts['seats_share']:.0%} taken on average)"
    waiting = facts["queue_mean_s"] / facts["ttft_mean_s"]
    if facts["busy_share"] >= _FULL:
        return f"compute (instances are busy {facts['busy_share']:.0%} of the time)"
    if waiting >= _WAITING:
        return f"queueing ({waiting:.0%} of the time to first token is spent waiting)"
    return f"no resource: the steps themselves take their time (instances are busy {facts['busy_share']:.0%} of it)"
