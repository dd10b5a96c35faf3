"""Profiles side by side: the same predictions with ratios, and one sentence that says which is faster at what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from calibration.predictions import BATCHES, CONTEXTS, HIT_SHARE, SUPPORT, Prediction, Predictor
from simulator.counts import counted
from simulator.errors import InputError
from simulator.evidence import Quantity, held_out_error, indicative
from simulator.profile import Profile
from simulator.step_time import MEASURED, OUTSIDE

SHOWN_CONTEXTS, SHOWN_BATCHES = (1024, 4096, 16384, 65536), (1, 16, 64, 256)


@dataclass(frozen=True)
class Cell:
    """One quantity of every profile, by label; None where the profile's device or engine does not hold it.

    ``context`` in tokens; ``batch`` requests (1 for TTFT).
    """

    context: int
    batch: int
    predictions: Mapping[str, Prediction | None]

    @property
    def ratios(self) -> dict[str, float | None]:
        """Seconds over those of the first profile."""
        first = next(iter(self.predictions.values()))
        return {
            label: one.seconds / first.seconds if one and first else None for label, one in self.predictions.items()
        }

    def supported(self) -> dict[str, Prediction] | None:
        """The predictions, where every profile has one within what it measured or takes from a prior."""
        found = {label: one for label, one in self.predictions.items() if one is not None and one.support != OUTSIDE}
        return found if len(found) == len(self.predictions) else None


@dataclass(frozen=True)
class Topic:
    """Something that one profile may be faster at than another, and by which held-out errors that is judged."""

    name: str
    quantity: Quantity
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Comparison:
    """Several profiles, at least two, and their predictions over one grid."""

    predictors: Mapping[str, Predictor]
    cold: tuple[Cell, ...]
    warm: tuple[Cell, ...]
    decode: tuple[Cell, ...]

    @property
    def topics(self) -> tuple[Topic, ...]:
        """What the sentence is about."""
        return (
            Topic("the first token of a cold prompt", "TTFT", self.cold),
            Topic(f"the first token with {HIT_SHARE:.0%} of the prompt cached", "TTFT", self.warm),
            Topic("decoding one request", "TPOT", tuple(cell for cell in self.decode if cell.batch == 1)),
            Topic("decoding batches", "TPOT", tuple(cell for cell in self.decode if cell.batch > 1)),
        )

    def to_json(self) -> dict[str, Any]:
        """Everything a machine needs, as JSON types; seconds, ratios to the first profile."""
        return {
            "profiles": list(self.predictors),
            "sentence": sentence(self),
            "notes": list(notes(self)),
            "max_num_batched_tokens": {label: one.budget for label, one in self.predictors.items()},
            "ttft_cold": [_json(cell) for cell in self.cold],
            "ttft_with_hit": [_json(cell) for cell in self.warm],
            "tpot": [_json(cell) for cell in self.decode],
        }


def compare(profiles: Mapping[str, Profile], budget: int | None = None) -> Comparison:
    """The predictions of these profiles; ``budget`` is the most tokens in a step, None each platform's default.

    Raises InputError naming a profile that predicts 0 s somewhere: nothing can be so many times as fast.
    """
    predictors = {label: Predictor(profile, budget) for label, profile in profiles.items()}
    found = Comparison(
        predictors,
        cold=tuple(
            Cell(context, 1, {label: one.ttft(context) for label, one in predictors.items()}) for context in CONTEXTS
        ),
        warm=tuple(
            Cell(context, 1, {label: one.ttft(context, one.hit(context)) for label, one in predictors.items()})
            for context in CONTEXTS
        ),
        decode=tuple(
            Cell(context, batch, {label: one.tpot(batch, context) for label, one in predictors.items()})
            for batch in BATCHES
            for context in CONTEXTS
        ),
    )
    _check_times(found)
    return found


def _check_times(comparison: Comparison) -> None:
    for kind, cells in (("TTFT", (*comparison.cold, *comparison.warm)), ("TPOT", comparison.decode)):
        for cell in cells:
            for label, one in cell.predictions.items():
                if one is not None and not one.seconds:
                    raise InputError(
                        f"{label}: predicts a {kind} of 0 s (batch {cell.batch}, {cell.context:,} tokens), expected "
                        "times above 0"
                    )


def sentence(comparison: Comparison) -> str:
    """Which profile is faster at what, as far as evidence allows: cells outside a measured range say nothing, and no
    difference is told that is not larger than the profiles' median held-out errors of that quantity together. Nothing
    is told of a quantity of which a profile has none.
    """
    profiles = {label: one.profile for label, one in comparison.predictors.items()}
    text = "; ".join(
        _said(topic, {label: held_out_error(one, topic.quantity) for label, one in profiles.items()})
        for topic in comparison.topics
    )
    return f"{text[0].upper()}{text[1:]}."


def notes(comparison: Comparison) -> Iterator[str]:
    """What a reader must know beside the sentence: other models, other ways to serve them, marks."""
    profiles = {label: one.profile for label, one in comparison.predictors.items()}
    for what, values in (
        ("models", {label: f"{_model(one)} {one.identity.dtype}" for label, one in profiles.items()}),
        ("tensor parallel sizes", {label: str(one.identity.tensor_parallel_size) for label, one in profiles.items()}),
        ("chunks", {label: f"{one.budget:,} tokens" for label, one in comparison.predictors.items()}),
    ):
        if len(set(values.values())) > 1:
            listed = ", ".join(f"{label} {value}" for label, value in values.items())
            yield f"Different {what}: {listed}."
    for label, one in profiles.items():
        reason = indicative(one)
        if reason is not None:
            yield f"{label} is indicative: {reason}."
        elif not one.errors.held_out:
            yield f"{label} has no held-out error: nothing says how well it predicts."


def _model(profile: Profile) -> str:
    """The model without its publisher or folder, which not every source names."""
    return profile.identity.model.rstrip("/").rpartition("/")[2]


def shown(cells: Sequence[Cell]) -> list[Cell]:
    """The few cells of decode steps that a terminal has room for."""
    return [cell for cell in cells if cell.batch in SHOWN_BATCHES and cell.context in SHOWN_CONTEXTS]


def _said(topic: Topic, held_out: Mapping[str, float | None]) -> str:
    """What can be said of one topic, without a final stop."""
    cells = [(cell, found) for cell in topic.cells if (found := cell.supported()) is not None]
    if not cells:
        return f"of {topic.name} nothing can be said: no case lies within what every profile covers"
    errors = {label: error for label, error in held_out.items() if error is not None}
    if unknown := [label for label in held_out if label not in errors]:
        return f"of {topic.name} nothing can be said: no held-out error of {topic.quantity} ({', '.join(unknown)})"
    basis = _basis([one for _, found in cells for one in found.values()])
    word = "faster" if len(errors) == 2 else "fastest"
    led: dict[str, list[float]] = {}  # who is fastest, and how many times faster than the next
    for _, found in cells:
        first, second = sorted(found, key=lambda label: found[label].seconds)[:2]
        lead = found[second].seconds / found[first].seconds
        if lead > (1 + errors[first]) * (1 + errors[second]):
            led.setdefault(first, []).append(lead)
    where = _range([cell for cell, _ in cells])
    num_alike = len(cells) - sum(map(len, led.values()))
    if not led:
        return f"at {topic.name}, no difference exceeds the held-out errors ({where}; {basis})"
    if len(led) == 1 and not num_alike:
        ((fastest, leads),) = led.items()
        return f"at {topic.name}, {fastest} is {word} ({_times(leads)}, {where}; {basis})"
    parts = [f"{label} is {word} in {len(leads)} ({_times(leads)})" for label, leads in led.items()]
    if num_alike:
        parts.append(f"no difference exceeds the held-out errors in {num_alike}")
    return f"at {topic.name}, of {counted(len(cells), 'case')}, {', '.join(parts)} ({where}; {basis})"


def _times(leads: Sequence[float]) -> str:
    low, high = f"{min(leads):.3g}", f"{max(leads):.3g}"
    return f"{low} times" if low == high else f"{low} to {high} times"


def _range(cells: Sequence[Cell]) -> str:
    contexts = [cell.context for cell in cells]
    low, high = (f"{context // 1024}K" for context in (min(contexts), max(contexts)))
    return f"at {low} tokens" if low == high else f"{low} to {high} tokens"


def _basis(predictions: Sequence[Prediction]) -> str:
    priors = sum(one.support != MEASURED for one in predictions)
    if not priors:
        return "measured"
    return "prior" if priors == len(predictions) else "partly prior"


def _json(cell: Cell) -> dict[str, Any]:
    return {
        "context": cell.context,
        "batch": cell.batch,
        "seconds": {label: one.seconds if one else None for label, one in cell.predictions.items()},
        "support": {label: SUPPORT[one.support] if one else None for label, one in cell.predictions.items()},
        "ratios": cell.ratios,
    }
