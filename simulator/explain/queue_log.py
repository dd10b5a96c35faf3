"""Why the queue of one instance stood, decision by decision."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulator.explain.parts import ADAPTER, BLOCKS, BUDGET, REASONS, SEATS

if TYPE_CHECKING:
    from simulator.plan import Plan
    from simulator.scheduler import Scheduler

_COLUMN = {reason: column for column, reason in enumerate(REASONS)}
_WIDTH = len(REASONS)


class QueueLog:
    """The decisions after which somebody waited, why, and how long for each reason until then.

    Sums over time make one request's share a difference, however long it waited and however many waited with it. They
    are kept where the reason changes, which is the same however steps are taken.
    """

    def __init__(self) -> None:
        self._times = array("d")  # of the decisions
        self._changed = array("d")  # those of them that gave another reason than the one before
        self._spent_s = array("d")  # by change and reason: seconds up to it
        self._columns = bytearray()  # the reason from there on

    def __len__(self) -> int:
        return len(self._times)

    def stood(self, now_s: float, reason: int) -> None:
        """A decision left requests waiting."""
        column = _COLUMN[reason]
        self._times.append(now_s)
        if not self._columns or column != self._columns[-1]:
            self._spent_s.extend(self._spent_by(now_s))
            self._changed.append(now_s)
            self._columns.append(column)

    def waited(self, since_s: float, now_s: float, not_before: int) -> tuple[float, Sequence[float]]:
        """Of the time since ``since_s``: seconds until the first decision that passed over, and then by reason.

        ``not_before`` is the length of this log when the request was on its way: no earlier decision can have passed
        over it. The decision that is being taken now is not in the log yet.
        """
        first = max(bisect_left(self._times, since_s), not_before)
        if first == len(self._times):
            return now_s - since_s, (0.0,) * _WIDTH
        first_s = self._times[first]
        spent = zip(self._spent_by(first_s), self._spent_by(now_s), strict=True)
        return first_s - since_s, [end_s - begin_s for begin_s, end_s in spent]

    def _spent_by(self, time_s: float) -> array[float]:
        change = bisect_right(self._changed, time_s) - 1
        if change < 0:
            return array("d", bytes(8 * _WIDTH))
        spent_s = self._spent_s[change * _WIDTH : (change + 1) * _WIDTH]
        spent_s[self._columns[change]] += time_s - self._changed[change]
        return spent_s


def reason(scheduler: Scheduler, plan: Plan) -> int:
    """What stopped admission at the decision just taken, after which requests wait.

    In the order in which `Admission.admit` asks: it is not tried after a preemption; then budget, places, blocks. What
    else is left waiting was passed over for its adapter, or wants more tokens in one step than were left.
    """
    if plan.preempted or scheduler.admission.found_no_blocks:
        return BLOCKS
    if plan.num_tokens >= scheduler.running_scan.budget:
        return BUDGET
    if len(scheduler.running) >= scheduler.config.max_num_active_seqs:
        return SEATS
    head = (scheduler.skipped or scheduler.waiting)[0]
    return ADAPTER if scheduler.config.max_loras and head.lora is not None else BUDGET
