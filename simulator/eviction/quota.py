"""Shares of the cache by tenant: limits on what one may keep, reserves that others may not take."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from pydantic import Field, model_validator

from simulator.eviction.policy import Params, Policy, User
from simulator.eviction.queues import IdleQueues
from simulator.units import Share


class QuotaParams(Params):
    limit: Mapping[str, Share] = Field(
        default={}, description="by tenant: the share of the pool that its idle blocks may fill while others want it"
    )
    reserve: Mapping[str, Share] = Field(
        default={}, description="by tenant: the share of the pool up to which others may not take its idle blocks"
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if not (self.limit or self.reserve):
            raise ValueError("expected 'limit' or 'reserve', each a mapping of tenants to shares")
        if sum(self.reserve.values()) > 1 + 1e-9:
            raise ValueError(f"reserve: got {sum(self.reserve.values()):.3g} in all, expected at most 1")
        for name in self.reserve.keys() & self.limit.keys():
            if self.reserve[name] > self.limit[name]:
                raise ValueError(f"{name}: got a reserve above its limit, expected at most {self.limit[name]:g}")
        return self

    @property
    def tenants(self) -> list[str]:
        """The tenants that these shares are for."""
        return [*self.limit, *self.reserve]


class Quota(Policy):
    """Least recently used within shares of the pool. What counts is a tenant's idle blocks, those that it gave back.

    Evicted is the block idle for longest of, in this order: tenants above their limit; the tenant that takes, where it
    is at its limit; tenants above their reserve, and the one that takes; all. Space that nobody else wants is not
    withheld from anyone.
    """

    summary = "least recently used, within limits and reserved shares by tenant"
    source = "own; cf. Mooncake Store's pins and cgroup memory.max and memory.min"
    Params = QuotaParams

    def __init__(self, params: Any, num_blocks: int, tenants: Sequence[str] = ("",)) -> None:
        super().__init__(params, num_blocks, tenants)
        self._idle: IdleQueues[int] = IdleQueues()
        self._limit = [params.limit.get(name, math.inf) * num_blocks for name in tenants]
        self._reserve = [params.reserve.get(name, 0.0) * num_blocks for name in tenants]
        self._is_limited = bool(params.limit)

    def keep(self, blocks: Sequence[int], names: Sequence[int], places: Sequence[int], user: User) -> None:  # noqa: ARG002
        self._idle.enter(blocks, user.tenant)

    def use(self, blocks: Sequence[int], names: Sequence[int], user: User) -> None:  # noqa: ARG002
        self._idle.leave(blocks)

    def evict(self, user: User) -> int:
        return self._idle.pop(min(self._victims(user.tenant), key=self._idle.first_stamp))

    def _victims(self, taker: int) -> Iterable[int]:
        """The tenants of whom one loses a block."""
        idle, limit = self._idle, self._limit
        if self._is_limited:
            above = [tenant for tenant in idle.queues if idle.size(tenant) > limit[tenant]]
            if above:
                return above
            if idle.size(taker) and idle.size(taker) >= limit[taker]:
                return (taker,)
        reserve = self._reserve
        return [t for t in idle.queues if t == taker or idle.size(t) > reserve[t]] or idle.queues
