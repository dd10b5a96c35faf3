"""S3-FIFO: a small queue for what is new, a main one for what was used again, and a memory of what left the small."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any

from simulator.eviction.policy import Policy, User
from simulator.prefix import PRIVATE

_SMALL_SHARE = 0.1
_MAX_COUNT = 3
_SMALL, _MAIN = range(2)


class S3Fifo(Policy):
    """S3-FIFO with a small queue of a tenth of the cache and a ghost as long as the main one.

    New content enters the small queue, or the main one if the ghost remembers it. What leaves the small queue moves to
    the main one if it was used more than once since, else it is evicted and remembered; what leaves the main queue
    re-enters it with one use less, or is evicted if it has none. Uses count up to three and move nothing. A block that
    comes up while it is held is taken out, and enters again when it is idle.
    """

    summary = "two FIFO queues and a ghost: what is not used again leaves soon"
    source = "Yang, Zhang, Qiu, Yue, Rashmi: FIFO queues are all you need for cache eviction (SOSP 2023)"
    inserts_one_by_one = True

    def __init__(self, params: Any, num_blocks: int, tenants: Sequence[str] = ("",)) -> None:
        super().__init__(params, num_blocks, tenants)
        self._small_size = max(1, int(num_blocks * _SMALL_SHARE))
        self._ghost_size = num_blocks - self._small_size
        self._queues: tuple[deque[int], deque[int]] = (deque(), deque())
        self._ghost: OrderedDict[int, None] = OrderedDict()
        self._queued: dict[int, int] = {}  # block -> its queue
        self._counts: dict[int, int] = {}  # uses since insertion, of blocks with content
        self._names: dict[int, int] = {}
        self._idle: set[int] = set()

    def keep(self, blocks: Sequence[int], names: Sequence[int], places: Sequence[int], user: User) -> None:  # noqa: ARG002
        queued, counts = self._queued, self._counts
        self._idle.update(blocks)
        for block, name in zip(blocks, names, strict=True):
            if block in queued:
                continue
            if block in self._names:
                queue = _MAIN if counts[block] > 1 else _SMALL
            else:
                self._names[block] = name
                counts.setdefault(block, 0)
                queue = _SMALL
                if name in self._ghost:
                    del self._ghost[name]
                    queue = _MAIN
            self._enter(block, queue)

    def use(self, blocks: Sequence[int], names: Sequence[int], user: User) -> None:  # noqa: ARG002
        counts = self._counts
        for block in blocks:
            counts[block] = min(counts.get(block, 0) + 1, _MAX_COUNT)
        self._idle.difference_update(blocks)

    def evict(self, user: User) -> int:  # noqa: ARG002
        small, main = self._queues
        while True:
            from_small = bool(small) and (len(small) >= self._small_size or not main)
            block = self._evict_small() if from_small else self._evict_main()
            if block is not None:
                self._idle.remove(block)
                del self._counts[block]
                return block

    def _evict_small(self) -> int | None:
        block = self._queues[_SMALL].popleft()
        del self._queued[block]
        if block not in self._idle:
            return None
        if self._counts[block] > 1:
            self._counts[block] = 0
            self._enter(block, _MAIN)
            return None
        name = self._names.pop(block)
        if name < PRIVATE:
            self._ghost[name] = None
            if len(self._ghost) > self._ghost_size:
                self._ghost.popitem(last=False)
        return block

    def _evict_main(self) -> int | None:
        block = self._queues[_MAIN].popleft()
        del self._queued[block]
        if block not in self._idle:
            return None
        if self._counts[block]:
            self._counts[block] -= 1
            self._enter(block, _MAIN)
            return None
        del self._names[block]
        return block

    def _enter(self, block: int, queue: int) -> None:
        self._queues[queue].append(block)
        self._queued[block] = queue
