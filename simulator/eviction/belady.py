"""Belady's rule: the bound that needs the future."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

from simulator.eviction.order import MOST_PLACES, Order
from simulator.eviction.policy import Policy, User

_NEVER = 1 << 62


class Belady(Policy):
    """The block whose next use is furthest away, of equals the deepest in its prompt.

    A prefix is used whenever anything after it is, so that no block outlives its parent: the rule is prefix-consistent.
    It may give up a block of the very request that was just served. Only a replay can know what comes: `foresee`, then
    the same requests in the same order, each kept whole.
    """

    summary = "the block whose next use is furthest away: the bound, for replays of traces only"
    source = "Belady (1966); prefix-consistent, as ties go the deepest first"
    needs_future = True

    def __init__(self, params: Any, num_blocks: int, tenants: Sequence[str] = ("",)) -> None:
        super().__init__(params, num_blocks, tenants)
        self._idle = Order()
        self._next_use = array("q")  # of each block of each request: the next request that has it, by number
        self._starts = array("q")  # where each request begins there
        self._num_kept = 0

    def foresee(self, requests: Iterable[Sequence[int]]) -> None:
        """What will be asked for, in order."""
        next_use, starts = self._next_use, self._starts
        latest: dict[int, int] = {}  # name -> its latest place in `next_use`
        for number, names in enumerate(requests):
            start = len(next_use)
            starts.append(start)
            next_use.extend([_NEVER] * len(names))
            for place, name in enumerate(names, start):
                before = latest.get(name)
                if before is not None:
                    next_use[before] = number
                latest[name] = place

    def keep(self, blocks: Sequence[int], names: Sequence[int], places: Sequence[int], user: User) -> None:  # noqa: ARG002
        start, next_use, add = self._starts[self._num_kept], self._next_use, self._idle.add
        self._num_kept += 1
        for block, place in zip(blocks, places, strict=True):
            add(block, -next_use[start + place] * MOST_PLACES - place)

    def use(self, blocks: Sequence[int], names: Sequence[int], user: User) -> None:  # noqa: ARG002
        for block in blocks:
            self._idle.discard(block)

    def evict(self, user: User) -> int:  # noqa: ARG002
        return self._idle.pop()
