"""Results of load-testing tools, recognised by what is in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

from calibration.benchmarks.benchmark import Benchmark
from calibration.benchmarks.consistency import doubts
from calibration.benchmarks.readers import aiperf, guidellm, inference_perf, llmd, table, vllm_serve
from calibration.benchmarks.readers.documents import json_documents, read_text, yaml_document
from calibration.benchmarks.readers.fields import Fields
from simulator.errors import InputError, nearest

__all__ = ["read_benchmarks", "read_unchecked", "selected"]

_READERS: tuple[ModuleType, ...] = (vllm_serve, guidellm, aiperf, inference_perf, llmd)
_KNOWN = "; ".join(f"{reader.TOOL} ({reader.EXPECTED})" for reader in (*_READERS, table))


def read_benchmarks(path: Path, where: Mapping[str, str] | None = None) -> list[Benchmark]:
    """All load tests of a result file; of a CSV, the rows whose columns have the values of ``where``.

    Raises InputError for a file of an unknown tool, for missing or impossible fields, and for figures that contradict
    each other (see ``consistency.doubts``, which also has the warnings). Rows not asked for are not looked at.
    """
    benchmarks = read_unchecked(path, where)
    for benchmark in benchmarks:
        doubts(benchmark)
    return benchmarks


def read_unchecked(path: Path, where: Mapping[str, str] | None = None) -> list[Benchmark]:
    """The same, of figures that may contradict each other. Raises InputError otherwise alike."""
    text = read_text(path)
    if not text.strip():
        raise InputError(f"{path.name}: the file is empty, expected the results of {_KNOWN}")
    if text.lstrip()[0] in "{[":
        found = _documents(text, path)
    elif _is_table(text):
        return _table(text, path, where or {})
    else:
        found = _read(yaml_document(text, path.name), path.name, path.stem)
    return selected(found, where) if where else found


def selected(benchmarks: Iterable[Benchmark], where: Mapping[str, str]) -> list[Benchmark]:
    """Those whose columns have these values. Raises InputError for a column that none of them has."""
    return [benchmark for benchmark in benchmarks if _matches(benchmark.columns, where, benchmark.file)]


def _matches(columns: Mapping[str, str], where: Mapping[str, str], file: str) -> bool:
    for name in where:
        if name not in columns:
            known = nearest(name, columns) if columns else " (only a CSV has columns)"
            raise InputError(f"{file}: no column {name!r}{known}")
    return all(columns[name] == value for name, value in where.items())


def _documents(text: str, path: Path) -> list[Benchmark]:
    documents = list(json_documents(text, path.name))
    if len(documents) == 1 and isinstance(documents[0][1], Mapping):
        return _read(documents[0][1], path.name, path.stem)
    return [
        benchmark
        for line, document in documents
        for number, one in enumerate(document if isinstance(document, list) else [document])
        for benchmark in _read(one, f"{path.name}, line {line}", f"{path.stem}-{line + number}")
    ]


def _read(document: object, where: str, name: str) -> list[Benchmark]:
    if isinstance(document, Mapping):
        for reader in _READERS:
            if reader.recognises(document):
                found: list[Benchmark] = reader.read(Fields(document, where), name)
                return found
    raise InputError(f"{where}: the results of no known tool, expected those of {_KNOWN}")


def _is_table(text: str) -> bool:
    header = {name.strip().strip('"') for name in text.lstrip().partition("\n")[0].split(",")}
    return len(header) > 1 and bool(header & table.COLUMNS)


def _table(text: str, path: Path, where: Mapping[str, str]) -> list[Benchmark]:
    found: list[Benchmark] = []
    lines: dict[str, int] = {}
    for line, columns in table.rows(text, path.name):
        if not _matches(columns, where, path.name):
            continue
        benchmark = table.read(line, columns, path.name, path.stem)
        if benchmark.name in lines:
            raise InputError(f"{benchmark.file}: id {columns['id']!r} is that of line {lines[benchmark.name]} too")
        lines[benchmark.name] = line
        found.append(benchmark)
    return found
