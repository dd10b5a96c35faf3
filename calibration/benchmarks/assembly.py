"""Coefficients found from load tests -> the profile that the simulator reads, and what to print of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from calibration.benchmarks.belief import FORMULA, POOL, Belief
from calibration.benchmarks.benchmark import Benchmark
from calibration.benchmarks.invert import Figure, Solution, correlations, states_pool, with_pool
from calibration.benchmarks.play import has_verified_dialect, play
from calibration.estimate import bind
from calibration.fit import rounded
from calibration.geometry import Geometry
from calibration.roofline import Device
from simulator.counts import counted
from simulator.engine_args import EngineConfig
from simulator.evidence import indicative
from simulator.plan import Plan
from simulator.profile import (
    Bytes,
    Coefficient,
    Errors,
    HoldOut,
    Identity,
    MeasuredRange,
    Memory,
    Overhead,
    Point,
    Profile,
    Provenance,
    Residual,
    Rows,
)
from simulator.step_time import FORMULAS, StepTime
from simulator.step_time.formula import Work
from simulator.uncertainty import OVERHEAD, Uncertainty, from_covariance

_OTHER_BYTES = 2 * 1024**3
_OTHER_SOURCE = "assumption: 2 GiB for activations, communication buffers and memory outside torch"


@dataclass(frozen=True)
class Subject:
    """What was tested, and the files that say so."""

    name: str
    identity: Identity
    geometry: Geometry
    device: Device
    rows: tuple[Rows, ...]
    utilization: float = 0.92  # gpu_memory_utilization of the tests; vLLM's default

    def memory(self, num_kv_tokens: float | None = None) -> Memory:
        """Memory of one device by its data sheet and the model's shape; ``num_kv_tokens``: what is left for KV."""
        rank = self.geometry.rank(self.identity.tensor_parallel_size)
        device = Bytes(value=self.device.memory_bytes, origin="prior", source=self.device.memory_source)
        other = Bytes(value=_OTHER_BYTES, origin="prior", source=_OTHER_SOURCE)
        if num_kv_tokens is not None:
            kv_bytes = int(num_kv_tokens * rank.kv_bytes_per_token)
            rest = int(device.value * self.utilization) - rank.weight_bytes - kv_bytes
            words = f"a pool of {num_kv_tokens:.3g} tokens, as the load tests state or bear on it"
            other = Bytes(value=max(0, rest), origin="prior", source=f"what is left beside {words}")
            if rest < 0:  # more than the data sheet's memory holds: a byte more, so that no block is lost
                total = int((kv_bytes + rank.weight_bytes + 1) / self.utilization) + 1
                device = Bytes(value=total, origin="prior", source=f"so much that there is {words}")
        weights = Bytes(value=rank.weight_bytes, origin="prior", source=f"geometry: {self.geometry.source}")
        return Memory(device=device, weights=weights, other=other)


def draft(subject: Subject, belief: Belief) -> Profile:
    """The profile before any result: the belief alone. It tells the engine's defaults and the size of its pool."""
    coefficients = {name: _prior(belief, name, belief.priors[name].value) for name in belief.priors}
    return _profile(subject, coefficients, Errors(in_sample=(), held_out=(), num_not_held_out=0), None, None, None)


def assemble(
    subject: Subject,
    belief: Belief,
    solution: Solution,
    benchmarks: Sequence[Benchmark],
    configs: Sequence[EngineConfig],
) -> Profile:
    """The profile of this solution."""
    source = (
        f"simulated load tests fitted to {len(solution.figures)} figures of {len(benchmarks)} tests; "
        f"error from the misfit and what the data sheet left open"
    )
    coefficients = {
        name: _prior(belief, name, prior.value) for name, prior in belief.priors.items() if name not in belief.names
    }
    deviations = np.sqrt(np.diag(solution.covariance))
    for name, logarithm, deviation, determined in zip(
        belief.names, solution.logarithms, deviations, solution.determined, strict=True
    ):
        value = float(np.exp(logarithm))
        coefficients[name] = (
            _measured(name, value, value * float(deviation), source) if determined else _prior(belief, name, value)
        )
    groups = {benchmark.group for benchmark in benchmarks}
    held_out = HoldOut(rule="each group of tests with the same load predicted from the others", cases=())
    values = belief.values(solution.logarithms)
    pool = values.get(POOL) or _stated_pool(benchmarks, configs)
    engines = [with_pool(benchmark, config, pool) for benchmark, config in zip(benchmarks, configs, strict=True)]
    reach = measured_range(benchmarks, engines, bind(FORMULA, values))
    errors = _errors(solution, benchmarks)
    profile = _profile(subject, coefficients, errors, reach, held_out if len(groups) > 1 else None, pool)
    return profile.model_copy(update={"uncertainty": _uncertainty(belief, solution)})


