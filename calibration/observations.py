"""Rows -> the work that a step-time formula predicts: one observation a measured time.

A time to first token is the overhead of its prompt plus the steps of its chunks; a time per output token is a stretch
of decode steps over their number; a total is both. The request is alone, so every step is known from its row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from calibration.measurement import Measurements, Regime, RequestRow, Row, StepRow, SummaryRow
from simulator.plan import Plan
from simulator.profile import MeasuredRange
from simulator.step_time import StepTime

Array = npt.NDArray[np.float64]
Stretch = tuple[Plan, int]


@dataclass(frozen=True)
class Observation:
    """A measured time and the work behind it: (overhead of ``overhead_tokens`` + stretches) / ``divisor``.

    ``overhead_tokens`` is None where the time holds no overhead. ``length`` is the context that the held-out error
    groups by. ``case`` names the time and ``unit`` what is held out together (see ``hold_out``). ``launches`` are the
    mean seconds of each launch of the engine, none where launches are not known, and ``disturbed`` those of launches
    that stood out and are in no mean (see ``averaged``); ``deviation_s`` is the standard deviation of the
    ``num_repeats`` single times within their launches.
    """

    case: str
    length: int
    measured_s: float
    overhead_tokens: int | None
    stretches: tuple[Stretch, ...]
    divisor: int = 1
    regime: Regime = "decode"
    unit: str = ""
    launches: Mapping[int, float] = field(default_factory=dict)
    disturbed: Mapping[int, float] = field(default_factory=dict)
    num_repeats: int = 1
    deviation_s: float | None = None
    published: bool = False

    @property
    def is_step(self) -> bool:
        """Whether this is the time of one engine step."""
        return self.overhead_tokens is None and self.divisor == 1

    @property
    def runs_engine(self) -> bool:
        """Whether engine steps are part of it: not so of an overhead seen by itself."""
        return bool(self.stretches)

    @property
    def is_ttft(self) -> bool:
        """Whether this is a time to first token."""
        return self.case.startswith("TTFT")


def observe(files: Iterable[Measurements]) -> tuple[Observation, ...]:
    """Every measured time in these files, in their order, without marked outliers."""
    return tuple(
        observation
        for file in files
        for row in file.rows
        if isinstance(row, SummaryRow) or not row.outlier
        for observation in of_row(row)
    )


def unit_of(case: str) -> str:
    """What a probe's case is held out with: everything about one prompt alone, of whatever probe.

    A cold prompt is measured beside every hit length, its chunk by the chunk probe too, and its decode step by the
    decode probe: all of them are the same work and stay on the same side.
    """
    probe, *sizes = case.split()
    length = next((size[1:] for size in sizes if size[:1] in ("p", "c") and size[1:].isdigit()), None)
    alone = probe == "ttft" or "b1" in sizes or probe == "chunk"
    return f"prompt {length}" if alone and probe != "mixed" and length else case


def of_row(row: Row) -> Iterator[Observation]:
    """The measured times of one row."""
    if isinstance(row, StepRow):
        yield _of_step(row)
    else:
        yield from _of_request(row)


def _of_step(row: StepRow) -> Observation:
    plan = Plan(
        num_decodes=row.num_decodes,
        decode_context=row.decode_context,
        num_prefills=row.num_prefills,
        num_prefill_tokens=row.num_prefill_tokens,
        prefill_pairs=row.prefill_pairs,
        max_context=row.max_context,
    )
    # The host's gap before a step holds the next step up as the step itself does.
    measured_s = row.duration_s + (row.gap_s or 0.0)
    unit, case = _named(row)
    return Observation(
        case=case,
        length=row.max_context,
        measured_s=measured_s,
        overhead_tokens=None,
        stretches=((plan, 1),),
        regime=_step_regime(row),
        unit=unit,
        launches=_launch(row, measured_s),
    )


def _named(row: StepRow) -> tuple[str, str]:
    """Unit and name of a step. The contexts of a probe's decodes grow from step to step: their case has a name."""
    chunks = f" in {row.num_prefills} chunks" if row.num_prefills > 1 else ""
    prefill = f"{row.num_prefill_tokens} prefill tokens{chunks}, {row.prefill_pairs:.0f} pairs"
    decodes = f"{row.num_decodes} decodes" + ("" if row.case else f" over {row.decode_context}")
    work = ", ".join(([decodes] if row.num_decodes else []) + ([prefill] if row.num_prefills else []))
    if row.case is None:
        return f"step: {work}", f"step: {work}"
    unit = unit_of(row.case)
    return unit, f"step: {unit}, {work}"


def _step_regime(row: StepRow) -> Regime:
    if row.num_decodes:
        return "mixed" if row.num_prefills else "decode"
    # Without cached or earlier tokens, n tokens attend at most n (n + 1) / 2 pairs.
    tokens = row.num_prefill_tokens
    return "warm_prefill" if row.prefill_pairs > tokens * (tokens + 1) / 2 else "cold_prefill"


