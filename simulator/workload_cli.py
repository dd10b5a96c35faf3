"""``kvcast workload ...``: the command group that ``kvcast`` loads by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from simulator.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from simulator.workload.records import Record
    from simulator.workload_fit.comparison import Side
    from simulator.workload_fit.fit import Fit
    from simulator.workload_fit.parts import Part, Parts

_PATH = click.Path(path_type=Path)
_LIMITS = (
    "What it has: rate and bursts, lengths by class of prompt, what threads keep and add, when they go on. Not: which "
    "text was which, drift of lengths, answers that later prompts quote (they count as new text)."
)
_TEXT_BLOCK = 16  # vLLM's default block on GPUs, for files whose texts are known token by token


class _Fitted(NamedTuple):
    """``name``: of the tenant that is written. The first ``num`` of the part's records were fitted to."""

    name: str
    part: Part
    num: int
    fit: Fit


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def workload() -> None:
    """Make generators of requests out of recorded ones."""


@workload.command(context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.argument("trace", type=_PATH)
@click.option("--format", "format_", metavar="NAME", help="Format of the file [told by its content].")
@click.option("--tenant", metavar="NAME", help="Fit to this tenant's requests only [each tenant by itself].")
@click.option("--as-one", is_flag=True, help="Fit to all tenants' requests together, as if one sent them.")
@click.option("--first-half", is_flag=True, help="Fit to the first half of the requests (of each tenant) only.")
@click.option(
    "--requests", type=click.IntRange(min=1), metavar="N",
    help="How many requests the generators draw in all [as many as the trace has]. A pool is fitted so that it lasts.",
)
@click.option("--name", help="Name of the tenant, where there is one [the file's, or that of --tenant].")
@click.option("--compare", is_flag=True, help="Print trace and generator side by side, over three seeds.")
@click.option("-o", "--output", type=_PATH, help="Write the YAML there instead of printing it.")
def fit(
    trace: Path,
    format_: str | None,
    tenant: str | None,
    as_one: bool,
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

    Of a TRACE that names several tenants each is fitted by itself and written under its own name; those with too few
    requests are fitted together, as "others". No generator shares text with another: what that loses is said, and
    --as-one keeps it.
    """
    from simulator.trace_tools.new_file import check_apart, new_file
    from simulator.workload.readers import open_trace
    from simulator.workload_fit import apart
    from simulator.workload_fit.observed import read
    from simulator.workload_fit.written import entry, text

    if name == "":
        raise InputError("--name: is empty, expected a name for the tenant")
    if tenant is not None and as_one:
        raise InputError("--tenant: does not go with --as-one, expected one of them")
    if output is not None:
        check_apart(output, [trace])
        if not output.parent.is_dir():
            raise InputError(f"{output}: cannot write it (no folder {output.parent})")
    opened = open_trace(trace, format_)
    records = read(opened, trace)
    chosen = _chosen(records, trace, opened.format, tenant, as_one, first_half)
    if name is not None and len(chosen.parts) > 1:
        raise InputError(f"--name: {trace} has {len(chosen.parts)} tenants to fit to, expected --tenant or --as-one")
    block_tokens = opened.block_tokens if (opened.block_tokens or 1) > 1 else _TEXT_BLOCK
    assert block_tokens is not None
    fitted = _fitted(chosen.parts, opened.format, block_tokens, first_half, requests, name)
    notes = [*chosen.notes, *apart.notes(records, chosen.parts, block_tokens)]
    seen = f"Fitted by kvcast workload fit to {trace.name} (format {opened.format})"
    comments = [*_comments(seen, fitted, tenant), *notes, _LIMITS]
    written = text([entry(one.name, one.fit.source) for one in fitted], comments)
    if output is None:
        click.echo(written, nl=False)
    else:
        with new_file(output) as target:
            target.write(written.encode())
        for line in (*_summary(f"{output}: {len(written.encode()):,} bytes", fitted), *notes):
            click.echo(line)
    if compare:
        _compare(fitted, block_tokens, as_comment=output is None)


def _chosen(
    records: list[Record], path: Path, format_: str, tenant: str | None, as_one: bool, first_half: bool
) -> Parts:
    from simulator.workload_fit import parts

    name = path.name.partition(".")[0]
    if tenant is not None:
        return parts.of_tenant(records, tenant, path, format_)
    if as_one:
        return parts.whole(records, name, path)
    return parts.by_tenant(records, name, path, 0.5 if first_half else 1.0)


def _fitted(
    parts: Sequence[Part], format_: str, block_tokens: int, first_half: bool, requests: int | None, name: str | None
) -> list[_Fitted]:
    from simulator.workload_fit.fit import fit as fit_to
    from simulator.workload_fit.observed import check_texts
    from simulator.workload_fit.parts import shares_of

    numbers = [len(part.records) for part in parts] if requests is None else shares_of(requests, parts)
    for part in parts:
        check_texts(part.records, part.where, format_)
    found = []
    for part, number in zip(parts, numbers, strict=True):
        num = len(part.records) // 2 if first_half else len(part.records)
        generator = fit_to(part.records[:num], block_tokens, part.where, number)
        found.append(_Fitted(name or part.name, part, num, generator))
    return found


def _comments(seen: str, fitted: Sequence[_Fitted], tenant: str | None) -> Iterator[str]:
    if len(fitted) == 1:
        yield f"{seen}{'' if tenant is None else f', tenant {tenant}'}: {_what(fitted[0])}."
        return
    yield f"{seen}, each tenant by itself:"
    for one in fitted:
        yield f"{one.name}: {_what(one)}."


def _what(one: _Fitted) -> str:
    part = one.part.records[: one.num]
    share = "all" if one.num == len(one.part.records) else "the first"
    return f"{share} {one.num:,} requests, {part[-1].arrival_s - part[0].arrival_s:,.0f} s; {'; '.join(one.fit.words)}"


def _summary(file: str, fitted: Sequence[_Fitted]) -> Iterator[str]:
    if len(fitted) == 1:
        yield f"{file}, {'; '.join(fitted[0].fit.words)}"
        return
    yield f"{file}, {len(fitted)} tenants"
    for one in fitted:
        yield f"{one.name}: {'; '.join(one.fit.words)}"


def _compare(fitted: Sequence[_Fitted], block_tokens: int, as_comment: bool) -> None:
    """The tables, behind the YAML as comments."""
    from simulator.workload_fit import comparison

    for one in fitted:
        whose = "" if len(fitted) == 1 else f"{one.name}. "
        records = one.part.records
        sides = comparison.compare(records[: one.num], one.fit, 0, block_tokens)
        _print(f"{whose}What it was fitted to ({one.num:,} requests)", sides, as_comment)
        if one.num < len(records):
            title = f"{whose}The second half, which it has not seen ({len(records) - one.num:,} requests)"
            _print(title, comparison.compare(records, one.fit, one.num, block_tokens), as_comment)
    if len(fitted) > 1 and all(one.num == len(one.part.records) for one in fitted):
        together = sorted((record for one in fitted for record in one.part.records), key=lambda one: one.arrival_s)
        sides = comparison.together(together, [(one.name, one.fit, one.num) for one in fitted], block_tokens)
        _print(f"All tenants together, in one cache ({len(together):,} requests)", sides, as_comment)


def _print(title: str, sides: Sequence[Side], as_comment: bool) -> None:
    import io

    from rich.console import Console

    from simulator.workload_fit import comparison

    console = Console(file=io.StringIO(), width=100) if as_comment else Console()
    console.print(comparison.table(title, sides))
    for line in comparison.words(sides):
        console.print(line, highlight=False)
    if as_comment:
        assert isinstance(console.file, io.StringIO)
        click.echo("".join(f"# {line}".rstrip() + "\n" for line in console.file.getvalue().splitlines()), nl=False)