def _uncertainty(belief: Belief, solution: Solution) -> Uncertainty:
    """How far the coefficients may be off together, given results and data sheet, whatever the pool."""
    kept = [index for index, name in enumerate(belief.names) if name != POOL]
    names = [belief.names[index] for index in kept]
    source = "covariance of the logarithms given the results, beginning with what the data sheet leaves open"
    return from_covariance(names, solution.covariance[np.ix_(kept, kept)], source)


def _stated_pool(benchmarks: Sequence[Benchmark], configs: Sequence[EngineConfig]) -> float | None:
    """Tokens of the pool that the results state, where they agree."""
    stated = {
        float((config.num_gpu_blocks - 1) * config.block_size)
        for benchmark, config in zip(benchmarks, configs, strict=True)
        if states_pool(benchmark)
    }
    return stated.pop() if len(stated) == 1 else None


def measured_range(
    benchmarks: Sequence[Benchmark], configs: Sequence[EngineConfig], step_time: StepTime
) -> MeasuredRange:
    """The largest of everything that the tests' steps were made of, as simulated."""
    seen = _Reach(step_time)
    for benchmark, config in zip(benchmarks, configs, strict=True):
        play(benchmark, config, seen)  # type: ignore[arg-type]
    return seen.range


class _Reach:
    """A step time that remembers the largest of what it was asked."""

    def __init__(self, step_time: StepTime) -> None:
        self._step_time = step_time
        self.range = MeasuredRange(
            max_prefill_tokens=0, max_context=0, max_decodes=0, max_prefills=0, mixed_steps=False
        )
        self.overhead_s = step_time.overhead_s
        self.support = step_time.support

    def elapsed(self, plan: Work, num_steps: int = 1) -> float:
        """As the step time's, seen."""
        old = self.range
        if isinstance(plan, Plan):
            self.range = MeasuredRange(
                max_prefill_tokens=max(old.max_prefill_tokens, plan.num_prefill_tokens),
                max_context=max(old.max_context, plan.max_context + num_steps - 1),
                max_decodes=max(old.max_decodes, plan.num_decodes),
                max_prefills=max(old.max_prefills, plan.num_prefills),
                mixed_steps=old.mixed_steps or bool(plan.num_prefills and plan.num_decodes),
            )
        return self._step_time.elapsed(plan, num_steps)


def _profile(
    subject: Subject,
    coefficients: dict[str, Coefficient],
    errors: Errors,
    reach: MeasuredRange | None,
    hold_out: HoldOut | None,
    num_kv_tokens: float | None,
) -> Profile:
    rank = subject.geometry.rank(subject.identity.tensor_parallel_size)
    nothing = Coefficient(
        value=0.0,
        standard_error=None,
        unit="s per prompt token",
        origin="convention",
        source="load tests do not show it beside the prefill's own time",
    )
    return Profile(
        schema_version=1,
        name=subject.name,
        formula=FORMULA,
        coefficients={name: coefficients[name] for name in FORMULAS[FORMULA].coefficients if name in coefficients},
        overhead=Overhead(constant_s=coefficients[OVERHEAD], prompt_token_s=nothing),
        measured=reach,
        identity=subject.identity,
        provenance=Provenance(
            description=(
                f"formula {FORMULA} fitted to load-test results by simulating them; data sheet of "
                f"{subject.device.name}; geometry of {subject.geometry.model}"
            ),
            rows=subject.rows,
            hold_out=hold_out,
            evidence="benchmarks",
        ),
        errors=errors,
        max_model_len=subject.geometry.max_position_embeddings,
        kv_bytes_per_token=rank.kv_bytes_per_token,
        memory=subject.memory(num_kv_tokens),
    )


def _unit(name: str) -> str:
    return FORMULAS[FORMULA].coefficients.get(name, "s per request")


def _measured(name: str, value: float, standard_error: float, source: str) -> Coefficient:
    return Coefficient(
        value=rounded(value), standard_error=rounded(standard_error), unit=_unit(name), origin="measured", source=source
    )


def _prior(belief: Belief, name: str, value: float) -> Coefficient:
    """A coefficient that the results left open: the data sheet's, times the efficiency that they did tell."""
    prior = belief.priors[name]
    moved = value / prior.value
    words = "" if abs(moved - 1) < 0.005 else f"; times {moved:.3g}, as far as the results bear on it"
    convention = prior.source.startswith("convention") or name in FORMULAS[FORMULA].shape
    return Coefficient(
        value=rounded(value),
        standard_error=None,
        unit=_unit(name),
        origin="convention" if convention else "prior",
        source=prior.source.removeprefix("convention: ") + words,
    )


