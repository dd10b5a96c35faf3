"""Waiting, running, token budget, preemption -> a plan: what vLLM V1 decides in each engine step.

There is no prefill and no decode phase: each request has known tokens (prompt and delivered answer) and computed ones,
and wants the difference. ``schedule`` first serves the running requests in order, preempting where blocks run out, then
admits waiting ones; ``complete`` takes the oldest plan's output. vLLM's counterpart is ``v1/core/sched/scheduler.py``
(``schedule``, ``_preempt_request``, ``_update_after_schedule``, ``update_from_output``) with ``async_scheduler.py``.

Requests which only decode move as a group (decoding.py) wherever that changes no decision; everything else is a
*piece*.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulator.admission import Admission
from simulator.block_pool import BlockPool
from simulator.decoding import DecodeGroup
from simulator.dialect import Dialect, find_dialect
from simulator.kv_cache import KVCache
from simulator.output import Output
from simulator.plan import Piece, Plan
from simulator.prefix import Prefixes
from simulator.request import ABORTED, RUNNING, WAITING, Request, in_order
from simulator.running import RunningScan
from simulator.stretch import Stretch
from simulator.waiting import make_queue

if TYPE_CHECKING:
    from simulator.engine_args import EngineConfig


class Scheduler:
    """One engine's scheduler. It decides; it never waits, records or draws.

    ``grouping=False`` visits every running request in every step: the plain reference, to which the group must be
    equal. KV events are kept for block keys below ``announce_below``, if that is given. ``make_pool`` is called like
    the pool's class.
    """

    def __init__(
        self,
        config: EngineConfig,
        prefixes: Prefixes,
        *,
        grouping: bool = True,
        announce_below: float | None = None,
        make_pool: Callable[..., BlockPool] = BlockPool,
    ) -> None:
        self.config = config
        self.dialect: Dialect = find_dialect(config.dialect)
        speculative = config.speculative
        self.num_spec_tokens = speculative.num_speculative_tokens if speculative else 0
        self.num_lookahead = speculative.num_lookahead_tokens if speculative else 0
        self.asynchronous: bool = config.async_scheduling
        self.depth = 2 if config.async_scheduling else 1
        self.pool = make_pool(
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
        self.num_piece_outputs = 0  # outputs delivered to requests outside the group, so far
        self.absent: dict[int, int] = {}  # members of a plan in flight that will not take its output as such
        self.event_batches: list[tuple[int, list[int | None]]] = []  # KV events by the completion with which they leave
        self.num_preemptions = 0
        self.running_scan = RunningScan(self)
        self.admission = Admission(self)
        self.stretch = Stretch(self)
        self._output = Output(self)
        self._batch: object = None  # which requests the last plan decoded, if it only decoded; see _continues

    @property
    def statistics(self) -> dict[str, int]:
        """Prefix-cache statistics in tokens, by vLLM's names."""
        return self.admission.statistics

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
        if group.stop:
            group.drop_stopped(plan.index)
        scan = self.running_scan
        cap = scan.prefill_cap()
        if group.members and (self.loose or scan.by_priority) and not scan.moves_as_group(plan.index, cap):
            self._dissolve()
        if group.members:
            budget = inputs = scan.scan_group(plan, cap)
        else:
            budget, inputs = scan.scan(plan, cap)
        self.admission.blocked = False
        if not plan.preempted and (self.waiting or self.skipped):
            self.admission.admit(plan, cap, budget, inputs)
        self._after_schedule(plan)
        return plan

    def complete(self, num_steps: int = 1) -> list[Request]:
        """Process the output of the next ``num_steps`` steps; the requests that finished, in scheduling order.

        More than one is allowed up to :meth:`max_steps`; the schedules between them change nothing but block borders.
        """
        if num_steps > 1:
            self.settle(num_steps - 1)
        finished = self._output.deliver(self.completing)
        self.collect_events(self.completing)
        self.completing += 1
        return finished

    def max_steps(self) -> int:
        """How many steps may end before ``schedule`` must look again."""
        return self.stretch.max_steps()

    def settle(self, num_steps: int) -> None:
        """Let ``num_steps`` steps of a stretch end *and* schedule as many more (fewer than :meth:`max_steps`)."""
        self.stretch.pass_steps(num_steps)
        self.next_index += num_steps
        self.completing += num_steps

    def collect_events(self, index: int) -> None:
        """Put aside the KV events so far: they leave with the output of the step ``index``."""
        if self.pool.events:
            self.event_batches.append((index, self.pool.events))
            self.pool.events = []

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

        With ``reset_running_requests`` all running requests are preempted first, last one first, and their output in
        flight is dropped.
        """
        if reset_running_requests:
            while self.running:
                self.preempt(self.running[-1], discard=True)
        return self.pool.reset()

    def scheduled(self, plan: Plan) -> list[tuple[Request, int, int]]:
        """(request, tokens, drafts) of the plan just made, in scheduling order: for comparisons, not for speed."""
        rows = [(piece.request, piece.num_tokens, piece.num_drafts) for piece in plan.pieces]
        rows += [(request, 1, 0) for request in self.group.scheduled(plan.index)]
        return sorted(rows, key=lambda row: row[0].seq)

    def in_flight(self, index: int) -> list[Request]:
        """The requests which the plan ``index``, not yet completed, will deliver output for, in scheduling order."""
        rows = [(piece.seq, piece.request) for piece in self.pieces.get(index, ())]
        rows += [(request.seq, request) for request in self.group.scheduled(index)]
        return [request for _, request in sorted(rows, key=lambda row: row[0])]

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

    # --- for the parts of a step ----------------------------------------------------------------------------------

    def preempt(self, victim: Request, discard: bool = False) -> None:
        """All blocks go, all computing starts anew (minus what is still cached then); the answer so far is kept."""
        self._leave_running(victim)
        self.kv.release(victim, returns=True)
        victim.state = WAITING
        victim.seq = -1  # output in flight belongs to an earlier admission
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

    def _detach(self, request: Request) -> None:
        """A member becomes a loose request; the steps it has in flight become pieces of theirs."""
        first = max(self.completing, request.joined_at)
        end = min(self.next_index, self.group.end_index(request))
        request.num_output_tokens = self.num_delivered(request)
        self.group.leave(request, self.next_index)
        for index in range(first, end):
            self.pieces.setdefault(index, []).append(Piece(request, 1, 0, samples=True))
            self.absent[index] = self.absent.get(index, 0) + 1
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
            self.loose.remove(request)

    # --- after the decision ---------------------------------------------------------------------------------------

    def _after_schedule(self, plan: Plan) -> None:
        """Computed tokens count from now on, though the device has not begun (vLLM's ``_update_after_schedule``)."""
        group, index = self.group, plan.index
        if group.count:
            plan.num_decodes = plan.num_grouped = group.count
            plan.decode_context = group.decode_context(index)
            plan.max_context = group.max_context(index)
        if plan.pieces:
            if len(plan.pieces) > 1:
                plan.pieces.sort(key=in_order)
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
        if plan.num_prefill_tokens or not plan.num_decodes:
            self._batch = None
            return False
        if not plan.pieces:
            self._batch = group.version
            if before == group.version:
                return True
            return isinstance(before, tuple) and before == tuple(r.seq for r in group.scheduled(plan.index))
        self._batch = tuple(row[0].seq for row in self.scheduled(plan) if row[1] == 1)
        return before == self._batch and len(self._batch) == plan.num_decodes
