"""One operator table: a CSV file, plain or gzipped, or a Parquet file, with the line of whatever is wrong in it."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from simulator.errors import InputError, nearest

_ENDINGS = (".csv", ".csv.gz", ".parquet")
_VERSION = re.compile(r"(\d+(?:\.\d+)+)(?:[.-]?(dev|a|b|rc|post)(\d+))?")
_STAGES = ("dev", "a", "b", "rc", None, "post")  # of one version, in their order


@dataclass(frozen=True)
class Table:
    """Rows as read, each with its number in the file, from 1, and what is needed to name the file as a source."""

    file: str
    rows: tuple[Mapping[str, Any], ...]
    sha256: str

    def numbers(self, where: Mapping[str, str], *columns: str) -> Iterator[tuple[float, ...]]:
        """These columns of the rows whose text columns are as in ``where``, as numbers.

        Raises InputError where a column is missing, a cell is no number, or it is below 0.
        """
        for column in (*where, *columns):
            if self.rows and column not in self.rows[0]:
                raise InputError(f"{self.file}: no column {column}{nearest(column, self.rows[0])}")
        for number, row in enumerate(self.rows, start=1):
            if all(str(row[column]) == value for column, value in where.items()):
                yield tuple(self._number(number, column, row[column]) for column in columns)

    def _number(self, row: int, column: str, cell: Any) -> float:
        try:
            value = float(cell)
        except (TypeError, ValueError):
            value = math.nan
        if not 0 <= value < math.inf:
            raise InputError(f"{self.file}: row {row}: {column}: got {str(cell)[:40]!r}, expected a number from 0 up")
        return value


def find_table(folders: Sequence[Path], name: str, *, required: bool = True) -> Table | None:
    """The table ``name``.csv, .csv.gz or .parquet in the first folder that has it; of a Parquet file the name may stand
    within a longer one, as published (``gemm_vllm_0.24.0_gemm_perf.parquet``); of several versions the highest
    counts (0.24.0 is above 0.9.0).

    Raises InputError where it is missing though ``required``, empty, or no such file.
    """
    for folder in folders:
        for ending in _ENDINGS:
            path = folder / f"{name}{ending}"
            if path.is_file():
                return _read(path)
        published = list(folder.glob(f"*_{name}_perf.parquet"))
        if published:
            return _read(max(published, key=lambda path: _version(path.name)))
    if required:
        listed = ", ".join(str(folder) for folder in folders)
        raise InputError(f"{listed}: no table {name} ({' or '.join(name + ending for ending in _ENDINGS)})")
    return None


def _version(file: str) -> tuple[str, tuple[int, ...], int, int, str]:
    """Sorts files by what stands before their version, then by the version's numbers."""
    match = _VERSION.search(file)
    if match is None:
        return file, (), 0, 0, file
    numbers = tuple(map(int, match[1].split(".")))
    return file[: match.start()], numbers, _STAGES.index(match[2]), int(match[3] or 0), file


def _read(path: Path) -> Table:
    content = path.read_bytes()
    try:
        rows = _parquet(content) if path.suffix == ".parquet" else _csv(content, zipped=path.suffix == ".gz")
    except (OSError, EOFError, UnicodeDecodeError, pa.ArrowException):
        raise InputError(f"{path.name}: not a {'Parquet' if path.suffix == '.parquet' else 'CSV'} file") from None
    if not rows:
        raise InputError(f"{path.name}: no rows")
    return Table(file=path.name, rows=tuple(rows), sha256=hashlib.sha256(content).hexdigest())


def _csv(content: bytes, *, zipped: bool) -> list[dict[str, Any]]:
    text = (gzip.decompress(content) if zipped else content).decode("utf-8")
    return list(csv.DictReader(line for line in io.StringIO(text) if not line.startswith("#")))


def _parquet(content: bytes) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(io.BytesIO(content)).to_pylist()
    return rows
