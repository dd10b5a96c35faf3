"""Traces of comma-separated values whose first line names the columns, in any order."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias, TypeVar

from simulator.counts import counted
from simulator.errors import InputError
from simulator.workload.lines import numbered_lines
from simulator.workload.readers.fields import MAX_SECONDS, MAX_TOKENS, shown
from simulator.workload.readers.reading import FileTrace, Skips, Unusable
from simulator.workload.readers.recognition import Head
from simulator.workload.records import Record

Parsed = TypeVar("Parsed")
RowParser: TypeAlias = Callable[[list[str]], Parsed]


class ColumnTrace(FileTrace):
    """One request a line under a line of names. ``columns`` must be there, ``optional_columns`` may be."""

    columns: tuple[str, ...]
    optional_columns: tuple[str, ...] = ()

    @classmethod
    def recognises(cls, head: Head) -> bool:
        """Its columns."""
        return set(cls.columns) <= set(head.columns)

    @abstractmethod
    def _row_parser(self, places: tuple[int, ...]) -> RowParser[Record]:
        """What turns a line's values into a record. ``places`` are those of ``columns`` and then of
        ``optional_columns``, -1 where there is none. Raises Unusable.
        """

    def _read(self, skips: Skips) -> Iterator[tuple[int, Record]]:
        return parsed_rows(self.path, self.columns, self.optional_columns, self._row_parser, skips)


def parsed_rows(
    path: Path,
    columns: tuple[str, ...],
    optional_columns: tuple[str, ...],
    row_parser: Callable[[tuple[int, ...]], RowParser[Parsed]],
    skips: Skips,
) -> Iterator[tuple[int, Parsed]]:
    """Line and what ``row_parser(places)`` makes of its values. Raises InputError for a file without those columns."""
    lines = numbered_lines(path)
    number, header = next(lines, (0, b""))
    if not number:
        return
    names = [name.strip() for name in values(header.removeprefix(b"\xef\xbb\xbf"))]
    if missing := [name for name in columns if name not in names]:
        raise InputError(f"{path}:{number}: no column {missing[0]!r}, expected {', '.join(columns)}")
    parse = row_parser(
        tuple(names.index(name) if name in names else -1 for name in (*columns, *optional_columns))
    )
    for number, line in lines:
        skips.num_lines += 1
        try:
            parsed = parse(_row(line, len(names)))
        except Unusable as error:
            skips.add(number, str(error))
        else:
            yield number, parsed


def _row(line: bytes, num_values: int) -> list[str]:
    row = values(line)
    if len(row) != num_values:
        raise Unusable(f"{counted(len(row), 'value')}, expected {num_values} as in the first line")
    return row


def values(line: bytes) -> list[str]:
    """The line's values without quotes; what is no UTF-8 becomes a mark that no number contains."""
    text = line.decode(errors="replace").rstrip("\r\n")
    return (text.replace('"', "") if '"' in text else text).split(",")


def column_tokens(name: str, value: str) -> int:
    """A number of tokens, at least 1. Raises Unusable."""
    # Digits first: `int` also takes signs, blanks and underscores. Lengths first: no number of a thousand digits.
    if len(value) < 10 and value.isascii() and value.isdigit() and 0 < int(value) <= MAX_TOKENS:
        return int(value)
    stripped = value.strip().removesuffix(".0")
    if stripped != value:
        return column_tokens(name, stripped)
    raise Unusable(f"{name} is {shown(value)}, expected a whole number of tokens >= 1 and <= {MAX_TOKENS}")


def column_number(name: str, value: str, least: float = -MAX_SECONDS) -> float:
    """A finite number. Raises Unusable."""
    try:
        number = float("nan" if "_" in value else value)
    except ValueError:
        number = float("nan")
    if not least <= number <= MAX_SECONDS:
        raise Unusable(f"{name} is {shown(value)}, expected a number" + (f" >= {least:g}" if least >= 0 else ""))
    return number
