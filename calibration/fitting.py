"""What ``calibrate fit`` does, from files to a profile and what is printed of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from calibration.assemble import Known, assemble
from calibration.fit import Fit, fit, fit_best
from calibration.geometry import Geometry, load_geometry
from calibration.hold_out import split
from calibration.measurement import Measurements, StepRow, SummaryRow, read_together
from calibration.observations import averaged, observe
from calibration.roofline import load_device
from simulator.counts import counted
from simulator.errors import InputError
from simulator.profile import Coefficient, Identity, Profile


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    rows: tuple[Path, ...]
    formula: str
    prior: str | None
    device: str | None
    geometry: Path | None
    hold_out: str


def fit_profile(name: str, options: Options) -> tuple[Profile, str]:
    """The profile of these rows and what to print of it.

    Raises InputError where the rows do not determine every coefficient.
    """
    files = read_together(options.rows)
    if options.prior == "roofline" and options.device is None:
        raise InputError("--prior roofline: needs --device NAME, whose data sheet it reads")
    identity = files[0].header.identity
    known = Known(
        geometry=_shape(identity, options.geometry),
        device=None if options.device is None else load_device(options.device),
        tensor_parallel_size=identity.tensor_parallel_size,
    )
    priors = None if options.prior == "none" else known.priors
    parts = split(averaged(observe(files)), options.hold_out)
    sizes = graph_sizes(files)
    if options.formula == "auto":
        fitted = fit_best(parts.fitted, priors, sizes)
    else:
        fitted = fit(parts.fitted, options.formula, priors, sizes)
    profile = assemble(name, fitted, files, parts, known)
    return profile, "\n".join((*_basis(fitted, profile, files), *_rest(fitted, profile)))


def graph_sizes(files: Sequence[Measurements]) -> tuple[int, ...]:
    """Captured batch sizes as the engine stated them, or else those that decode steps were seen padded to."""
    stated = {
        int(size)
        for file in files
        for header in file.headers
        for size in header.limits.get("graph_sizes") or ()
    }
    seen = {
        row.num_padded_tokens
        for file in files
        for row in file.rows
        if isinstance(row, StepRow) and row.num_padded_tokens and not row.num_prefill_tokens
    }
    return tuple(sorted(stated if seen and stated else seen))


def _shape(identity: Identity, path: Path | None) -> Geometry:
    """The geometry of the model, or of a pipeline stage's layers: the ranks of tensor parallelism share it."""
    if path is None and identity.pipeline_parallel_size > 1:
        raise InputError(
            f"{identity.model} was measured in {identity.pipeline_parallel_size} pipeline stages: pass the layers of "
            "one, --geometry"
        )
    shape = load_geometry(identity.model, path, identity.dtype)
    if path is not None and shape.model != identity.model:
        raise InputError(f"{path}: model is {shape.model!r}, the rows are of {identity.model!r}")
    return shape


def _rest(fitted: Fit, profile: Profile) -> Iterator[str]:
    """The formulas compared, the coefficients, and the errors."""
    yield from _formulas(fitted)
    yield from _coefficients(fitted, profile)
    yield from _errors(profile)


def _basis(fitted: Fit, profile: Profile, files: Sequence[Measurements]) -> Iterator[str]:
    launches = counted(fitted.num_launches, "launch", "launches") if fitted.num_launches else "launches not known"
    yield (
        f"{profile.name}: {profile.formula}, {counted(fitted.num_times, 'measured time')}, "
        f"{counted(fitted.num_fitted, 'parameter')}, rank {fitted.rank}, {launches}"
    )
    held = profile.provenance.hold_out
    if held is not None:
        yield f"  kept for check: {counted(len(held.cases), 'time')} ({held.rule})"
    outliers = sum(not isinstance(row, SummaryRow) and row.outlier for file in files for row in file.rows)
    unused = sum(len(file.unused) for file in files)
    disturbed = sum(len(observation.disturbed) for observation in averaged(observe(files)))
    if outliers or unused or disturbed:
        yield (
            f"  left out: {counted(outliers, 'outlying row')}, {counted(unused, 'warm-up or failed row')}, "
            f"{counted(disturbed, 'launch', 'launches')} of a case that stood out from the others"
        )


def _formulas(fitted: Fit) -> Iterator[str]:
    for score in fitted.scores:
        chosen = " (chosen)" if score.formula == fitted.formula else ""
        if score.refused is not None:
            yield f"  formula {score.formula:14} {score.refused.partition(':')[0]}"
        elif score.mean_error is not None:
            yield f"  formula {score.formula:14} mean held-out error {score.mean_error:.2%}{chosen}"


def _coefficients(fitted: Fit, profile: Profile) -> Iterator[str]:
    named = {
        **profile.coefficients,
        "overhead_constant_s": profile.overhead.constant_s,
        "overhead_prompt_token_s": profile.overhead.prompt_token_s,
    }
    for name, coefficient in named.items():
        interval = fitted.coefficients[name].interval
        yield _line(name, coefficient, interval)
    if profile.step_noise_s is not None:
        yield _line("step_noise_s", profile.step_noise_s, None)


def _line(name: str, coefficient: Coefficient, interval: tuple[float, float] | None) -> str:
    error = "" if coefficient.standard_error is None else f" +- {coefficient.standard_error:.2g}"
    between = "" if interval is None else f" [{interval[0]:.4g}, {interval[1]:.4g}]"
    return f"  {name:24} {coefficient.value:.4g}{error}{between} {coefficient.unit} ({coefficient.origin})"


_MOST_LINES = 12


def _errors(profile: Profile) -> Iterator[str]:
    """The errors, furthest off first where there are many."""
    for title, residuals in (("in sample", profile.errors.in_sample), ("held out", profile.errors.held_out)):
        shown = residuals
        if len(residuals) > _MOST_LINES:
            shown = tuple(sorted(residuals, key=lambda residual: -abs(residual.relative_error))[:_MOST_LINES])
            mean = sum(abs(residual.relative_error) for residual in residuals) / len(residuals)
            yield f"  {title}: {len(residuals)} times, mean error {mean:.2%}; furthest off:"
        for residual in shown:
            yield f"  {title:10} {residual.case:55} {residual.relative_error:+7.2%}"
    if profile.errors.num_not_held_out:
        yield (
            f"  {counted(profile.errors.num_not_held_out, 'time')} could not be held out: nothing else determines them"
        )
