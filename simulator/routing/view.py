"""What a router can know: its own ledger of what it dispatched, and an index of who holds which block.

Nothing here reads an engine. The cluster reports dispatches, first tokens and finishes as the router would see them
pass, and block events as late as they would arrive; a policy reads the view and the request, nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from simulator.prefix import num_shareable
from simulator.request import Request
from simulator.routing.prefix_index import PathIndex, PrefixIndex


@dataclass(slots=True)
class _Entry:
    """What one dispatched request added to the ledger, so that exactly this is taken away again.

    ``keys`` are those of blocks that another request could share; of the ``num_private`` others, their number will do.
    ``prefill_tokens`` are none once the first token has passed.
    """

    instance: int
    keys: list[int]
    num_private: int
    prefill_tokens: int


class View:
    """One router's belief about ``num_instances`` instances that cache blocks of ``block_size`` tokens.

    Indexed by instance: ``num_in_flight`` requests dispatched and not finished; ``prefill_tokens`` dispatched prompt
    tokens without a first token yet, less the cached prefix believed at dispatch; ``active_blocks`` distinct full
    prompt blocks of requests in flight, kept only if ``tracks_active_blocks`` (a dictionary operation a block).

    ``index`` is filled by dispatches if ``fills_at_dispatch``, each one forgotten ``ttl_s`` seconds after its latest
    dispatch (never if None), else by ``kv_events`` alone.
    """

    __slots__ = (
        "_entries", "_expiries", "_fills_at_dispatch", "_tracks_active_blocks", "_ttl_s", "active", "active_blocks",
        "block_size", "index", "num_in_flight", "num_instances", "prefill_tokens",
    )  # fmt: skip

    def __init__(
        self,
        num_instances: int,
        block_size: int,
        *,
        fills_at_dispatch: bool = False,
        ttl_s: float | None = None,
        tracks_active_blocks: bool = False,
    ) -> None:
        self.num_instances = num_instances
        self.block_size = block_size
        self.num_in_flight = [0] * num_instances
        self.prefill_tokens = [0] * num_instances
        self.active_blocks = [0] * num_instances
        self.index = PrefixIndex()
        self.active = PathIndex()
        self._fills_at_dispatch = fills_at_dispatch
        self._ttl_s = ttl_s
        self._tracks_active_blocks = tracks_active_blocks
        self._entries: dict[int, _Entry] = {}
        self._expiries: deque[tuple[float, int, list[int]]] = deque()

    def cached_levels(self, request: Request, now_s: float) -> list[tuple[int, int]]:
        """Who is believed to cache how many leading full blocks of the prompt: `PrefixIndex.levels`."""
        self._expire(now_s)
        return self.index.levels(request.block_keys)

    def active_levels(self, request: Request) -> list[tuple[int, int]]:
        """Where requests in flight use how many leading full blocks of the prompt already: `PrefixIndex.levels`."""
        return self.active.levels(request.block_keys)

    def dispatched(self, request: Request, instance: int, now_s: float) -> None:
        """The request was sent to ``instance``. Raises ValueError if it is in flight already."""
        if request.request_id in self._entries:
            raise ValueError(f"request {request.request_id} was dispatched twice without finishing")
        self._expire(now_s)
        # A copy: the engine appends the keys of the answer's blocks to its own list.
        keys = request.block_keys[: num_shareable(request.block_keys)]
        num_private = len(request.block_keys) - len(keys)
        overlap = self.index.overlap(instance, keys)
        prefill_tokens = max(0, request.num_prompt_tokens - overlap * self.block_size)
        self._entries[request.request_id] = _Entry(instance, keys, num_private, prefill_tokens)
        self.num_in_flight[instance] += 1
        self.prefill_tokens[instance] += prefill_tokens
        if self._tracks_active_blocks:
            self.active_blocks[instance] += self.active.store(instance, keys) + num_private
        if self._fills_at_dispatch:
            self._remember(instance, keys, overlap, now_s)

    def first_token(self, request: Request, now_s: float) -> None:  # noqa: ARG002
        """The request's first token passed by: its prefill is over. A second call changes nothing."""
        entry = self._entries[request.request_id]
        self.prefill_tokens[entry.instance] -= entry.prefill_tokens
        entry.prefill_tokens = 0

    def finished(self, request: Request, now_s: float) -> None:  # noqa: ARG002
        """The request left its instance: finished, refused there or aborted. Raises KeyError if it is not in flight."""
        entry = self._entries.pop(request.request_id)
        self.num_in_flight[entry.instance] -= 1
        self.prefill_tokens[entry.instance] -= entry.prefill_tokens
        if self._tracks_active_blocks:
            self.active_blocks[entry.instance] -= self.active.remove(entry.instance, entry.keys) + entry.num_private

    def kv_events(self, instance: int, events: Sequence[int | None]) -> None:
        """Block events of ``instance`` in order: ``key`` stored, ``~key`` (negative) removed, None all cleared."""
        index = self.index
        while None in events:
            events = events[events.index(None) + 1 :]
            index.clear(instance)
        changes: Sequence[Any] = events  # all of them numbers now
        # Copies are counted, so that only the sums of a batch matter; stored first, since none may go below zero.
        stored = [key for key in changes if key >= 0]
        if stored:
            index.store(instance, stored)
        if len(stored) < len(changes):
            index.remove(instance, [~key for key in changes if key < 0])

    def _remember(self, instance: int, keys: list[int], overlap: int, now_s: float) -> None:
        if self._ttl_s is None:
            # Nothing is ever forgotten, so that what an instance holds is closed under prefixes: the rest is all new.
            self.index.store(instance, keys[overlap:])
        else:
            # A block dispatched again is counted again, hence gone with the last of its dispatches.
            self.index.store(instance, keys)
            self._expiries.append((now_s + self._ttl_s, instance, keys))

    def _expire(self, now_s: float) -> None:
        expiries = self._expiries
        while expiries and expiries[0][0] <= now_s:
            _, instance, keys = expiries.popleft()
            self.index.remove(instance, keys)
