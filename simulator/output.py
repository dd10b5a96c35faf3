"""What a step's output does: tokens, stops, returned blocks (vLLM's ``update_from_output``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.plan import Piece
from simulator.request import ABORTED, FINISHED, RUNNING, Request, in_order

if TYPE_CHECKING:
    from simulator.scheduler import Scheduler


class Output:
    """Delivers the output of one plan, request by request in scheduling order, so that the free list follows that
    order.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def deliver(self, index: int) -> list[Request]:
        """Process the output of the step ``index``; the requests it ended."""
        scheduler = self._scheduler
        pieces = scheduler.pieces.pop(index, None)
        ending = scheduler.group.finish.pop(index, None)
        if pieces is None:
            if not ending:
                return []
            if len(ending) > 1:
                ending.sort(key=in_order)
            for request in ending:
                self._end_member(request)
            return ending
        if len(pieces) == 1 and not ending:
            return [pieces[0].request] if self._deliver_piece(pieces[0]) else []
        finished = []
        rows: list[tuple[int, Piece | Request]] = [(piece.seq, piece) for piece in pieces]
        rows += [(request.seq, request) for request in ending or ()]
        for _, row in sorted(rows, key=lambda row: row[0]):
            if isinstance(row, Request):
                self._end_member(row)
                finished.append(row)
            elif self._deliver_piece(row):
                finished.append(row.request)
        return finished

    def _end_member(self, request: Request) -> None:
        scheduler = self._scheduler
        if scheduler.asynchronous:
            # The block that the answer's last computed token fills has waited for this output.
            scheduler.kv.publish(request, request.num_prompt_tokens + request.last_output - 1)
        request.num_output_tokens = request.last_output
        self._finish(request)

    def _deliver_piece(self, piece: Piece) -> bool:
        """One piece's output; True if it ended the request."""
        request = piece.request
        request.num_in_flight -= piece.num_tokens
        stale = self._drain_stale(request, piece) if request.num_stale else False
        if request.state in (FINISHED, ABORTED) or (stale and request.discards_stale) or not piece.samples:
            return False
        accepted = self._accept(request, piece, stale)
        if not self._scheduler.dialect.stale_output and request.num_stale:
            request.num_stale -= 1  # an output frame from before a reset: dropped whole
            return False
        self._scheduler.num_piece_outputs += 1
        before = request.num_output_tokens
        request.num_output_tokens = min(before + 1 + accepted, request.last_output)
        if self._scheduler.asynchronous:
            if not stale:
                request.num_placeholders -= request.num_output_tokens - before
            if request.state == RUNNING:
                self._scheduler.kv.publish(request, request.num_computed_tokens - request.num_placeholders)
        if request.num_output_tokens == request.last_output:
            self._finish(request)
            return True
        self._continue(request)
        return False

    def _drain_stale(self, request: Request, piece: Piece) -> bool:
        """Whether this output was scheduled before the request's last preemption (dialects that track it)."""
        if not self._scheduler.dialect.stale_output:
            return False
        request.num_stale -= piece.num_tokens
        return True

    def _accept(self, request: Request, piece: Piece, stale: bool) -> int:
        """Accepted drafts; rejected ones give their computed tokens back."""
        if piece.num_drafts and not stale:
            rejected = piece.num_drafts - piece.num_accepted
            if request.num_computed_tokens > 0:
                request.num_computed_tokens -= rejected
            if request.num_placeholders > 0:
                request.num_placeholders -= rejected
        return piece.num_accepted

    def _continue(self, request: Request) -> None:
        scheduler = self._scheduler
        if scheduler.asynchronous or request.state != RUNNING:
            return
        if scheduler.num_spec_tokens and not request.is_prefill_chunk:
            request.num_drafts = scheduler.num_spec_tokens
        scheduler.join_group(request, scheduler.next_index)

    def _finish(self, request: Request) -> None:
        scheduler = self._scheduler
        if request.state == RUNNING:
            scheduler.running.remove(request)
            if request.joined is None:
                scheduler.loose.remove(request)
            else:
                scheduler.group.leave(request, scheduler.next_index)
                if request.stops_early:  # it may have been scheduled once more: that output is dropped
                    for index in range(max(scheduler.completing + 1, request.joined_at), scheduler.next_index):
                        scheduler.absent[index] = scheduler.absent.get(index, 0) + 1
        elif not scheduler.waiting.drop(request):
            scheduler.skipped.drop(request)
        request.state = FINISHED
        scheduler.kv.release(request)
