"""A block pool whose idle blocks lose their content in the order of an eviction policy."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from simulator.block_pool import BlockPool
from simulator.eviction.policy import Policy


class OrderedPool(BlockPool):
    """Free blocks without content are taken first, the one returned first ahead; then those that the policy gives up.

    ``make_policy`` gives a fresh policy, now and after each reset. There is no KV event for a block that the policy
    has yet to choose, so that `quiet_takes` counts free blocks without content only.
    """

    __slots__ = ("_make_policy", "policy")

    def __init__(
        self,
        num_blocks: int,
        make_policy: Callable[[], Policy],
        *,
        keyless_first: bool = True,
        announce_below: float | None = None,
    ) -> None:
        super().__init__(num_blocks, keyless_first=keyless_first, announce_below=announce_below)
        self._make_policy = make_policy
        self.policy = make_policy()

    @property
    def keeps_prefixes(self) -> bool:
        return self.policy.keeps_prefixes

    @property
    def goes_by_time(self) -> bool:
        return self.policy.needs_clock

    @property
    def free(self) -> Iterator[int]:
        """The free blocks: those without content, in order, then the idle ones by number."""
        yield from self._free
        for block in range(1, self.num_blocks):
            if not self.ref_cnt[block] and self.key[block] is not None:
                yield block

    def tell_time(self, now_s: float) -> None:
        self.policy.now_s = now_s

    def take(self, count: int, user: Any = None) -> list[int]:
        self.num_free -= count
        free = self._free
        blocks = [free.popleft() for _ in range(min(count, len(free)))]
        if len(blocks) < count:
            blocks += self._evict(count - len(blocks), user)
        for block in blocks:
            self.ref_cnt[block] = 1
        return blocks

    def take_one(self, user: Any = None) -> int:
        self.num_free -= 1
        block = self._free.popleft() if self._free else self._evict(1, user)[0]
        self.ref_cnt[block] = 1
        return block

    def quiet_takes(self, limit: int) -> int:
        return min(limit, len(self._free))

    def touch(self, blocks: list[int], user: Any = None) -> None:
        ref_cnt, key = self.ref_cnt, self.key
        for block in blocks:
            if not ref_cnt[block]:
                self.num_free -= 1
            ref_cnt[block] += 1
        self.policy.use(blocks, [name for block in blocks if (name := key[block]) is not None], user)

    def release(self, blocks: list[int], user: Any = None) -> None:
        ref_cnt, key, keyless = self.ref_cnt, self.key, self._free
        for block in blocks:
            ref_cnt[block] -= 1
        idle, names, places = [], [], []
        for place in range(len(blocks) - 1, -1, -1):
            block = blocks[place]
            if ref_cnt[block]:
                continue
            name = key[block]
            if name is None:
                keyless.append(block)
                self.num_free += 1
            else:
                idle.append(block)
                names.append(name)
                places.append(place)
        if idle:
            self.num_free += len(idle)
            self.policy.keep(idle, names, places, user)

    def reset(self) -> bool:
        if not super().reset():
            return False
        self._free = deque(range(1, self.num_blocks))
        self.policy = self._make_policy()
        return True

    def _evict(self, count: int, user: Any) -> list[int]:
        """``count`` idle blocks, without their content."""
        evict, key = self.policy.evict, self.key
        blocks = [evict(user) for _ in range(count)]
        names = [name for block in blocks if (name := key[block]) is not None]
        for block in blocks:
            key[block] = None
        self._forget(names, blocks)
        return blocks