def _errors(solution: Solution, benchmarks: Sequence[Benchmark]) -> Errors:
    in_sample, held_out = [], []
    for figure, predicted_s, other_s in zip(
        solution.figures, solution.predicted_s, solution.held_out_s, strict=True
    ):
        benchmark = benchmarks[figure.benchmark]
        in_sample.append(_residual(figure, benchmark, float(predicted_s)))
        if np.isfinite(other_s):
            held_out.append(_residual(figure, benchmark, float(other_s)))
    return Errors(
        in_sample=tuple(in_sample),
        held_out=tuple(held_out),
        num_not_held_out=len(in_sample) - len(held_out),
        num_groups=len({benchmarks[figure.benchmark].group for figure in solution.figures}) if held_out else 0,
    )


def _residual(figure: Figure, benchmark: Benchmark, predicted_s: float) -> Residual:
    return Residual(
        case=figure.label,
        measured_s=rounded(figure.measured_s),
        predicted_s=rounded(predicted_s),
        at=_place(figure, benchmark),
    )


def _place(figure: Figure, benchmark: Benchmark) -> Point | None:
    """Where a latency lies in a figure of latency by context and batch; batches are known where a limit is."""
    batch = benchmark.max_concurrency
    if batch is None:
        return None
    context, cached = round(benchmark.inputs.mean), round(benchmark.prefix_share * benchmark.inputs.mean)
    if not figure.is_rate and not figure.field.startswith("ttft"):
        context += round(benchmark.outputs.mean / 2)
    return Point(context=context, cached=cached, batch=float(batch))


_BAD_MISFIT = 10.0
_ASSUMED = ("block_size", "max_num_batched_tokens", "max_num_seqs", "enable_prefix_caching", "async_scheduling")


def _engine_words(config: EngineConfig, benchmark: Benchmark) -> str:
    """The engine's arguments that the result does not state."""
    taken = [f"{name}={getattr(config, name)}" for name in _ASSUMED if name not in benchmark.engine]
    return f"  vLLM's defaults: {', '.join(taken)}" if taken else "  the engine is as stated"


def lines(
    profile: Profile,
    belief: Belief,
    solution: Solution,
    benchmarks: Sequence[Benchmark],
    configs: Sequence[EngineConfig],
) -> Iterator[str]:
    """What the results determine, what they do not, and how far predictions are off."""
    yield (
        f"{profile.name}: {counted(len(benchmarks), 'load test')}, {counted(len(solution.figures), 'figure')}, "
        f"{sum(solution.determined)} of {len(belief.names)} coefficients determined; typical error "
        f"{solution.misfit:.2g} tolerances, {solution.num_evaluations} simulated tests"
    )
    version = profile.identity.vllm
    if not has_verified_dialect(version):
        yield f"  vLLM {version}: decisions of this release are not verified; the nearest verified one was simulated"
    if not solution.converged:
        yield "  the search did not converge: another start may end elsewhere"
    if solution.misfit > _BAD_MISFIT:
        yield "  no such engine fits these results: look at the figures furthest off, and at units and arguments"
    if (reason := indicative(profile)) is not None:
        yield f"  indicative: {reason}"
    yield from dict.fromkeys(f"  assumed: {words}" for benchmark in benchmarks for words in benchmark.assumed)
    yield from dict.fromkeys(map(_engine_words, configs, benchmarks))
    named = {**profile.coefficients, OVERHEAD: profile.overhead.constant_s}
    stuck = {name for name, limited in zip(belief.names, solution.at_limit, strict=True) if limited}
    for name, coefficient in named.items():
        error = "" if coefficient.standard_error is None else f" +- {coefficient.standard_error:.2g}"
        limit = ", at the limit of the search" if name in stuck else ""
        yield f"  {name:22} {coefficient.value:.4g}{error} {coefficient.unit} ({coefficient.origin}{limit})"
    if POOL in belief.names:
        number = belief.names.index(POOL)
        told = "told by the results" if solution.determined[number] else "hardly told by the results"
        found, sheet = np.exp(solution.logarithms[number]), belief.priors[POOL].value
        yield f"  {'KV pool':22} {found:.4g} tokens ({told}; data sheet: {sheet:.4g})"
    for one, other, correlation in correlations(belief, solution):
        yield f"  {one} and {other} can hardly be told apart (correlation {correlation:+.2f})"
    for title, residuals in (("in sample", profile.errors.in_sample), ("held out", profile.errors.held_out)):
        yield from _by_figure(title, residuals)
    worst = sorted(profile.errors.held_out or profile.errors.in_sample, key=lambda one: -abs(one.relative_error))
    for residual in worst[:8]:
        yield f"  furthest off: {residual.case:60} {residual.relative_error:+7.1%}"


def _by_figure(title: str, residuals: Sequence[Residual]) -> Iterator[str]:
    kinds: dict[str, list[float]] = {}
    for residual in residuals:
        kinds.setdefault(residual.case.partition(":")[0], []).append(abs(residual.relative_error))
    for kind, sizes in kinds.items():
        middle, largest = np.median(sizes), max(sizes)
        tests = counted(len(sizes), "test")
        yield f"  {title:9} {kind:16} {tests:>9}, median error {middle:6.1%}, largest {largest:6.1%}"
