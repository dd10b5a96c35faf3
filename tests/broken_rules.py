"""vLLM's rules, each broken alone: what a comparison of decisions must notice (test_parity_mutations.py).

A rule is broken in the plain reference (``grouping=False``), which visits every request in every step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from simulator import dialect, running
from simulator.admission import Admission
from simulator.block_pool import BlockPool
from simulator.dialect import VLLM_0_23, VLLM_0_32, Dialect
from simulator.engine_args.config import SpeculativeConfig
from simulator.kv_cache import KVCache
from simulator.output import Output
from simulator.parity import replay
from simulator.plan import Plan
from simulator.prefix import Prefixes
from simulator.running import RunningScan
from simulator.scheduler import Scheduler
from simulator.waiting import FcfsQueue

Case = dict[str, Any]
BOTH = ("0.32", "0.23")
NEW = ("0.32",)


@dataclass(frozen=True)
class Rule:
    """A rule of vLLM's: how to break it, the dialects that have it, and in which engines it can matter."""

    break_it: Callable[[pytest.MonkeyPatch], None]
    dialects: tuple[str, ...] = BOTH
    can_matter: Callable[[Case], object] = bool


RULES: dict[str, Rule] = {}


def rule(
    dialects: tuple[str, ...] = BOTH, can_matter: Callable[[Case], object] = bool
) -> Callable[[Callable[[pytest.MonkeyPatch], None]], Callable[[pytest.MonkeyPatch], None]]:
    """File the function, which breaks the rule, under its name."""

    def file(break_it: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
        RULES[break_it.__name__] = Rule(break_it, dialects, can_matter)
        return break_it

    return file


def change_engine(patch: pytest.MonkeyPatch, **values: Any) -> None:
    """Play every case with other settings: an option that has no effect."""
    configure = replay.engine_config
    patch.setattr(replay, "engine_config", lambda case: dataclasses.replace(configure(case), **values))


def before(patch: pytest.MonkeyPatch, owner: type, name: str, change: Callable[..., tuple]) -> None:
    """Change the arguments of a method: ``change`` gets all of them and answers all but ``self``."""
    method = getattr(owner, name)
    patch.setattr(owner, name, lambda self, *args: method(self, *change(self, *args)))


# --- what is found in the cache ----------------------------------------------------------------------------------


@rule()
def full_hit_needs_no_recompute(patch):
    before(patch, KVCache, "longest_hit", lambda self, request, num_tokens: (request, num_tokens + 1))


@rule()
def published_when_the_prompt_is_complete(patch):
    def complete(self, request, num_tokens):
        return request, num_tokens if num_tokens >= request.num_prompt_tokens else 0

    before(patch, KVCache, "publish", complete)


@rule()
def answers_never_cached(patch):
    before(patch, KVCache, "publish", lambda self, r, num_tokens: (r, min(num_tokens, r.num_prompt_tokens)))


@rule(can_matter=lambda case: any(r["salt"] for r in case["requests"]))
def salt_ignored(patch):
    before(patch, Prefixes, "root", lambda self, salt, lora: (None, lora))


@rule(can_matter=lambda case: case["engine"]["max_loras"])
def adapter_ignored(patch):
    before(patch, Prefixes, "root", lambda self, salt, lora: (salt, None))


@rule()
def resumed_requests_find_no_cache(patch):
    before(patch, KVCache, "longest_hit", lambda self, r, num_tokens: (r, 0 if r.num_preemptions else num_tokens))


@rule()
def skip_reading_ignored(patch):
    make = replay.make_request
    patch.setattr(replay, "make_request", lambda row: make(row | {"skip_reading_prefix_cache": False}))


@rule()
def equal_blocks_deduplicated(patch):
    publish = KVCache.publish

    def merge(self, request, num_tokens):
        first = request.num_published
        publish(self, request, num_tokens)
        for number in range(first, request.num_published):
            own = request.blocks[number]
            shared = self.pool.cached.get(request.block_keys[number], own)
            if own != shared:
                self.pool.touch([shared])
                self.pool.release([own])
                request.blocks[number] = shared

    patch.setattr(KVCache, "publish", merge)


# --- blocks ------------------------------------------------------------------------------------------------------


@rule()
def blocks_returned_head_first(patch):
    before(patch, BlockPool, "release", lambda self, blocks, *holder: (blocks[::-1], *holder))


@rule()
def idle_hit_blocks_cost_nothing(patch):
    admit = KVCache.admit

    def generous(self, request, hit, *args):
        num_idle = sum(not self.pool.ref_cnt[block] for block in hit)
        self.pool.num_free += num_idle
        admitted = admit(self, request, hit, *args)
        self.pool.num_free -= num_idle
        return admitted

    patch.setattr(KVCache, "admit", generous)


@rule(can_matter=lambda case: case["engine"]["scheduler_reserve_full_isl"])
def no_full_prompt_gate(patch):
    change_engine(patch, scheduler_reserve_full_isl=False)


@rule(NEW, lambda case: case["engine"]["watermark"])
def watermark_ignored(patch):
    change_engine(patch, watermark=0.0)


@rule(NEW, lambda case: case["engine"]["watermark"])
def watermark_also_when_nothing_runs(patch):
    before(patch, KVCache, "admit", lambda self, request, hit, num_tokens, slots, running: (
        request, hit, num_tokens, slots, True
    ))  # fmt: skip


# --- the queue ---------------------------------------------------------------------------------------------------


class Unnoticed(list):
    """A list that counts as empty."""

    def __bool__(self) -> bool:
        return False


@rule()
def admission_in_a_step_with_a_preemption(patch):
    scan = RunningScan.scan

    def unnoticed(self, plan, cap):
        plan.preempted = Unnoticed()
        return scan(self, plan, cap)

    patch.setattr(RunningScan, "scan", unnoticed)


@rule()
def preempted_to_the_back_of_the_queue(patch):
    patch.setattr(FcfsQueue, "put_back", FcfsQueue.add)


@rule()
def blocked_head_skipped(patch):
    must_wait = Admission._must_wait

    def too_large(self, request, loras):
        kv = self._scheduler.kv
        num_missing = (request.num_prompt_tokens + request.num_output_tokens) // kv.block_size
        num_missing -= len(kv.longest_hit(request, request.num_prompt_tokens + request.num_output_tokens))
        return must_wait(self, request, loras) or num_missing > kv.pool.num_free

    patch.setattr(Admission, "_must_wait", too_large)


@rule(NEW, lambda case: case["engine"]["max_num_active_seqs"])
def max_num_active_seqs_ignored(patch):
    configure = replay.engine_config

    def unlimited(case):
        config = configure(case)
        return dataclasses.replace(config, max_num_active_seqs=config.max_num_seqs)

    patch.setattr(replay, "engine_config", unlimited)


@rule(can_matter=lambda case: case["engine"]["max_loras"])
def max_loras_ignored(patch):
    change_engine(patch, max_loras=0)


@rule(can_matter=lambda case: case["engine"]["max_loras"])
def adapters_of_running_requests_forgotten(patch):
    patch.setattr(Admission, "_loras_of", lambda self, plan: set())


@rule(can_matter=lambda case: not case["engine"]["enable_chunked_prefill"])
def chunked_prefill_always_on(patch):
    change_engine(patch, enable_chunked_prefill=True)


@rule(can_matter=lambda case: case["engine"]["long_prefill_token_threshold"])
def long_prefill_threshold_ignored(patch):
    change_engine(patch, long_prefill_token_threshold=0)


@rule(NEW, lambda case: case["engine"]["long_prefill_token_threshold_adaptive"])
def adaptive_threshold_ignored(patch):
    change_engine(patch, long_prefill_token_threshold_adaptive=False)


# --- running requests and victims --------------------------------------------------------------------------------


def priority(case: Case) -> bool:
    return case["engine"]["policy"] == "priority"


@rule(can_matter=priority)
def priority_victim_without_arrival_time(patch):
    patch.setattr(running, "key_of_victim", lambda request: request.priority)


@rule(can_matter=lambda case: not priority(case))
def oldest_running_is_the_victim(patch):
    patch.setattr(RunningScan, "_choose_victim", lambda self: self._scheduler.running[0])


@rule(can_matter=priority)
def tokens_of_a_scheduled_victim_not_returned(patch):
    piece_of = Plan.piece_of

    def worthless(self, request):
        piece = piece_of(self, request)
        if piece is not None:
            piece.num_tokens = 0
        return piece

    patch.setattr(Plan, "piece_of", worthless)


@rule()
def running_list_capped_by_nothing_but_the_budget(patch):
    wanted = RunningScan._wanted

    def uncapped(self, request, cap):
        number = wanted(self, request, 0)
        room = self.config.max_model_len - request.num_computed_tokens - 1
        known = request.num_prompt_tokens + request.num_output_tokens
        whole = known + request.num_drafts + request.num_placeholders - request.num_computed_tokens
        return whole if number == room else number

    patch.setattr(RunningScan, "_wanted", uncapped)


# --- two batches in flight ---------------------------------------------------------------------------------------


def asynchronous(case: Case) -> bool:
    return case["engine"]["async_scheduling"]


@rule(can_matter=asynchronous)
def asynchronous_treated_as_synchronous(patch):
    change_engine(patch, async_scheduling=False)


@rule(can_matter=asynchronous)
def scheduled_past_max_tokens(patch):
    wanted = RunningScan._wanted

    def more(self, request, cap):
        limit, request.max_tokens = request.max_tokens, request.max_tokens + 2
        number = wanted(self, request, cap)
        request.max_tokens = limit
        return number

    patch.setattr(RunningScan, "_wanted", more)


@rule(NEW, asynchronous)
def stale_output_dropped(patch):
    deliver = Output._deliver_piece

    def drop(self, piece):
        piece.request.discards_stale = True
        return deliver(self, piece)

    patch.setattr(Output, "_deliver_piece", drop)


@rule(can_matter=lambda case: asynchronous(case) and any(a.get("reset_running") for a in case["actions"]))
def output_delivered_after_a_reset(patch):
    preempt = Scheduler.preempt
    patch.setattr(Scheduler, "preempt", lambda self, victim, discard=False: preempt(self, victim))


# --- speculation -------------------------------------------------------------------------------------------------


def drafted_by(*methods: str) -> Callable[[Case], bool]:
    return lambda case: (case["engine"]["speculative"] or {}).get("method") in methods


@rule(can_matter=drafted_by("eagle", "mtp"))
def last_hit_block_not_dropped(patch):
    patch.setattr(SpeculativeConfig, "drops_last_hit_block", False)


@rule(can_matter=drafted_by("eagle", "mtp", "draft_model"))
def no_lookahead(patch):
    patch.setattr(SpeculativeConfig, "num_lookahead_tokens", 0)


@rule(can_matter=drafted_by("ngram"))
def lookahead_for_ngram(patch):
    patch.setattr(SpeculativeConfig, "num_lookahead_tokens", property(lambda self: self.num_speculative_tokens))


@rule(can_matter=drafted_by("draft_model"))
def no_input_slots_for_a_draft_model(patch):
    patch.setattr(SpeculativeConfig, "num_draft_slots", 0)


@rule(can_matter=drafted_by("eagle", "mtp", "draft_model", "ngram"))
def rejected_drafts_keep_their_tokens(patch):
    patch.setattr(Output, "_accept", lambda self, request, piece, stale: piece.num_accepted)


# --- the other version's behaviour -------------------------------------------------------------------------------


def _flipped(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    def flip(patch: pytest.MonkeyPatch) -> None:
        for own in (VLLM_0_23, VLLM_0_32):
            other = dataclasses.replace(own, **{name: not getattr(own, name)})
            patch.setitem(dialect.DIALECTS, own.name, other)

    return flip


ACCEPTED = {"has_watermark", "draft_model_asynchronous"}  # which options a version takes at its start
BEHAVIOURS = [field.name for field in dataclasses.fields(Dialect) if field.name not in ACCEPTED | {"name"}]
CAN_MATTER: dict[str, Callable[[Case], object]] = {
    "lone_request_uncapped": lambda case: case["engine"]["long_prefill_token_threshold"],
    "skipped_have_own_queue": lambda case: case["engine"]["max_loras"],
    "victim_before_scan_corrected": priority,
    "stale_output": asynchronous,
    "draft_slots_reserved": drafted_by("draft_model"),
    "pads_admissions": drafted_by("eagle", "mtp", "draft_model", "ngram"),
}
# 0.23 accounts for output in flight otherwise, but what it decides differs only where it hangs (cases.py).
RULES |= {
    f"not_{name}": Rule(_flipped(name), NEW if name == "stale_output" else BOTH, CAN_MATTER.get(name, bool))
    for name in BEHAVIOURS
}
