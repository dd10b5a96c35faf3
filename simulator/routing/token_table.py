"""A router's own table of the texts that it dispatched: so much of them, for so long, for all instances together."""

from __future__ import annotations

from collections import OrderedDict

from simulator.request import Request
from simulator.routing.fleet import Fleet
from simulator.routing.token_tree import Texts


class TokenTable(Texts):
    """Texts of all instances together, at most ``max_tokens`` of them, each forgotten ``ttl_s`` seconds after it was
    last sent to anybody (looked after every ``sweep_s`` seconds).

    AIBrix ``e3e10f9``, ``PrefixHashTable``: blocks by hash, each with the pods that were sent it, in one LRU list. The
    blocks of a prompt are noted from the first on, so that the first is the oldest and goes first, with which the rest
    is of no use; here the rest goes with it.
    """

    __slots__ = ("_max_tokens", "_next_sweep_s", "_recency", "_sweep_s", "_ttl_s", "num_tokens")

    def __init__(self, fleet: Fleet, *, max_tokens: int, ttl_s: float, sweep_s: float = 1.0) -> None:
        super().__init__(fleet)
        self._max_tokens = max_tokens
        self._ttl_s = ttl_s
        self._sweep_s = sweep_s
        self._next_sweep_s = sweep_s
        # Chain -> (when it was last sent, tokens that it takes), the longest ago first.
        self._recency: OrderedDict[int, tuple[float, int]] = OrderedDict()
        self.num_tokens = 0

    def insert(self, request: Request, instance: int, now_s: float) -> None:
        """See `view.OwnIndex`."""
        self._sweep(now_s)
        recency = self._recency
        for chain, length in self._chains(request):
            reach = self._reach.setdefault(chain, {})
            reach[instance] = max(reach.get(instance, 0), length)
            _, before = recency.get(chain, (0.0, 0))
            recency[chain] = now_s, max(before, length)
            recency.move_to_end(chain)
            self.num_tokens += max(before, length) - before
        while self.num_tokens > self._max_tokens:
            self._forget_oldest()

    def _sweep(self, now_s: float) -> None:
        if now_s < self._next_sweep_s:
            return
        last_sweep_s = now_s // self._sweep_s * self._sweep_s
        self._next_sweep_s = last_sweep_s + self._sweep_s
        while self._recency and next(iter(self._recency.values()))[0] + self._ttl_s < last_sweep_s:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        chain, (_, num_tokens) = self._recency.popitem(last=False)
        del self._reach[chain]
        self.num_tokens -= num_tokens
