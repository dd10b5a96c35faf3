"""Least squares of relative errors under the formula that prediction uses: coefficients, errors, what stays unknown.

The noise of a time is taken as a share of it, so each squared error is weighted by the prediction, not by the measured
time: dividing by a noisy number would pull every coefficient down by twice the noise's variance. Cases whose launches
disagree more than others' count for less (``relative_noise``).

Standard errors come from the launches of the engine, the only repeats that are independent: each launch moves the
coefficients by (J'J)^-1 J'(its means - the means of all), and those moves are a sample of size L (the cluster-robust
sandwich; Cameron & Miller 2015, "A practitioner's guide to cluster-robust inference", Journal of Human Resources
50(2)). Up to nine launches their standard deviation over root L is used, from ten on a bootstrap over launches
(one Newton step a resample); intervals are Student's with L - 1 degrees of freedom. Where launches are not known
(published medians), s^2 (J'J)^-1 from the misfit takes their place: honest as far as the formula is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats
from scipy.optimize import least_squares, nnls

from calibration.observations import Array, Design, Observation
from calibration.roofline import Prior
from simulator.counts import counted
from simulator.errors import InputError
from simulator.step_time import FORMULAS, StepTime
from simulator.uncertainty import OVERHEAD, Uncertainty, from_covariance

# OVERHEAD is fitted beside the formula's own coefficients, and so is its slope.
OVERHEAD_SLOPE = "overhead_prompt_token_s"
LEVEL = 0.95

# A coefficient that changes no row's time by 1 % when it doubles, or whose effect the others imitate to 2 %, is not
# determined by rows that are themselves good to about a percent.
LEAST_SENSITIVITY = 0.01
_LEAST_INDEPENDENCE = 0.02
# Worse known than this, the prior is the better guess.
_LARGEST_RELATIVE_ERROR = 0.5
_LEAST_LAUNCHES_FOR_BOOTSTRAP = 10
_NUM_RESAMPLES = 1000
# Gauss-Newton steps with weights from the prediction before: near the end each squares what is missing.
_NUM_PASSES = 4
_PRIOR_FREEDOM = 4
_MISFIT = 0.02  # a formula that is right to 2 % is a good one


@dataclass(frozen=True)
class Fitted:
    """One coefficient after a fit.

    ``standard_error`` is None where it kept its prior, was not determined, or lies on its bound 0; in that last case
    ``upper`` is the one-sided 95 % bound. ``freedom`` are the degrees of freedom of Student's t.
    """

    value: float
    standard_error: float | None = None
    upper: float | None = None
    freedom: int | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's 95 % interval, cut at 0; None without a standard error."""
        if self.upper is not None:
            return 0.0, self.upper
        if self.standard_error is None or self.freedom is None:
            return None
        half = float(stats.t.ppf((1 + LEVEL) / 2, self.freedom)) * self.standard_error
        return max(0.0, self.value - half), self.value + half


def bind(formula: str, values: Mapping[str, float], graph_sizes: Sequence[int] = ()) -> StepTime:
    """The formula with its coefficients and both overheads bound."""
    return FORMULAS[formula](values, values[OVERHEAD], values[OVERHEAD_SLOPE], graph_sizes=graph_sizes)


