"""What a router believes to be cached since it sent it there itself."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from itertools import repeat

from simulator.routing.prefix_index import PrefixIndex


class DispatchIndex(PrefixIndex):
    """Block keys by where requests with them were sent, each forgotten ``ttl_s`` seconds after its latest dispatch;
    never if None.

    Keys come as whole paths from a prompt's first block on, so that what an instance holds is closed under prefixes,
    and what is forgotten of a path is its end.
    """

    __slots__ = ("_expiries", "_latest", "_ttl_s")

    def __init__(self, ttl_s: float | None = None) -> None:
        super().__init__()
        self._ttl_s = ttl_s
        self._expiries: deque[tuple[float, int, list[int]]] = deque()
        self._latest: dict[int, dict[int, float]] = {}  # by instance and key: when it is to be forgotten

    def remember(self, instance: int, keys: list[int], now_s: float) -> None:
        """A request with these leading blocks was sent to ``instance``. The list is kept: the caller changes it no
        more.
        """
        self.store(instance, keys[self.overlap(instance, keys) :])
        if self._ttl_s is not None:
            expiry_s = now_s + self._ttl_s
            self._latest.setdefault(instance, {}).update(zip(keys, repeat(expiry_s)))
            self._expiries.append((expiry_s, instance, keys))

    def expire(self, now_s: float) -> None:
        """Forget what is due."""
        expiries = self._expiries
        while expiries and expiries[0][0] <= now_s:
            expiry_s, instance, keys = expiries.popleft()
            latest = self._latest[instance]
            # What was dispatched again is due later; it comes first, and so does what an equal dispatch has taken away.
            gone = keys[bisect_left(keys, True, key=lambda key: latest.get(key) == expiry_s) :]
            self.remove(instance, gone)
            for key in gone:
                del latest[key]
