"""`kvcast hit-curve` for people: tables in the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from simulator.counts import counted
from simulator.hit_curve.study import Point, Study
from simulator.hit_curve.words import answers
from simulator.terminal import empty_table, percent, print_line, print_table

_MOST_BESIDE = 2  # policies for which there is room beside the curve


def print_study(found: Study, console: Console) -> None:
    """The numbers, then what they mean."""
    whole = found.lru
    how = "as the file counts" if whole.counting.as_file else "as vLLM counts"
    prompts = counted(whole.num_tokens, "prompt token")
    print_line(console, f"{found.name}: {counted(whole.num_requests, 'request')}, {prompts}")
    size = whole.counting.block_size
    order = "one request at a time in order of arrival"
    print_line(console, f"One cache for all, blocks of {counted(size, 'token')} ({how}), {order}:")
    print_table(_curve(found), console)
    if len(found.policies) > _MOST_BESIDE:
        print_table(_policies(found), console)
    if found.routed:
        assert found.pool is not None  # nothing is routed without
        print_line(
            console, f"By number of instances, of {counted(found.pool.num_blocks, 'block')} each, without time: hit "
            "rate (most uncached work over the mean)",
        )  # fmt: skip
        print_table(_routed(found), console)
    for text in (*answers(found), *found.notes):
        print_line(console, text)


def _curve(found: Study) -> Table:
    whole, as_file = found.lru, found.lru.counting.as_file
    table = empty_table("blocks", "tokens", "of all")
    policies = _beside(found)
    for name in ("lru", *([] if as_file else ["of blocks"]), *policies, *(["pools"] if found.pools else [])):
        table.add_column(escape(name), justify="right", overflow="fold")
    for point in found.points:
        table.add_row(*_row(found, point))
    shares = [percent(whole.share(whole.ceiling)), *([] if as_file else [percent(whole.of_blocks(whole.ceiling))])]
    table.add_row("boundless", "", "", *shares, *(shares[0] for _ in policies))
    return table


def _row(found: Study, point: Point) -> list[str]:
    whole = found.lru
    of_all = point.num_blocks / whole.num_distinct if whole.num_distinct else 1.0
    row = [
        f"{point.num_blocks:,}", f"{point.num_blocks * whole.counting.block_size:,}",
        "all" if of_all >= 1 else f"{of_all:.1%}", percent(whole.share(point.num_hits)),
    ]  # fmt: skip
    if not whole.counting.as_file:
        row.append(percent(whole.of_blocks(point.num_hits)))
    row += _rates(found, point, _beside(found))
    if (number := found.pools.get(point.num_blocks)) is not None:
        row.append(f"← {number}")
    return row


def _beside(found: Study) -> tuple[str, ...]:
    """The policies that have room beside the curve."""
    return found.policies if len(found.policies) <= _MOST_BESIDE else ()


def _rates(found: Study, point: Point, policies: tuple[str, ...]) -> list[str]:
    every = (point.policies[policy] for policy in policies)
    return [percent(None if num_hits is None else found.lru.share(num_hits)) for num_hits in every]


def _policies(found: Study) -> Table:
    table = empty_table("blocks", "lru", *map(escape, found.policies))
    for point in found.points:
        lru = percent(found.lru.share(point.num_hits))
        table.add_row(f"{point.num_blocks:,}", lru, *_rates(found, point, found.policies))
    return table


def _routed(found: Study) -> Table:
    numbers = {number: num_blocks for num_blocks, number in found.pools.items()}
    table = empty_table("", *(f"{number:,}" for number in numbers))
    together = (found.lru.share(found.point(num_blocks).num_hits) for num_blocks in numbers.values())
    table.add_row("one cache of all", *map(percent, together))
    rates: dict[str, list[str]] = {}
    for one in found.routed:  # by rule, and in the order of the numbers
        rate = f"{percent(found.lru.share(one.num_hits))} ({one.imbalance:.2f})"
        rates.setdefault(one.rule.label, []).append(rate)
    for label, row in rates.items():
        table.add_row(label, *row)
    return table
