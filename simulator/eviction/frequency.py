"""By how often blocks were used: LFU, SLRU, Mooncake's LengthAwareCache."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from simulator.eviction.order import MOST_PLACES, Order
from simulator.eviction.policy import Params, Policy, User
from simulator.prefix import PRIVATE


class Counting(Policy):
    """The block of the smallest rank, which depends on how often it was used (its insertion is the first time).

    Blocks of equal rank: the one that became idle first, hence of those given back together the deepest.
    """

    def __init__(self, params: Any, num_blocks: int, tenants: Sequence[str] = ("",)) -> None:
        super().__init__(params, num_blocks, tenants)
        self._idle = Order()
        self._counts: dict[int, int] = {}  # of blocks with content

    @abstractmethod
    def rank(self, count: int, place: int) -> int:
        """The order of eviction, smallest first."""

    def keep(self, blocks: Sequence[int], names: Sequence[int], places: Sequence[int], user: User) -> None:  # noqa: ARG002
        counts, rank, add = self._counts, self.rank, self._idle.add
        for block, place in zip(blocks, places, strict=True):
            add(block, rank(counts.setdefault(block, 1), place))

    def use(self, blocks: Sequence[int], names: Sequence[int], user: User) -> None:  # noqa: ARG002
        counts, discard = self._counts, self._idle.discard
        for block in blocks:
            counts[block] = counts.get(block, 1) + 1
            discard(block)

    def evict(self, user: User) -> int:  # noqa: ARG002
        block = self._idle.pop()
        del self._counts[block]
        return block


class LfuParams(Params):
    counts: Literal["lost", "kept"] = Field(
        default="lost", description="whether a block's count is forgotten with its content, or goes on if it returns"
    )


class Lfu(Counting):
    """The block used least often; ``counts`` are lost on eviction or kept for ever.

    Kept counts are remembered for every content that was ever evicted, except for what only its own request can know.
    """

    summary = "the block used least often, of equals the one idle for longest"
    source = "SGLang RadixAttention lfu"
    Params = LfuParams

    def __init__(self, params: Any, num_blocks: int, tenants: Sequence[str] = ("",)) -> None:
        super().__init__(params, num_blocks, tenants)
        self._keeps = params.counts == "kept"
        self._earlier: dict[int, int] = {}  # uses of content that was evicted
        self._names: dict[int, int] = {}

    def rank(self, count: int, place: int) -> int:  # noqa: ARG002
        return count

    def keep(self, blocks: Sequence[int], names: Sequence[int], places: Sequence[int], user: User) -> None:
        if self._keeps:
            counts, earlier = self._counts, self._earlier
            for block, name in zip(blocks, names, strict=True):
                if name < PRIVATE and block not in self._names:
                    self._names[block] = name
                    counts[block] = counts.get(block, 1) + earlier.pop(name, 0)
        super().keep(blocks, names, places, user)

    def evict(self, user: User) -> int:
        if not self._keeps:
            return super().evict(user)
        block = self._idle.pop()
        count, name = self._counts.pop(block), self._names.pop(block, None)
        if name is not None:
            self._earlier[name] = max(count, self._earlier.get(name, 0))  # two blocks may have had this content
        return block


class Slru(Counting):
    """Blocks used once before those used again; in both segments the one idle for longest first."""

    summary = "blocks never used again first, then by how long they are idle"
    source = "SGLang RadixAttention slru (hit count >= 2)"

    def rank(self, count: int, place: int) -> bool:  # noqa: ARG002
        return count >= 2


class LengthAware(Counting):
    """Mooncake's LengthAwareCache: as LFU, but of equal counts the block further back in its prompt first."""

    summary = "the block used least often, of equals the one deepest in its prompt"
    source = "Mooncake, arXiv 2407.00079: LengthAwareCache"

    def rank(self, count: int, place: int) -> int:
        return count * MOST_PLACES - place
