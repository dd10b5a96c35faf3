"""By the chance of being used again, learned for each kind of request: KVCache in the Wild."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

from simulator.eviction.policy import Policy, User
from simulator.eviction.queues import IdleQueues

_LAST_TURN = 8  # turns from this one on are of one kind
_REMEMBERED = 0.999  # how much of the mean time in the cache stays with each eviction

_TINY = sys.float_info.min

Kind = tuple[int, int]  # tenant, turn


class _Reuse:
    """What happened to the idle blocks of one kind: uses, the seconds that these had been idle, evictions."""

    __slots__ = ("idle_s", "num_evicted", "num_used")

    def __init__(self) -> None:
        self.num_used = 0
        self.idle_s = 0.0
        self.num_evicted = 0


class WorkloadAware(Policy):
    """The block least likely to be used again within its expected time in the cache, of equals the one furthest back.

    A kind is (tenant, turn of the session) of the request that gave the block back last. For each, an exponential
    distribution F is fitted to the idle times that ended in a use; a block idle for t seconds is worth F(t + life) −
    F(t), where life is the mean idle time of those evicted lately. Within a kind that falls with t: only the head of
    each queue is looked at.

    Two things that the formula leaves open: F reaches the share of idle times that ended in a use (a kind that nobody
    asks for again is worth little), counting one use beyond those seen; and a kind without any use yet has the rate of
    all together. Turns are counted by the cache itself, of requests with a session; the engine's clock gives times.
    """

    summary = "the block least likely to be used again soon, learned by tenant and turn"
    source = "KVCache in the Wild (Qwen-Bailian, USENIX ATC 2025)"
    needs_clock = True

    def __init__(self, params: Any, num_blocks: int, tenants: Sequence[str] = ("",)) -> None:
        super().__init__(params, num_blocks, tenants)
        self._idle: IdleQueues[Kind] = IdleQueues()
        self._since: dict[int, tuple[float, int]] = {}  # of idle blocks: when they became idle, place in the prompt
        self._seen: dict[Kind, _Reuse] = {}
        self._all = _Reuse()
        self._life_s = math.inf  # before the first eviction
        # By tenant and session: the latest request, and which turn that is.
        self._turns: dict[tuple[int, int], tuple[int | None, int]] = {}

    def keep(self, blocks: Sequence[int], names: Sequence[int], places: Sequence[int], user: User) -> None:  # noqa: ARG002
        kind = (user.tenant, self._turn(user))
        self._seen.setdefault(kind, _Reuse())
        self._idle.enter(blocks, kind)
        now_s = self.now_s
        for block, place in zip(blocks, places, strict=True):
            self._since[block] = (now_s, place)

    def use(self, blocks: Sequence[int], names: Sequence[int], user: User) -> None:  # noqa: ARG002
        for block, kind in self._idle.leave(blocks):
            idle_s = self.now_s - self._since.pop(block)[0]
            for reuse in (self._seen[kind], self._all):
                reuse.num_used += 1
                reuse.idle_s += idle_s

    def evict(self, user: User) -> int:  # noqa: ARG002
        kind = min(self._idle.queues, key=self._worth)
        block = self._idle.pop(kind)
        idle_s = self.now_s - self._since.pop(block)[0]
        self._seen[kind].num_evicted += 1
        if self._life_s == math.inf:
            self._life_s = idle_s
        else:
            self._life_s += (1 - _REMEMBERED) * (idle_s - self._life_s)
        return block

    def _worth(self, kind: Kind) -> tuple[float, int]:
        """The logarithm of what the head of this queue is worth, and how near the front of its prompt it is."""
        since_s, place = self._since[self._idle.first(kind)]
        mine = self._seen[kind]
        fitted = mine if mine.num_used else self._all
        if not fitted.num_used:
            return 0.0, -place
        rate = fitted.num_used / max(fitted.idle_s, _TINY)
        share = (mine.num_used + 1) / (mine.num_used + mine.num_evicted + 1)
        within_life = max(-math.expm1(-rate * self._life_s), _TINY)
        return math.log(share * within_life) - rate * (self.now_s - since_s), -place

    def _turn(self, user: User) -> int:
        """Which turn of its session the request is, from 1."""
        if user.session is None:
            return 1
        session = (user.tenant, user.session)
        latest, turn = self._turns.get(session, (None, 0))
        if latest != user.request_id:
            turn = min(turn + 1, _LAST_TURN)
            self._turns[session] = (user.request_id, turn)
        return turn
