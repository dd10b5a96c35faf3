"""The idle blocks of a cache, smallest rank first."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Any

_SLACK = 1_000  # entries left behind that are not worth a clean-up


class Order:
    """A heap of (rank, block) from which blocks are taken out anywhere: their entries stay behind and are skipped.

    Ranks must differ (policies end them with a stamp), for an entry is valid while its rank is the block's.
    """

    __slots__ = ("_heap", "_rank")

    def __init__(self) -> None:
        self._heap: list[tuple[Any, int]] = []
        self._rank: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._rank)

    def __contains__(self, block: int) -> bool:
        return block in self._rank

    def add(self, block: int, rank: Any) -> None:
        """Put in a block that is not there."""
        self._rank[block] = rank
        heappush(self._heap, (rank, block))

    def discard(self, block: int) -> None:
        """Take out the block, if it is there."""
        if self._rank.pop(block, None) is not None and len(self._heap) > 2 * len(self._rank) + _SLACK:
            self._heap = [entry for entry in self._heap if self._rank.get(entry[1]) == entry[0]]
            heapify(self._heap)

    def first(self) -> tuple[Any, int]:
        """Rank and block of the first one, which stays."""
        heap, ranks = self._heap, self._rank
        while ranks.get(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0]

    def pop(self) -> int:
        """Take out the block of the smallest rank."""
        heap, ranks = self._heap, self._rank
        while True:
            rank, block = heappop(heap)
            if ranks.get(block) == rank:
                del ranks[block]
                return block