def _of_request(row: RequestRow | SummaryRow) -> Iterator[Observation]:
    prompt = row.num_prompt_tokens
    prefill = tuple(chunks(prompt, row.num_cached_tokens, row.covariates.max_num_batched_tokens))
    num_steps = row.num_output_tokens - 1
    decode: tuple[Stretch, ...] = ()
    if num_steps:
        decode = ((Plan(num_decodes=1, decode_context=prompt + 1, max_context=prompt + 1), num_steps),)
    work = f"{prompt} prompt tokens, {row.num_cached_tokens} cached"
    regime: Regime = "warm_prefill" if row.num_cached_tokens else "cold_prefill"
    unit = f"prompt {prompt}" if row.case is None else unit_of(row.case)

    def observed(
        case: str, measured_s: float, overhead: int | None, stretches: tuple[Stretch, ...], divisor: int, of: Regime
    ) -> Observation:
        return Observation(
            case, prompt, measured_s, overhead, stretches, divisor, of, unit, _launch(row, measured_s),
            published=isinstance(row, SummaryRow),
        )  # fmt: skip

    if row.ttft_s is not None:
        yield observed(f"TTFT: {work}", row.ttft_s, prompt, prefill, 1, regime)
    if row.tpot_s is not None:
        yield observed(f"TPOT: {work}, {num_steps} steps", row.tpot_s, None, decode, num_steps, "decode")
    if isinstance(row, RequestRow) and row.overhead_s is not None and row.overhead_s > 0:
        # Seen by itself, to a tenth of a millisecond that drowns in the noise of a time to first token.
        yield observed(f"overhead: {prompt} prompt tokens", row.overhead_s, prompt, (), 1, regime)
    # A total beside both of its parts would count them twice.
    if row.total_s is not None and (row.ttft_s is None or row.tpot_s is None):
        yield observed(f"total: {work}, {num_steps} decode steps", row.total_s, prompt, prefill + decode, 1, regime)


def _launch(row: Row, measured_s: float) -> Mapping[int, float]:
    """The launch of a row with its time; nothing where the launch is not known."""
    launch = None if isinstance(row, SummaryRow) else row.launch
    return {} if launch is None else {launch: measured_s}


def averaged(observations: Sequence[Observation]) -> tuple[Observation, ...]:
    """One observation a case: the mean of its launches' means, at the mean context of its decodes.

    Where all launches but one agree to 5 % and that one is off by more than 10 %, something else ran on the machine: it
    is left out of the mean, and stays in the spread by which a machine is judged.
    """
    groups: dict[tuple[str, str], list[Observation]] = {}
    for observation in observations:
        groups.setdefault((observation.unit, observation.case), []).append(observation)
    return tuple(group[0] if len(group) == 1 else _mean(group) for group in groups.values())


def _mean(group: Sequence[Observation]) -> Observation:
    by_launch: dict[int, list[float]] = {}
    for observation in group:
        by_launch.setdefault(next(iter(observation.launches), -1), []).append(observation.measured_s)
    all_means = {launch: float(np.mean(times)) for launch, times in sorted(by_launch.items())}
    odd = _odd_one_out(all_means)
    means = {launch: mean_s for launch, mean_s in all_means.items() if launch != odd}
    squares = sum(float(np.var(times)) * len(times) for times in by_launch.values())
    freedom = len(group) - len(by_launch)
    return replace(
        group[0],
        length=max(observation.length for observation in group),
        measured_s=float(np.mean(list(means.values()))),
        stretches=(_mean_stretch(group),) if len(group[0].stretches) == 1 else group[0].stretches,
        launches=means if -1 not in means else {},
        disturbed={} if odd is None else {odd: all_means[odd]},
        num_repeats=len(group),
        deviation_s=(squares / freedom) ** 0.5 if freedom else None,
    )


_AGREEING, _STANDING_OUT, _LEAST_LAUNCHES = 0.05, 0.10, 3


def _odd_one_out(means: Mapping[int, float]) -> int | None:
    """The launch that stands out from others which agree; None where there is none, or fewer than three launches."""
    if len(means) < _LEAST_LAUNCHES:
        return None
    median = float(np.median(list(means.values())))
    launch = max(means, key=lambda launch: abs(means[launch] - median))
    others = [mean_s for other, mean_s in means.items() if other != launch]
    agree = max(others) - min(others) <= _AGREEING * median
    return launch if agree and abs(means[launch] - median) > _STANDING_OUT * median else None


def _mean_stretch(group: Sequence[Observation]) -> Stretch:
    plans = [observation.stretches[0][0] for observation in group]
    first = plans[0]
    plan = Plan(
        num_decodes=first.num_decodes,
        decode_context=sum(plan.decode_context for plan in plans) / len(plans),  # type: ignore[arg-type]
        num_prefills=first.num_prefills,
        num_prefill_tokens=first.num_prefill_tokens,
        prefill_pairs=first.prefill_pairs,
        max_context=max(plan.max_context for plan in plans),
    )
    return plan, group[0].stretches[0][1]


def chunks(prompt: int, cached: int, budget: int) -> Iterator[Stretch]:
    """The prefill steps of a request alone: at most ``budget`` tokens each."""
    computed = cached
    while computed < prompt:
        new = min(budget, prompt - computed)
        pairs = new * computed + new * (new + 1) // 2
        computed += new
        if new == 1:  # counted as a decode, as the scheduler's plans do
            yield Plan(num_decodes=1, decode_context=computed, max_context=computed), 1
            continue
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
