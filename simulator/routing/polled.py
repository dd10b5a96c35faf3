"""Engine metrics as a router polls them: sampled at fixed times, some time old when they are read.

An instance is visited only when it is about to change and when a router reads, never at each poll: between two changes
its queues stay as they are, so what a poll in between saw can still be told afterwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

Metrics = tuple[int, int, float]  # requests waiting, requests running, share of the KV blocks that requests hold


class Exporter(Protocol):
    """An engine that exports metrics."""

    def metrics_at(self, time_s: float) -> Metrics:
        """As they are at ``time_s``, which no change since then precedes."""
        ...


class PolledMetrics:
    """The metrics of each instance at the latest poll whose answer has arrived; polls are ``period_s`` seconds apart,
    from time 0 on, and take ``delay_s`` seconds to be read.

    Read ``num_waiting``, ``num_running`` and ``usage`` (indexed by instance) after `refresh`. ``num_polls`` counts the
    polls, so that a policy can tell a new one.
    """

    __slots__ = (
        "_exporters", "_taken", "delay_s", "num_polls", "num_running", "num_waiting", "period_s", "usage",
    )  # fmt: skip

    def __init__(self, exporters: Sequence[Exporter], period_s: float, delay_s: float = 0.0) -> None:
        self.period_s = period_s
        self.delay_s = delay_s
        self.num_polls = -1
        self._exporters = exporters
        # By instance: (number of the last poll before a change, what it saw), for polls that are still to be read.
        self._taken: list[deque[tuple[int, Metrics]]] = [deque() for _ in exporters]
        self.num_waiting = [0] * len(exporters)
        self.num_running = [0] * len(exporters)
        self.usage = [0.0] * len(exporters)

    def before_change(self, number: int, now_s: float) -> None:
        """Instance ``number`` is about to change: keep what the polls until now, not yet read, saw of it."""
        poll = int(now_s / self.period_s)
        taken = self._taken[number]
        if poll > (taken[-1][0] if taken else self.num_polls):
            taken.append((poll, self._exporters[number].metrics_at(poll * self.period_s)))

    def refresh(self, now_s: float) -> None:
        """Read the latest poll that has arrived by ``now_s``, unless it was read before."""
        poll = int((now_s - self.delay_s) / self.period_s) if now_s >= self.delay_s else -1
        if poll <= self.num_polls:
            return
        self.num_polls = poll
        for number, (exporter, taken) in enumerate(zip(self._exporters, self._taken, strict=True)):
            while taken and taken[0][0] < poll:
                taken.popleft()
            found = taken[0][1] if taken else exporter.metrics_at(poll * self.period_s)
            self.num_waiting[number], self.num_running[number], self.usage[number] = found
