"""Load-test results -> coefficients: simulate each test, compare with what was measured, adjust, until they agree.

The result is the most probable set of coefficients given the results and a belief (``belief``): nonlinear least squares
of the figures' logarithms, each over its own tolerance, with the belief as further residuals. Figures that no formula
reaches pull like one that is off by ``_HUBER`` tolerances (Huber's loss), so that one odd row decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from calibration.benchmarks.belief import FORMULA, POOL, Belief
from calibration.benchmarks.benchmark import Benchmark, Measured
from calibration.benchmarks.play import play
from calibration.estimate import bind
from calibration.observations import Array
from simulator.engine_args import EngineConfig
from simulator.errors import InputError
from simulator.experiment import run_all

# Figure -> its name, and the tolerance of its logarithm: what a repeat of the test and a simple formula are good to.
_LATENCIES = {
    "ttft_mean_s": ("TTFT mean", 0.10),
    "ttft_p50_s": ("TTFT p50", 0.10),
    "ttft_p90_s": ("TTFT p90", 0.20),
    "ttft_p99_s": ("TTFT p99", 0.40),
    "tpot_mean_s": ("TPOT mean", 0.04),
    "tpot_p50_s": ("TPOT p50", 0.04),
    "tpot_p90_s": ("TPOT p90", 0.10),
    "tpot_p99_s": ("TPOT p99", 0.20),
    "e2e_mean_s": ("total time mean", 0.05),
}
# Of these one a row: the others follow from it and the lengths.
_RATES = {
    "output_tokens_per_s": ("output tokens/s", 0.03),
    "requests_per_s": ("requests/s", 0.03),
    "total_tokens_per_s": ("total tokens/s", 0.03),
}
_KEPT_UP = 0.95
_HUBER = 2.0
# Of a logarithm, for slopes: well above what one reordered request, or one block, changes.
# A smaller pool is tried, since one that is never full has no slope towards a larger one.
_STEP, _POOL_STEP = 0.02, -0.10
_FARTHEST = 4.0  # deviations from the belief: beyond, a first step too long would only simulate nonsense
_AT_LIMIT = 3.9
_MOST_EVALUATIONS = 25
_TOLERANCE = 2e-3
_NUM_POOL_SEARCHES = 2
# Groups are left out one by one up to so many, else dealt to so many folds; searches go on from the whole fit's end.
_MOST_GROUPS, _NUM_FOLDS = 10, 5
_REFIT_EVALUATIONS = 5

@dataclass(frozen=True)
class Figure:
    """One measured figure of one benchmark. Rates are kept as seconds a request or token."""

    benchmark: int
    field: str
    label: str
    measured_s: float
    tolerance: float

    @property
    def is_rate(self) -> bool:
        """Whether the result gives it as a rate."""
        return self.field in _RATES

    def of(self, played: Measured) -> float:
        """The same figure of a simulated test, in seconds."""
        value = getattr(played, self.field)
        if value is None or value <= 0:
            raise InputError(f"{self.label}: the simulated test has no such figure")
        return 1 / float(value) if self.is_rate else float(value)


def figures(benchmarks: Sequence[Benchmark]) -> tuple[Figure, ...]:
    """What is compared: every latency that a result states, and one of its rates."""
    return tuple(figure for number, benchmark in enumerate(benchmarks) for figure in _of(number, benchmark))


def _of(number: int, benchmark: Benchmark) -> list[Figure]:
    stated = benchmark.measured.stated
    if benchmark.outputs.mean <= 1 and (paces := [field for field in stated if field.startswith("tpot")]):
        raise InputError(f"{benchmark.file}: {paces[0]} of answers with one token, expected answers of two or more")
    # Where the engine keeps up with the rate at which requests are sent, its throughput says nothing more.
    kept_up = benchmark.requests_per_s is not None and _served(benchmark) >= _KEPT_UP * benchmark.requests_per_s
    rates = [] if kept_up else [field for field in _RATES if field in stated][:1]
    found = []
    for field in [*(field for field in _LATENCIES if field in stated), *rates]:
        name, tolerance = (_LATENCIES | _RATES)[field]
        value = stated[field]
        if not value:
            continue
        tolerance += benchmark.rounding.get(field, 0.0) / value
        seconds = 1 / value if field in _RATES else value
        found.append(Figure(number, field, f"{name}: {benchmark.name}", seconds, tolerance))
    return found


def _served(benchmark: Benchmark) -> float:
    """Requests a second, as the result states it or as its tokens tell."""
    measured = benchmark.measured
    if measured.requests_per_s is not None:
        return measured.requests_per_s
    tokens = benchmark.outputs.mean
    return 0.0 if measured.output_tokens_per_s is None or not tokens else measured.output_tokens_per_s / tokens


@dataclass(frozen=True)
class Solution:
    """Logarithms of the belief's ``names``, their covariance given the results, and figures in and out of sample.

    ``predicted_s`` and ``held_out_s`` are parallel to ``figures``; held out is NaN where no other group is left.
    ``determined``: the results halve at least what the belief left open, and the search did not end ``at_limit``.
    ``misfit`` is the root mean square of the figures' errors over their tolerances.
    """

    figures: tuple[Figure, ...]
    logarithms: Array
    covariance: Array
    determined: tuple[bool, ...]
    at_limit: tuple[bool, ...]
    converged: bool
    predicted_s: Array
    held_out_s: Array
    misfit: float
    num_evaluations: int


@dataclass(frozen=True)
class _Test:
    """One benchmark to be played with one set of coefficients: a task for a process of its own."""

    benchmark: Benchmark
    config: EngineConfig
    values: Mapping[str, float]


def _play(test: _Test) -> Measured:
    config = with_pool(test.benchmark, test.config, test.values.get(POOL))
    return play(test.benchmark, config, bind(FORMULA, test.values))


def with_pool(benchmark: Benchmark, config: EngineConfig, num_kv_tokens: float | None) -> EngineConfig:
    """The engine with a pool of so many tokens, where its own is not stated; one request always fits."""
    if num_kv_tokens is None or states_pool(benchmark):
        return config
    least = -(-config.max_model_len // config.block_size)
    return replace(config, num_gpu_blocks=1 + max(least, round(num_kv_tokens / config.block_size)))


def states_pool(benchmark: Benchmark) -> bool:
    """Whether the result says how large the engine's pool was."""
    return "num_gpu_blocks_override" in benchmark.engine or "kv_cache_memory_bytes" in benchmark.engine


