"""Whose content the blocks of a pool hold, and who evicts whom: pools that keep a ledger by tenant.

A block's content is its tenant's who computed it, whoever uses it later. Only runs with several tenants have such
pools; with one there is nothing to tell apart, and it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from simulator.block_pool import BlockPool
from simulator.eviction import VLLM, EvictionSpec, make_policy
from simulator.ordered_pool import OrderedPool

if TYPE_CHECKING:
    from simulator.engine_args.config import EngineConfig

_NOBODY = -1


class Ledger:
    """``owner`` of each block's content (-1: none), how many blocks are each tenant's, and ``evicted[of][by]``: how
    many blocks of one tenant lost their content to allocations for another (or for itself).
    """

    __slots__ = ("evicted", "num_resident", "owner")

    def __init__(self, num_blocks: int, num_tenants: int) -> None:
        self.owner = [_NOBODY] * num_blocks
        self.num_resident = [0] * num_tenants
        self.evicted = [[0] * num_tenants for _ in range(num_tenants)]

    def filled(self, blocks: Sequence[int], tenant: int) -> None:
        """These blocks have got content."""
        for block in blocks:
            self.owner[block] = tenant
        self.num_resident[tenant] += len(blocks)

    def taken(self, blocks: Sequence[int], tenant: int) -> None:
        """These blocks were allocated for the tenant, and have lost what they held."""
        owner = self.owner
        for block in blocks:
            of = owner[block]
            if of != _NOBODY:
                owner[block] = _NOBODY
                self.num_resident[of] -= 1
                self.evicted[of][tenant] += 1

    def clear(self) -> None:
        """All content was forgotten."""
        self.owner = [_NOBODY] * len(self.owner)
        self.num_resident = [0] * len(self.num_resident)


class _Watched(BlockPool):
    """Any pool, with a ledger."""

    __slots__ = ()
    _ledger: Ledger

    @property
    def ledger(self) -> Ledger:
        return self._ledger

    def take(self, count: int, user: Any = None) -> list[int]:
        blocks = super().take(count, user)
        self._ledger.taken(blocks, user.tenant)
        return blocks

    def take_one(self, user: Any = None) -> int:
        block = super().take_one(user)
        self._ledger.taken((block,), user.tenant)
        return block

    def publish(self, blocks: list[int], keys: list[int], user: Any = None) -> None:
        super().publish(blocks, keys, user)
        self._ledger.filled(blocks, user.tenant)

    def publish_one(self, block: int, name: int, user: Any = None) -> None:
        super().publish_one(block, name, user)
        self._ledger.filled((block,), user.tenant)

    def reset(self) -> bool:
        done = super().reset()
        if done:
            self._ledger.clear()
        return done


class WatchedPool(_Watched):
    """vLLM's pool with a ledger."""

    __slots__ = ("_ledger",)

    def __init__(self, num_blocks: int, num_tenants: int, **options: Any) -> None:
        super().__init__(num_blocks, **options)
        self._ledger = Ledger(num_blocks, num_tenants)


class WatchedOrderedPool(_Watched, OrderedPool):
    """A pool under an eviction policy, with a ledger."""

    __slots__ = ("_ledger",)

    def __init__(self, num_blocks: int, num_tenants: int, make: Callable[[], Any], **options: Any) -> None:
        OrderedPool.__init__(self, num_blocks, make, **options)
        self._ledger = Ledger(num_blocks, num_tenants)


def pool_maker(
    config: EngineConfig, eviction: EvictionSpec | None, tenants: Sequence[str]
) -> Callable[..., BlockPool]:
    """What makes the pools of a run: called with the number of blocks, and the options of `BlockPool`."""
    if not config.enable_prefix_caching:
        return BlockPool
    several = len(tenants) > 1
    if eviction is None or eviction.policy == VLLM:
        return partial(WatchedPool, num_tenants=len(tenants)) if several else BlockPool
    make = partial(make_policy, eviction, config.num_gpu_blocks - 1, tenants)  # the null block holds nothing
    if several:
        return partial(WatchedOrderedPool, num_tenants=len(tenants), make=make)
    return partial(OrderedPool, make_policy=make)
