"""The article's tables for one's own device: time to first token by prefix, and step time by batch and context."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from calibration.check import spread
from calibration.measurement import Measurements, RequestRow, SummaryRow
from calibration.observations import Design, Observation, averaged, observe, of_row
from simulator.plan import Plan
from simulator.profile import Profile
from simulator.step_time import StepTime


@dataclass(frozen=True)
class Span:
    """Times of one kind of request, in seconds: median, least and most measured, how many, and the prediction."""

    median_s: float
    least_s: float
    most_s: float
    num_repeats: int
    predicted_s: float


@dataclass(frozen=True)
class TtftLine:
    """One prompt with its prefix cold and warm. ``total_s`` are the median times of whole requests where measured.

    ``num_faster`` of ``num_pairs``: warm requests that beat the cold one of the same launch and repeat.
    """

    num_prompt_tokens: int
    prefix_tokens: int
    cold: Span
    warm: Span
    num_faster: int
    num_pairs: int
    cold_total_s: float | None
    warm_total_s: float | None

    @property
    def speed_up(self) -> float:
        """Cold median over warm median, as the article defines it."""
        return self.cold.median_s / self.warm.median_s


@dataclass(frozen=True)
class StepLine:
    """Decode steps of one batch at one context, in seconds; ``spread`` is that of launches, as a share."""

    num_decodes: int
    context: int
    measured_s: float
    predicted_s: float
    num_repeats: int
    spread: float | None


_Timed = RequestRow | SummaryRow


def ttft_lines(files: Iterable[Measurements], profile: Profile) -> list[TtftLine]:
    """Every prompt that was measured cold and with a hit, by prompt and hit length."""
    rows = [
        row for file in files for row in file.rows
        if isinstance(row, RequestRow | SummaryRow) and row.ttft_s is not None and not getattr(row, "outlier", False)
    ]  # fmt: skip
    groups: dict[tuple[int, int], list[_Timed]] = {}
    for row in rows:
        groups.setdefault((row.num_prompt_tokens, row.num_cached_tokens), []).append(row)
    model = profile.step_time()
    lines = []
    for (prompt, hit), warm in sorted(groups.items()):
        cold = groups.get((prompt, 0))
        if hit and cold:
            faster, pairs = _pairs(cold, warm)
            lines.append(
                TtftLine(
                    prompt, hit, _span(cold, model), _span(warm, model), faster, pairs, _total_s(cold), _total_s(warm)
                )
            )
    return lines


def step_lines(files: Iterable[Measurements], profile: Profile) -> list[StepLine]:
    """Decode steps by batch and context; times per output token where no single steps were recorded."""
    decodes = [observation for observation in averaged(observe(files)) if observation.regime == "decode"]
    chosen = [observation for observation in decodes if observation.is_step] or decodes
    predicted = Design(chosen).predict(profile.step_time()) if chosen else ()
    lines = [
        StepLine(
            num_decodes=(plan := _plan(observation)).num_decodes,
            context=round(plan.decode_context / plan.num_decodes),
            measured_s=observation.measured_s,
            predicted_s=float(predicted_s),
            num_repeats=observation.num_repeats,
            spread=spread(observation),
        )
        for observation, predicted_s in zip(chosen, predicted, strict=True)
    ]
    return sorted(lines, key=lambda line: (line.num_decodes, line.context))


def _plan(observation: Observation) -> Plan:
    return observation.stretches[0][0]


def _pairs(cold: Sequence[_Timed], warm: Sequence[_Timed]) -> tuple[int, int]:
    """(warm requests faster than their cold partner, pairs): partners share case, launch and repeat."""
    partners = {key: row.ttft_s for row in cold if (key := _key(row)) is not None}
    differences = [
        partners[key] - row.ttft_s  # type: ignore[operator]
        for row in warm
        if (key := _key(row)) in partners and row.ttft_s is not None
    ]
    return sum(difference > 0 for difference in differences), len(differences)


def _key(row: _Timed) -> tuple[str, int, int] | None:
    if isinstance(row, SummaryRow) or row.case is None or row.launch is None or row.repeat is None:
        return None
    return row.case, row.launch, row.repeat


def _span(rows: Sequence[_Timed], model: StepTime) -> Span:
    times = [row.ttft_s for row in rows if row.ttft_s is not None]
    (first,) = [observation for observation in of_row(rows[0]) if observation.is_ttft]
    predicted = Design([first]).predict(model)[0]
    num_repeats = sum(row.num_repeats if isinstance(row, SummaryRow) else 1 for row in rows)
    return Span(float(np.median(times)), min(times), max(times), num_repeats, float(predicted))


def _total_s(rows: Sequence[_Timed]) -> float | None:
    """Median time of a whole request: measured, or first token and the rest at its time per output token."""
    totals = []
    for row in rows:
        if row.total_s is not None:
            totals.append(row.total_s)
        elif row.ttft_s is not None and row.tpot_s is not None:
            totals.append(row.ttft_s + row.tpot_s * (row.num_output_tokens - 1))
    return float(np.median(totals)) if totals else None