class Estimate:
    """One fit: ``coefficients`` by name, and the names in ``undetermined`` that nothing determines or replaces."""

    def __init__(
        self,
        observations: Sequence[Observation],
        formula: str,
        priors: Mapping[str, Prior] | None = None,
        graph_sizes: Sequence[int] = (),
    ) -> None:
        """``priors`` stand in for what the rows do not determine, None: nothing does. Raises InputError where there are
        no more times than coefficients.
        """
        self.formula = formula
        self._graph_sizes = graph_sizes
        self._priors = priors or {}
        # Left at 0 where the rows do not show them: their absence is the simpler formula.
        self._omissible = {OVERHEAD, OVERHEAD_SLOPE, *FORMULAS[formula].optional}
        self._observations = observations
        self._design = Design(observations)
        self._noise = relative_noise(observations)
        start = self._start()
        fitted = self._determined(start)
        self._release(start, fitted)
        self._solve(start, fitted)
        while vague := self._vaguest():
            fitted.remove(vague)
            start = self._start()
            self._release(start, fitted)
            self._solve(start, fitted)
        replaceable = {*self._priors, *self._omissible}
        self.fitted = tuple(fitted)
        self.undetermined = tuple(name for name in self.values if name not in fitted and name not in replaceable)

    def step_time(self) -> StepTime:
        """The fitted formula."""
        return bind(self.formula, self.values, self._graph_sizes)

    def predict(self, observations: Sequence[Observation]) -> Array:
        """Predicted seconds of any observations."""
        return Design(observations).predict(self.step_time())

    def sensitivity(self, observations: Sequence[Observation], name: str) -> Array:
        """d ln(time) / d ln(coefficient) of each predicted time."""
        return _sensitivity(Design(observations), self.formula, self.values, name, self._graph_sizes)

    @property
    def rank(self) -> int:
        """Rank of the fitted coefficients' relative sensitivities: below their number, some cannot be told apart."""
        return int(np.linalg.matrix_rank(self._relative, tol=_LEAST_INDEPENDENCE)) if self.fitted else 0

    def _start(self) -> dict[str, float]:
        """Where the search starts: the priors; else half of the most that a coefficient can be.

        Formulas are homogeneous of degree one and grow in every coefficient: with one coefficient at 1 and the others
        at 0 a formula gives that coefficient's column, and no time is below the coefficient times its column.
        """
        formula, priors = FORMULAS[self.formula], self._priors
        shape = {name: priors[name].value if name in priors else 0.0 for name in formula.shape}
        names = [name for name in (*formula.coefficients, OVERHEAD, OVERHEAD_SLOPE) if name not in shape]
        start = dict(shape)
        for name in names:
            column = self._predicted(dict.fromkeys(names, 0.0) | shape | {name: 1.0})
            reach = float((column / self._design.measured_s).max())
            # Where no row has anything to do with it, any time will do to see what a prediction would rest on.
            most = 0.5 / reach if reach > 0 else float(self._design.measured_s.min())
            start[name] = priors[name].value if name in priors else most
        return start

    def _release(self, values: dict[str, float], fitted: Sequence[str]) -> None:
        """Set what is not fitted and may be left out to 0."""
        shape = FORMULAS[self.formula].shape
        values.update((name, 0.0) for name in self._omissible if name not in fitted and name not in shape)

    def _determined(self, values: Mapping[str, float]) -> list[str]:
        """Names that these rows determine, in the formula's order (Gram-Schmidt over the sensitivities)."""
        basis: list[Array] = []
        names = []
        has_steps = any(one.is_step and not one.published for one in self._observations)
        for name in values:
            if name in FORMULAS[self.formula].shape:
                continue
            if name == OVERHEAD and not has_steps:
                continue  # part of the host time: a request served alone cannot tell them apart
            column = _sensitivity(self._design, self.formula, values, name, self._graph_sizes)
            rest = column.copy()
            for direction in basis:
                rest -= direction * (direction @ rest)
            size = float(np.linalg.norm(rest))
            if np.abs(column).max() < LEAST_SENSITIVITY or size < _LEAST_INDEPENDENCE * np.linalg.norm(column):
                continue
            basis.append(rest / size)
            names.append(name)
        return names

    def _vaguest(self) -> str | None:
        """The worst known of the fitted coefficients that something can replace, if known too badly to keep."""
        relative = {
            name: float("inf") if not coefficient.value else (coefficient.standard_error or 0.0) / coefficient.value
            for name, coefficient in self.coefficients.items()
            if name in self._moved and (name in self._priors or name in self._omissible)
        }
        worst = max(relative, key=relative.__getitem__, default=None)
        return worst if worst is not None and relative[worst] > _LARGEST_RELATIVE_ERROR else None

    def _predicted(self, values: Mapping[str, float]) -> Array:
        return self._design.predict(bind(self.formula, values, self._graph_sizes))

    def _solve(self, start: dict[str, float], names: Sequence[str]) -> None:
        """Move ``start[names]`` to the weighted least squares; set values, errors and sensitivities."""
        self._moved = tuple(names)
        self.values = dict(start)
        measured = self._design.measured_s
        if len(names) >= len(measured):
            listed = ", ".join(names)
            times, unknowns = counted(len(measured), "measured time"), counted(len(names), "coefficient")
            raise InputError(f"{times} cannot determine {unknowns}: {listed}")
        scale = np.array([start[name] for name in names])
        found = self._search(names, scale)
        for _ in range(_NUM_PASSES):
            predicted = self._predicted(self.values)
            weight = predicted * self._noise
            jacobian = self._jacobian(names, scale, found)
            target = measured - predicted + jacobian @ found
            found, _ = nnls(jacobian / weight[:, None], target / weight)
            self.values.update(zip(names, (found * scale).tolist(), strict=True))
        weight = self._predicted(self.values) * self._noise
        jacobian = self._jacobian(names, scale, found) / weight[:, None]
        self._relative = jacobian * found
        self._set_errors(names, scale, weight, jacobian)

    def _search(self, names: Sequence[str], scale: Array) -> Array:
        """Least squares of errors relative to the measured times, within the bounds: close to the end from anywhere."""
        measured, fixed = self._design.measured_s, dict(self.values)

        def errors(scaled: Array) -> Array:
            predicted = self._predicted(fixed | dict(zip(names, scaled * scale, strict=True)))
            difference: Array = (predicted / measured - 1) / self._noise
            return difference

        solution = least_squares(errors, np.ones(len(names)), bounds=(0, np.inf), xtol=1e-6, ftol=1e-8, gtol=1e-8)
        self.values.update(zip(names, (solution.x * scale).tolist(), strict=True))
        found: Array = solution.x
        return found

    def _jacobian(self, names: Sequence[str], scale: Array, found: Array) -> Array:
        """Seconds that each time grows with each scaled coefficient, by central differences (forward ones at 0)."""
        columns = []
        for name, size, value in zip(names, scale, found, strict=True):
            step = 1e-5 * max(value, 1e-3)
            low, high = max(0.0, value - step), value + step
            above = self._predicted(self.values | {name: high * size})
            below = self._predicted(self.values | {name: low * size})
            columns.append((above - below) / (high - low))
        return np.array(columns).T

    def _set_errors(self, names: Sequence[str], scale: Array, weight: Array, jacobian: Array) -> None:
        """``coefficients``: those inside their bound with errors from the others inside; each on its bound on top."""
        inside = [index for index, name in enumerate(names) if self.values[name] > 0]
        self.coefficients = {name: Fitted(value) for name, value in self.values.items()}
        errors, freedom, _ = self._errors(jacobian[:, inside], weight)
        self.uncertainty = self._uncertainty(
            [names[index] for index in inside], errors * scale[inside], jacobian[:, inside]
        )
        for index, error in zip(inside, errors, strict=True):
            name = names[index]
            self.coefficients[name] = Fitted(self.values[name], float(error * scale[index]), freedom=freedom)
        for index, name in enumerate(names):
            if index not in inside:
                self.coefficients[name] = self._on_bound(index, inside, scale[index], weight, jacobian)

    def _uncertainty(self, names: Sequence[str], errors: Array, jacobian: Array) -> Uncertainty | None:
        """The coefficients' errors together: as large as said, correlated as the rows make them (J'J)^-1.

        Launches are too few to tell correlations by. The overhead's slope is left out: it is no formula's coefficient.
        """
        inverse = np.linalg.pinv(jacobian.T @ jacobian)
        if not names or not np.all(errors > 0) or np.linalg.matrix_rank(inverse) < len(names):
            return None  # exact rows, or coefficients that only their sum is known of
        shares = errors / np.array([self.values[name] for name in names])
        deviations = np.sqrt(np.log1p(shares**2) / inverse.diagonal())
        covariance = inverse * np.outer(deviations, deviations)
        kept = [index for index, name in enumerate(names) if name != OVERHEAD_SLOPE]
        source = "standard errors of the fit, with the correlations that its rows give them"
        return from_covariance([names[index] for index in kept], covariance[np.ix_(kept, kept)], source)

    def _on_bound(self, index: int, inside: list[int], scale: float, weight: Array, jacobian: Array) -> Fitted:
        """0, with the one-sided bound: what the coefficient would be if it were free, plus t times its error."""
        columns = [index, *inside]
        if np.linalg.norm(jacobian[:, index]) < 1e-6:  # a smooth corner at 0 has no slope, so no bound either
            return Fitted(0.0)
        errors, freedom, free = self._errors(jacobian[:, columns], weight)
        upper = free[0] + float(stats.t.ppf(LEVEL, freedom)) * errors[0]
        return Fitted(0.0, None, max(0.0, float(upper * scale)), freedom)

    def _errors(self, jacobian: Array, weight: Array) -> tuple[Array, int, Array]:
        """Standard errors, degrees of freedom, and the free step from the solution, in scaled coefficients."""
        measured = self._design.measured_s
        misfit = (measured - self._predicted(self.values)) / weight
        inverse = np.asarray(np.linalg.pinv(jacobian.T @ jacobian), dtype=np.float64)
        step = inverse @ (jacobian.T @ misfit)
        moves = self._moves(jacobian, weight, inverse)
        if moves is not None:
            return _launch_errors(moves), len(moves) - 1, step
        freedom = max(1, len(measured) - jacobian.shape[1])
        variance = float(misfit @ misfit) / freedom
        return np.sqrt(variance * np.diag(inverse)), freedom, step

    def _moves(self, jacobian: Array, weight: Array, inverse: Array) -> Array | None:
        """How far each launch pulls the coefficients from where they are (launches x coefficients); None below two."""
        launches = sorted({launch for observation in self._observations for launch in observation.launches})
        if len(launches) < 2:
            return None
        pulls = np.zeros((len(launches), len(weight)))
        for column, observation in enumerate(self._observations):
            share = len(launches) / max(1, len(observation.launches))
            for launch, mean_s in observation.launches.items():
                pulls[launches.index(launch), column] = share * (mean_s - observation.measured_s) / weight[column]
        moves: Array = pulls @ jacobian @ inverse
        return moves


