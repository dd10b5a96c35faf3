"""SimPy's environment with callbacks at an exact time.

SimPy schedules by delay, and ``now + (t - now)`` need not be ``t`` in floating point. A step must end at the very time
that its formula gives, or else an arrival that ties with it would fall on one side when steps are taken one by one and
on the other when they are taken together.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush

import simpy
from simpy.events import NORMAL, URGENT


class Alarm(simpy.Event):
    """An event that has its outcome already and happens when the clock reaches it."""

    def __init__(self, clock: Clock, callback: Callable[[simpy.Event], None]) -> None:
        # As SimPy's Timeout does: the constructors of its parents are skipped, which halves the price.
        self.env = clock
        self.callbacks = [callback]
        self._value = None
        self._ok = True


class Clock(simpy.Environment):
    """Simulated time in seconds."""

    def at(self, time_s: float, callback: Callable[[simpy.Event], None], *, first: bool = False) -> Alarm:
        """Call ``callback`` at ``time_s``; ``first``: ahead of others at the same time."""
        alarm = Alarm(self, callback)
        heappush(self._queue, (time_s, URGENT if first else NORMAL, next(self._eid), alarm))
        return alarm
