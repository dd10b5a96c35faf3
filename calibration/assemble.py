"""A fit with its rows, geometry and device -> the profile that the simulator reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from calibration.fit import OVERHEAD_SLOPE, Fit, Fitted, rounded
from calibration.geometry import Geometry
from calibration.measurement import Measurements
from calibration.observations import Observation, measured_range
from calibration.roofline import Device, Prior
from simulator.profile import Bytes, Coefficient, Memory, Overhead, Profile, Provenance, Rows
from simulator.step_time import FORMULAS

# Activations, communication buffers and memory outside torch. No start-up log of the measured engine was published.
_OTHER_BYTES = 2 * 1024**3
_OTHER_SOURCE = (
    "assumption: 2 GiB. A published start-up (Qwen3-30B-A3B, bfloat16, 2 devices of 64 GB: 25.53 GiB of KV beside "
    "about 28.4 GiB of weights) leaves 1.2 GiB at a utilization of 0.90 and 2.4 GiB at 0.92"
)


def assemble(
    name: str,
    fit: Fit,
    files: Sequence[Measurements],
    observations: Sequence[Observation],
    geometry: Geometry,
    device: Device,
    priors: Mapping[str, Prior],
) -> Profile:
    """The profile of this fit. Nothing in it depends on the clock or the machine: same rows, same profile."""
    source = f"least squares on the relative errors of {len(observations)} times"
    constant = Coefficient(
        value=0.0,
        standard_error=None,
        unit="s",
        origin="convention",
        source="part of the host time: a request served alone cannot tell them apart",
    )
    return Profile(
        schema_version=1,
        name=name,
        formula=fit.formula,
        coefficients={
            key: _coefficient(fit.coefficients[key], unit, source, priors.get(key))
            for key, unit in FORMULAS[fit.formula].coefficients.items()
        },
        overhead=Overhead(
            constant_s=constant,
            prompt_token_s=_coefficient(fit.coefficients[OVERHEAD_SLOPE], "s per prompt token", source, None),
        ),
        measured=measured_range(observations),
        identity=files[0].header.identity,
        provenance=Provenance(
            description=f"formula {fit.formula}; data sheet of {device.name}; geometry of {geometry.model}",
            rows=tuple(_rows(file) for file in files),
        ),
        errors=fit.errors,
        kv_bytes_per_token=geometry.kv_bytes_per_token,
        memory=Memory(
            device=Bytes(value=device.memory_bytes, origin="prior", source=device.memory_source),
            weights=Bytes(value=geometry.weight_bytes, origin="prior", source=f"geometry: {geometry.source}"),
            other=Bytes(value=_OTHER_BYTES, origin="prior", source=_OTHER_SOURCE),
        ),
    )


def _coefficient(fitted: Fitted, unit: str, source: str, prior: Prior | None) -> Coefficient:
    value = rounded(fitted.value)
    if fitted.standard_error is not None:
        return Coefficient(
            value=value, standard_error=rounded(fitted.standard_error), unit=unit, origin="measured", source=source
        )
    if prior is None:
        return Coefficient(
            value=value, standard_error=None, unit=unit, origin="convention", source="not determined by the rows: none"
        )
    return Coefficient(value=value, standard_error=None, unit=unit, origin="prior", source=prior.source)


def _rows(file: Measurements) -> Rows:
    header = file.header
    return Rows(
        file=file.file,
        num_rows=len(file.rows),
        sha256=file.sha256,
        measured=header.measured,
        source=f"{header.source} (licence: {header.license})",
    )
