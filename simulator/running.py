"""The running requests' share of a step: the first half of vLLM's ``schedule``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.plan import Piece, Plan
from simulator.request import RUNNING, Request, in_order
from simulator.waiting import key_of_victim

if TYPE_CHECKING:
    from simulator.scheduler import Scheduler


class RunningScan:
    """Serves running requests in order of admission, each with what it wants and the budget allows.

    Where blocks run out, the last running request is preempted (priority policy: the least important one), again and
    again, until there is space or the request itself had to go: then the scan stops.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.config = config = scheduler.config
        self.dialect = scheduler.dialect
        self.by_priority = config.policy == "priority"
        speculative = config.speculative
        self.draft_slots = speculative.num_draft_slots if speculative else 0  # input slots beyond a request's tokens
        self.budget = config.max_num_batched_tokens  # tokens a step may compute
        if self.dialect.draft_slots_reserved:
            self.budget -= self.draft_slots * config.max_num_seqs
            self.draft_slots = 0

    def prefill_cap(self) -> int:
        """Longest chunk a request may have (0: no cap): ``long_prefill_token_threshold`` and its exceptions."""
        cap = self.config.long_prefill_token_threshold
        if not cap:
            return 0
        num_requests = len(self._scheduler.running) + self._scheduler.num_waiting
        if self.dialect.lone_request_uncapped and num_requests == 1:
            return 0
        if self.config.long_prefill_token_threshold_adaptive:
            return max(cap, self.config.max_num_batched_tokens // max(num_requests, 1))
        return cap

    def scan(self, plan: Plan, cap: int) -> tuple[int, int]:
        """Serve every running request in order; the token budget and the input budget left over."""
        scheduler = self._scheduler
        budget, inputs, slots = self.budget, self.config.max_num_batched_tokens, self.draft_slots
        running, position = scheduler.running, 0
        while position < len(running) and budget > 0 and inputs > slots:
            request = running[position]
            num_new = min(self._wanted(request, cap), budget, inputs - slots)
            if num_new <= 0:
                position += 1
                continue
            num_slots = request.num_computed_tokens + num_new + scheduler.num_lookahead
            while not scheduler.kv.grow(request, num_slots):
                victim = self._choose_victim()
                before = running.index(victim)
                piece = plan.piece_of(victim)
                self._preempt(plan, victim)
                if piece is not None:  # already scheduled in this very step: its tokens are free again
                    plan.pieces.remove(piece)
                    budget += piece.num_tokens
                    inputs += piece.num_tokens + slots
                if before < position and (piece is not None or self.dialect.victim_before_scan_corrected):
                    position -= 1
                if victim is request:
                    return budget, inputs
            self._place(plan, request, num_new)
            budget -= num_new
            inputs -= num_new + slots
            position += 1
        return budget, inputs

    def moves_as_group(self, index: int, cap: int) -> bool:
        """Whether no decision of this step depends on the group members' places in the running list.

        All members must fit the budget whatever stands before them; and under the priority policy, where any request
        may be the victim, all blocks needed must be free.
        """
        scheduler = self._scheduler
        group, loose, budget = scheduler.group, scheduler.loose, self.budget
        if not self.by_priority and group.count <= budget and scheduler.running[-len(loose) :] == loose:
            return True  # under FCFS the members come first and take one token each
        wants = [max(0, self._wanted(request, cap)) for request in loose]
        if group.count + sum(wants) > budget:
            return False
        if self.by_priority:
            size = self.config.block_size
            needed = len(group.border.get(index, ())) + sum(-(-want // size) for want in wants)
            return needed <= scheduler.pool.num_free
        return True

    def scan_group(self, plan: Plan, cap: int) -> int:
        """Serve members at a block border and loose requests in running order, the other members at once; the budget
        left.

        Under FCFS a victim is the last of the running list, hence never served yet; if it is the one that needs space,
        it is also the last to visit.
        """
        scheduler, size, index = self._scheduler, self.config.block_size, plan.index
        group, pool = scheduler.group, scheduler.pool
        border = group.border
        visits = scheduler.loose + border.get(index, [])
        if not scheduler.asynchronous and index + 1 in border:
            visits += border[index + 1]
        if len(visits) > 1:
            visits.sort(key=in_order)
        spent = 0
        for request in visits:
            if request.state != RUNNING:
                continue  # preempted by one before it
            if request.joined is not None:
                if (index + request.joined) % size == 0 and not self._free_up(1, request, plan):
                    break
                scheduler.stretch.pass_border(request, index)
                continue
            num_new = min(self._wanted(request, cap), self.budget - group.count - spent)
            if num_new <= 0:
                continue
            num_slots = min(request.num_computed_tokens + num_new, self.config.max_model_len)
            num_blocks = -(-num_slots // size) - len(request.blocks)
            if num_blocks > 0:
                if num_blocks > pool.num_free and not self._free_up(num_blocks, request, plan):
                    break
                request.blocks += pool.take(num_blocks, request)
            self._place(plan, request, num_new)
            spent += num_new
        border.pop(index, None)
        return self.budget - group.count - spent

    def _free_up(self, num_blocks: int, request: Request, plan: Plan) -> bool:
        """Preempt from the back of the running list until the blocks are there; False if the request itself had to
        go.
        """
        scheduler = self._scheduler
        while num_blocks > scheduler.pool.num_free:
            victim = scheduler.running[-1]
            self._preempt(plan, victim)
            if victim is request:
                return False
        return True

    def _preempt(self, plan: Plan, victim: Request) -> None:
        self._scheduler.preempt(victim)
        plan.preempted.append(victim)

    def _choose_victim(self) -> Request:
        running = self._scheduler.running
        return max(running, key=key_of_victim) if self.by_priority else running[-1]

    def _wanted(self, request: Request, cap: int) -> int:
        """Tokens a running request could compute now; 0 if its last token is already in flight."""
        computed, placeholders = request.num_computed_tokens, request.num_placeholders
        if placeholders and computed + 2 - placeholders >= request.num_prompt_tokens + request.max_tokens:
            return 0
        wanted = request.num_prompt_tokens + request.num_output_tokens + request.num_drafts + placeholders - computed
        if 0 < cap < wanted:
            wanted = cap
        return min(wanted, self.config.max_model_len - computed - 1)

    def _place(self, plan: Plan, request: Request, num_new: int) -> None:
        """Write a running request into the plan and publish what it fills."""
        known = request.num_prompt_tokens + request.num_output_tokens
        computed = request.num_computed_tokens
        self._scheduler.kv.publish(request, min(computed + num_new, known))
        num_drafts = 0
        if request.num_drafts:
            num_drafts = min(max(num_new + computed - known - request.num_placeholders, 0), request.num_drafts)
            request.num_drafts = 0
        plan.has_prefill_chunk |= request.is_prefill_chunk
        plan.pieces.append(Piece(request, num_new, num_drafts))
