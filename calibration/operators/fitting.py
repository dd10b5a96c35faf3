"""Steps with the times that tables give them -> the coefficients of ``roofline_max``.

Tables hold no host time, so the fit has none either: ``host_step_s`` is 0 in it, and what every step's operators take
at least is in ``weights_s``. ``host_request_s`` is what operators take for a request beside its tokens (output head and
sampler), by which batches of many short requests differ from chunks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from calibration.estimate import Estimate
from calibration.fit import Fit, fit
from calibration.observations import Observation
from calibration.operators.grid import steps
from calibration.operators.origin import StepTables
from calibration.operators.step import Step
from calibration.roofline import Prior

FORMULA = "roofline_max"
_CORNERS = (1.5, 2.0, 3.0, 4.0)


def observe(tables: StepTables) -> list[Observation]:
    """One observation a step of the grid: its operators' time."""
    return [_observed(step, tables.step_s(step)) for step in steps(tables)]


def fit_tables(observations: Sequence[Observation], shape: Mapping[str, Prior]) -> Fit:
    """The fit with the corner that leaves the least mean error. ``shape``: what the model's shape states.

    Raises InputError where the tables reach too few steps to determine a coefficient.
    """
    fixed = {**shape, "host_step_s": _NO_HOST}  # what starts at 0 moves no time, so it stays there
    corners = [{**fixed, "corner": Prior(corner, _CORNER_SOURCE)} for corner in _CORNERS]
    return fit(observations, FORMULA, min(corners, key=lambda priors: _mean_error(observations, priors)))


_NO_HOST = Prior(0.0, "no host time in operator tables")
_CORNER_SOURCE = f"of {', '.join(f'{corner:g}' for corner in _CORNERS)} the one with the least mean error"


def _mean_error(observations: Sequence[Observation], priors: Mapping[str, Prior]) -> float:
    predicted = Estimate(observations, FORMULA, priors).predict(observations)
    return float(np.mean(np.abs(predicted / [observation.measured_s for observation in observations] - 1)))


def _observed(step: Step, seconds: float) -> Observation:
    prefill = "warm_prefill" if step.chunk_context else "cold_prefill"
    return Observation(
        case=step.name,
        length=step.plan.max_context,
        measured_s=seconds,
        overhead_tokens=None,
        stretches=((step.plan, 1),),
        regime=prefill if step.regime == "prefill" else step.regime,  # type: ignore[arg-type]
        unit=step.name,
    )
