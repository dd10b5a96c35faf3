"""Idle blocks in queues, each in the order in which they became idle, told apart by a stamp across queues."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)


class IdleQueues(Generic[Name]):
    """A block is in one queue at most. Stamps grow with every block that enters, in whatever queue."""

    __slots__ = ("_queue_of", "_stamp", "queues")

    def __init__(self) -> None:
        self.queues: dict[Name, OrderedDict[int, int]] = {}  # blocks with their stamps; none is empty
        self._queue_of: dict[int, Name] = {}
        self._stamp = 0

    def enter(self, blocks: Iterable[int], name: Name) -> None:
        """Blocks, in the order in which they are to go, at the end of the queue ``name``."""
        queue = self.queues.setdefault(name, OrderedDict())
        queue_of, stamp = self._queue_of, self._stamp
        for block in blocks:
            stamp += 1
            queue[block] = stamp
            queue_of[block] = name
        self._stamp = stamp

    def leave(self, blocks: Iterable[int]) -> list[tuple[int, Name]]:
        """Take out those of the blocks that are in a queue; they, each with the queue that it was in."""
        queue_of = self._queue_of
        left = [(block, queue_of.pop(block)) for block in blocks if block in queue_of]
        for block, name in left:
            self._remove(block, name)
        return left

    def first(self, name: Name) -> int:
        """The first block of this queue."""
        return next(iter(self.queues[name]))

    def pop(self, name: Name) -> int:
        """Take out the first block of this queue."""
        block = self.first(name)
        del self._queue_of[block]
        self._remove(block, name)
        return block

    def first_stamp(self, name: Name) -> int:
        """The stamp of the first block of this queue."""
        return self.queues[name][self.first(name)]

    def size(self, name: Name) -> int:
        """How many blocks are in this queue."""
        return len(self.queues.get(name, ()))

    def _remove(self, block: int, name: Name) -> None:
        queue = self.queues[name]
        del queue[block]
        if not queue:
            del self.queues[name]
