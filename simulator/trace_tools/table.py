"""`kvcast trace info` for people: tables in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.markup import escape

from simulator.counts import counted
from simulator.terminal import empty_table, percent, print_line, print_table
from simulator.trace_tools.arrivals import Arrivals
from simulator.trace_tools.info import Info, Prompts
from simulator.trace_tools.sharing import Ideal
from simulator.trace_tools.spread import Spread
from simulator.trace_tools.traps import traps
from simulator.trace_tools.words import skipped_in_words

_NUM_PREFIXES = 8
_NUM_TENANTS = 10


def print_info(info: Info, console: Console) -> None:
    """All numbers, then the traps."""
    known = "nothing of what prompts share" if info.block_tokens is None else _granularity(info.block_tokens)
    print_line(console, f"{counted(info.num_requests, 'request')}, format {info.format}, which tells {known}")
    prompts, answers = int(info.input_tokens.total), int(info.output_tokens.total)
    print_line(console, f"{counted(prompts, 'prompt token')}, {counted(answers, 'answer token')}")
    for text in skipped_in_words(info.num_skipped, info.skipped):
        print_line(console, text)
    for text in info.assumed:
        print_line(console, f"assumed: {text}")
    if info.arrivals is not None:
        _print_arrivals(info.arrivals, console)
    _print_spreads(info, console)
    if info.prompts is not None:
        _print_prompts(info.prompts, console)
    _print_owners(info, console)
    for text in traps(info):
        print_line(console, f"! {text}")


def _granularity(block_tokens: int) -> str:
    return "prompts token by token" if block_tokens == 1 else f"prompts in blocks of {block_tokens} tokens"


def _print_arrivals(found: Arrivals, console: Console) -> None:
    print_line(console, f"span {found.span_s:,.1f} s{_rate(found)}")
    if not found.windows:
        return
    table = empty_table("window", "windows", "least [1/s]", "most [1/s]", "var/mean of counts")
    for one in found.windows:
        table.add_row(
            f"{one.length_s:,} s", f"{one.num_windows:,}", f"{one.least_per_s:,.2f}", f"{one.most_per_s:,.2f}",
            _number(one.dispersion),
        )
    print_line(console, "\nRate over time (a Poisson process has variance over mean 1 in all windows):")
    print_table(table, console)


def _rate(found: Arrivals) -> str:
    if found.mean_per_s is None:
        return ", all at once"
    return (
        f", mean {found.mean_per_s:,.3g} requests/s; gaps: coefficient of variation {_number(found.gap_cv)} (Poisson: "
        f"1); {counted(found.num_distinct_times, 'distinct time')}"
    )


def _print_spreads(info: Info, console: Console) -> None:
    table = empty_table("", "mean", "median", "p90", "p95", "p99", "most")
    sessions = info.sessions
    rows: list[tuple[str, Spread | None, int]] = [
        ("prompt tokens", info.input_tokens, 0),
        ("answer tokens", info.output_tokens, 0),
        ("turns a session", sessions.turns if sessions else None, 0),
        ("think time [s]", sessions.think_s if sessions else None, 1),
    ]
    for name, one, digits in rows:
        if one is not None:
            numbers = (one.mean, one.p50, one.p90, one.p95, one.p99, one.most)
            table.add_row(name, *(f"{number:,.{digits}f}" for number in numbers))
    print_table(table, console)


def _print_prompts(found: Prompts, console: Console) -> None:
    print_line(console, "\nHits of a boundless cache, as vLLM counts (whole blocks, at least one token computed):")
    table = empty_table("block", "blocks", "hit", "of blocks", "of tokens", "distinct", "one-off")
    for one in sorted(found.ideal, key=lambda one: one.block_size):
        table.add_row(str(one.block_size), *_ideal(one))
    if found.as_file is not None:
        table.add_row(f"{found.as_file.block_size}*", *_ideal(found.as_file))
    print_table(table, console)
    if found.as_file is not None:
        print_line(console, "* as the file counts: each block that it names, a partial last one too, and all may hit")
    print_line(console, "one-off: share of the distinct blocks that one request only has")
    _print_reuse(found, console)
    if found.popular:
        print_line(console, "\nPrefixes that save most (tokens saved by their last part alone):")
        table = empty_table("tokens", "requests", "tokens saved")
        for prefix in found.popular[:_NUM_PREFIXES]:
            table.add_row(f"{prefix.num_tokens:,}", f"{prefix.num_requests:,}", f"{prefix.num_saved:,}")
        print_table(table, console)


def _ideal(one: Ideal) -> Iterator[str]:
    yield f"{one.num_blocks:,}"
    yield f"{one.num_hits:,}"
    yield percent(one.share_of_blocks)
    yield percent(one.share_of_tokens)
    yield f"{one.num_distinct:,}"
    yield percent(one.one_off_share)


def _print_reuse(found: Prompts, console: Console) -> None:
    reuse = found.reuse
    order = "one request at a time in the file's order"
    print_line(console, f"\nAn LRU cache of blocks of {counted(reuse.block_size, 'token')}, {order}:")
    table = empty_table("blocks", "of the distinct", "tokens hit")
    for point in reuse.curve:
        table.add_row(f"{point.num_blocks:,}", f"{point.share_of_distinct:.0%}", percent(point.hit_share))
    print_table(table, console)
    if not reuse.num_reused:
        return
    table = empty_table("between two uses of a block", *reuse.distances)
    table.add_row("distinct blocks", *(f"{distance:,}" for distance in reuse.distances.values()))
    if reuse.intervals_s:
        table.add_row("seconds", *(f"{seconds:,.1f}" for seconds in reuse.intervals_s.values()))
    print_table(table, console)


def _print_owners(info: Info, console: Console) -> None:
    sessions = info.sessions
    if sessions is not None:
        without = f", {counted(sessions.num_without, 'request')} of none" if sessions.num_without else ""
        print_line(console, f"{counted(sessions.num, 'session')}{without}")
    if not info.tenants:
        return
    print_line(console, f"{counted(len(info.tenants), 'tenant')}:")
    table = empty_table("tenant", "requests", "share", "prompt tokens", "answer tokens")
    table.columns[0].justify = "left"
    for one in info.tenants[:_NUM_TENANTS]:
        share = percent(one.num_requests / info.num_requests)
        table.add_row(
            escape(one.name), f"{one.num_requests:,}", share, f"{one.num_input_tokens:,}", f"{one.num_output_tokens:,}"
        )
    if (more := len(info.tenants) - _NUM_TENANTS) > 0:
        table.add_row(f"and {more:,} more")
    print_table(table, console)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.2f}"
