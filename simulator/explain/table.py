"""`kvcast explain` for people: a table for each tenant, and the stories of the slowest requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from simulator.counts import counted
from simulator.explain.explanation import Band, Explanation
from simulator.explain.parts import PARTS
from simulator.explain.story import Story
from simulator.explain.words import duration
from simulator.terminal import print_table


def print_explanation(found: Explanation, num_slowest: int, console: Console) -> None:
    """The bands, what the parts mean, and the stories."""
    for text in heading(found):
        _line(console, text)
    bands = found.bands()
    for tenant, members in groupby(bands, key=lambda band: band.tenant):
        print_table(_table(tenant, list(members)), console)
    for text in meanings(bands):
        _line(console, text)
    for text in stories(found, num_slowest):
        _line(console, "")
        _line(console, text)


def heading(found: Explanation) -> Iterator[str]:
    """What was explained, and how many requests."""
    checked = "" if found.num_uncounted is None else "; its rows are those of the run"
    yield (
        f"{found.scenario.name}, {found.label}, replication {found.replication}{checked}: mean time to first token by "
        "part and percentile band"
    )
    if found.num_uncounted:
        yield f"Counted here are also the {found.num_uncounted:,} of its warm-up and cool-down, unlike in its report."
    num_without = len(found.meant) - len(found.answered)
    if num_without:
        yield f"Left out: {counted(num_without, 'request')} of {len(found.meant):,} without a first token."


def meanings(bands: Sequence[Band]) -> Iterator[str]:
    """What each part that took any time is."""
    for part in PARTS:
        if _took_time(part.name, bands):
            yield f"{part.label}: {part.meaning}."


def stories(found: Explanation, number: int) -> list[str]:
    """Of the slowest requests, after a line that says among how many they are."""
    slowest = found.slowest(number)
    if not len(slowest):
        return ["No request got a first token."]
    tail_s = found.answered["ttft_s"].quantile(0.99, interpolation="inverted_cdf")
    first = f"The slowest of {counted(len(found.answered), 'request')} (p99 is {duration(float(tail_s))}):"
    story = Story(found)
    return [first, *(story.of(row) for row in slowest.itertuples())]


def _table(tenant: str, bands: list[Band]) -> Table:
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column(escape(tenant))
    for band in bands:
        table.add_column(band.name, justify="right")
    table.add_row("requests", *(f"{band.num_requests:,}" for band in bands))
    table.add_row("TTFT", *(_cell(band, "ttft_s", shared=False) for band in bands))
    for part in PARTS:
        if _took_time(part.name, bands):
            table.add_row(part.label, *(_cell(band, part.name) for band in bands))
    if _took_time("saved_s", bands):
        table.add_row("cache saved", *(_cell(band, "saved_s", shared=False) for band in bands), style="dim")
    return table


def _took_time(name: str, bands: Sequence[Band]) -> bool:
    return any(band.mean_s.get(name) for band in bands)


def _cell(band: Band, name: str, *, shared: bool = True) -> str:
    seconds = band.mean_s.get(name)
    if not seconds:
        return "–"
    share = band.share(name) if shared else None
    return duration(seconds) if share is None else f"{duration(seconds)} {share:.0%}"


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False)
