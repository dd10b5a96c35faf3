"""How tables and sentences are printed in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from textwrap import fill

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table

# Characters: more than any line has, and what a column that says what a row is may take without being wrapped.
_ENDLESS, _KEY_WIDTH = 100_000, 20


def empty_table(*columns: str) -> Table:
    """An empty table: the first column names things and stands left, numbers stand right."""
    made = Table(box=box.SIMPLE, pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column else "left", overflow="fold")
    return made


def bare_table() -> Table:
    """A table without columns yet, with a rule below its headings and no other."""
    return Table(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)


def print_table(table: Table, console: Console, num_keys: int = 1) -> None:
    """Print the table so that no word is broken, and nothing that stands right (a number with its unit or interval).

    What is too wide is wrapped between words. Columns for which there is no room then come in a table below, behind the
    first ``num_keys`` ones again, which say what a row is, or behind its number where these take more than half of the
    room.
    """
    columns = [_Column.of(column, console) for column in table.columns]
    keys, others = [one.as_key() for one in columns[:num_keys]], columns[num_keys:]
    if not _fits(table, [*keys, *others], console) and 2 * sum(one.least for one in keys) > console.width:
        keys, others = [_numbers(table.row_count, console)], [*keys, *others]
    while others:
        number = 1
        while number < len(others) and _fits(table, [*keys, *others[: number + 1]], console):
            number += 1
        console.print(_part(table, [*keys, *others[:number]], console))
        others = others[number:]


def print_line(console: Console, text: str, indent: str = "") -> None:
    """A sentence as it is: no markup, no colours for numbers. Where a terminal ends it is broken between words and goes
    on behind the ``indent``; elsewhere it stays one line.
    """
    if console.is_terminal:
        lines = (
            fill(line, console.width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
            for line in text.split("\n")
        )
        text = "\n".join(lines)
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def percent(share: float | None) -> str:
    """A share with one decimal; a dash where there is none."""
    return "–" if share is None else f"{share:.1%}"


@dataclass(frozen=True)
class _Column:
    """A column with the characters that it takes at least, and without any wrapping."""

    column: Column
    least: int
    whole: int

    @classmethod
    def of(cls, column: Column, console: Console) -> _Column:
        options = console.options.update(max_width=_ENDLESS)
        heading, *cells = (Measurement.get(console, options, one) for one in (column.header, *column.cells))
        widest = max((cell.maximum for cell in cells), default=0)
        least = widest if column.justify == "right" else max((cell.minimum for cell in cells), default=0)
        return cls(column, max(heading.minimum, least), max(heading.maximum, widest))

    def as_key(self) -> _Column:
        """Not wrapped, if it is not too wide for that."""
        return replace(self, least=max(self.least, min(self.whole, _KEY_WIDTH)))


def _numbers(count: int, console: Console) -> _Column:
    """The numbers of the rows, from 1."""
    table = Table()
    table.add_column("#", justify="right")
    for number in range(1, count + 1):
        table.add_row(str(number))
    return _Column.of(table.columns[0], console)


def _fits(table: Table, columns: Sequence[_Column], console: Console) -> bool:
    return _width(_with(table, columns, [one.least for one in columns]), console) <= console.width


def _part(table: Table, columns: Sequence[_Column], console: Console) -> Table:
    """These columns of the table: what one does not take of its share of the room is left to the others."""
    widths = [one.least for one in columns]
    left = max(0, console.width - _width(_with(table, columns, widths), console))
    wanting = sorted(range(len(columns)), key=lambda place: columns[place].whole - columns[place].least)
    for number, place in enumerate(wanting):
        more = min(columns[place].whole - columns[place].least, left // (len(columns) - number))
        widths[place] += more
        left -= more
    return _with(table, columns, widths)


def _with(table: Table, columns: Sequence[_Column], widths: Sequence[int]) -> Table:
    part = copy(table)
    part.columns, part.rows = [], []
    for one, width in zip(columns, widths, strict=True):
        part.add_column(one.column.header, justify=one.column.justify, overflow="fold", width=width)
    for cells, row in zip(zip(*(one.column.cells for one in columns), strict=True), table.rows, strict=True):
        part.add_row(*cells, style=row.style)
    return part


def _width(table: Table, console: Console) -> int:
    return Measurement.get(console, console.options.update(max_width=_ENDLESS), table).maximum
