"""Stretches: runs of steps in which the same requests decode and nothing else happens but block borders."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulator.request import Request, in_order

if TYPE_CHECKING:
    from simulator.scheduler import Scheduler


class Stretch:
    """How long nothing needs deciding, and what the steps passed in between did to the blocks."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._asynchronous = scheduler.asynchronous
        self._block_size = scheduler.config.block_size
        # When the step of a schedule index is scheduled, where the pool goes by time.
        self.scheduled_at: Callable[[int], float] | None = None

    def max_steps(self) -> int:
        """How many steps may end before ``schedule`` must look again: until the first member ends, while blocks
        suffice.
        """
        scheduler = self._scheduler
        group, completing = scheduler.group, scheduler.completing
        if scheduler.loose or scheduler.pieces or not group.count:
            return 1
        if (scheduler.waiting or scheduler.skipped) and not scheduler.admission.blocked:
            return 1
        num_steps = group.next_change(completing) - completing + 1
        return 1 + self._affordable_moves(num_steps - 1) if num_steps > 1 else 1

    def pass_steps(self, num_steps: int) -> None:
        """Let ``num_steps`` steps end *and* schedule as many more."""
        scheduler = self._scheduler
        index, end = scheduler.next_index, scheduler.next_index + num_steps
        lead, lag = self._publication_lead(), 1 if self._asynchronous else 0
        scheduler.collect_events(scheduler.completing)  # those of the last real schedule leave with the first step
        admission = scheduler.admission
        counts_lookups = admission.counts_refusals
        group, pool, scheduled_at = scheduler.group, scheduler.pool, self.scheduled_at
        while (border := group.next_border(index)) is not None:
            step = max(index, border - lead) if lead else border
            if step >= end:
                break
            if counts_lookups:
                admission.repeat_lookups(step - index)
            if scheduled_at is not None:
                pool.tell_time(scheduled_at(step))
            self._pass_borders(step, lead)
            if counts_lookups:
                admission.repeat_lookups(1)
            if pool.events:
                scheduler.collect_events(step - lag)  # they leave with the next output after the step was scheduled
            index = step + 1
        if not lead and not self._asynchronous:
            for request in group.border.get(end, ()):
                scheduler.kv.publish_last(request)
        if counts_lookups:
            admission.repeat_lookups(end - index)

    def steps_to_events(self) -> int | None:
        """After how many further completions KV events may leave, as far as is known; None if none will."""
        scheduler = self._scheduler
        if scheduler.pool.events:
            return 1
        group, index = scheduler.group, scheduler.next_index
        border = group.next_border(index)
        if border is None:
            return None
        lead = self._publication_lead()
        if not group.num_named and scheduler.pool.quiet_takes(group.count) == group.count:
            border = index + self._block_size  # until then each member takes one block at most
        step = max(index, border - lead)
        return step - self._asynchronous - scheduler.completing + 1

    def pass_border(self, request: Request, index: int) -> None:
        """Publish the block that is full and, at the border itself, take the next one."""
        scheduler = self._scheduler
        if (index + request.joined) % self._block_size:
            scheduler.kv.publish_last(request)
        else:
            block = scheduler.pool.take_one(request)
            scheduler.kv.publish_last(request)
            request.blocks.append(block)
            scheduler.group.pass_border(request, index)

    def _pass_borders(self, index: int, lead: int) -> None:
        """The borders of a step in which nothing else happens and blocks suffice."""
        scheduler = self._scheduler
        if not lead:
            take_one, publish_last = scheduler.pool.take_one, scheduler.kv.publish_last
            for request in scheduler.group.pass_borders(index):
                block = take_one(request)
                publish_last(request)
                request.blocks.append(block)
            return
        border = scheduler.group.border
        visits = border.get(index, []) + border.get(index + 1, [])
        if len(visits) > 1:
            visits.sort(key=in_order)
        for request in visits:
            self.pass_border(request, index)
        border.pop(index, None)

    def _publication_lead(self) -> int:
        """How many steps before its border a member's full block must be published within a stretch.

        It happens in the step that computes the block's last token: one earlier, or at the border where output returns
        late. Nobody looks a block up within a stretch, so that only the order of KV events can tell: unless somebody
        could know the answer's blocks, one visit a border is enough.
        """
        scheduler = self._scheduler
        return 1 if not self._asynchronous and scheduler.pool.events is not None and scheduler.group.num_named else 0

    def _affordable_moves(self, num_moves: int) -> int:
        """For how many further steps, at most ``num_moves``, the free blocks are certain to suffice, and no eviction to
        change what is decided.
        """
        scheduler = self._scheduler
        free, size, border = scheduler.pool.num_free, self._block_size, scheduler.group.border
        if scheduler.admission.fragile and (scheduler.waiting or scheduler.skipped):
            free = scheduler.pool.quiet_takes(free)
        rounds = free // scheduler.group.count  # each member takes one block in `size` steps
        if rounds:
            return min(num_moves, rounds * size)
        for move in range(min(num_moves, size)):
            free -= len(border.get(scheduler.next_index + move, ()))
            if free < 0:
                return move
        return min(num_moves, size)
