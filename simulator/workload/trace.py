"""From a trace's timestamps to arrivals: spread lumps, cut a window, compress time.

Each step takes and gives pairs ``(seconds, record)`` in order of time, one at a time; records are not looked at.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator
from typing import TypeVar

Record = TypeVar("Record")

# The golden ratio's fractional part: its multiples modulo 1 stay evenly spread however many are taken.
_GOLDEN = (5**0.5 - 1) / 2


def smooth(rows: Iterable[tuple[float, Record]], width_s: float, rng: random.Random) -> Iterator[tuple[float, Record]]:
    """Move each row by a uniform draw in [0, ``width_s``), one draw a row in file order, and restore the order of time.

    Only rows that a later one may still overtake are held back: those of the last ``width_s`` seconds.
    """
    held: list[tuple[float, int, Record]] = []
    for index, (time_s, record) in enumerate(rows):
        while held and held[0][0] <= time_s:
            moved_s, _, earlier = heapq.heappop(held)
            yield moved_s, earlier
        heapq.heappush(held, (time_s + width_s * rng.random(), index, record))
    while held:
        moved_s, _, earlier = heapq.heappop(held)
        yield moved_s, earlier


def window_start_s(span_s: float, length_s: float, replication: int, rng: random.Random) -> float:
    """Where the window of this replication starts, in a trace of ``span_s`` seconds.

    Uniform over all possible starts in each replication, and spread over the replications: one draw, shifted by
    multiples of the golden ratio, so that the first n windows keep apart for every n. Means over windows that keep
    apart tend to vary less than over independent ones; an interval that takes them for independent errs on the wide
    side. It speaks for this trace only. ``rng`` must be the same in every replication.
    """
    return (rng.random() + replication * _GOLDEN) % 1.0 * (span_s - length_s)


def window(rows: Iterable[tuple[float, Record]], start_s: float, length_s: float) -> Iterator[tuple[float, Record]]:
    """The rows with ``start_s`` <= time < ``start_s + length_s``, timed from the window's start."""
    end_s = start_s + length_s
    for time_s, record in rows:
        if time_s >= end_s:
            return
        if time_s >= start_s:
            yield time_s - start_s, record


def compress(rows: Iterable[tuple[float, Record]], rate_scale: float) -> Iterator[tuple[float, Record]]:
    """The same rows ``rate_scale`` times as fast."""
    return ((time_s / rate_scale, record) for time_s, record in rows)
