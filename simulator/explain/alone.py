"""What a prefill takes when nothing else is computed in its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.plan import Plan

if TYPE_CHECKING:
    from simulator.scheduler import Scheduler
    from simulator.step_time import StepTime


def chunk_s(step_time: StepTime, num_computed: int, num_new: int, *, as_decode: bool = False) -> float:
    """Seconds of a step that computes ``num_new`` tokens of one request after ``num_computed`` and nothing else.

    One token counts as a decode, as everywhere, and so do drafts (``as_decode``).
    """
    pairs = num_new * num_computed + num_new * (num_new + 1) // 2
    end = num_computed + num_new
    if num_new == 1 or as_decode:
        return step_time.elapsed(Plan(num_decodes=num_new, decode_context=pairs, max_context=end))
    plan = Plan(num_prefills=1, num_prefill_tokens=num_new, prefill_pairs=pairs, max_context=end)
    return step_time.elapsed(plan)


def prefill_s(step_time: StepTime, scheduler: Scheduler, num_computed: int, num_tokens: int) -> float:
    """Seconds until a request alone on the engine has all of ``num_tokens`` computed, ``num_computed`` of them found.

    In chunks of what a step of the engine may compute for one request.
    """
    longest = scheduler.running_scan.budget
    cap = scheduler.config.long_prefill_token_threshold
    if cap and not scheduler.dialect.lone_request_uncapped:
        longest = min(longest, cap)
    total_s = 0.0
    while num_computed < num_tokens:
        num_new = min(longest, num_tokens - num_computed)
        total_s += chunk_s(step_time, num_computed, num_new)
        num_computed += num_new
    return total_s
