"""A profile is that of one engine: do all results name the same model, engine and version?"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from calibration.benchmarks.benchmark import Benchmark
from simulator.errors import InputError

# What a name adds to a model of the same shape: how it was trained further, when, and how its numbers are written.
_TRAINING = re.compile(r"-(instruct|chat|base|it|hf|thinking|\d{4})$")
_NUMBERS = re.compile(r"-(w\d+a\d+(kv\d+|c\d+)?|fp\d+|int\d+|mxfp\d+|nvfp\d+|bf16|awq|gptq|dynamic|quantized)$")
_VERSION = re.compile(r"\d+(\.\d+)+")
_OURS = ("vllm", "vllm-ascend")


def one_engine(benchmarks: Sequence[Benchmark], model: str, version: str | None) -> list[str]:
    """What is not said of model, engine and version, or looks odd, in words.

    ``version`` is the engine's as the command states it, None where it does not. Raises InputError naming two results
    where they differ in model, engine or version, and the first whose model is not ``model``.
    """
    return [
        *_models(benchmarks, model),
        *_same(benchmarks, "engine", _engine, lambda name: name.lower()),
        *_other_engines(benchmarks),
        *_same(benchmarks, "engine_version", lambda one: one.engine_version, _plain_version),
        *_versions(benchmarks, version),
    ]


def _models(benchmarks: Sequence[Benchmark], model: str) -> Iterator[str]:
    yield from _same(benchmarks, "model", lambda one: one.model, _shape)
    named = [one for one in benchmarks if one.model]
    for one in named:
        if _shape(one.model or "") != _shape(model):
            raise InputError(f"{one.file}: model is {one.model!r}, expected {model}, whose profile this is to be; "
                             f"{_way_out((one,), 'model')}")  # fmt: skip
    if not named:
        yield f"no result names its model; all are taken to be of {model}"
    for one in named[1:]:
        if _numbers(one.model or "") != _numbers(named[0].model or ""):
            yield (
                f"{named[0].file} is of {named[0].model}, {one.file} of {one.model}: one engine's numbers are written "
                f"one way"
            )
            return


def _same(
    benchmarks: Sequence[Benchmark], column: str, of: Callable[[Benchmark], str | None], plain: Callable[[str], str]
) -> Iterator[str]:
    """Refuses two that name different ones; yields words where only some name any."""
    word = column.replace("_", " ")
    named = [(one, name) for one in benchmarks if (name := of(one))]
    for one, name in named[1:]:
        first, other = named[0]
        if plain(name) != plain(other):
            raise InputError(f"{first.file}: {word} is {other!r}, but {one.file}: {name!r}, expected one: a profile is "
                             f"that of one engine; {_way_out((first, one), column)}")  # fmt: skip
    silent = [one for one in benchmarks if not of(one)]
    if named and silent:
        more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
        yield f"{silent[0].file}{more}: no {word} said, taken to be {named[0][1]} as in {named[0][0].file}"


def _way_out(results: Sequence[Benchmark], column: str) -> str:
    if any(column in one.columns for one in results):
        return f"choose rows with --where {column}=..."
    return "leave one of the files out (--where chooses among rows of a CSV)"


def _engine(benchmark: Benchmark) -> str | None:
    """Only a CSV names one: the others do not ask what they test."""
    name = benchmark.columns.get("engine", "").strip()
    return None if name.lower() in ("", "-", "not stated", "n/a", "none") else name


def _other_engines(benchmarks: Sequence[Benchmark]) -> Iterator[str]:
    first = next((one for one in benchmarks if _engine(one)), None)
    name = "" if first is None else _engine(first) or ""
    if first is not None and not name.lower().startswith(_OURS):
        yield f"{first.file}: the engine is {name}, which decides otherwise than vLLM and vllm-ascend, as simulated"


def _versions(benchmarks: Sequence[Benchmark], version: str | None) -> Iterator[str]:
    named = next((one for one in benchmarks if one.engine_version), None)
    if named is None or named.engine_version is None:
        if version is None:
            yield "neither the results nor the command say which version of the engine was tested"
    elif version is not None and not _agree(version, named.engine_version):
        yield f"{named.file}: the engine's version is {named.engine_version}, the command says {version}"


def _plain_version(text: str) -> str:
    """``vllm v0.11.0`` and ``0.11.0`` are one."""
    return " ".join(re.sub(r"^(vllm-ascend|vllm)?[\s=@:-]*v?(?=\d)", "", text.strip().lower()).split())


def _agree(one: str, other: str) -> bool:
    """Whether release numbers agree, as far as both go; texts without any may mean anything."""
    numbers = [match[0].split(".") for text in (one, other) if (match := _VERSION.search(text))]
    return len(numbers) < 2 or all(left == right for left, right in zip(*numbers, strict=False))


def _parts(model: str) -> tuple[str, tuple[str, ...]]:
    """A model's name without owner and additions, in lower case; and the additions on how numbers are written."""
    name, numbers = model.strip().rstrip("/").rpartition("/")[2].lower(), []
    while True:
        if match := _NUMBERS.search(name):
            numbers.append(match[1])
        elif (match := _TRAINING.search(name)) is None:
            return name, tuple(sorted(numbers))
        name = name[: match.start()]


def _shape(model: str) -> str:
    return _parts(model)[0]


def _numbers(model: str) -> tuple[str, ...]:
    return _parts(model)[1]
