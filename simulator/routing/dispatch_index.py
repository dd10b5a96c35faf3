"""What a router believes to be cached since it sent it there itself."""

from __future__ import annotations

from collections import deque

from simulator.routing.prefix_index import PrefixIndex


class DispatchIndex(PrefixIndex):
    """Block keys by where requests with them were sent, each forgotten ``ttl_s`` seconds after its latest dispatch;
    never if None.
    """

    __slots__ = ("_expiries", "_ttl_s")

    def __init__(self, ttl_s: float | None = None) -> None:
        super().__init__()
        self._ttl_s = ttl_s
        self._expiries: deque[tuple[float, int, list[int]]] = deque()

    def remember(self, instance: int, keys: list[int], now_s: float) -> None:
        """A request with these leading blocks was sent to ``instance``. The list is kept: the caller changes it no
        more.
        """
        if self._ttl_s is None:
            # Nothing is ever forgotten, so that what an instance holds is closed under prefixes: the rest is all new.
            self.store(instance, keys[self.overlap(instance, keys) :])
        else:
            # A block dispatched again is counted again, hence gone with the last of its dispatches.
            self.store(instance, keys)
            self._expiries.append((now_s + self._ttl_s, instance, keys))

    def expire(self, now_s: float) -> None:
        """Forget what is due."""
        expiries = self._expiries
        while expiries and expiries[0][0] <= now_s:
            _, instance, keys = expiries.popleft()
            self.remove(instance, keys)
