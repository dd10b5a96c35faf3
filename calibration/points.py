"""The measured times of a profile that have a place on a figure's axes, told from their cases' names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from simulator.profile import Point, Profile, Residual

_PROMPT = re.compile(r"(TTFT|TPOT): (\d+) prompt tokens, (\d+) cached(?:, (\d+) steps)?")
_CENTRE = re.compile(r"(?:TTFT|TPOT)(?: mean| p50)?")  # a tail (p90, p99) is no point of a curve of expected times
_DECODE_STEP = re.compile(r"step: (?P<unit>.*?)(?P<batch>\d+) decodes(?: over (?P<entries>\d+))?")
_CONTEXT = re.compile(r"\b(?:c|prompt )(\d+)\b")


@dataclass(frozen=True)
class MeasuredPoint:
    """A measured time beside what the fit predicts for it, both in seconds, at its place (see ``profile.Point``)."""

    quantity: Literal["TTFT", "TPOT"]
    at: Point
    case: str
    measured_s: float
    predicted_s: float


def measured_points(profile: Profile) -> list[MeasuredPoint]:
    """Each mean or median time that the fit knew, and those it was only judged by, where names or ``at`` tell the
    place. TTFT only of requests served alone.
    """
    known = {residual.case for residual in profile.errors.in_sample}
    others = (residual for residual in profile.errors.held_out if residual.case not in known)
    found = (_point(residual) for residual in (*profile.errors.in_sample, *others))
    return [point for point in found if point is not None]


def num_unplaced(profile: Profile) -> int:
    """Measured times that no figure can show."""
    cases = {residual.case for residual in (*profile.errors.in_sample, *profile.errors.held_out)}
    return len(cases) - len({point.case for point in measured_points(profile)})


def _point(residual: Residual) -> MeasuredPoint | None:
    for quantity, at in _places(residual):
        return MeasuredPoint(quantity, at, residual.case, residual.measured_s, residual.predicted_s)
    return None


def _places(residual: Residual) -> Iterator[tuple[Literal["TTFT", "TPOT"], Point]]:
    kind: Literal["TTFT", "TPOT"] = "TTFT" if residual.quantity.startswith("TTFT") else "TPOT"
    if residual.at is not None:
        # The curve of TTFT is that of a request served alone: under load it also waits.
        if _CENTRE.fullmatch(residual.quantity) and (kind == "TPOT" or residual.at.batch == 1):
            yield kind, residual.at
    elif prompt := _PROMPT.fullmatch(residual.case):
        tokens, cached, num_steps = int(prompt[2]), int(prompt[3]), int(prompt[4] or 0)
        if kind == "TTFT":
            yield kind, Point(context=tokens, cached=cached)
        else:  # the steps' mean context: the first reads the prompt and one token more
            yield kind, Point(context=tokens + (num_steps + 1) // 2)
    elif (step := _DECODE_STEP.fullmatch(residual.case)) and (context := _context(step)):
        yield "TPOT", Point(context=context, batch=float(step["batch"]))


def _context(step: re.Match[str]) -> int | None:
    """Tokens that each decode reads; None where the name of a decode step does not tell."""
    if step["entries"]:
        return round(int(step["entries"]) / int(step["batch"])) or None
    named = _CONTEXT.search(step["unit"])
    return int(named[1]) or None if named else None
