"""How many requests a router sent to each instance lately."""

from __future__ import annotations

from collections import deque

WINDOW_S = 60.0  # upstream's default


class DispatchRate:
    """Dispatches of the last ``window_s`` seconds, by instance: the QPS of vLLM production-stack ``a6c01db``, times the
    window.
    """

    __slots__ = ("_counts", "_latest", "_seen", "_window_s")

    def __init__(self, num_instances: int, window_s: float) -> None:
        self._window_s = window_s
        self._counts = [0] * num_instances
        self._seen = [False] * num_instances
        self._latest: deque[tuple[float, int]] = deque()

    def lowest(self, now_s: float) -> int:
        """The first instance that was never sent anything, else the one with the fewest dispatches in the window; ties
        to the lowest index.
        """
        self._forget(now_s)
        if not all(self._seen):
            return self._seen.index(False)
        return self._counts.index(min(self._counts))

    def sent(self, instance: int, now_s: float) -> None:
        """A request was sent to ``instance``."""
        self._seen[instance] = True
        self._counts[instance] += 1
        self._latest.append((now_s, instance))
        self._forget(now_s)

    def _forget(self, now_s: float) -> None:
        """Leave out what the window has passed."""
        while self._latest and self._latest[0][0] <= now_s - self._window_s:
            self._counts[self._latest.popleft()[1]] -= 1
