"""A fit to operator tables -> the profile that the simulator reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from calibration.devices import Device, load_device
from calibration.estimate import Fitted
from calibration.fit import Fit, rounded
from calibration.geometry import load_geometry
from calibration.observations import Observation, measured_range
from calibration.operators.claims import check_folders, check_tables
from calibration.operators.fitting import FORMULA, fit_tables, observe
from calibration.operators.host import given_host, host_prior
from calibration.operators.layouts import open_tables
from calibration.operators.origin import Origin, StepTables
from calibration.roofline import Prior, rank_roofline
from simulator.profile import (
    Bytes,
    Coefficient,
    HoldOut,
    Identity,
    Memory,
    Overhead,
    Profile,
    Provenance,
    Rows,
)
from simulator.step_time import FORMULAS

_OTHER_BYTES = 3 * 1024**3
_OTHER_SOURCE = "assumption: 3 GiB for activations, captured graphs, communication buffers and memory outside torch"
_NO_REQUEST = "no host time for a request is assumed, and the operators show none beside that for its tokens"
_BLOCK_SIZE = 16  # vLLM's on CUDA


@dataclass(frozen=True)
class Options:
    """The command's options; ``host_step`` is a duration in words."""

    layout: str
    model: str
    device: str
    geometry: Path | None = None
    tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    host_step: str | None = None


def from_tables(name: str, folders: tuple[Path, ...], options: Options) -> Profile:
    """The profile that these tables give. Raises InputError for bad options, and for tables that lack something or
    say that they are of something else.
    """
    device = load_device(options.device)
    geometry = load_geometry(options.model, options.geometry)
    rank = geometry.rank(
        options.tensor_parallel_size,
        expert_parallel=options.data_parallel_size > 1,
        data_parallel_size=options.data_parallel_size,
    )
    host = None if options.host_step is None else given_host(options.host_step)
    check_folders(folders, options.model, rank, device)
    tables = open_tables(options.layout, folders, rank, device)
    check_tables(tables.origin.tables, device)
    return build(Subject(name, options.model, tables, device, host))


@dataclass(frozen=True)
class Subject:
    """What the profile is of: the tables hold times of ``tables.rank``, ``host`` is what a step takes beside them."""

    name: str
    model: str
    tables: StepTables
    device: Device
    host: Prior | None = None

    @property
    def step_host(self) -> Prior:
        """Seconds of a step beyond its operators."""
        return self.host or host_prior(self.tables.rank.data_parallel_size)


def build(subject: Subject) -> Profile:
    """The profile of this subject; same tables, same profile. Raises InputError where the tables do not reach."""
    priors = {
        name: prior
        for name, prior in rank_roofline(subject.tables.rank, subject.device).items()
        if name in FORMULAS[FORMULA].coefficients
    }
    observations = observe(subject.tables)
    fit = fit_tables(observations, priors)
    return _profile(subject, fit, observations, priors)


def _profile(subject: Subject, fit: Fit, observations: list[Observation], priors: dict[str, Prior]) -> Profile:
    rank = subject.tables.rank
    source = (
        f"least squares on the relative errors of {fit.num_times} steps, each the sum of its operators' times "
        f"({_of(subject.tables.origin)}); error from the misfit"
    )
    return Profile(
        schema_version=1,
        name=subject.name,
        formula=FORMULA,
        coefficients={
            name: _coefficient(name, unit, fit.coefficients[name], source, subject, priors)
            for name, unit in FORMULAS[FORMULA].coefficients.items()
            if fit.coefficients[name].value or name not in FORMULAS[FORMULA].optional
        },
        overhead=Overhead(constant_s=_none("s"), prompt_token_s=_none("s per prompt token")),
        measured=measured_range(observations),
        identity=_identity(subject),
        provenance=Provenance(
            description=_description(subject),
            rows=tuple(_rows(subject.tables.origin)),
            hold_out=HoldOut(rule="ten folds of the steps, each predicted from the others", cases=()),
            evidence="operators",
        ),
        errors=fit.errors,
        max_model_len=rank.geometry.max_position_embeddings,
        kv_bytes_per_token=rank.kv_bytes_per_token,
        memory=_memory(subject),
    )