def relative_noise(observations: Sequence[Observation]) -> Array:
    """How noisy each case is beside the typical one (1), so that cases whose launches disagree count for less.

    With three launches a deviation is itself hardly known, so each variance is moderated towards the median one, as if
    that had been seen with ``_PRIOR_FREEDOM`` degrees of freedom (Smyth 2004, "Linear models and empirical Bayes
    methods", Statistical Applications in Genetics and Molecular Biology 3(1)); what no formula explains is added.
    """
    variances = np.full(len(observations), np.nan)
    freedom = np.zeros(len(observations))
    for number, observation in enumerate(observations):
        means = list(observation.launches.values())
        if len(means) > 1:
            variances[number] = np.var(means, ddof=1) / observation.measured_s**2
            freedom[number] = len(means) - 1
    if np.isnan(variances).all():
        return np.ones(len(observations))
    typical = float(np.nanmedian(variances))
    known = np.where(np.isnan(variances), typical, variances)
    moderated = (freedom * known + _PRIOR_FREEDOM * typical) / (freedom + _PRIOR_FREEDOM)
    noise: Array = np.sqrt((moderated + _MISFIT**2) / (typical + _MISFIT**2))
    return noise


def _launch_errors(moves: Array) -> Array:
    """Standard error of the mean of these moves: their deviation over root L, from ten launches on by bootstrap."""
    num_launches = len(moves)
    if num_launches < _LEAST_LAUNCHES_FOR_BOOTSTRAP:
        errors: Array = moves.std(axis=0, ddof=1) / np.sqrt(num_launches)
        return errors
    draw = np.random.default_rng(0)  # the same rows give the same profile
    chosen = draw.integers(0, num_launches, (_NUM_RESAMPLES, num_launches))
    # A bootstrap's variance is that of the sample, short by (L - 1) / L.
    resampled: Array = moves[chosen].mean(axis=1).std(axis=0) * np.sqrt(num_launches / (num_launches - 1))
    return resampled


def _sensitivity(
    design: Design, formula: str, values: Mapping[str, float], name: str, graph_sizes: Sequence[int] = ()
) -> Array:
    step = 1e-4
    above = design.predict(bind(formula, {**values, name: values[name] * (1 + step)}, graph_sizes))
    below = design.predict(bind(formula, {**values, name: values[name] * (1 - step)}, graph_sizes))
    relative: Array = (above - below) / (above + below) / step
    return relative
