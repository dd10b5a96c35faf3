"""How commands ask for a file of recorded requests, and open it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simulator.errors import InputError

if TYPE_CHECKING:
    from simulator.workload.readers import FileTrace

# Options of formats that are numbers, and what reads them in `simulator.units`; the others are paths.
_OPTIONS = {
    "block_tokens": "positive_count", "seed": "count", "start_s": "duration_s", "duration_s": "positive_duration_s",
    "gap_s": "positive_duration_s",
}  # fmt: skip


class Quantity(click.ParamType):
    """A number as `simulator.units` reads it."""

    def __init__(self, reader: str, name: str) -> None:
        self.reader, self.name = reader, name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ARG002
        """Raises InputError that names the option."""
        from simulator import units

        try:
            return getattr(units, self.reader)(value)
        except InputError as error:
            raise InputError(f"{param.opts[0] if param else 'value'}: {error}") from None


def options(*decorators: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options of a command as one decorator, in this order."""

    def decorate(function: Any) -> Any:
        for option in reversed(decorators):
            function = option(function)
        return function

    return decorate


READING = options(
    click.option("--format", "format_", metavar="NAME", help="Format of the file [told by its content]."),
    click.option(
        "--option", "options", multiple=True, metavar="NAME=VALUE",
        help="What the format leaves open (repeatable), such as tokenizer=tokenizer.json for files of texts.",
    ),
    click.option("--strict", is_flag=True, help="Refuse lines that cannot be used, instead of counting them."),
)  # fmt: skip
"""What `opened_trace` wants to know beside the path."""


def opened_trace(path: Path, format_: str | None, options: Sequence[str], strict: bool) -> FileTrace:
    """The file, opened as READING says. Raises InputError."""
    from simulator.workload.readers import open_trace

    return open_trace(path, format_, strict=strict, **format_options(options))


def format_options(given: Sequence[str]) -> dict[str, Any]:
    """``NAME=VALUE`` of a format's own options, numbers read. Raises InputError."""
    return dict(map(_option, given))


def _option(given: str) -> tuple[str, Any]:
    from simulator import units

    name, equals, value = given.partition("=")
    if not equals:
        raise InputError(f"--option: got {given!r}, expected NAME=VALUE")
    if name not in _OPTIONS:
        return name, value  # a path, or a name that no format knows
    try:
        return name, getattr(units, _OPTIONS[name])(value)
    except InputError as error:
        raise InputError(f"--option {name}: {error}") from None
