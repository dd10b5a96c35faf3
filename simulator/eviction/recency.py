"""By time alone: least recently used, first in first out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from simulator.eviction.order import Order
from simulator.eviction.policy import Policy, User


class Lru(Policy):
    """The block that has been idle longest: plain LRU by use.

    Blocks given back together go the deepest first. This is what vLLM does since 0.32; in 0.23 blocks without content
    wait for their turn too.
    """

    summary = "the block idle for longest"
    source = "vLLM 0.32 FreeKVCacheBlockQueue; SGLang RadixAttention lru"
    keeps_prefixes = True

    def __init__(self, params: Any, num_blocks: int, tenants: Sequence[str] = ("",)) -> None:
        super().__init__(params, num_blocks, tenants)
        self._idle: OrderedDict[int, None] = OrderedDict()

    def keep(self, blocks: Sequence[int], names: Sequence[int], places: Sequence[int], user: User) -> None:  # noqa: ARG002
        idle = self._idle
        for block in blocks:
            idle[block] = None

    def use(self, blocks: Sequence[int], names: Sequence[int], user: User) -> None:  # noqa: ARG002
        idle = self._idle
        for block in blocks:
            idle.pop(block, None)

    def evict(self, user: User) -> int:  # noqa: ARG002
        return self._idle.popitem(last=False)[0]


class Fifo(Policy):
    """The block inserted first, however often it was used since; blocks given back together: the deepest first."""

    summary = "the block inserted first, used since or not"
    source = "SGLang RadixAttention fifo"

    def __init__(self, params: Any, num_blocks: int, tenants: Sequence[str] = ("",)) -> None:
        super().__init__(params, num_blocks, tenants)
        self._idle = Order()
        self._inserted: dict[int, int] = {}
        self._num_inserted = 0

    def keep(self, blocks: Sequence[int], names: Sequence[int], places: Sequence[int], user: User) -> None:  # noqa: ARG002
        inserted = self._inserted
        for block in blocks:
            if block not in inserted:
                self._num_inserted += 1
                inserted[block] = self._num_inserted
            self._idle.add(block, inserted[block])

    def use(self, blocks: Sequence[int], names: Sequence[int], user: User) -> None:  # noqa: ARG002
        for block in blocks:
            self._idle.discard(block)

    def evict(self, user: User) -> int:  # noqa: ARG002
        block = self._idle.pop()
        del self._inserted[block]
        return block
