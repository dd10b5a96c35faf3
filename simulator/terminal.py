"""How tables and sentences are printed in a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def empty_table(*columns: str) -> Table:
    """An empty table: the first column names things and stands left, numbers stand right; what is too long folds."""
    made = Table(box=box.SIMPLE, pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column else "left", overflow="fold")
    return made


def print_line(console: Console, text: str) -> None:
    """A sentence as it is: no markup, no colours for numbers, broken by the terminal alone."""
    console.print(escape(text), highlight=False, soft_wrap=True)


def percent(share: float | None) -> str:
    """A share with one decimal; a dash where there is none."""
    return "–" if share is None else f"{share:.1%}"
