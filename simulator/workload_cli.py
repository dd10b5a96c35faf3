"""``kvcast workload ...``: the command group that ``kvcast`` loads by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from simulator.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulator.workload.records import Record, Trace
    from simulator.workload_fit.fit import Fit

_PATH = click.Path(path_type=Path)
_LIMITS = (
    "What it has: rate and bursts, lengths by class of prompt, what threads keep and add, when they go on. Not: which "
    "text was which, drift of lengths, answers that later prompts quote (they count as new text)."
)
_TEXT_BLOCK = 16  # vLLM's default block on GPUs, for files whose texts are known token by token


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def workload() -> None:
    """Make generators of requests out of recorded ones."""


@workload.command(context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.argument("trace", type=_PATH)
@click.option("--format", "format_", metavar="NAME", help="Format of the file [told by its content].")
@click.option("--first-half", is_flag=True, help="Fit to the first half of the requests only.")
@click.option(
    "--requests", type=click.IntRange(min=1), metavar="N",
    help="How many requests the generator draws [as many as the trace has]. A pool is fitted so that it lasts.",
)
@click.option("--name", help="Name of the tenant [the file's].")
@click.option("--compare", is_flag=True, help="Print trace and generator side by side, over three seeds.")
@click.option("-o", "--output", type=_PATH, help="Write the YAML there instead of printing it.")
def fit(
    trace: Path,
    format_: str | None,
    first_half: bool,
    requests: int | None,
    name: str | None,
    compare: bool,
    output: Path | None,
) -> None:
    """Fit a generator to TRACE: the workload block of a scenario, with a tenant whose prompts grow into a tree.

    It knows no text and no request of TRACE, only tables of lengths, pauses and what is kept from prompt to prompt.
    With --first-half, --compare judges it by the second half too, of which it has seen no more than how many requests
    it has.
    """
    from simulator.trace_tools.new_file import check_apart, new_file
    from simulator.workload.readers import open_trace
    from simulator.workload_fit.fit import fit as fit_to
    from simulator.workload_fit.observed import read
    from simulator.workload_fit.written import text

    if name == "":
        raise InputError("--name: is empty, expected a name for the tenant")
    if output is not None:
        check_apart(output, [trace])
        if not output.parent.is_dir():
            raise InputError(f"{output}: cannot write it (no folder {output.parent})")
    opened = open_trace(trace, format_)
    records = read(opened, trace)
    block_tokens = opened.block_tokens if (opened.block_tokens or 1) > 1 else _TEXT_BLOCK
    assert block_tokens is not None
    part = records[: len(records) // 2] if first_half else records
    found = fit_to(part, block_tokens, trace, requests or len(records))
    written = text(name or trace.name.partition(".")[0], found.source, _comments(opened, trace, part, records, found))
    if output is None:
        click.echo(written, nl=False)
    else:
        with new_file(output) as target:
            target.write(written.encode())
        click.echo(f"{output}: {len(written.encode()):,} bytes, {found.words[0]}; {found.words[-1]}")
    if compare:
        _compare(records, len(part), found, block_tokens, as_comment=output is None)


def _comments(
    opened: Trace, path: Path, part: Sequence[Record], records: Sequence[Record], found: Fit
) -> list[str]:
    whole = "all" if len(part) == len(records) else "the first"
    span_s = part[-1].arrival_s - part[0].arrival_s
    seen = f"Fitted by kvcast workload fit to {path.name} (format {opened.format}): {whole} {len(part):,} requests, "
    return [
        f"{seen}{span_s:,.0f} s; {'; '.join(found.words)}.",
        _LIMITS,
    ]


def _compare(
    records: Sequence[Record], num_fitted: int, found: Fit, block_tokens: int, as_comment: bool
) -> None:
    """The tables, behind the YAML as comments."""
    import io

    from rich.console import Console

    from simulator.workload_fit import comparison

    parts = [("What it was fitted to", records[:num_fitted], 0)]
    if num_fitted < len(records):
        parts.append(("The second half, which it has not seen", records, num_fitted))
    for title, part, start in parts:
        sides = comparison.compare(part, found, start, block_tokens)
        console = Console(file=io.StringIO(), width=100) if as_comment else Console()
        console.print(comparison.table(f"{title} ({len(part) - start:,} requests)", sides))
        for line in comparison.words(sides):
            console.print(line, highlight=False)
        if as_comment:
            assert isinstance(console.file, io.StringIO)
            click.echo("".join(f"# {line}".rstrip() + "\n" for line in console.file.getvalue().splitlines()), nl=False)
