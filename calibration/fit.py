"""Rows -> the coefficients of one formula, or of the best of several, with errors in sample and held out.

A coefficient is fitted if some row's time depends on it and the other fitted ones cannot stand in for it. Otherwise it
keeps its prior, or the fit is refused and the probe that would determine it is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibration.estimate import LEAST_SENSITIVITY, Estimate, Fitted, bind
from calibration.hold_out import digest
from calibration.observations import Observation
from calibration.roofline import Prior
from simulator.errors import InputError
from simulator.noise import MAX_DEVIATIONS
from simulator.profile import Errors, Residual
from simulator.step_time import FORMULAS, StepTime
from simulator.uncertainty import Uncertainty

_PROBES = {
    "step_s": "decode: at least two batch sizes",
    "device_step_s": "decode: batches large enough to outgrow the host time",
    "host_step_s": "decode: at least two batch sizes",
    "host_decode_s": "decode: one request",
    "host_prefill_s": "ttft: a short or warm prompt",
    "prefill_token_s": "chunk: at least two chunk sizes",
    "token_s": "chunk: at least two chunk sizes",
    "weights_s": "chunk: chunks from a few tokens to many",
    "prefill_pair_s": "ttft: at least two prompt lengths, cold",
    "decode_token_s": "decode: at least two batch sizes",
    "request_s": "decode: at least two batch sizes",
    "host_request_s": "decode: at least two batch sizes",
    "decode_context_s": "decode: at least two contexts",
    "context_s": "decode: at least two contexts",
}

_ALIKE = 4  # decimals of an error
_LEAST_PREDICTED = 0.5
_MOST_FOLDS = 10


@dataclass(frozen=True)
class Score:
    """How a formula did on times that its fit had not seen; ``refused`` says why it could not be fitted."""

    formula: str
    mean_error: float | None
    refused: str | None = None


@dataclass(frozen=True)
class Fit:
    """All coefficients of a formula and both overheads, how far they are off, and what it was chosen among."""

    formula: str
    coefficients: Mapping[str, Fitted]
    errors: Errors
    num_times: int
    num_fitted: int
    rank: int
    num_launches: int
    step_noise_s: float | None
    scores: tuple[Score, ...] = ()
    graph_sizes: tuple[int, ...] = ()
    uncertainty: Uncertainty | None = None

    def step_time(self) -> StepTime:
        """The fitted formula."""
        values = {name: fitted.value for name, fitted in self.coefficients.items()}
        return bind(self.formula, values, self.graph_sizes)


def fit(
    observations: Sequence[Observation],
    formula: str,
    priors: Mapping[str, Prior] | None = None,
    graph_sizes: Sequence[int] = (),
) -> Fit:
    """Fit ``formula`` to ``observations`` (one a case).

    What the rows do not determine keeps its prior; without one it raises InputError naming the missing probe.
    """
    estimate = Estimate(observations, formula, priors, graph_sizes)
    if missing := estimate.undetermined:
        probes = "; ".join(dict.fromkeys(_PROBES[name] for name in missing))
        raise InputError(
            f"the rows do not determine {', '.join(missing)} of formula {formula}: measure with probe {probes} "
            "(or let --prior roofline --device NAME stand in for device times)"
        )
    held_out, num_not_held_out = _leave_out(observations, formula, priors, graph_sizes)
    in_sample = tuple(map(_residual, observations, estimate.predict(observations)))
    return Fit(
        uncertainty=estimate.uncertainty,
        formula=formula,
        coefficients=estimate.coefficients,
        errors=Errors(in_sample=in_sample, held_out=held_out, num_not_held_out=num_not_held_out),
        num_times=len(observations),
        num_fitted=len(estimate.fitted),
        rank=estimate.rank,
        num_launches=len({launch for observation in observations for launch in observation.launches}),
        step_noise_s=_step_noise_s(observations, estimate.step_time()),
        graph_sizes=tuple(graph_sizes),
    )


def fit_best(
    observations: Sequence[Observation],
    priors: Mapping[str, Prior] | None = None,
    graph_sizes: Sequence[int] = (),
) -> Fit:
    """The formula with the least mean absolute held-out error, over the cases that all candidates predicted; of those
    alike to 0.01 % the one with the fewest parameters.

    A formula is no candidate if it predicted less than half of what another did: rows that barely determine it
    would let it choose the cases that it is judged by.

    Raises InputError where none can be fitted.
    """
    fits: dict[str, Fit] = {}
    refusals: dict[str, str] = {}
    for formula in FORMULAS:
        try:
            fits[formula] = fit(observations, formula, priors, graph_sizes)
        except InputError as refusal:
            refusals[formula] = str(refusal)
    if not fits:
        raise InputError(next(iter(refusals.values())))
    most = max(len(one.errors.held_out) for one in fits.values())
    candidates = {
        formula: one for formula, one in fits.items() if len(one.errors.held_out) >= _LEAST_PREDICTED * most
    }
    refusals |= {
        formula: "its coefficients are known from too few cases" for formula in fits if formula not in candidates
    }
    shared = set.intersection(*({residual.case for residual in one.errors.held_out} for one in candidates.values()))
    errors = {formula: _mean_error(one.errors.held_out, shared) for formula, one in candidates.items()}
    best = min(candidates, key=lambda formula: (round(errors[formula] or 0.0, _ALIKE), fits[formula].num_fitted))
    scores = tuple(Score(formula, errors.get(formula), refusals.get(formula)) for formula in FORMULAS)
    return replace(fits[best], scores=scores)


def _mean_error(residuals: Sequence[Residual], cases: set[str]) -> float | None:
    errors = [abs(residual.relative_error) for residual in residuals if residual.case in cases]
    return float(np.mean(errors)) if errors else None


def _leave_out(
    observations: Sequence[Observation],
    formula: str,
    priors: Mapping[str, Prior] | None,
    graph_sizes: Sequence[int],
) -> tuple[tuple[Residual, ...], int]:
    """Predict each unit (see ``hold_out``) from the others; and how many times could not be predicted so.

    Up to ten units are left out one by one; more are dealt to ten folds in the order of their digests.
    """
    units = sorted({_unit(observation) for observation in observations}, key=digest)
    folds = [set(units[first::_MOST_FOLDS]) for first in range(min(len(units), _MOST_FOLDS))]
    residuals: list[Residual] = []
    num_not_held_out = 0
    for fold in sorted(folds, key=lambda fold: min(_first(observations, unit) for unit in fold)):
        left_out = [observation for observation in observations if _unit(observation) in fold]
        kept = [observation for observation in observations if _unit(observation) not in fold]
        scored = _predictable(left_out, kept, formula, priors, graph_sizes)
        num_not_held_out += sum(observation.runs_engine for observation in left_out) - len(scored)
        residuals += scored
    return tuple(residuals), num_not_held_out


def _predictable(
    left_out: Sequence[Observation],
    kept: Sequence[Observation],
    formula: str,
    priors: Mapping[str, Prior] | None,
    graph_sizes: Sequence[int],
) -> list[Residual]:
    if not kept:
        return []
    try:
        estimate = Estimate(kept, formula, priors, graph_sizes)
    except InputError:  # too few rows remain
        return []
    blocked = np.zeros(len(left_out), dtype=bool)
    for name in estimate.undetermined:
        blocked |= np.abs(estimate.sensitivity(left_out, name)) >= LEAST_SENSITIVITY
    predicted = estimate.predict(left_out)
    return [
        _residual(observation, predicted_s)
        for observation, predicted_s, is_blocked in zip(left_out, predicted, blocked, strict=True)
        if not is_blocked and observation.runs_engine
    ]


def _unit(observation: Observation) -> str:
    return observation.unit or observation.case


def _first(observations: Sequence[Observation], unit: str) -> int:
    """Where a unit comes first in the rows: residuals keep that order."""
    return next(number for number, observation in enumerate(observations) if _unit(observation) == unit)


def _residual(observation: Observation, predicted_s: float) -> Residual:
    return Residual(case=observation.case, measured_s=rounded(observation.measured_s), predicted_s=rounded(predicted_s))


def _step_noise_s(observations: Sequence[Observation], step_time: StepTime) -> float | None:
    """Standard deviation of one step around its case's mean: of decode steps where measured, since most steps are.

    Kept below what ``noise`` accepts: three deviations are at most half of the shortest step.
    """
    steps = [observation for observation in observations if observation.is_step and observation.deviation_s is not None]
    decodes = [observation for observation in steps if observation.regime == "decode"]
    deviations = [observation.deviation_s or 0.0 for observation in decodes or steps]
    if not deviations:
        return None
    pooled = float(np.sqrt(np.mean(np.square(deviations))))
    return rounded(min(pooled, 0.999 * step_time.shortest_s() / 2 / MAX_DEVIATIONS))


def rounded(value: float) -> float:
    """Six significant digits: more than any measurement holds, and the same on every platform."""
    return float(f"{value:.6g}")
