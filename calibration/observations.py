"""Rows -> the work that a step-time formula predicts: one observation a measured time.

A time to first token is the overhead of its prompt plus the steps of its chunks; a time per output token is a stretch
of decode steps over their number; a total is both. The request is alone, so every step is known from its row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from calibration.measurement import Measurements, RequestRow, Row, StepRow, SummaryRow
from simulator.plan import Plan
from simulator.profile import MeasuredRange
from simulator.step_time import StepTime

Array = npt.NDArray[np.float64]
Stretch = tuple[Plan, int]


@dataclass(frozen=True)
class Observation:
    """A measured time and the work behind it: (overhead of ``overhead_tokens`` + stretches) / ``divisor``.

    ``overhead_tokens`` is None where the time holds no overhead. ``length`` is the context that the held-out error
    groups by.
    """

    case: str
    length: int
    measured_s: float
    overhead_tokens: int | None
    stretches: tuple[Stretch, ...]
    divisor: int = 1


def observe(files: Iterable[Measurements]) -> tuple[Observation, ...]:
    """Every measured time in these files, in their order."""
    return tuple(observation for file in files for row in file.rows for observation in _of_row(row))


def _of_row(row: Row) -> Iterator[Observation]:
    if isinstance(row, StepRow):
        plan = Plan(
            num_decodes=row.num_decodes,
            decode_context=row.decode_context,
            num_prefills=row.num_prefills,
            num_prefill_tokens=row.num_prefill_tokens,
            prefill_pairs=row.prefill_pairs,
            max_context=row.max_context,
        )
        case = f"step: {row.num_decodes} decodes over {row.decode_context}, {row.num_prefill_tokens} prefill tokens"
        yield Observation(case, row.max_context, row.duration_s, None, ((plan, 1),))
        return
    yield from _of_request(row)


def _of_request(row: RequestRow | SummaryRow) -> Iterator[Observation]:
    prompt = row.num_prompt_tokens
    prefill = tuple(_chunks(prompt, row.num_cached_tokens, row.covariates.max_num_batched_tokens))
    num_steps = row.num_output_tokens - 1
    decode: tuple[Stretch, ...] = ()
    if num_steps:
        decode = ((Plan(num_decodes=1, decode_context=prompt + 1, max_context=prompt + 1), num_steps),)
    case = f"{prompt} prompt tokens, {row.num_cached_tokens} cached"
    if row.ttft_s is not None:
        yield Observation(f"TTFT: {case}", prompt, row.ttft_s, prompt, prefill)
    if row.tpot_s is not None:
        yield Observation(f"TPOT: {case}, {num_steps} steps", prompt, row.tpot_s, None, decode, num_steps)
    # A total beside both of its parts would count them twice.
    if row.total_s is not None and (row.ttft_s is None or row.tpot_s is None):
        yield Observation(f"total: {case}, {num_steps} decode steps", prompt, row.total_s, prompt, prefill + decode)


def _chunks(prompt: int, cached: int, budget: int) -> Iterator[Stretch]:
    """The prefill steps of a request alone: at most ``budget`` tokens each."""
    computed = cached
    while computed < prompt:
        new = min(budget, prompt - computed)
        pairs = new * computed + new * (new + 1) // 2
        computed += new
        plan = Plan(num_prefills=1, num_prefill_tokens=new, prefill_pairs=pairs, max_context=computed)
        yield plan, 1


class _Work:
    """Plans as arrays, under the plan's own attribute names."""

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.num_decodes = np.array([plan.num_decodes for plan in plans], dtype=float)
        self.decode_context = np.array([plan.decode_context for plan in plans], dtype=float)
        self.num_prefills = np.array([plan.num_prefills for plan in plans], dtype=float)
        self.num_prefill_tokens = np.array([plan.num_prefill_tokens for plan in plans], dtype=float)
        self.prefill_pairs = np.array([plan.prefill_pairs for plan in plans], dtype=float)
        self.max_context = np.array([plan.max_context for plan in plans], dtype=float)


class Design:
    """Observations as arrays, ready to be predicted many times."""

    def __init__(self, observations: Sequence[Observation]) -> None:
        stretches = [stretch for observation in observations for stretch in observation.stretches]
        self.measured_s = np.array([observation.measured_s for observation in observations])
        self._size = len(observations)
        self._work = _Work([plan for plan, _ in stretches])
        self._num_steps: Array = np.array([num_steps for _, num_steps in stretches], dtype=float)
        self._owner = np.repeat(np.arange(self._size), [len(observation.stretches) for observation in observations])
        has_overhead = [observation.overhead_tokens is not None for observation in observations]
        self._has_overhead = np.array(has_overhead, dtype=float)
        self._prompt = np.array([observation.overhead_tokens or 0 for observation in observations], dtype=float)
        self._divisor = np.array([observation.divisor for observation in observations], dtype=float)

    def predict(self, step_time: StepTime) -> Array:
        """Predicted seconds, one an observation."""
        elapsed = np.asarray(step_time.elapsed(self._work, self._num_steps))  # type: ignore[arg-type]
        steps = np.bincount(self._owner, elapsed, self._size)
        overhead = step_time.overhead_s(self._prompt) * self._has_overhead  # type: ignore[arg-type]
        predicted: Array = (steps + overhead) / self._divisor
        return predicted


def measured_range(observations: Sequence[Observation]) -> MeasuredRange:
    """The largest of everything that these observations cover."""
    stretches = [stretch for observation in observations for stretch in observation.stretches]
    plans = [plan for plan, _ in stretches]
    return MeasuredRange(
        max_prefill_tokens=max(plan.num_prefill_tokens for plan in plans),
        max_context=max(plan.max_context + num_steps - 1 for plan, num_steps in stretches),
        max_decodes=max(plan.num_decodes for plan in plans),
        max_prefills=max(plan.num_prefills for plan in plans),
        mixed_steps=any(plan.num_decodes and plan.num_prefills for plan in plans),
    )
