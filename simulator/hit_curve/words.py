"""What the numbers mean for whoever buys memory."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.counts import counted
from simulator.hit_curve.policies import BOUND
from simulator.hit_curve.study import MOSTLY, Point, Study


def answers(found: Study) -> list[str]:
    """One sentence each."""
    if not found.lru.num_distinct:
        block = counted(found.lru.counting.block_size, "token")
        return [f"No prompt fills a block of {block}: nothing is ever cached."]
    if not found.lru.ceiling:
        return ["No request finds a whole block of an earlier one: a cache of any size hits nothing."]
    return [*_ceiling(found), *_pools(found), *_caveats(found)]


def _ceiling(found: Study) -> Iterator[str]:
    whole, needed = found.lru, found.lru.num_for(MOSTLY)
    if needed is not None and not found.pools:
        yield (
            f"The ceiling is {whole.share(whole.ceiling):.1%}; {MOSTLY:.0%} of it needs {counted(needed, 'block')} "
            f"({counted(needed * whole.counting.block_size, 'token')}) of the "
            f"{counted(whole.num_distinct, 'distinct one')}."
        )


def _pools(found: Study) -> Iterator[str]:
    if found.pool is None:
        return
    whole, needed = found.lru, found.lru.num_for(MOSTLY) or 0
    for num_blocks, number in found.pools.items():
        point = found.point(num_blocks)
        who = "Your pool" if number == 1 else f"{number} pools as one cache"
        yield (
            f"{who} of {counted(num_blocks, 'block')} ({found.pool.origin}) {'hits' if number == 1 else 'hit'} "
            f"{whole.share(point.num_hits):.1%}, {_head_room(found, point)}; {MOSTLY:.0%} of the ceiling needs "
            f"{_times(needed / num_blocks)} ({counted(needed, 'block')})."
        )


def _head_room(found: Study, point: Point) -> str:
    whole, bound = found.lru, point.policies.get(BOUND.label)
    if point.num_hits == whole.ceiling:
        return "which is all that there is to hit"
    ceiling = f"the ceiling is {whole.share(whole.ceiling):.1%}"
    return ceiling if bound is None else f"{ceiling}, Belady's bound at this size {whole.share(bound):.1%}"


def _times(ratio: float) -> str:
    return f"{ratio:.2g} times that" if ratio < 10 else f"{ratio:,.0f} times that"


def _caveats(found: Study) -> Iterator[str]:
    yield "Running requests take their blocks from the same pool, so that a loaded engine hits less."
    if found.points[0].num_blocks < found.lru.num_longest:
        yield (
            f"Below {found.lru.num_longest:,} blocks an engine would refuse the longest request; here its first blocks "
            "are cached."
        )
    sample = found.sample
    if sample is not None and not sample.is_whole and found.policies:
        coarse = "" if sample.coarse == 1 else f" in blocks of {sample.lru.counting.block_size:,} tokens"
        yield (
            f"Policies but LRU were replayed on {sample.words} ({len(sample.requests):,}){coarse} and set in relation "
            f"to LRU, for which that is off by {100 * found.largest_lru_error:.1f} points at most; others may be off "
            "by more."
        )
