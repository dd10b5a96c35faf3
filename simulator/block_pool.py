"""Blocks of KV memory: reference counts, the order in which free ones are reused, and which content is findable.

The free list is vLLM's (``v1/core/block_pool.py``, ``FreeKVCacheBlockQueue``): blocks are taken from its front; a returned
request's blocks join at the back, last block first, so that a prefix outlives what follows it. A free block keeps its content
until it is taken: losing the key then is the only eviction there is.
"""

from __future__ import annotations

from collections import OrderedDict

CLEARED = None  # the event of a reset; a stored key is itself, a removed one its complement (~key)


class BlockPool:
    """``num_blocks`` blocks with ids from 0; block 0 is vLLM's null block and never handed out.

    ``keyless_first``: returned blocks without a key go to the front of the free list (0.32), else all to the back (0.23).
    ``events`` collects what becomes findable and what is lost, for keys below ``announce_below``; without it, nothing.
    """

    __slots__ = ("_announce_below", "_duplicates", "cached", "events", "free", "key", "keyless_first", "num_blocks", "num_evictions",
                 "ref_cnt")

    def __init__(self, num_blocks: int, *, keyless_first: bool = True, announce_below: float | None = None) -> None:
        self.num_blocks = num_blocks
        self.keyless_first = keyless_first
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self.ref_cnt = [0] * num_blocks
        self.key: list[int | None] = [None] * num_blocks
        self.cached: dict[int, int] = {}  # key -> the oldest registered block that still has it
        self._duplicates: dict[int, list[int]] = {}  # key -> later blocks of equal content, in order: nothing is merged
        self.events: list[int | None] | None = None if announce_below is None else []
        self._announce_below = announce_below or 0
        self.num_evictions = 0

    @property
    def num_free(self) -> int:
        return len(self.free)

    @property
    def usage(self) -> float:
        """Share of the usable blocks held by requests (vLLM's ``kv_cache_usage_perc``)."""
        return 1 - len(self.free) / (self.num_blocks - 1)

    def take(self, count: int) -> list[int]:
        """The next ``count`` free blocks, without what they cached. The caller has checked that there are as many."""
        pop, key, ref_cnt = self.free.popitem, self.key, self.ref_cnt
        blocks = [pop(False)[0] for _ in range(count)]
        for block in blocks:
            ref_cnt[block] = 1
            if key[block] is not None:
                self._evict(block)
        return blocks

    def take_one(self) -> int:
        """The next free block: `take` for the step across a block border."""
        block = self.free.popitem(False)[0]
        self.ref_cnt[block] = 1
        if self.key[block] is not None:
            self._evict(block)
        return block

    def touch(self, blocks: list[int]) -> None:
        """One more holder for each; a free one leaves the free list with its content."""
        ref_cnt = self.ref_cnt
        for block in blocks:
            if not ref_cnt[block]:
                del self.free[block]
            ref_cnt[block] += 1

    def release(self, blocks: list[int]) -> None:
        """A holder gives back its block table, in table order; the last block is put back first."""
        ref_cnt, key, free = self.ref_cnt, self.key, self.free
        keyless = []
        front = self.keyless_first
        for block in reversed(blocks):
            ref_cnt[block] -= 1
            if not ref_cnt[block]:
                if front and key[block] is None:
                    keyless.append(block)
                else:
                    free[block] = None
        for block in reversed(keyless):
            free[block] = None
            free.move_to_end(block, last=False)

    def publish(self, blocks: list[int], keys: list[int]) -> None:
        """Make full blocks findable under their keys."""
        cached, key = self.cached, self.key
        for block, name in zip(blocks, keys, strict=True):
            key[block] = name
            if cached.setdefault(name, block) != block:
                self._duplicates.setdefault(name, []).append(block)
        if self.events is not None:
            below = self._announce_below
            self.events.extend(keys if keys[-1] < below else [name for name in keys if name < below])

    def publish_one(self, block: int, name: int) -> None:
        """`publish` for one block."""
        self.key[block] = name
        if self.cached.setdefault(name, block) != block:
            self._duplicates.setdefault(name, []).append(block)
        if self.events is not None and name < self._announce_below:
            self.events.append(name)

    def reset(self) -> bool:
        """Forget all content, in place and in order; refused (False) while any block is held."""
        if len(self.free) != self.num_blocks - 1:
            return False
        self.cached.clear()
        self._duplicates.clear()
        self.key = [None] * self.num_blocks
        if self.events is not None:
            self.events.append(CLEARED)
        return True

    def _evict(self, block: int) -> None:
        name = self.key[block]
        assert name is not None
        self.key[block] = None
        self.num_evictions += 1
        if self._duplicates and name in self._duplicates:
            self._evict_duplicate(block, name)
        else:
            del self.cached[name]
        if self.events is not None and name < self._announce_below:
            self.events.append(~name)

    def _evict_duplicate(self, block: int, name: int) -> None:
        others = self._duplicates[name]
        if self.cached[name] == block:
            self.cached[name] = others.pop(0)
        else:
            others.remove(block)
        if not others:
            del self._duplicates[name]
