"""Rows -> coefficients with errors: least squares on relative errors, by the formula that prediction uses.

A coefficient is fitted if some row's time depends on it, the other fitted ones cannot stand in for it, and the fit
knows it to better than half its value; otherwise it keeps its prior and says so. Standard errors come from the Jacobian
and the misfit of the rows (s^2 (J'J)^-1): honest only as far as the formula is right and the rows are independent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from calibration.observations import Array, Design, Observation
from calibration.roofline import Prior
from simulator.errors import InputError
from simulator.profile import Errors, Residual
from simulator.step_time import FORMULAS, StepTime

OVERHEAD_SLOPE = "overhead_prompt_token_s"  # fitted beside the formula's own coefficients

# A coefficient that changes no row's time by 1 % when it doubles, or whose effect the others imitate to 2 %, is not
# determined by rows that are themselves good to about a percent.
_LEAST_SENSITIVITY = 0.01
_LEAST_INDEPENDENCE = 0.02
# Worse known than this, the prior is the better guess.
_LARGEST_RELATIVE_ERROR = 0.5


@dataclass(frozen=True)
class Fitted:
    """One coefficient after a fit. ``standard_error`` is None where it kept its prior."""

    value: float
    standard_error: float | None


@dataclass(frozen=True)
class Fit:
    """All coefficients of a formula, the prompt token overhead, and how far they are off."""

    formula: str
    coefficients: Mapping[str, Fitted]
    errors: Errors

    def step_time(self) -> StepTime:
        """The fitted formula."""
        return _bind(self.formula, {name: fitted.value for name, fitted in self.coefficients.items()})


def fit(
    observations: Sequence[Observation], formula: str, priors: Mapping[str, Prior], keep_priors: bool = True
) -> Fit:
    """Fit ``formula`` to ``observations``; the search starts at the priors.

    A coefficient that the rows do not determine keeps its prior, or, without one or without ``keep_priors``, raises
    InputError.
    """
    estimate = _Estimate(observations, formula, priors, keep_priors)
    for name in estimate.undetermined:
        raise InputError(f"the rows do not determine {name}, and no prior stands in: measure a step that depends on it")
    coefficients = {
        name: Fitted(value, estimate.standard_errors.get(name)) for name, value in estimate.values.items()
    }
    held_out, num_not_held_out = _hold_out(observations, formula, priors, keep_priors)
    in_sample = tuple(map(_residual, observations, estimate.predict(observations)))
    return Fit(formula, coefficients, Errors(in_sample=in_sample, held_out=held_out, num_not_held_out=num_not_held_out))


class _Estimate:
    """One least-squares fit: values by name, standard errors of the fitted ones, and what stayed undetermined."""

    def __init__(
        self, observations: Sequence[Observation], formula: str, priors: Mapping[str, Prior], keep_priors: bool
    ) -> None:
        self.formula = formula
        replaceable = {*priors, OVERHEAD_SLOPE} if keep_priors else {OVERHEAD_SLOPE}
        self._design = Design(observations)
        self.values = _start(observations, formula, priors)
        fitted = self._determined()
        if OVERHEAD_SLOPE not in fitted:
            self.values[OVERHEAD_SLOPE] = 0.0
        start = dict(self.values)
        self.standard_errors = self._solve(fitted)
        while vague := self._vaguest([name for name in fitted if name in replaceable]):
            fitted.remove(vague)
            if vague == OVERHEAD_SLOPE:
                start[vague] = 0.0
            self.values = dict(start)
            self.standard_errors = self._solve(fitted)
        self.undetermined = [name for name in self.values if name not in fitted and name not in replaceable]

    def predict(self, observations: Sequence[Observation]) -> Array:
        """Predicted seconds of any observations."""
        return Design(observations).predict(_bind(self.formula, self.values))

    def _determined(self) -> list[str]:
        """Names that these rows determine, in the formula's order (Gram-Schmidt over the sensitivities)."""
        basis: list[Array] = []
        names = []
        for name in self.values:
            column = sensitivity(self._design, self.formula, self.values, name)
            rest = column.copy()
            for direction in basis:
                rest -= direction * (direction @ rest)
            size = float(np.linalg.norm(rest))
            if np.abs(column).max() < _LEAST_SENSITIVITY or size < _LEAST_INDEPENDENCE * np.linalg.norm(column):
                continue
            basis.append(rest / size)
            names.append(name)
        return names

    def _vaguest(self, replaceable: list[str]) -> str | None:
        """The worst known of these fitted coefficients, if it is known too badly to keep."""
        relative = {name: self.standard_errors[name] / max(self.values[name], 1e-300) for name in replaceable}
        worst = max(relative, key=relative.__getitem__, default=None)
        return worst if worst is not None and relative[worst] > _LARGEST_RELATIVE_ERROR else None

    def _solve(self, names: list[str]) -> dict[str, float]:
        """Move ``values[names]`` to the least squares of relative errors; their standard errors by name."""
        start = np.array([self.values[name] for name in names])
        measured = self._design.measured_s
        if len(names) >= len(measured):
            listed = ", ".join(names)
            raise InputError(f"{len(measured)} measured times cannot determine {len(names)} coefficients: {listed}")

        def relative_errors(scaled: Array) -> Array:
            trial = self.values | dict(zip(names, scaled * start, strict=True))
            errors: Array = self._design.predict(_bind(self.formula, trial)) / measured - 1
            return errors

        solution = least_squares(
            relative_errors, np.ones(len(names)), jac="3-point", bounds=(0, np.inf), xtol=1e-12, ftol=1e-12, gtol=1e-12
        )
        variance = 2 * solution.cost / (len(measured) - len(names))
        covariance = variance * np.linalg.inv(solution.jac.T @ solution.jac)
        self.values.update(zip(names, (solution.x * start).tolist(), strict=True))
        return dict(zip(names, (np.sqrt(np.diag(covariance)) * start).tolist(), strict=True))


