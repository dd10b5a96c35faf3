"""Waiting, running, token budget, preemption -> a plan: what vLLM V1 decides in each engine step.

There is no prefill and no decode phase: each request has known tokens (prompt and delivered answer) and computed ones, and
wants the difference. ``schedule`` first serves the running requests in order, preempting where blocks run out, then admits
waiting ones; ``complete`` takes the oldest plan's output. vLLM's counterpart is ``v1/core/sched/scheduler.py``
(``schedule``, ``_preempt_request``, ``_update_after_schedule``, ``update_from_output``) with ``async_scheduler.py``.

Requests which only decode move as a group (decoding.py) wherever that changes no decision; everything else is a *piece*.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING

from simulator.admission import Admission
from simulator.block_pool import BlockPool
from simulator.decoding import DecodeGroup
from simulator.dialect import Dialect, find_dialect
from simulator.kv_cache import KVCache
from simulator.output import Output
from simulator.plan import Piece, Plan
from simulator.prefix import Prefixes
from simulator.request import ABORTED, RUNNING, WAITING, Request
from simulator.waiting import key_of_victim, make_queue

if TYPE_CHECKING:
    from simulator.engine_args import EngineConfig

_in_order = attrgetter("seq")  # the order of the running list, hence of scheduling


class Scheduler:
    """One engine's scheduler. It decides; it never waits, records or draws.

    ``grouping=False`` visits every running request in every step: the plain reference, to which the group must be equal.
    KV events are kept for block keys below ``announce_below``, if that is given.
    """

    def __init__(
        self, config: EngineConfig, prefixes: Prefixes, *, grouping: bool = True, announce_below: float | None = None
    ) -> None:
        self.config = config
        self.dialect: Dialect = find_dialect(config.dialect)
        speculative = config.speculative
        self.num_spec_tokens = speculative.num_speculative_tokens if speculative else 0
        self.num_lookahead = speculative.num_lookahead_tokens if speculative else 0
        self.draft_slots = speculative.num_draft_slots if speculative else 0  # input slots a scheduled request takes beyond its tokens
        self.budget = config.max_num_batched_tokens  # tokens a step may compute
        if self.dialect.draft_slots_reserved:
            self.budget -= self.draft_slots * config.max_num_seqs
            self.draft_slots = 0
        self.asynchronous: bool = config.async_scheduling
        self.depth = 2 if config.async_scheduling else 1
        self.pool = BlockPool(
            config.num_gpu_blocks, keyless_first=self.dialect.keyless_blocks_first, announce_below=announce_below
        )
        self.kv = KVCache(
            self.pool,
            prefixes,
            config.max_model_len,
            caching=config.enable_prefix_caching,
            reserve_full=config.scheduler_reserve_full_isl,
            watermark_blocks=int(config.watermark * config.num_gpu_blocks),
            drop_last_hit_block=speculative.drops_last_hit_block if speculative else False,
        )
        self.prefixes = prefixes
        self._by_priority = config.policy == "priority"
        self.waiting = make_queue(config.policy)
        self.skipped = make_queue(config.policy)  # used by dialects in which passed-over requests have their own queue
        self.running: list[Request] = []  # in order of admission; `seq` grows along it
        self.loose: list[Request] = []  # those of `running` that are not in the group, in order
        self.group = DecodeGroup(config.block_size, self.asynchronous)
        # With one-token blocks a border is everywhere, and drafts make steps unequal: nothing to gain from a group.
        self.grouping = grouping and not speculative and config.block_size > 1
        self.next_index = 0  # of the next schedule()
        self.completing = 0  # of the oldest plan whose output has not been processed
        self.pieces: dict[int, list[Piece]] = {}  # of the plans in flight, by schedule index
        self.event_batches: list[tuple[int, list[int | None]]] = []  # KV events by the completion with which they leave
        self.num_preemptions = 0
        self._admission = Admission(self)
        self._output = Output(self)
        self._batch: object = None  # which requests the last plan decoded, if it only decoded; see _continues

    @property
    def statistics(self) -> dict[str, int]:
        """Prefix-cache statistics in tokens, by vLLM's names."""
        return self._admission.statistics

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.skipped)

    def has_work(self) -> bool:
        """Whether a request waits or runs."""
        return bool(self.running or self.waiting or self.skipped)

    def add(self, request: Request) -> None:
        """Queue a request. Its block keys are computed here unless it brings them."""
        room = max(1, self.config.max_model_len - request.num_prompt_tokens)
        limit = min(request.max_tokens, room)
        request.last_output = min(request.oracle_num_output_tokens, limit)
        request.stops_early = request.last_output < limit
        if request.prompt_end is None and self.kv.caching:
            root = self.prefixes.root(request.cache_salt, request.lora)
            request.block_keys, request.prompt_end = self.prefixes.keys(request.prompt, root)
        self.waiting.add(request)

    def schedule(self) -> Plan:
        """Decide the next step. Up to ``depth`` plans may be in flight."""
        plan = Plan()
        plan.index = self.next_index
        group = self.group
        group.drop_stopped(plan.index)
        cap = self._prefill_cap() if self.config.long_prefill_token_threshold else 0
        if group.members and (self.loose or self._by_priority) and not self._moves_as_group(plan.index, cap):
            self._dissolve()
        if group.members:
            budget = inputs = self._scan_group(plan, cap)
        else:
            budget, inputs = self._scan_running(plan, cap)
        self._admission.blocked = False
        if not plan.preempted and (self.waiting or self.skipped):
            self._admission.admit(plan, cap, budget, inputs)
        self._after_schedule(plan)
        return plan

    def complete(self, num_steps: int = 1) -> list[Request]:
        """Process the output of the next ``num_steps`` steps; the requests that finished, in scheduling order.

        More than one is allowed up to :meth:`max_steps`; the schedules between them change nothing but block borders.
        """
        if num_steps > 1:
            self.settle(num_steps - 1)
        finished = self._output.deliver(self.completing)
        self._collect_events(self.completing)
        self.completing += 1
        return finished

    def settle(self, num_steps: int) -> None:
        """Let ``num_steps`` steps of a stretch end *and* schedule as many more (fewer than :meth:`max_steps`)."""
        index, end = self.next_index, self.next_index + num_steps
        lead, lag = self._publication_lead(), 1 if self.asynchronous else 0
        counts_lookups = self._admission.counts_refusals
        while True:
            border = self.group.next_border(index)
            if border is None:
                break
            step = border - lead if border - lead > index else index
            if step >= end:
                break
            if counts_lookups:
                self._admission.repeat_lookups(step - index)
            self._pass_borders(step, lead)
            if counts_lookups:
                self._admission.repeat_lookups(1)
            if self.pool.events:
                self._collect_events(step - lag)  # they leave with the next output after the step was scheduled
            index = step + 1
        if not lead and not self.asynchronous:
            for request in self.group.border.get(end, ()):
                self.kv.publish_last(request)
        if counts_lookups:
            self._admission.repeat_lookups(end - index)
        self.next_index = end
        self.completing += num_steps

    def max_steps(self) -> int:
        """How many steps may end before ``schedule`` must look again: until the first member ends, while blocks suffice."""
        group = self.group
        if self.loose or self.pieces or not group.count:
            return 1
        if (self.waiting or self.skipped) and not self._admission.blocked:
            return 1
        num_steps = group.next_change(self.completing) - self.completing + 1
        return 1 + self._affordable_moves(num_steps - 1) if num_steps > 1 else 1

    def steps_to_events(self) -> int | None:
        """After how many further completions KV events leave, as far as is known; None if none will."""
        if self.pool.events:
            return 1
        group, index = self.group, self.next_index
        border = group.next_border(index)
        if border is None:
            return None
        lead = self._publication_lead()
        if not lead and self.pool.quiet_takes(group.count) == group.count:
            border = index + self.config.block_size  # until then each member takes one block at most
        step = border - lead if border - lead > index else index
        return step - self.asynchronous - self.completing + 1

    def abort(self, request: Request) -> None:
        """End a request between steps; blocks return at once, output in flight is dropped."""
        if request.state == RUNNING:
            self._leave_running(request)
        elif not self.waiting.drop(request):
            self.skipped.drop(request)
        request.state = ABORTED
        self.kv.release(request)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached content; False (and no change) while blocks are held.

        With ``reset_running_requests`` all running requests are preempted first, last one first, and their output in flight
        is dropped.
        """
        if reset_running_requests:
            while self.running:
                self._preempt(self.running[-1], discard=True)
        return self.pool.reset()

    def scheduled(self, plan: Plan) -> list[tuple[Request, int, int]]:
        """(request, tokens, drafts) of the plan just made, in scheduling order: for comparisons, not for speed."""
        rows = [(piece.request, piece.num_tokens, piece.num_drafts) for piece in plan.pieces]
        rows += [(request, 1, 0) for request in self.group.scheduled(plan.index) if request.joined_at <= plan.index]
        return sorted(rows, key=lambda row: row[0].seq)

    def in_flight(self, index: int) -> list[Request]:
        """The requests which the plan ``index``, not yet completed, will deliver output for, in scheduling order."""
        rows = [piece.request for piece in self.pieces.get(index, ())]
        rows += [request for request in self.group.scheduled(index) if request.joined_at <= index]
        return sorted(rows, key=lambda request: request.seq)

    def num_computed_tokens(self, request: Request) -> int:
        """Computed tokens, up to the last schedule; members of the group do not carry the number themselves."""
        if request.joined is None:
            return request.num_computed_tokens
        return min(self.next_index, self.group.end_index(request)) + request.joined

    def num_delivered(self, request: Request) -> int:
        """Answer tokens delivered so far."""
        if request.joined is None or self.completing <= request.joined_at:
            return request.num_output_tokens
        return self.completing + request.joined + 1 - request.num_prompt_tokens

    # --- running requests -----------------------------------------------------------------------------------------

    def _prefill_cap(self) -> int:
        """Longest chunk a request may have (0: no cap): ``long_prefill_token_threshold`` and its exceptions."""
        cap = self.config.long_prefill_token_threshold
        num_requests = len(self.running) + self.num_waiting
        if self.dialect.lone_request_uncapped and num_requests == 1:
            return 0
        if self.config.long_prefill_token_threshold_adaptive:
            return max(cap, self.config.max_num_batched_tokens // max(num_requests, 1))
        return cap

    def _scan_running(self, plan: Plan, cap: int) -> tuple[int, int]:
        """Serve every running request in order; the token budget and the input budget left over."""
        budget, inputs, slots = self.budget, self.config.max_num_batched_tokens, self.draft_slots
        running, position = self.running, 0
        while position < len(running) and budget > 0 and inputs > slots:
            request = running[position]
            num_new = min(self._wanted(request, cap), budget, inputs - slots)
            if num_new <= 0:
                position += 1
                continue
            slots_needed = request.num_computed_tokens + num_new + self.num_lookahead
            while not self.kv.grow(request, slots_needed):
                victim = self._choose_victim()
                before = running.index(victim)
                piece = plan.piece_of(victim)
                self._preempt(victim)
                plan.preempted.append(victim)
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
        self.kv.publish(request, min(computed + num_new, known))
        num_drafts = 0
        if request.num_drafts:
            num_drafts = min(max(num_new + computed - known - request.num_placeholders, 0), request.num_drafts)
            request.num_drafts = 0
        plan.has_prefill_chunk |= request.is_prefill_chunk
        plan.pieces.append(Piece(request, num_new, num_drafts))

    def _choose_victim(self) -> Request:
        if self._by_priority:
            return max(self.running, key=key_of_victim)
        return self.running[-1]

    def _preempt(self, victim: Request, discard: bool = False) -> None:
        """All blocks go, all computing starts anew (minus what is still cached then); the answer so far is kept."""
        self._leave_running(victim)
        self.kv.release(victim)
        victim.state = WAITING
        victim.num_computed_tokens = 0
        victim.num_drafts = 0
        if self.dialect.stale_output:
            victim.discards_stale = discard or (victim.discards_stale and victim.num_stale > 0)
            victim.num_stale = victim.num_in_flight
            victim.num_placeholders = 0
        elif discard:
            victim.num_stale = victim.num_placeholders  # here: output frames to drop
            victim.num_placeholders = 0
        victim.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.put_back(victim)

    def _leave_running(self, request: Request) -> None:
        self.running.remove(request)
        if request.joined is None:
            self.loose.remove(request)
        else:
            self._detach(request)

    # --- the group ------------------------------------------------------------------------------------------------

    def _moves_as_group(self, index: int, cap: int) -> bool:
        """Whether no decision of this step depends on the members' places in the running list.

        All members must fit the budget whatever stands before them; and under the priority policy, where any request may be
        the victim, all blocks needed must be free.
        """
        group, budget = self.group, self.budget
        loose = self.loose
        if group.count <= budget and not self._by_priority and self.running[-len(loose) :] == loose:
            return True  # under FCFS the members come first and take one token each
        wants = [max(0, self._wanted(request, cap)) for request in loose]
        if group.count + sum(wants) > budget:
            return False
        if self._by_priority:
            size = self.config.block_size
            needed = len(group.border.get(index, ())) + sum(-(-want // size) for want in wants)
            return needed <= self.pool.num_free
        return True

    def _scan_group(self, plan: Plan, cap: int) -> int:
        """Serve members at a block border and loose requests in running order, the other members at once; the budget left.

        Under FCFS a victim is the last of the running list, hence never served yet; if it is the one that needs space, it is
        also the last to visit.
        """
        index, group, budget = plan.index, self.group, self.budget
        border = group.border
        visits = self.loose + border.get(index, [])
        if not self.asynchronous and index + 1 in border:
            visits += border[index + 1]
        if len(visits) > 1:
            visits.sort(key=_in_order)
        spent = 0
        for request in visits:
            if request.state != RUNNING:
                continue
            if request.joined is not None:
                if (index + request.joined) % self.config.block_size == 0 and not self._free_up(1, request, plan):
                    break
                self._pass_border(request, index)
                continue
            num_new = min(self._wanted(request, cap), budget - group.count - spent)
            if num_new <= 0:
                continue
            slots = min(request.num_computed_tokens + num_new, self.config.max_model_len)
            if not self._free_up(-(-slots // self.config.block_size) - len(request.blocks), request, plan):
                break
            self.kv.grow(request, slots)
            self._place(plan, request, num_new)
            spent += num_new
        border.pop(index, None)
        return budget - group.count - spent

    def _free_up(self, num_blocks: int, request: Request, plan: Plan) -> bool:
        """Preempt from the back of the running list until the blocks are there; False if the request itself had to go."""
        while num_blocks > self.pool.num_free:
            victim = self.running[-1]
            self._preempt(victim)
            plan.preempted.append(victim)
            if victim is request:
                return False
        return True

    def _publication_lead(self) -> int:
        """How many steps before its border a member's full block must be published within a stretch.

        It happens in the step that computes the block's last token: one earlier, or at the border where output returns late.
        Nobody looks a block up within a stretch, so that only the order of KV events can tell: unless somebody could know
        the answer's blocks, one visit a border is enough.
        """
        return 1 if not self.asynchronous and self.pool.events is not None and self.group.num_named else 0

    def _pass_borders(self, index: int, lead: int) -> None:
        """The borders of a step in which nothing else happens and blocks suffice."""
        border = self.group.border
        visits = border.get(index, [])
        if lead and index + 1 in border:
            visits = visits + border[index + 1]
        if len(visits) > 1:
            visits.sort(key=_in_order)
        for request in visits:
            self._pass_border(request, index)
        border.pop(index, None)

    def _pass_border(self, request: Request, index: int) -> None:
        """Publish the block that is full and, at the border itself, take the next one."""
        if (index + request.joined) % self.config.block_size:
            self.kv.publish_last(request)
        else:
            block = self.pool.take_one()
            self.kv.publish_last(request)
            request.blocks.append(block)
            self.group.pass_border(request, index)

    def _affordable_moves(self, num_moves: int) -> int:
        """For how many further steps, at most ``num_moves``, the free blocks are certain to suffice."""
        free, size, border = self.pool.num_free, self.config.block_size, self.group.border
        rounds = free // self.group.count  # each member takes one block in `size` steps
        if rounds:
            return min(num_moves, rounds * size)
        for move in range(min(num_moves, size)):
            free -= len(border.get(self.next_index + move, ()))
            if free < 0:
                return move
        return min(num_moves, size)

    def _detach(self, request: Request) -> None:
        """A member becomes a loose request; the steps it has in flight become pieces of theirs."""
        first = max(self.completing, request.joined_at)
        end = min(self.next_index, self.group.end_index(request))
        request.num_output_tokens = self.num_delivered(request)
        self.group.leave(request, self.next_index)
        for index in range(first, end):
            self.pieces.setdefault(index, []).append(Piece(request, 1, 0, samples=True))
            request.num_in_flight += 1
            request.num_placeholders += self.asynchronous
        request.is_prefill_chunk = False

    def _dissolve(self) -> None:
        """Make all members loose, for a step whose outcome depends on each one's place."""
        if self._batch == self.group.version:
            self._batch = tuple(request.seq for request in self.group.scheduled(self.next_index - 1))
        for request in list(self.group.members):
            self._detach(request)
        self.loose = list(self.running)

    def join_group(self, request: Request, index: int) -> None:
        """Let a request that only decodes from ``index`` on move with the group, where there is one."""
        if not self.grouping or request.is_prefill_chunk or request.num_stale:
            return
        known = request.num_prompt_tokens + request.num_output_tokens + request.num_placeholders
        if known - request.num_computed_tokens == 1 and self.group.join(request, index):
            request.joined_at = index
            self.loose.remove(request)

    # --- after the decision ---------------------------------------------------------------------------------------

    def _after_schedule(self, plan: Plan) -> None:
        """Computed tokens count from now on, though the device has not begun (vLLM's ``_update_after_schedule``)."""
        group, index = self.group, plan.index
        if group.count:
            plan.num_decodes = group.count
            plan.decode_context = group.decode_context(index)
            plan.max_context = group.max_context(index)
        if plan.pieces:
            plan.pieces.sort(key=_in_order)
            for piece in plan.pieces:
                plan.count(piece)
                self._advance(piece)
            self.pieces[index] = plan.pieces
        plan.continues = self._continues(plan)
        self.next_index = index + 1
        if self.asynchronous:
            for piece in plan.pieces:
                if piece.samples:
                    self.join_group(piece.request, index + 1)

    def _advance(self, piece: Piece) -> None:
        request = piece.request
        request.num_computed_tokens += piece.num_tokens
        request.num_in_flight += piece.num_tokens
        known = request.num_prompt_tokens + request.num_output_tokens + request.num_placeholders
        request.is_prefill_chunk = request.num_computed_tokens < known
        piece.samples = not request.is_prefill_chunk
        if piece.num_drafts and piece.samples and not piece.padded and request.acceptance is not None:
            piece.num_accepted = min(next(request.acceptance), piece.num_drafts)
        if self.asynchronous and piece.samples:
            request.num_placeholders += 1 + piece.num_drafts
            request.num_drafts = self.num_spec_tokens

    def _continues(self, plan: Plan) -> bool:
        """Whether the plan decodes exactly the requests of the one before, and both do nothing else: one stretch.

        Group-only batches are told apart by the group's version, all others by their members.
        """
        before, group = self._batch, self.group
        if plan.num_prefill_tokens or not plan.num_tokens:
            self._batch = None
            return False
        if not plan.pieces:
            self._batch = group.version
            if before == group.version:
                return True
            return isinstance(before, tuple) and before == tuple(r.seq for r in group.scheduled(plan.index))
        self._batch = tuple(row[0].seq for row in self.scheduled(plan) if row[1] == 1)
        return before == self._batch and len(self._batch) == plan.num_decodes

    def _collect_events(self, index: int) -> None:
        if self.pool.events:
            self.event_batches.append((index, self.pool.events))
            self.pool.events = []
