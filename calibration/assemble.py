"""A fit with its rows, geometry and device -> the profile that the simulator reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from calibration.estimate import OVERHEAD_SLOPE, Fitted
from calibration.fit import Fit, rounded
from calibration.geometry import Geometry, Rank
from calibration.hold_out import Split
from calibration.measurement import Measurements
from calibration.observations import measured_range
from calibration.roofline import Device, Prior, roofline
from simulator.errors import InputError
from simulator.profile import (
    Bytes,
    Coefficient,
    HoldOut,
    Memory,
    Overhead,
    Profile,
    Provenance,
    Rows,
)
from simulator.step_time import FORMULAS
from simulator.uncertainty import OVERHEAD, Uncertainty

# Activations, communication buffers and memory outside torch. No start-up log of the measured engine was published.
_OTHER_BYTES = 2 * 1024**3
_OTHER_SOURCE = (
    "assumption: 2 GiB. A published start-up (Qwen3-30B-A3B, bfloat16, 2 devices of 64 GB: 25.53 GiB of KV beside "
    "about 28.4 GiB of weights) leaves 1.2 GiB at a utilization of 0.90 and 2.4 GiB at 0.92"
)
_DEFAULT_UTILIZATION = 0.92  # vLLM's default of gpu_memory_utilization


@dataclass(frozen=True)
class Known:
    """What is known beside the rows: the whole model's shape, over how many ranks its matrices are split, and the
    device's data sheet where one was named.
    """

    geometry: Geometry
    device: Device | None = None
    tensor_parallel_size: int = 1

    @property
    def rank(self) -> Rank:
        """The share of one rank. Raises InputError where heads cannot be split so."""
        return self.geometry.rank(self.tensor_parallel_size)

    @property
    def whose(self) -> str:
        """Of whom sizes and times are, where that is not the whole model."""
        return f", one of {self.tensor_parallel_size} ranks" if self.tensor_parallel_size > 1 else ""

    @property
    def priors(self) -> dict[str, Prior] | None:
        """The data sheet's coefficients for one rank; None without a data sheet."""
        return None if self.device is None else roofline(self.geometry, self.device, self.tensor_parallel_size)


def assemble(name: str, fit: Fit, files: Sequence[Measurements], split: Split, known: Known) -> Profile:
    """The profile of this fit. Nothing in it depends on the clock or the machine: same rows, same profile.

    Raises InputError where neither a data sheet nor a launch of the engine tells the memory.
    """
    priors = known.priors or {}
    source = _source(fit)
    sheet = f"data sheet of {known.device.name}; " if known.device else ""
    return Profile(
        schema_version=1,
        name=name,
        formula=fit.formula,
        coefficients={
            key: _coefficient(fit.coefficients[key], unit, source, priors.get(key))
            for key, unit in FORMULAS[fit.formula].coefficients.items()
            if fit.coefficients[key].value or key not in FORMULAS[fit.formula].optional
        },
        overhead=Overhead(
            constant_s=_constant(fit.coefficients[OVERHEAD], source),
            prompt_token_s=_coefficient(fit.coefficients[OVERHEAD_SLOPE], "s per prompt token", source, None),
        ),
        step_noise_s=_noise(fit),
        graph_sizes=fit.graph_sizes,
        measured=measured_range(split.fitted),
        identity=files[0].header.identity,
        provenance=Provenance(
            description=f"formula {fit.formula}; {sheet}geometry of {known.geometry.model}{known.whose}",
            rows=tuple(_rows(file) for file in files),
            hold_out=HoldOut(rule=split.rule, cases=tuple(observation.case for observation in split.held_out)),
            num_launches=fit.num_launches,
        ),
        errors=fit.errors,
        uncertainty=_uncertainty(fit),
        max_model_len=known.geometry.max_position_embeddings,
        kv_bytes_per_token=known.rank.kv_bytes_per_token,
        memory=_memory(files, known),
    )


def _uncertainty(fit: Fit) -> Uncertainty | None:
    """The fit's, where all of its coefficients are in the profile."""
    known = fit.uncertainty
    in_profile = {name for name, one in fit.coefficients.items() if one.value}
    return known if known is not None and set(known.names) <= in_profile else None