def sensitivity(design: Design, formula: str, values: Mapping[str, float], name: str) -> Array:
    """Relative change of each predicted time a relative change of one coefficient, d ln(time) / d ln(coefficient)."""
    step = 1e-4
    above = design.predict(_bind(formula, {**values, name: values[name] * (1 + step)}))
    below = design.predict(_bind(formula, {**values, name: values[name] * (1 - step)}))
    return (above - below) / (above + below) / step


def _start(observations: Sequence[Observation], formula: str, priors: Mapping[str, Prior]) -> dict[str, float]:
    """Where the search starts: the priors; without one the shortest time a step; an overhead of 1 us a token."""
    shortest = min(
        observation.measured_s * observation.divisor / sum(num_steps for _, num_steps in observation.stretches)
        for observation in observations
    )
    start = {name: priors[name].value if name in priors else shortest for name in FORMULAS[formula].coefficients}
    return start | {OVERHEAD_SLOPE: 1e-6}


def _hold_out(
    observations: Sequence[Observation], formula: str, priors: Mapping[str, Prior], keep_priors: bool
) -> tuple[tuple[Residual, ...], int]:
    """Predict each length class (power of two) from the others; and how many times could not be predicted so."""
    residuals: list[Residual] = []
    num_not_held_out = 0
    for length_class in sorted({_length_class(observation) for observation in observations}):
        left_out = [observation for observation in observations if _length_class(observation) == length_class]
        kept = [observation for observation in observations if _length_class(observation) != length_class]
        scored = _predictable(left_out, kept, formula, priors, keep_priors)
        num_not_held_out += len(left_out) - len(scored)
        residuals += scored
    return tuple(residuals), num_not_held_out


def _predictable(
    left_out: Sequence[Observation],
    kept: Sequence[Observation],
    formula: str,
    priors: Mapping[str, Prior],
    keep_priors: bool,
) -> list[Residual]:
    if not kept:
        return []
    try:
        estimate = _Estimate(kept, formula, priors, keep_priors)
    except InputError:  # too few rows remain
        return []
    design = Design(left_out)
    blocked = np.zeros(len(left_out), dtype=bool)
    for name in estimate.undetermined:
        blocked |= np.abs(sensitivity(design, formula, estimate.values, name)) >= _LEAST_SENSITIVITY
    predicted = estimate.predict(left_out)
    return [
        _residual(observation, predicted_s)
        for observation, predicted_s, is_blocked in zip(left_out, predicted, blocked, strict=True)
        if not is_blocked
    ]


def _length_class(observation: Observation) -> int:
    return observation.length.bit_length()


def _residual(observation: Observation, predicted_s: float) -> Residual:
    return Residual(case=observation.case, measured_s=observation.measured_s, predicted_s=rounded(predicted_s))


def rounded(value: float) -> float:
    """Six significant digits: more than any measurement holds, and the same on every platform."""
    return float(f"{value:.6g}")


def _bind(formula: str, values: Mapping[str, float]) -> StepTime:
    return FORMULAS[formula](values, 0.0, values[OVERHEAD_SLOPE])
