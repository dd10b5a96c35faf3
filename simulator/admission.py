"""Admission of waiting requests: the second half of vLLM's ``schedule``, and the statistics of prefix hits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.plan import Piece, Plan
from simulator.request import RUNNING, Request
from simulator.waiting import WaitingQueue

if TYPE_CHECKING:
    from simulator.scheduler import Scheduler

# Statistics, by vLLM's names. Admissions after a preemption have their own.
_OF_NEW = ("requests", "queries", "hits")
_OF_PREEMPTED = ("preempted_requests", "preempted_queries", "preempted_hits")


class Admission:
    """Takes requests from the head of the queue while budget, places and blocks suffice; the first that cannot come in
    stops it.

    ``blocked`` after an attempt: nothing but the end of a running request can change its outcome; or, where it is
    ``fragile``, an eviction.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.config = scheduler.config
        self.dialect = scheduler.dialect
        self.blocked = self.fragile = False
        self.statistics = dict.fromkeys((*_OF_NEW, *_OF_PREEMPTED), 0)
        self._num_admitted = 0
        self._refused: tuple[Request, int, int] | None = (
            None  # the head that found no blocks, its hit, evictions by then
        )

    def admit(self, plan: Plan, cap: int, budget: int, inputs: int) -> None:
        """Fill the plan from the queues with what the running requests left of both budgets."""
        scheduler, config = self._scheduler, self.config
        spec_slots = scheduler.running_scan.draft_slots
        loras = self._loras_of(plan)
        set_aside: list[Request] = []
        self.blocked, self.fragile, self._refused = True, False, None
        while budget > 0 and inputs > spec_slots:
            queue = self._queue()
            if queue is None:
                break
            if len(scheduler.running) >= config.max_num_active_seqs:
                break
            request = queue[0]
            if self._must_wait(request, loras):
                set_aside.append(queue.pop_head())
                self.blocked = False
                continue
            piece = self._try(plan, request, cap, min(budget, inputs - spec_slots))
            if piece is None:
                break
            queue.pop_head()
            if request.lora is not None:
                loras.add(request.lora)
            self._start(plan, request, piece)
            budget -= piece.num_tokens
            inputs -= piece.num_tokens + spec_slots
        if set_aside:
            (scheduler.skipped if self.dialect.skipped_have_own_queue else scheduler.waiting).put_back_all(set_aside)

    @property
    def counts_refusals(self) -> bool:
        """Whether the head of the queue is looked up in every step, found no blocks, and that counts."""
        return self._refused is not None and not self.dialect.statistics_at_admission

    @property
    def found_no_blocks(self) -> bool:
        """Whether the last attempt ended at a request for which there were not enough free blocks."""
        return self._refused is not None

    def repeat_lookups(self, num_steps: int) -> None:
        """Count the look-ups of a blocked head over ``num_steps`` steps that were not visited."""
        if num_steps <= 0 or self._refused is None:
            return
        request, hit, num_evictions = self._refused
        scheduler = self._scheduler
        if scheduler.pool.num_evictions != num_evictions:
            hit = len(scheduler.kv.longest_hit(request, known(request))) * self.config.block_size
            self._refused = (request, hit, scheduler.pool.num_evictions)
        self._record(request, hit, num_steps)

    def _queue(self) -> WaitingQueue | None:
        """The queue whose head is next."""
        waiting, skipped = self._scheduler.waiting, self._scheduler.skipped
        if not skipped:
            return waiting or None
        if waiting and self.config.policy == "priority":
            first, other = waiting[0], skipped[0]
            ahead = (first.priority, first.arrival_time, first.request_id) < (
                other.priority,
                other.arrival_time,
                other.request_id,
            )
            return waiting if ahead else skipped
        return skipped

    def _loras_of(self, plan: Plan) -> set[str]:
        """Adapters of the running requests that this step schedules."""
        if not self.config.max_loras:
            return set()
        scheduled = [piece.request for piece in plan.pieces] + list(self._scheduler.group.scheduled(plan.index))
        return {request.lora for request in scheduled if request.lora is not None}

    def _must_wait(self, request: Request, loras: set[str]) -> bool:
        """Whether the request is passed over: stale output to be delivered first, or no place for its adapter."""
        if self.dialect.stale_output and request.num_stale and not request.discards_stale:
            return True
        return (
            bool(self.config.max_loras)
            and request.lora is not None
            and (len(loras) == self.config.max_loras and request.lora not in loras)
        )

    def _try(self, plan: Plan, request: Request, cap: int, budget: int) -> Piece | None:
        """Find the hit and take blocks; None where the request cannot come in now."""
        scheduler, config = self._scheduler, self.config
        kv = scheduler.kv
        num_known = known(request)
        hit_blocks = kv.longest_hit(request, num_known)
        hit = len(hit_blocks) * config.block_size
        if not self.dialect.statistics_at_admission:
            self._record(request, hit)
        if self._reports_cached_tokens(request):
            request.num_cached_tokens = hit
        num_new, num_drafts = num_known - hit, 0
        if num_new == 1 and self._pads(plan, hit):
            num_drafts = scheduler.num_spec_tokens
            num_new = 1 + num_drafts
            if num_new > budget:
                self.blocked = False
                return None
        if 0 < cap < num_new:
            num_new = cap
        if num_new > budget and not config.enable_chunked_prefill:
            return None
        num_new = min(num_new, budget)
        slots = hit + num_new + scheduler.num_lookahead
        if not kv.admit(request, hit_blocks, num_known, slots, bool(scheduler.running)):
            self._refused = (request, hit, scheduler.pool.num_evictions)
            self.blocked = self._cannot_gain(request)
            # The loss of one block in its middle leaves those behind it free, for a chunk that needs fewer.
            self.fragile = bool(hit) and not (kv.reserve_full or scheduler.pool.keeps_prefixes)
            return None
        request.num_computed_tokens = hit
        kv.publish(request, min(hit + num_new, num_known))
        if self.dialect.statistics_at_admission:
            self._record(request, hit)
        piece = Piece(request, num_new, num_drafts)
        piece.padded = num_drafts > 0
        return piece

    def _start(self, plan: Plan, request: Request, piece: Piece) -> None:
        scheduler = self._scheduler
        self._num_admitted += 1
        request.seq = piece.seq = self._num_admitted
        request.state = RUNNING
        scheduler.running.append(request)
        scheduler.loose.append(request)
        plan.pieces.append(piece)
        plan.admitted.append((request, request.num_computed_tokens))

    def _pads(self, plan: Plan, hit: int) -> bool:
        """Whether a one-token admission is padded with dummy drafts, so that the step stays a uniform decode."""
        scheduler = self._scheduler
        if not (self.dialect.pads_admissions and scheduler.num_spec_tokens) or plan.has_prefill_chunk:
            return False
        scheduled_running = len(plan.pieces) > len(plan.admitted)
        return (scheduled_running or hit > 0) and hit + scheduler.num_spec_tokens + 2 <= self.config.max_model_len

    def _reports_cached_tokens(self, request: Request) -> bool:
        if self.dialect.cached_tokens_of_first_admission:
            return request.num_preemptions == 0
        return request.num_output_tokens == 0

    def _cannot_gain(self, request: Request) -> bool:
        """Whether the head's need cannot shrink while others decode: their answers are no part of its prompt.

        Free blocks only go down then, and an evicted hit block costs what it cost as an idle one.
        """
        answers = {other.output_segment for other in self._scheduler.running}
        answers.discard(None)
        return not answers or not any(segment in answers for segment, _, _ in request.prompt)

    def _record(self, request: Request, hit: int, times: int = 1) -> None:
        if not self.config.enable_prefix_caching or request.skip_reading_prefix_cache:
            return
        requests, queries, hits = _OF_PREEMPTED if request.num_preemptions else _OF_NEW
        self.statistics[requests] += times
        self.statistics[queries] += times * known(request)
        self.statistics[hits] += times * hit


def known(request: Request) -> int:
    """All known tokens: prompt and delivered answer."""
    return request.num_prompt_tokens + request.num_output_tokens