class Inversion:
    """The search for coefficients; one object a fit."""

    def __init__(
        self, benchmarks: Sequence[Benchmark], configs: Sequence[EngineConfig], belief: Belief, jobs: int | None = None
    ) -> None:
        self.benchmarks = benchmarks
        self.configs = configs
        self.belief = belief
        self.figures = figures(benchmarks)
        self._jobs = jobs
        self._measured = np.log([figure.measured_s for figure in self.figures])
        self._tolerance = np.array([figure.tolerance for figure in self.figures])
        self._whitened = np.linalg.inv(np.linalg.cholesky(belief.covariance))
        self._is_pool = np.array([name == POOL for name in belief.names])
        self._seen: dict[bytes, Array] = {}
        self._converged = True
        self.num_evaluations = 0

    def solve(self, *, hold_out: bool = True) -> Solution:
        """The most probable coefficients; each group held out in turn as well, unless that is not wanted. Raises
        InputError where no row states a figure.
        """
        if not self.figures:
            raise InputError("no row states a latency or a throughput: nothing to fit")
        solution = self._search(self.belief.mean, self._is_pool)
        if self._is_pool.any():
            for _ in range(_NUM_POOL_SEARCHES):
                solution = min(solution, self._search(self._with_best_pool(solution)), key=self._cost)
                if self._misfit_of(solution) < 1:
                    break
        slopes = self._jacobian(solution)
        errors = self._residuals(solution)[: len(self.figures)]
        misfit = self._misfit_of(solution)
        weights = np.concatenate([_huber_weights(errors) / max(1.0, misfit**2), np.ones(len(self.belief.names))])
        covariance: Array = np.linalg.inv(slopes.T @ (slopes * weights[:, None]))
        remaining = np.sqrt(np.diag(covariance)) / self.belief.deviation
        at_limit = np.abs(solution - self.belief.mean) > _AT_LIMIT * self.belief.deviation
        return Solution(
            figures=self.figures,
            logarithms=solution,
            covariance=covariance,
            determined=tuple(((remaining < 0.5) & ~at_limit).tolist()),
            at_limit=tuple(at_limit.tolist()),
            converged=self._converged,
            predicted_s=np.exp(self._predicted([solution])[0]),
            held_out_s=self._held_out(solution) if hold_out else np.full(len(self.figures), np.nan),
            misfit=misfit,
            num_evaluations=self.num_evaluations,
        )

    def _with_best_pool(self, solution: Array) -> Array:
        """The same with the best of several pools: one that is never full has no slope that would lead to its size."""
        pools = [self.belief.mean - halvings * np.log(2) for halvings in np.arange(0, 6, 0.5)]
        points = [solution, *(np.where(self._is_pool, pool, solution) for pool in pools)]
        self._predicted(points)  # side by side
        return min(points, key=self._cost)

    def _cost(self, logarithms: Array) -> float:
        """Huber's loss of all residuals: what a search makes least."""
        sizes = np.abs(self._residuals(logarithms))
        return float(np.sum(np.where(sizes <= _HUBER, sizes**2, _HUBER * (2 * sizes - _HUBER))))

    def _search(self, start: Array, held: Array | None = None, evaluations: int = _MOST_EVALUATIONS) -> Array:
        """A local search; what is ``held`` stays where it is, at the belief."""

        def jacobian(logarithms: Array) -> Array:
            slopes = self._jacobian(logarithms)
            return slopes if held is None else np.where(held, 0.0, slopes)

        farthest = _FARTHEST * self.belief.deviation
        found = least_squares(
            self._residuals, start, jacobian, loss="huber", f_scale=_HUBER,
            bounds=(self.belief.mean - farthest, self.belief.mean + farthest),
            x_scale=self.belief.deviation, xtol=_TOLERANCE, ftol=_TOLERANCE, gtol=1e-3, max_nfev=evaluations,
        )  # fmt: skip
        self._converged = found.status > 0
        solution: Array = found.x
        return solution

    def _misfit_of(self, logarithms: Array) -> float:
        return float(np.sqrt(np.mean(self._residuals(logarithms)[: len(self.figures)] ** 2)))

    # --- residuals and slopes --------------------------------------------------------------------------------------

    def _residuals(self, logarithms: Array) -> Array:
        return self._whole(logarithms, self._predicted([logarithms])[0])

    def _whole(self, logarithms: Array, predicted: Array) -> Array:
        """Errors over tolerances, then how far the coefficients are from the belief, in its own deviations."""
        errors = (predicted - self._measured) / self._tolerance
        return np.concatenate([errors, self._whitened @ (logarithms - self.belief.mean)])

    def _jacobian(self, logarithms: Array) -> Array:
        steps = np.array([_POOL_STEP if name == POOL else _STEP for name in self.belief.names])
        here, *moved = self._predicted([logarithms, *(logarithms + np.diag(steps))])
        slopes = np.array([(there - here) / step for there, step in zip(moved, steps, strict=True)]).T
        slopes /= self._tolerance[:, None]
        return np.vstack([slopes, self._whitened])

    def _predicted(self, points: Sequence[Array]) -> list[Array]:
        """Logarithms of all figures at each point, each point played once."""
        new = [point for point in points if point.tobytes() not in self._seen]
        played = self._played([(number, point) for point in new for number in range(len(self.benchmarks))])
        for place, point in enumerate(new):
            tests = played[place * len(self.benchmarks) : (place + 1) * len(self.benchmarks)]
            self._seen[point.tobytes()] = np.log([figure.of(tests[figure.benchmark]) for figure in self.figures])
        return [self._seen[point.tobytes()] for point in points]

    def _played(self, tests: Sequence[tuple[int, Array]]) -> list[Measured]:
        self.num_evaluations += len(tests)
        tasks = [_Test(self.benchmarks[number], self.configs[number], self.belief.values(at)) for number, at in tests]
        return run_all(_play, tasks, jobs=self._jobs) if tasks else []

    # --- held out --------------------------------------------------------------------------------------------------

    def _held_out(self, solution: Array) -> Array:
        """Each figure in seconds, predicted by a fit to the other groups; NaN where there is only one."""
        groups = list(dict.fromkeys(benchmark.group for benchmark in self.benchmarks))
        predicted = np.full(len(self.figures), np.nan)
        num_folds = len(groups) if len(groups) <= _MOST_GROUPS else _NUM_FOLDS
        for fold in range(num_folds if len(groups) > 1 else 0):
            left_out = set(groups[fold::num_folds])
            point = self._without(left_out)._search(solution, evaluations=_REFIT_EVALUATIONS)
            numbers = [number for number, one in enumerate(self.benchmarks) if one.group in left_out]
            played = dict(zip(numbers, self._played([(number, point) for number in numbers]), strict=True))
            for place, figure in enumerate(self.figures):
                if figure.benchmark in played:
                    predicted[place] = figure.of(played[figure.benchmark])
        return predicted

    def _without(self, groups: set[str]) -> Inversion:
        kept = [number for number, benchmark in enumerate(self.benchmarks) if benchmark.group not in groups]
        benchmarks, configs = [self.benchmarks[number] for number in kept], [self.configs[number] for number in kept]
        return Inversion(benchmarks, configs, self.belief, self._jobs)


def _huber_weights(errors: Array) -> Array:
    sizes = np.maximum(np.abs(errors), 1e-12)
    weights: Array = np.minimum(1.0, _HUBER / sizes)
    return weights


def correlations(belief: Belief, solution: Solution, least: float = 0.9) -> list[tuple[str, str, float]]:
    """Pairs of coefficients that the results hardly tell apart, with the correlation of their logarithms."""
    deviation = np.sqrt(np.diag(solution.covariance))
    matrix: Any = solution.covariance / np.outer(deviation, deviation)
    return [
        (one, other, float(matrix[row, column]))
        for row, one in enumerate(belief.names)
        for column, other in enumerate(belief.names[:row])
        if abs(matrix[row, column]) >= least
    ]
