"""What a router can know: its own ledger of what it dispatched, an index of who holds which block, and engine metrics.

Nothing here reads an engine. The cluster reports dispatches, first tokens and finishes as the router would see them
pass, and block events and metrics as late as they would arrive; a policy reads the view and the request, nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from simulator.prefix import num_shareable
from simulator.request import Request
from simulator.routing.dispatch_index import DispatchIndex
from simulator.routing.fleet import Fleet
from simulator.routing.polled import PolledMetrics
from simulator.routing.prefix_index import PathIndex, PrefixIndex, deepest


class OwnIndex(Protocol):
    """An index that a router builds from the prompts it dispatched, in whatever pieces it cuts them into."""

    def insert(self, request: Request, instance: int, now_s: float) -> None:
        """The request was sent to ``instance``."""
        ...

    def matched_tokens(self, request: Request, instance: int, now_s: float) -> int:
        """Leading tokens of its prompt that the index believes ``instance`` to have cached."""
        ...


class Truth(Protocol):
    """The engines as they are, which only an oracle sees."""

    def cached_blocks(self, request: Request, instance: int) -> int:
        """Leading blocks of the prompt that ``instance`` would hit now."""
        ...

    def queued_tokens(self, instance: int) -> int:
        """Tokens that requests on ``instance``, waiting or running, still have to prefill."""
        ...


@dataclass(slots=True)
class _Entry:
    """What one dispatched request added to the ledger, so that exactly this is taken away again.

    ``keys`` are those of blocks that another request could share; of the ``num_private`` others, their number will do.
    ``prefilling`` until the first token has passed.
    """

    instance: int
    keys: list[int]
    num_private: int
    prefill_tokens: int
    prefill_s: float
    prefilling: bool = True


class View:
    """One router's belief about ``fleet.num_instances`` instances that cache blocks of ``fleet.block_size`` tokens.

    The ledger, indexed by instance: ``num_in_flight`` requests dispatched and not finished, with ``prompt_tokens`` in
    their prompts; ``num_prefilling`` of them without a first token yet, with ``prompt_tokens_prefilling`` in their
    prompts, ``prefill_tokens`` when the cached prefix believed at dispatch is taken off, and ``prefill_s`` seconds that
    the router expected them to take; ``uncached_tokens`` like ``prefill_tokens``, but of all in flight;
    ``active_blocks`` distinct full prompt blocks of requests in flight, kept only if ``tracks_active_blocks`` (a
    dictionary operation a block), and with them ``changed``, the instances where any of this has changed since the
    router emptied the set.

    ``index`` is filled by dispatches if ``fills_at_dispatch``, each one forgotten ``ttl_s`` seconds after its latest
    dispatch (never if None), else by ``kv_events`` alone. ``speculative``, where there is one, is a second index of
    the router's latest dispatches: what events have not confirmed yet. ``own`` is the router's own kind of index.
    ``polled`` metrics and the ``truth`` are there for routers that ask for them.
    """

    __slots__ = (
        "_answer", "_entries", "_fills_at_dispatch", "_tracks_active_blocks", "active", "active_blocks", "block_size",
        "changed", "fleet", "index", "num_in_flight", "num_instances", "num_prefilling", "own", "polled", "prefill_s",
        "prefill_tokens", "prompt_tokens", "prompt_tokens_prefilling", "speculative", "truth", "uncached_tokens",
    )  # fmt: skip

    polled: PolledMetrics
    truth: Truth

    def __init__(
        self,
        fleet: Fleet,
        *,
        fills_at_dispatch: bool = False,
        ttl_s: float | None = None,
        tracks_active_blocks: bool = False,
        speculative_ttl_s: float | None = None,
        own: OwnIndex | None = None,
    ) -> None:
        number = fleet.num_instances
        self.fleet = fleet
        self.num_instances = number
        self.block_size = fleet.block_size
        self.num_in_flight = [0] * number
        self.prompt_tokens = [0] * number
        self.num_prefilling = [0] * number
        self.prompt_tokens_prefilling = [0] * number
        self.prefill_tokens = [0] * number
        self.prefill_s = [0.0] * number
        self.uncached_tokens = [0] * number
        self.active_blocks = [0] * number
        self.changed: set[int] = set()
        self.index: PrefixIndex = DispatchIndex(ttl_s) if fills_at_dispatch else PrefixIndex()
        self.speculative = None if speculative_ttl_s is None else DispatchIndex(speculative_ttl_s)
        self.active = PathIndex()
        self.own = own
        self._fills_at_dispatch = fills_at_dispatch
        self._tracks_active_blocks = tracks_active_blocks
        self._entries: dict[int, _Entry] = {}
        # The last question for cached levels and its answer, until something changes: the dispatch asks it again.
        self._answer: tuple[Request, float, list[tuple[int, int]]] | None = None

    def cached_levels(self, request: Request, now_s: float) -> list[tuple[int, int]]:
        """Who is believed to cache how many leading full blocks of the prompt: `PrefixIndex.levels`."""
        index, speculative = self.index, self.speculative
        if isinstance(index, DispatchIndex):
            index.expire(now_s)
        levels = index.levels(request.block_keys)
        if speculative is not None:
            speculative.expire(now_s)
            levels = deepest(levels, speculative.levels(request.block_keys))
        self._answer = request, now_s, levels
        return levels

    def active_levels(self, request: Request) -> list[tuple[int, int]]:
        """Where requests in flight use how many leading full blocks of the prompt already: `PrefixIndex.levels`."""
        return self.active.levels(request.block_keys)

    def dispatched(
        self, request: Request, instance: int, now_s: float, num_copied: int = 0, prefill_s: float = 0.0
    ) -> None:
        """The request was sent to ``instance``, where its first ``num_copied`` blocks come too; ``prefill_s`` as in
        `decision.Send`. Raises ValueError if it is in flight already.
        """
        if request.request_id in self._entries:
            raise ValueError(f"request {request.request_id} was dispatched twice without finishing")
        # A copy: the engine appends the keys of the answer's blocks to its own list.
        keys = request.block_keys[: num_shareable(request.block_keys)]
        num_private = len(request.block_keys) - len(keys)
        num_tokens = request.num_prompt_tokens
        believed = self._believed_tokens(request, keys, instance, now_s)
        if num_copied:
            believed = max(believed, num_copied * self.block_size)
        prefill_tokens = max(0, num_tokens - believed)
        self._entries[request.request_id] = _Entry(instance, keys, num_private, prefill_tokens, prefill_s)
        self.num_in_flight[instance] += 1
        self.prompt_tokens[instance] += num_tokens
        self.num_prefilling[instance] += 1
        self.prompt_tokens_prefilling[instance] += num_tokens
        self.prefill_tokens[instance] += prefill_tokens
        if prefill_s:
            self.prefill_s[instance] += prefill_s
        self.uncached_tokens[instance] += prefill_tokens
        if self._tracks_active_blocks:
            self.active_blocks[instance] += self.active.store(instance, keys) + num_private
            self.changed.add(instance)
        if self._fills_at_dispatch:
            self.index.remember(instance, keys, now_s)  # type: ignore[attr-defined]
        if self.speculative is not None:
            self.speculative.remember(instance, keys, now_s)
        if self.own is not None:
            self.own.insert(request, instance, now_s)

    def first_token(self, request: Request, now_s: float) -> None:  # noqa: ARG002
        """The request's first token passed by: its prefill is over. A second call changes nothing."""
        entry = self._entries[request.request_id]
        if entry.prefilling:
            entry.prefilling = False
            self._prefilled(request, entry)

    def finished(self, request: Request, now_s: float) -> None:  # noqa: ARG002
        """The request left its instance: finished, refused there or aborted. Raises KeyError if it is not in flight."""
        entry = self._entries.pop(request.request_id)
        if entry.prefilling:
            self._prefilled(request, entry)
        self.num_in_flight[entry.instance] -= 1
        self.prompt_tokens[entry.instance] -= request.num_prompt_tokens
        self.uncached_tokens[entry.instance] -= entry.prefill_tokens
        if self._tracks_active_blocks:
            self.active_blocks[entry.instance] -= self.active.remove(entry.instance, entry.keys) + entry.num_private
            self.changed.add(entry.instance)

    def kv_events(self, instance: int, events: Sequence[int | None]) -> None:
        """Block events of ``instance`` in order: ``key`` stored, ``~key`` (negative) removed, None all cleared."""
        index = self.index
        self._answer = None
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

    def _believed_tokens(self, request: Request, keys: list[int], instance: int, now_s: float) -> int:
        """Leading tokens of the prompt that ``instance`` is believed to have cached."""
        if self.own is not None:
            return self.own.matched_tokens(request, instance, now_s)
        answer, self._answer = self._answer, None
        if answer is not None and answer[0] is request and answer[1] == now_s:
            num_blocks = next((depth for mask, depth in answer[2] if mask >> instance & 1), 0)
            return min(num_blocks, len(keys)) * self.block_size
        index = self.index
        if isinstance(index, DispatchIndex):
            index.expire(now_s)
        num_blocks = index.overlap(instance, keys)
        if self.speculative is not None:
            self.speculative.expire(now_s)
            num_blocks = max(num_blocks, self.speculative.overlap(instance, keys))
        return num_blocks * self.block_size

    def _prefilled(self, request: Request, entry: _Entry) -> None:
        instance = entry.instance
        self.num_prefilling[instance] -= 1
        self.prompt_tokens_prefilling[instance] -= request.num_prompt_tokens
        self.prefill_tokens[instance] -= entry.prefill_tokens
        if entry.prefill_s:
            # With nothing left the sum is 0, whatever rounding has added up to.
            left_s = self.prefill_s[instance] - entry.prefill_s
            self.prefill_s[instance] = left_s if self.num_prefilling[instance] else 0.0
        if self._tracks_active_blocks:
            self.changed.add(instance)
