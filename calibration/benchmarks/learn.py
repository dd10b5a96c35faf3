"""What ``calibrate from-benchmarks`` does, from result files to a profile and what is printed of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from calibration.arguments import engine_arguments
from calibration.benchmarks.assembly import Subject, assemble, draft, lines
from calibration.benchmarks.belief import believe
from calibration.benchmarks.benchmark import Benchmark
from calibration.benchmarks.consistency import doubts, one_engine
from calibration.benchmarks.invert import Inversion, states_pool
from calibration.benchmarks.play import engine_of
from calibration.benchmarks.readers import read_benchmarks
from calibration.devices import is_sheet, load_device
from calibration.geometry import load_geometry
from calibration.roofline import Prior, roofline
from simulator.engine_args import EngineConfig, refusal
from simulator.errors import InputError
from simulator.profile import Identity, Profile, Rows, first_problem


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    model: str
    device: str
    vllm: str
    tested_on: str | None = None
    geometry: Path | None = None
    dtype: str = "bfloat16"
    tensor_parallel_size: int = 1
    vllm_ascend: str | None = None
    graph_mode: str = "not stated"
    engine_args: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    jobs: int | None = None


def learn(name: str, paths: Sequence[Path], options: Options) -> tuple[Profile, str]:
    """The profile of these results, and what to print of it. Raises InputError for what cannot be read or simulated."""
    benchmarks, rows = _read(paths, _pairs(options.where))
    stated = [version for version in (options.vllm_ascend, options.vllm) if version not in (None, "not stated")]
    doubtful = one_engine(benchmarks, options.model, stated[0] if stated else None)
    subject = _subject(name, options, rows)
    sheet = roofline(subject.geometry, subject.device, options.tensor_parallel_size)
    first = draft(subject, believe(sheet))
    given = engine_arguments(options.engine_args)
    benchmarks = [_with_engine(benchmark, given) for benchmark in benchmarks]
    configs = [_engine(benchmark, first) for benchmark in benchmarks]
    belief = believe(sheet, _pool(benchmarks, configs))
    solution = Inversion(benchmarks, configs, belief, options.jobs).solve()
    profile = assemble(_as_run(subject, benchmarks, configs), belief, solution, benchmarks, configs)
    doubtful += [words for benchmark in benchmarks for words in doubts(benchmark)]
    warned = [f"  doubt: {words}" for words in dict.fromkeys(doubtful)]
    return profile, "\n".join((*lines(profile, belief, solution, benchmarks, configs), *warned))


def _as_run(subject: Subject, benchmarks: Sequence[Benchmark], configs: Sequence[EngineConfig]) -> Subject:
    """The subject with what all tests had in common: scheduling, block size and the share of memory."""
    asynchronous = {config.async_scheduling for config in configs}
    sizes = {config.block_size for config in configs}
    shares = {benchmark.engine.get("gpu_memory_utilization", subject.utilization) for benchmark in benchmarks}
    changes: dict[str, object] = {"async_scheduling": asynchronous.pop() if len(asynchronous) == 1 else None}
    if len(sizes) == 1:
        changes["block_size"] = sizes.pop()
    identity = subject.identity.model_copy(update=changes)
    return replace(subject, identity=identity, utilization=shares.pop() if len(shares) == 1 else subject.utilization)


def _with_engine(benchmark: Benchmark, given: Mapping[str, object]) -> Benchmark:
    """The benchmark of an engine with these arguments too. Expert parallelism is not among the simulated ones."""
    for name, value in given.items():
        if name in benchmark.engine and benchmark.engine[name] != value:
            raise InputError(f"{benchmark.file}: {name} is {benchmark.engine[name]!r}, --engine-arg says {value!r}")
    engine = {**benchmark.engine, **given}
    if not engine.pop("enable_expert_parallel", False):
        return replace(benchmark, engine=engine)
    words = "expert parallelism: a rank reads and computes as much of the experts as with tensor parallelism"
    return replace(benchmark, engine=engine, assumed=(*benchmark.assumed, words))


def _pool(benchmarks: Sequence[Benchmark], configs: Sequence[EngineConfig]) -> Prior | None:
    """Tokens that the data sheet's memory leaves for KV; None where every result states its pool."""
    for benchmark, config in zip(benchmarks, configs, strict=True):
        if not states_pool(benchmark):
            num_tokens = float((config.num_gpu_blocks - 1) * config.block_size)
            return Prior(num_tokens, "memory of the data sheet less weights and 2 GiB")
    return None


def _engine(benchmark: Benchmark, profile: Profile) -> EngineConfig:
    for name, value in benchmark.engine.items():
        if (problem := refusal(name, value)) is not None:
            raise InputError(f"{benchmark.file}: {name}: {problem}")
    try:
        return engine_of(benchmark, profile)
    except InputError as error:
        hint = ""
        if "bytes are left for KV" in str(error):
            memory = f"{profile.identity.tensor_parallel_size} x {profile.memory.device.value / 2**30:.0f} GiB"
            hint = f" (the weights do not fit {memory}: see --tensor-parallel-size)"
        raise InputError(f"{benchmark.file}: {error}{hint}") from None
    except ValidationError as error:
        raise InputError(f"{benchmark.file}: {first_problem(error)}") from None


def _read(paths: Sequence[Path], where: Mapping[str, str]) -> tuple[list[Benchmark], tuple[Rows, ...]]:
    benchmarks: list[Benchmark] = []
    rows: list[Rows] = []
    for path in paths:
        found = read_benchmarks(path, where)
        if not found:
            continue
        benchmarks += found
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if (same := next((row.file for row in rows if row.sha256 == digest), None)) is not None:
            raise InputError(f"{path}: the same as {same}, which would count its results twice")
        sources = "; ".join(dict.fromkeys(one.source for one in found if one.source)) or "not stated"
        rows.append(Rows(file=path.name, num_rows=len(found), sha256=digest, measured="not stated", source=sources))
    if not benchmarks:
        wanted = " and ".join(f"{key}={value}" for key, value in where.items())
        raise InputError(f"{', '.join(path.name for path in paths)}: no row with {wanted or 'a benchmark'}")
    return benchmarks, tuple(rows)


def _pairs(where: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for text in where:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(f"--where {text}: expected COLUMN=VALUE, for example model=Qwen3-8B")
        pairs[key.strip()] = value.strip()
    return pairs


def _subject(name: str, options: Options, rows: tuple[Rows, ...]) -> Subject:
    device = load_device(options.device)
    if options.vllm_ascend is not None and not device.is_ascend:
        raise InputError(f"--vllm-ascend: {device.name} is no Ascend device")
    ascend = device.is_ascend
    identity = Identity(
        device=options.tested_on or (device.name if is_sheet(options.device) else options.device),
        cann="not stated" if ascend else None,
        vllm=options.vllm,
        vllm_ascend=(options.vllm_ascend or "not stated") if ascend else None,
        model=options.model,
        dtype=options.dtype,
        tensor_parallel_size=options.tensor_parallel_size,
        pipeline_parallel_size=1,
        graph_mode=options.graph_mode,
        block_size=128 if ascend else 16,
    )
    geometry = load_geometry(options.model, options.geometry, options.dtype)
    return Subject(name, identity, geometry, device, rows)
