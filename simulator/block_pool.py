"""Blocks of KV memory: reference counts, the order in which free ones are reused, and which content is findable.

The free list is vLLM's (``v1/core/block_pool.py``, ``FreeKVCacheBlockQueue``): blocks are taken from its front; a
returned request's blocks join at the back, last block first, so that a prefix outlives what follows it. A free block
keeps its content until it is taken: losing the key then is the only eviction there is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from simulator.prefix import PRIVATE, num_shareable

if TYPE_CHECKING:
    from simulator.tenancy import Ledger

CLEARED = None  # the event of a reset; a stored key is itself, a removed one its complement (~key)


class BlockPool:
    """``num_blocks`` blocks with ids from 0; block 0 is vLLM's null block and never handed out.

    A private key (`prefix.PRIVATE`) can only be asked for by its own request after a preemption, and becomes findable
    no sooner: `remember`. Until then all private blocks have the same name, unless events tell them apart.

    ``keyless_first``: returned blocks without a key go to the front of the free list (0.32), else all to the back
    (0.23).
    ``events`` collects what becomes findable and what is lost, for keys below ``announce_below``; without it, nothing.

    ``user`` is the request for whom something is done. Here nothing depends on it, nor on time: pools that go by
    tenants or by an eviction policy (`ordered_pool`, `tenancy`) ask for both.
    """

    __slots__ = (
        "_announce_below", "_duplicates", "_free", "_left", "_names_private", "cached", "events", "key",
        "keyless_first", "num_blocks", "num_evictions", "num_free", "ref_cnt",
    )  # fmt: skip

    def __init__(self, num_blocks: int, *, keyless_first: bool = True, announce_below: float | None = None) -> None:
        self.num_blocks = num_blocks
        self.keyless_first = keyless_first
        self.num_free = num_blocks - 1
        # A block hit while free leaves the middle of the list: its entry stays behind, counted here, and is skipped
        # when it comes up. The left-behind entries of a block precede its valid one, since a block with a key returns
        # to the back.
        self._free = deque(range(1, num_blocks))
        self._left: dict[int, int] = {}
        self.ref_cnt = [0] * num_blocks
        self.key: list[int | None] = [None] * num_blocks
        self.cached: dict[int, int] = {}  # key -> the oldest registered block that still has it
        self._duplicates: dict[int, list[int]] = {}  # key -> later blocks of equal content, in order: nothing is merged
        self.events: list[int | None] | None = None if announce_below is None else []
        self._announce_below = announce_below or 0
        self._names_private = self._announce_below > PRIVATE
        self.num_evictions = 0

    @property
    def free(self) -> Iterator[int]:
        """The free list, front first."""
        left = dict(self._left)
        for block in self._free:
            if left.get(block):
                left[block] -= 1
            else:
                yield block

    @property
    def ledger(self) -> Ledger | None:
        """Whose content the blocks hold, in pools that keep account of it."""
        return None

    @property
    def keeps_prefixes(self) -> bool:
        """Whether idle content is lost from the ends of prompts on, so that a hit shrinks block by block."""
        return True

    @property
    def goes_by_time(self) -> bool:
        """Whether `tell_time` has to be called."""
        return False

    def tell_time(self, now_s: float) -> None:
        """What comes next happens at this time."""

    def take(self, count: int, user: Any = None) -> list[int]:  # noqa: ARG002
        """The next ``count`` free blocks, without what they cached. The caller has checked that there are as many."""
        self.num_free -= count
        pop, left = self._free.popleft, self._left
        blocks = [pop() for _ in range(count)]
        if left and not left.keys().isdisjoint(blocks):
            self._free.extendleft(reversed(blocks))
            blocks = [self._pop() for _ in range(count)]
        key, ref_cnt = self.key, self.ref_cnt
        names = [name for block in blocks if (name := key[block]) is not None]
        for block in blocks:
            ref_cnt[block] = 1
        if names:
            for block in blocks:
                key[block] = None
            self._forget(names, blocks)
        return blocks

    def take_one(self, user: Any = None) -> int:  # noqa: ARG002
        """The next free block: `take` for the step across a block border."""
        self.num_free -= 1
        block = self._pop() if self._left else self._free.popleft()
        self.ref_cnt[block] = 1
        name = self.key[block]
        if name is not None:
            self.key[block] = None
            self._forget([name], [block])
        return block

    def quiet_takes(self, limit: int) -> int:
        """How many of the next ``limit`` blocks taken are certain to announce no loss."""
        key, below, left = self.key, self._announce_below, self._left
        number = 0
        for block in self._free:
            name = key[block]
            if number == limit or (name is not None and name < below):
                break
            # else the entry may be one left behind: it counts for nothing, which errs on the safe side
            if block not in left:
                number += 1
        return number

    def touch(self, blocks: list[int], user: Any = None) -> None:  # noqa: ARG002
        """One more holder for each; a free one leaves the free list with its content."""
        ref_cnt, left = self.ref_cnt, self._left
        for block in blocks:
            if not ref_cnt[block]:
                left[block] = left.get(block, 0) + 1
                self.num_free -= 1
            ref_cnt[block] += 1
        if len(self._free) > 2 * self.num_blocks:
            self._free = deque(self.free)
            left.clear()

    def release(self, blocks: list[int], user: Any = None) -> None:  # noqa: ARG002
        """A holder gives back its block table, in table order; the last block is put back first."""
        ref_cnt, key = self.ref_cnt, self.key
        for block in blocks:
            ref_cnt[block] -= 1
        idle = [block for block in reversed(blocks) if not ref_cnt[block]]
        self.num_free += len(idle)
        if self.keyless_first:
            keyless = [block for block in idle if key[block] is None]
            if keyless:
                self._free.extendleft(reversed(keyless))
                idle = [block for block in idle if key[block] is not None]
        self._free.extend(idle)

    def publish(self, blocks: list[int], keys: list[int], user: Any = None) -> None:  # noqa: ARG002
        """Make full blocks findable under their keys."""
        key = self.key
        if self.events is not None:
            below = self._announce_below
            self.events.extend(keys if not keys or keys[-1] < below else [name for name in keys if name < below])
        if keys and keys[-1] >= PRIVATE and not self._names_private:
            number = num_shareable(keys)
            for block in blocks[number:]:
                key[block] = PRIVATE
            if not number:
                return
            keys, blocks = keys[:number], blocks[:number]
        for block, name in zip(blocks, keys, strict=True):
            key[block] = name
        self._register(keys, blocks)

    def publish_one(self, block: int, name: int, user: Any = None) -> None:  # noqa: ARG002
        """`publish` for one block."""
        if name < PRIVATE or self._names_private:
            self.key[block] = name
            self._register([name], [block])
        else:
            self.key[block] = PRIVATE
        if self.events is not None and name < self._announce_below:
            self.events.append(name)

    def remember(self, blocks: list[int], keys: list[int]) -> None:
        """The holder of these published blocks may ask for its private ones again, by their keys."""
        if self._names_private:
            return
        first = num_shareable(keys)
        for block, name in zip(blocks[first:], keys[first:], strict=True):
            self.key[block] = name
        self._register(keys[first:], blocks[first:])

    def reset(self) -> bool:
        """Forget all content, in place and in order; refused (False) while any block is held."""
        if self.num_free != self.num_blocks - 1:
            return False
        self.cached.clear()
        self._duplicates.clear()
        self.key = [None] * self.num_blocks
        if self.events is not None:
            self.events.append(CLEARED)
        return True

    def _pop(self) -> int:
        """The first valid entry of the free list."""
        left = self._left
        block = self._free.popleft()
        while block in left:
            if left[block] == 1:
                del left[block]
            else:
                left[block] -= 1
            block = self._free.popleft()
        return block

    def _register(self, names: list[int], blocks: list[int]) -> None:
        """Make the blocks findable, each behind older ones of equal content."""
        found = list(map(self.cached.setdefault, names, blocks))
        if found != blocks:
            for name, block, oldest in zip(names, blocks, found, strict=True):
                if oldest != block:
                    self._duplicates.setdefault(name, []).append(block)

    def _forget(self, names: list[int], blocks: list[int]) -> None:
        """``blocks`` lost the content ``names`` (of those that had any, in order): the only eviction there is."""
        self.num_evictions += len(names)
        cached, duplicates = self.cached, self._duplicates
        if duplicates and not duplicates.keys().isdisjoint(names):
            self._forget_duplicates(names, set(blocks))
        else:
            for name in names:
                cached.pop(name, None)  # a private name is seldom there
        if self.events is not None:
            below = self._announce_below
            self.events.extend([~name for name in names if name < below])

    def _forget_duplicates(self, names: list[int], gone: set[int]) -> None:
        """`_forget` where other blocks of the same content may remain; the oldest of those is found from now on."""
        cached, duplicates = self.cached, self._duplicates
        for name in names:
            others = [
                block
                for block in (cached.get(name), *duplicates.pop(name, ()))
                if block is not None and block not in gone
            ]
            if not others:
                cached.pop(name, None)
                continue
            cached[name] = others[0]
            if len(others) > 1:
                duplicates[name] = others[1:]