def _coefficient(
    name: str, unit: str, fitted: Fitted, source: str, subject: Subject, priors: dict[str, Prior]
) -> Coefficient:
    value = rounded(fitted.value)
    if name == "host_step_s":
        host = subject.step_host
        return Coefficient(
            value=rounded(host.value), standard_error=None, unit=unit, origin="convention", source=host.source
        )
    if name == "host_request_s":
        if not value:
            return Coefficient(value=0.0, standard_error=None, unit=unit, origin="convention", source=_NO_REQUEST)
        source += "; what operators take for a request beside its tokens, no host time"
    if fitted.upper is not None:
        source += "; at its lower end: below 'upper' with 95 % confidence"
        return Coefficient(
            value=value, standard_error=None, upper=rounded(fitted.upper), unit=unit, origin="measured", source=source
        )
    if fitted.standard_error is not None:
        return Coefficient(
            value=value, standard_error=rounded(fitted.standard_error), unit=unit, origin="measured", source=source
        )
    if name == "corner":
        chosen = "chosen among 1.5, 2, 3 and 4: the least mean error of the fitted steps"
        return Coefficient(value=value, standard_error=None, unit=unit, origin="convention", source=chosen)
    if name not in priors:
        return _none(unit)
    return Coefficient(value=value, standard_error=None, unit=unit, origin="prior", source=priors[name].source)


def _none(unit: str) -> Coefficient:
    return Coefficient(
        value=0.0, standard_error=None, unit=unit, origin="convention",
        source="operator tables begin where the engine has the request: not in them",
    )  # fmt: skip


def _of(origin: Origin) -> str:
    return f"{origin.source}, vLLM {origin.vllm}, {origin.device}"


def _description(subject: Subject) -> str:
    rank, origin = subject.tables.rank, subject.tables.origin
    num_ranks = rank.tensor_parallel_size
    words = (
        f"formula {FORMULA} fitted to operator tables ({_of(origin)}; licence: {origin.license}), geometry of "
        f"{rank.geometry.model}{f', one of {num_ranks} ranks' if num_ranks > 1 else ''}. Not in the tables: "
        f"{origin.left_out}. Host time, host_step_s, is a convention beside the fit: errors are those of operator times"
    )
    if rank.data_parallel_size == 1:
        return words
    return (
        f"{words}. {rank.data_parallel_size} data-parallel ranks with shared experts step together and are one engine "
        "here: max_num_seqs, max_num_batched_tokens and the pool are those of all ranks, and so is the prefix cache, "
        "which in truth each rank has for itself"
    )


def _rows(origin: Origin) -> list[Rows]:
    measured, source = f"vLLM {origin.vllm}", f"{origin.source} (licence: {origin.license})"
    return [
        Rows(file=table.file, num_rows=len(table.rows), sha256=table.sha256, measured=measured, source=source)
        for table in origin.tables
    ]


def _identity(subject: Subject) -> Identity:
    rank, origin = subject.tables.rank, subject.tables.origin
    return Identity(
        device=origin.device,
        vllm=origin.vllm,
        model=subject.model,
        dtype="bfloat16",
        tensor_parallel_size=rank.tensor_parallel_size,
        pipeline_parallel_size=1,
        graph_mode="operators timed one by one",
        async_scheduling=None,
        block_size=_BLOCK_SIZE,
    )


def _memory(subject: Subject) -> Memory:
    """Memory of one device; of replicas in lockstep, which are one engine here, that of all their devices."""
    rank, device, num = subject.tables.rank, subject.device, subject.tables.rank.data_parallel_size
    all_of = f", {num} of them" if num > 1 else ""
    return Memory(
        device=Bytes(value=num * device.memory_bytes, origin="prior", source=f"{device.memory_source}{all_of}"),
        weights=Bytes(
            value=num * rank.weight_bytes, origin="prior", source=f"geometry: {rank.geometry.source}{all_of}"
        ),
        other=Bytes(value=num * _OTHER_BYTES, origin="prior", source=f"{_OTHER_SOURCE}{all_of}"),
    )
