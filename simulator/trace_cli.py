"""``kvcast trace ...``: the command group that ``kvcast`` loads by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simulator.counts import counted
from simulator.errors import InputError, nearest
from simulator.trace_options import READING, Quantity, opened_trace, options

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simulator.trace_tools.stream import Stream

_KVCAST, _MOONCAKE = "kvcast", "mooncake"
_NEEDED = {"context_settings": {"help_option_names": ["-h", "--help"]}, "no_args_is_help": True}

_COUNT = Quantity("count", "number")
_POSITIVE_COUNT = Quantity("positive_count", "number")
_SECONDS = Quantity("duration_s", "seconds")
_FACTOR = Quantity("positive_number", "factor")
_PATH = click.Path(path_type=Path)

_WRITING = options(
    click.option("-o", "--output", type=_PATH, required=True, help="The file to write; gzipped if it ends in .gz."),
    READING,
)
_FILE = click.argument("file", type=_PATH)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def trace() -> None:
    """Look into files of recorded requests, and make new ones of them.

    Files are read as streams, plain or gzipped. New files appear whole or not at all, and never replace what they are
    made from.
    """


@trace.command(**_NEEDED)
@_FILE
@click.option(
    "--block-size", "block_sizes", type=_POSITIVE_COUNT, multiple=True,
    help="Tokens of a block (repeatable; the first is that of reuse distances) [the file's own, 16, 128].",
)  # fmt: skip
@READING
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON, and nothing else.")
@click.option("-o", "--output", type=_PATH, help="Folder for the figure (SVG, PNG) and the numbers (JSON).")
def info(file: Path, block_sizes: tuple[int, ...], as_json: bool, output: Path | None, **reading: Any) -> None:
    """Describe FILE in numbers and a figure.

    Rate, lengths, what a prefix cache can hit, reuse, popular prefixes, sessions, tenants, and what may mislead.
    """
    from simulator.trace_tools.info import summarise
    from simulator.trace_tools.traps import traps

    if output is not None:
        from simulator.report import check_writable

        check_writable(output)
    found, samples = summarise(opened_trace(file, **reading), file, block_sizes)
    numbers = {"file": file.name, **found.to_json(), "traps": traps(found)}
    if as_json:
        click.echo(_json(numbers))
    else:
        from rich.console import Console

        from simulator.trace_tools.table import print_info

        print_info(found, Console())
    if output is not None:
        from simulator.trace_tools.figure import figure_of

        _write_info(output, figure_of(found, samples, file.name), numbers)
        if not as_json:
            click.echo(f"Figure: {output / 'trace.svg'}")


@trace.command(**_NEEDED)
@_FILE
@click.option("--to", "name", default=_KVCAST, show_default=True, help="Format of the new file: kvcast or mooncake.")
@_WRITING
def convert(file: Path, name: str, output: Path, **reading: Any) -> None:
    """Write FILE in another format.

    kvcast's own keeps everything; Mooncake's JSON lines are for other tools, and what they lose is said.
    """
    if name not in (_KVCAST, _MOONCAKE):
        raise InputError(f"--to: unknown format {name!r}{nearest(name, (_KVCAST, _MOONCAKE))}")
    _write([file], output, reading, lambda streams: streams[0], name)


@trace.command("slice", **_NEEDED)
@_FILE
@click.option("--from", "start_s", type=_SECONDS, default="0", help="Only from this time on [0].")
@click.option("--to", "end_s", type=_SECONDS, help="Only before this time.")
@click.option("--sessions", "num_sessions", type=_POSITIVE_COUNT, help="Only so many sessions, drawn at random.")
@click.option("--seed", type=_COUNT, default="0", show_default=True, help="Which sessions are drawn.")
@click.option("--first", type=_POSITIVE_COUNT, help="Only the first so many requests of what is left.")
@_WRITING
def slice_command(
    file: Path, output: Path, start_s: float, end_s: float | None, num_sessions: int | None, seed: int,
    first: int | None, **reading: Any,
) -> None:  # fmt: skip
    """Write a part of FILE; times stay as they are."""
    from simulator.trace_tools.edit import cut

    if not (start_s or end_s or num_sessions or first):
        raise InputError("slice: nothing to cut away, expected --from, --to, --first or --sessions")
    if end_s is not None and end_s <= start_s:
        raise InputError(f"--to: got {end_s:g} s, which is not after --from ({start_s:g} s)")
    _write([file], output, reading, lambda streams: cut(streams[0], start_s, end_s, first, num_sessions, seed))


@trace.command(**_NEEDED)
@_FILE
@click.option("--rate", type=_FACTOR, default="1", help="So many times as many requests a second, delays shortened.")
@click.option("--lengths", type=_FACTOR, default="1", help="So many times as many tokens in prompts and answers.")
@_WRITING
def scale(file: Path, output: Path, rate: float, lengths: float, **reading: Any) -> None:
    """Write FILE faster or longer.

    Prompts share as much as they did.
    """
    from simulator.trace_tools.edit import scaled

    if rate == lengths == 1:
        raise InputError("scale: nothing to change, expected --rate or --lengths")
    _write([file], output, reading, lambda streams: scaled(streams[0], rate, lengths))


@trace.command(**_NEEDED)
@click.argument("files", nargs=-1, required=True, type=_PATH, metavar="FILE FILE...")
@click.option("--parts", is_flag=True, help="FILEs are parts of one trace: texts, sessions, tenants stay the same.")
@_WRITING
def merge(files: tuple[Path, ...], output: Path, parts: bool, **reading: Any) -> None:
    """Write FILEs as one, each a tenant.

    Requests are ordered by time. A tenant is named after its file, and tenants share no text.
    """
    from simulator.trace_tools.merge import merged, tenants_of

    if len(files) == 1:
        raise InputError(f"merge: got one file ({files[0]}), expected at least two")
    tenants = None if parts else tenants_of(files)
    _write(files, output, reading, lambda streams: merged(streams, tenants))


@trace.command(**_NEEDED)
@_FILE
@_WRITING
def anonymise(file: Path, output: Path, **reading: Any) -> None:
    """Write FILE without names, times from 0.

    Texts, sessions and tenants are numbered in order of appearance.
    """
    from simulator.trace_tools.edit import anonymised

    _write([file], output, reading, lambda streams: anonymised(streams[0]))


def _write(
    files: Sequence[Path],
    output: Path,
    reading: dict[str, Any],
    edit: Callable[[list[Stream]], Stream],
    name: str = _KVCAST,
) -> None:
    """Read the ``files``, edit, write ``output`` and say so."""
    from simulator.trace_tools.mooncake_format import mooncake_lines
    from simulator.trace_tools.new_file import check_apart, new_file
    from simulator.trace_tools.own_format import own_lines
    from simulator.trace_tools.stream import opened

    check_apart(output, files)
    stream = edit([opened(opened_trace(path, **reading), path) for path in files])
    lines, num_headers = (own_lines(stream), 1) if name == _KVCAST else (mooncake_lines(stream), 0)
    num_requests = -num_headers
    with new_file(output) as target:
        for line in lines:
            target.write(line.encode() + b"\n")
            num_requests += 1
        if num_requests < 1:
            raise InputError(f"{files[0]}: no request is left to write")
    for note in stream.notes:
        click.echo(note)
    click.echo(f"{output}: {counted(num_requests, 'request')}, format {name}")


def _write_info(folder: Path, figure: Figure, numbers: dict[str, Any]) -> None:
    """The figure as SVG and PNG, and the numbers as JSON."""
    from simulator.plots import svg

    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "trace.svg").write_text(svg(figure), encoding="utf-8")
        figure.savefig(folder / "trace.png", dpi=150)
        (folder / "trace.json").write_text(_json(numbers) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder}: cannot write there ({error.strerror})") from None


def _json(found: Any) -> str:
    return json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False)