def _source(fit: Fit) -> str:
    errors = "misfit" if fit.num_launches < 2 else f"{fit.num_launches} launches"
    return f"least squares on the relative errors of {fit.num_times} times; error from the {errors}"


def _coefficient(fitted: Fitted, unit: str, source: str, prior: Prior | None) -> Coefficient:
    value = rounded(fitted.value)
    if fitted.upper is not None:
        at_bound = f"{source}; at its lower end: below 'upper' with 95 % confidence"
        upper = rounded(fitted.upper)
        return Coefficient(
            value=value, standard_error=None, upper=upper, unit=unit, origin="measured", source=at_bound
        )
    if fitted.standard_error is not None:
        return Coefficient(
            value=value, standard_error=rounded(fitted.standard_error), unit=unit, origin="measured", source=source
        )
    if prior is None:
        return Coefficient(
            value=value, standard_error=None, unit=unit, origin="convention", source="not determined by the rows: none"
        )
    return Coefficient(value=value, standard_error=None, unit=unit, origin="prior", source=prior.source)


def _constant(fitted: Fitted, source: str) -> Coefficient:
    if fitted.standard_error is not None or fitted.upper is not None:
        return _coefficient(fitted, "s", source, None)
    return Coefficient(
        value=0.0,
        standard_error=None,
        unit="s",
        origin="convention",
        source="part of the host time: a request served alone cannot tell them apart",
    )


def _noise(fit: Fit) -> Coefficient | None:
    if fit.step_noise_s is None:
        return None
    return Coefficient(
        value=fit.step_noise_s,
        standard_error=None,
        unit="s, standard deviation of one step",
        origin="convention",
        source="pooled deviation of repeated decode steps within their launches, at most a sixth of the shortest step",
    )


def _memory(files: Sequence[Measurements], known: Known) -> Memory:
    """Memory of one device, such that the engine's own number of KV blocks comes out where it was recorded."""
    rank, device = known.rank, known.device
    weights = Bytes(
        value=rank.weight_bytes, origin="prior", source=f"geometry: {known.geometry.source}{known.whose}"
    )
    header = next((header for file in files for header in file.headers if header.capacity), None)
    if header is None or header.capacity is None:
        if device is None:
            raise InputError("no launch recorded its KV blocks, so the memory needs a data sheet: pass --device NAME")
        total = Bytes(value=device.memory_bytes, origin="prior", source=device.memory_source)
        other = Bytes(value=_OTHER_BYTES, origin="prior", source=_OTHER_SOURCE)
        return Memory(device=total, weights=weights, other=other)
    capacity = header.capacity
    utilization = float(header.engine_args.get("gpu_memory_utilization", _DEFAULT_UTILIZATION))
    kv_bytes = capacity.num_gpu_blocks * capacity.block_size * rank.kv_bytes_per_token
    allotted = f"the engine allotted {capacity.num_gpu_blocks} blocks at a utilization of {utilization:g}"
    rest = 0 if device is None else int(device.memory_bytes * utilization) - weights.value - kv_bytes
    if device is not None and rest >= 0:
        return Memory(
            device=Bytes(value=device.memory_bytes, origin="prior", source=device.memory_source),
            weights=weights,
            other=Bytes(value=rest, origin="measured", source=f"what remains: {allotted}"),
        )
    # A byte more, so that rounding down cannot lose a block.
    total_bytes = int((kv_bytes + weights.value + 1) / utilization) + 1
    return Memory(
        device=Bytes(value=total_bytes, origin="measured", source=f"so much that the pool comes out: {allotted}"),
        weights=weights,
        other=Bytes(value=0, origin="convention", source="counted as memory that is not there"),
    )


def _rows(file: Measurements) -> Rows:
    header = file.header
    return Rows(
        file=file.file,
        num_rows=len(file.rows),
        sha256=file.sha256,
        measured=header.measured,
        source=f"{header.source} (licence: {header.license})",
    )
