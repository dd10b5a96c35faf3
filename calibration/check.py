"""How far a profile is off on cases that its fit never saw, by regime, against limits.

What was fitted is known by its cases (``profile.errors.in_sample``), not by its file, so that rows added to a file
later do not turn a fitted case into a new one. A machine on which the typical mean is known less well than the
tightest limit cannot show that this limit is kept, nor can an error that only the machine's own spread excuses: the
verdict then says *noisy*, never *pass*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calibration.measurement import Measurements, Regime
from calibration.observations import Design, Observation, averaged, observe
from calibration.protocol import judge
from simulator.errors import InputError
from simulator.profile import Profile

REGIMES: tuple[Regime, ...] = ("cold_prefill", "warm_prefill", "decode", "mixed")
# A machine is judged by this many times the spread of its own launches, where that is more than the limit.
SPREADS = 1.5


@dataclass(frozen=True)
class Limits:
    """Largest errors, as shares: the median of each regime's steps, their total, and times to first token."""

    decode: float = 0.05
    prefill: float = 0.08
    mixed: float = 0.08
    total: float = 0.03
    ttft_within: float = 0.10
    ttft_share: float = 0.90
    ttft_worst: float = 0.25

    @property
    def tightest(self) -> float:
        """The least of the limits on medians."""
        return min(self.decode, self.prefill, self.mixed)

    def of(self, regime: Regime) -> float:
        """The limit of a regime's median error."""
        return {"decode": self.decode, "mixed": self.mixed}.get(regime, self.prefill)


@dataclass(frozen=True)
class Scored:
    """One case beside its prediction. ``spread`` is the deviation of its launches as a share; None with one launch."""

    case: str
    regime: Regime
    is_ttft: bool
    is_step: bool
    measured_s: float
    predicted_s: float
    num_repeats: int
    spread: float | None

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_s / self.measured_s - 1


@dataclass(frozen=True)
class Judged:
    """One quantity against its limit. ``allowed`` is the limit, or more where the machine's spread is more."""

    name: str
    num_cases: int
    value: float
    worst: float | None
    spread: float | None
    limit: float
    allowed: float

    @property
    def within(self) -> bool:
        """Whether the value is allowed."""
        return self.value <= self.allowed

    @property
    def noisy(self) -> bool:
        """Whether only the machine's own spread excuses the value."""
        return self.limit < self.value <= self.allowed


@dataclass(frozen=True)
class Check:
    """All scored cases, the judged quantities, and what was not scored."""

    scored: tuple[Scored, ...]
    judged: tuple[Judged, ...]
    num_fitted: int
    num_outliers: int
    num_unused: int
    num_disturbed: int
    machines: tuple[str, ...]
    resolves: bool

    @property
    def noisy(self) -> bool:
        """Whether launches differ by more than lets this machine show a pass."""
        return not self.resolves or any(one.noisy for one in self.judged)

    @property
    def verdict(self) -> str:
        """``pass``, ``noisy`` (kept, but only as far as this machine can tell) or ``fail``."""
        if not all(one.within for one in self.judged):
            return "fail"
        return "noisy" if self.noisy else "pass"

    def worst(self, count: int = 5) -> tuple[Scored, ...]:
        """The cases that are furthest off."""
        return tuple(sorted(self.scored, key=lambda scored: -abs(scored.error))[:count])


def check(profile: Profile, files: Sequence[Measurements], limits: Limits) -> Check:
    """Score the profile on the cases in these files that it was not fitted to.

    Raises InputError where the rows are of another identity, or where every case was fitted.
    """
    _refuse_others(profile, files)
    fitted = {residual.case for residual in profile.errors.in_sample}
    observations = averaged(observe(files))
    new = [observation for observation in observations if observation.case not in fitted]
    if not new:
        raise InputError(
            f"every case of these rows was fitted by {profile.name}: nothing is left to check; "
            "fit with --hold-out fifth"
        )
    scored = score(profile, new)
    rows = [row for file in files for row in file.rows]
    # Published medians hold no repeats to judge a machine by.
    machines = [machine for file in files if (machine := judge(file)).judgements]
    return Check(
        scored=scored,
        judged=tuple(_judge(scored, limits)),
        num_fitted=len(observations) - len(new),
        num_outliers=sum(getattr(row, "outlier", False) for row in rows),
        num_unused=sum(len(file.unused) for file in files),
        num_disturbed=sum(len(observation.disturbed) for observation in new),
        machines=tuple(machine.machine for machine in machines),
        resolves=all(machine.interval is not None and machine.interval <= limits.tightest for machine in machines),
    )


