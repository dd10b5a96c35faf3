"""The idle blocks of a cache, smallest rank first."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

# A rank and a stamp in one number compare in half the time of a pair of them.
_STAMP_BITS = 48
MOST_PLACES = 1 << 32  # more blocks than any prompt has, for ranks that end in a place
_SLACK = 1_000  # entries left behind that are not worth a clean-up


class Order:
    """By rank, of equals the block that came first. Blocks are taken out anywhere.

    A heap; entries of blocks that left stay behind and are skipped.
    """

    __slots__ = ("_heap", "_key", "_stamp")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []  # key, which no other entry has, and block
        self._key: dict[int, int] = {}
        self._stamp = 0

    def add(self, block: int, rank: int) -> None:
        """Put in a block that is not there."""
        self._stamp += 1
        self._key[block] = key = (rank << _STAMP_BITS) + self._stamp
        heappush(self._heap, (key, block))

    def discard(self, block: int) -> None:
        """Take out the block, if it is there."""
        if self._key.pop(block, None) is not None and len(self._heap) > 2 * len(self._key) + _SLACK:
            self._heap = [entry for entry in self._heap if self._key.get(entry[1]) == entry[0]]
            heapify(self._heap)

    def pop(self) -> int:
        """Take out the block of the smallest rank."""
        heap, keys = self._heap, self._key
        while True:
            key, block = heappop(heap)
            if keys.get(block) == key:
                del keys[block]
                return block
