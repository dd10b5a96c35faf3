"""Blocks of a session kept for its next turn, for a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from simulator.eviction.policy import Params, Policy, User
from simulator.eviction.queues import IdleQueues
from simulator.units import PositiveSeconds

_PINNED, _PLAIN = "pinned", "plain"


class TtlParams(Params):
    ttl: PositiveSeconds = Field(description="how long the blocks of a session wait for its next turn")


class Ttl(Policy):
    """Least recently used, but what a session gave back is spared for ``ttl`` seconds.

    The hint is that a request belongs to a session (an agent's program, a chat): its next turn is expected, for no
    engine is told which turn is the last. Where only spared blocks are left, the one whose time ends first goes, so
    that nobody waits for a session that is away. A block is spared anew by each session that gives it back.
    """

    summary = "least recently used, but blocks of a session are spared for a time"
    source = "Continuum: KV cache time-to-live for agents; here with one constant in place of one a tool"
    Params = TtlParams
    needs_clock = True
    needs_sessions = True

    def __init__(self, params: Any, num_blocks: int, tenants: Sequence[str] = ("",)) -> None:
        super().__init__(params, num_blocks, tenants)
        self._idle: IdleQueues[str] = IdleQueues()
        self._until_s: dict[int, float] = {}  # of the spared blocks

    def keep(self, blocks: Sequence[int], names: Sequence[int], places: Sequence[int], user: User) -> None:  # noqa: ARG002
        if user.session is None:
            self._idle.enter(blocks, _PLAIN)
            return
        self._idle.enter(blocks, _PINNED)
        self._until_s.update(dict.fromkeys(blocks, self.now_s + self.params.ttl))

    def use(self, blocks: Sequence[int], names: Sequence[int], user: User) -> None:  # noqa: ARG002
        self._idle.leave(blocks)

    def evict(self, user: User) -> int:  # noqa: ARG002
        idle = self._idle
        if _PINNED not in idle.queues:
            return idle.pop(_PLAIN)
        if _PLAIN not in idle.queues:
            return idle.pop(_PINNED)
        if self._until_s[idle.first(_PINNED)] > self.now_s:
            return idle.pop(_PLAIN)
        return idle.pop(min(idle.queues, key=idle.first_stamp))