def score(profile: Profile, observations: Sequence[Observation]) -> tuple[Scored, ...]:
    """Each case that the engine ran beside the profile's prediction; an overhead is part of a time to first token."""
    observations = [observation for observation in observations if observation.runs_engine]
    predicted = Design(observations).predict(profile.step_time())
    return tuple(
        Scored(
            case=observation.case,
            regime=observation.regime,
            is_ttft=observation.is_ttft,
            is_step=observation.is_step,
            measured_s=observation.measured_s,
            predicted_s=float(predicted_s),
            num_repeats=observation.num_repeats,
            spread=spread(observation),
        )
        for observation, predicted_s in zip(observations, predicted, strict=True)
    )


def spread(observation: Observation) -> float | None:
    """Standard deviation of a case's launches, disturbed ones too, as a share of its mean; with one, of its repeats."""
    means = [*observation.launches.values(), *observation.disturbed.values()]
    deviation = float(np.std(means, ddof=1)) if len(means) > 1 else observation.deviation_s
    return None if deviation is None else deviation / observation.measured_s


def _refuse_others(profile: Profile, files: Sequence[Measurements]) -> None:
    expected = profile.identity.model_dump()
    for file in files:
        for key, value in file.header.identity.model_dump().items():
            if value != expected[key]:
                raise InputError(
                    f"{file.file}: identity.{key} is {value!r}, profile {profile.name} is of {expected[key]!r}"
                )


def _judge(scored: Sequence[Scored], limits: Limits) -> list[Judged]:
    # A time per output token is the same steps seen by a request: it counts where no steps were recorded.
    steps = [one for one in scored if one.is_step] or [one for one in scored if not one.is_ttft]
    judged = []
    for regime in REGIMES:
        of_regime = [one for one in steps if one.regime == regime] or [one for one in scored if one.regime == regime]
        if of_regime:
            judged.append(_median(regime, of_regime, limits.of(regime)))
    if steps:
        judged.append(_total(steps, limits.total))
    ttft = [one for one in scored if one.is_ttft]
    if ttft:
        judged += _ttft(ttft, limits)
    return judged


def _median(regime: Regime, scored: Sequence[Scored], limit: float) -> Judged:
    errors = [abs(one.error) for one in scored]
    own = _typical_spread(scored)
    return Judged(
        name=f"{regime.replace('_', ' ')}, median",
        num_cases=len(scored),
        value=float(np.median(errors)),
        worst=max(errors),
        spread=own,
        limit=limit,
        allowed=max(limit, SPREADS * (own or 0.0)),
    )


def _total(steps: Sequence[Scored], limit: float) -> Judged:
    """All measured steps together: each case as often as it was measured. What the spread hides is not judged here."""
    measured = sum(one.measured_s * one.num_repeats for one in steps)
    predicted = sum(one.predicted_s * one.num_repeats for one in steps)
    return Judged("total of all steps", len(steps), abs(predicted / measured - 1), None, None, limit, limit)


def _ttft(ttft: Sequence[Scored], limits: Limits) -> list[Judged]:
    errors = np.array([abs(one.error) for one in ttft])
    beyond = float(np.mean(errors > limits.ttft_within))
    own, worst = _typical_spread(ttft), float(errors.max())
    most = 1 - limits.ttft_share
    share = f"TTFT cases more than {limits.ttft_within:.0%} off"
    return [
        # A share is counted in whole cases: of four, one beyond is 25 %.
        Judged(share, len(ttft), beyond, worst, own, most, most),
        Judged("TTFT, worst case", len(ttft), worst, worst, own, limits.ttft_worst, limits.ttft_worst),
    ]


def _typical_spread(scored: Sequence[Scored]) -> float | None:
    known = [one.spread for one in scored if one.spread is not None]
    return float(np.median(known)) if known else None
