"""Everything about one profile, as JSON types: what `kvcast profiles show` prints and writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from calibration.catalogue import entry
from calibration.points import measured_points, num_unplaced
from calibration.predictions import SUPPORT, Prediction, Predictor
from simulator.evidence import median_error
from simulator.profile import Coefficient, Profile, Residual


@dataclass(frozen=True)
class ErrorLine:
    """Errors of one quantity: how many times, the median of the absolute errors, and the residual furthest off."""

    quantity: str
    num_cases: int
    median: float
    worst: Residual


def error_lines(residuals: Sequence[Residual]) -> Iterator[ErrorLine]:
    """A line a quantity, in the order in which they first come."""
    for quantity in dict.fromkeys(residual.quantity for residual in residuals):
        chosen = [residual for residual in residuals if residual.quantity == quantity]
        middle = median_error(chosen)
        if middle is not None:
            worst = max(chosen, key=lambda residual: abs(residual.relative_error))
            yield ErrorLine(quantity, len(chosen), middle, worst)


def named_coefficients(profile: Profile) -> dict[str, Coefficient]:
    """Every fitted or assumed number of the formula, the overhead and the noise included."""
    named = {
        **profile.coefficients,
        "overhead_constant_s": profile.overhead.constant_s,
        "overhead_prompt_token_s": profile.overhead.prompt_token_s,
    }
    if profile.step_noise_s is not None:
        named["step_noise_s"] = profile.step_noise_s
    return named


def numbers(predictor: Predictor, file: str | None = None) -> dict[str, Any]:
    """Times in seconds, errors as shares, memory in bytes."""
    profile = predictor.profile
    listed = entry(profile, file)
    return {
        **listed.to_json(),
        "formula": profile.formula,
        "description": profile.provenance.description,
        "identity": profile.identity.model_dump(mode="json"),
        "rows": [rows.model_dump(mode="json") for rows in profile.provenance.rows],
        "coefficients": {name: one.model_dump(mode="json") for name, one in named_coefficients(profile).items()},
        "measured": None if profile.measured is None else profile.measured.model_dump(mode="json"),
        "errors": {
            "in_sample": [_error(line) for line in error_lines(profile.errors.in_sample)],
            "held_out": [_error(line) for line in error_lines(profile.errors.held_out)],
            "num_not_held_out": profile.errors.num_not_held_out,
        },
        "memory": profile.memory.model_dump(mode="json"),
        "kv_bytes_per_token": profile.kv_bytes_per_token,
        "block_size": profile.block_size,
        "max_num_batched_tokens": predictor.budget,
        "ttft": [
            {"context": one.context, "cached": one.cached, **_prediction(one.prediction)} for one in predictor.ttfts()
        ],
        "tpot": [
            {"batch": one.batch, "context": one.context, **_prediction(one.prediction)} for one in predictor.tpots()
        ],
        "measured_points": [
            {**asdict(point), "at": point.at.model_dump(mode="json")} for point in measured_points(profile)
        ],
        "num_measured_without_place": num_unplaced(profile),
    }


def _error(line: ErrorLine) -> dict[str, Any]:
    return {
        "quantity": line.quantity,
        "num_cases": line.num_cases,
        "median": line.median,
        "worst": line.worst.relative_error,
        "worst_case": line.worst.case,
    }


def _prediction(one: Prediction) -> dict[str, Any]:
    return {"seconds": one.seconds, "support": SUPPORT[one.support]}
