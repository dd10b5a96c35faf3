"""How far the true coefficients of a profile may be from the fitted ones, and profiles drawn from that.

A fit's coefficients are known together: host and device time of a step, say, are hardly told apart while their sum is
known well. So their errors are drawn together, as normal errors of their logarithms (none becomes negative, and the
posterior of a load-test fit is kept in logarithms). A prior is drawn only where a fit says how far it may be off.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from simulator.statistics import LEVEL

if TYPE_CHECKING:
    from simulator.profile import Profile

OVERHEAD = "overhead_constant_s"  # names the constant overhead beside the formula's coefficients


class Uncertainty(BaseModel):
    """Standard deviations of the logarithms of ``names`` (coefficients, or `OVERHEAD`) and their correlations."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

    names: tuple[Annotated[str, Field(min_length=1)], ...]
    deviations: tuple[Annotated[float, Field(ge=0)], ...]
    correlations: tuple[tuple[Annotated[float, Field(ge=-1, le=1)], ...], ...]
    source: Annotated[str, Field(min_length=1)]

    @model_validator(mode="after")
    def _shapes_agree(self) -> Uncertainty:
        size = len(self.names)
        if len(set(self.names)) != size or len(self.deviations) != size:
            raise ValueError(f"expected {size} different names and as many deviations")
        matrix = np.array(self.correlations)
        if matrix.shape != (size, size) or not np.allclose(matrix, matrix.T) or not np.allclose(matrix.diagonal(), 1):
            raise ValueError(f"correlations: expected a symmetric matrix of {size} rows with 1 on its diagonal")
        if np.linalg.eigvalsh(matrix).min() < -1e-4:
            raise ValueError("correlations: no such errors can exist (the matrix has a negative eigenvalue)")
        return self


def from_covariance(names: Sequence[str], covariance: np.ndarray, source: str) -> Uncertainty:
    """Of the covariance matrix of the logarithms of ``names``, each of which varies."""
    deviations = np.sqrt(covariance.diagonal())
    correlations = np.clip(covariance / np.outer(deviations, deviations), -1, 1).round(6)
    np.fill_diagonal(correlations, 1.0)
    return Uncertainty(
        names=tuple(names),
        deviations=tuple(float(f"{one:.4g}") for one in deviations),
        correlations=tuple(tuple(row) for row in correlations.tolist()),
        source=source,
    )


def uncertainty_of(profile: Profile) -> Uncertainty | None:
    """What the profile states or, where it states nothing, the standard errors of its measured coefficients, each for
    itself; None where no coefficient has one.
    """
    if profile.uncertainty is not None:
        return profile.uncertainty
    errors = {
        name: math.sqrt(math.log1p((one.standard_error / one.value) ** 2))
        for name, one in [*profile.coefficients.items(), (OVERHEAD, profile.overhead.constant_s)]
        if one.standard_error and one.value
    }
    if not errors:
        return None
    correlations = tuple(tuple(float(row == column) for column in errors) for row in errors)
    return Uncertainty(
        names=tuple(errors), deviations=tuple(errors.values()), correlations=correlations,
        source="standard errors, taken as independent",
    )  # fmt: skip


def not_drawn(profile: Profile) -> list[str]:
    """Coefficients that matter and stay as they are, since nobody said how far they may be off."""
    known = uncertainty_of(profile)
    names = set(known.names) if known is not None else set()
    return [name for name, one in profile.coefficients.items() if one.origin == "prior" and name not in names]


def drawn(profile: Profile, rng: np.random.Generator, *, mirrored: bool = False) -> Profile:
    """The profile with coefficients as they may as well be: one draw for the whole engine. ``mirrored``: with the
    errors of the same draw to the other side, as likely as those.
    """
    known = uncertainty_of(profile)
    if known is None:
        return profile
    covariance = np.array(known.correlations) * np.outer(known.deviations, known.deviations)
    errors = rng.multivariate_normal(np.zeros(len(known.names)), covariance, check_valid="ignore", method="eigh")
    coefficients, overhead = dict(profile.coefficients), profile.overhead
    for name, factor in zip(known.names, np.exp(-errors if mirrored else errors).tolist(), strict=True):
        if name == OVERHEAD:
            constant = overhead.constant_s.model_copy(update={"value": overhead.constant_s.value * factor})
            overhead = overhead.model_copy(update={"constant_s": constant})
        else:
            one = coefficients[name]
            coefficients[name] = one.model_copy(update={"value": one.value * factor})
    return profile.model_copy(update={"coefficients": coefficients, "overhead": overhead})


def profile_share(as_drawn: np.ndarray, mirrored: np.ndarray, as_fitted: np.ndarray) -> float | None:
    """Which share of the variance between replications is the profile's, from one number a replication of each: with a
    draw of the profile, with the mirrored one, and as fitted. None where it is not shown to have any.

    A number is taken for the sum of the workload's part, the profile's, which the mirrored draw takes away instead, and
    chance: another router's choice here or there, which any change of step times brings about. Half the difference of
    both draws has the variance of the profile's part and half of that of chance; their sum less twice the third number
    has six times that of chance (and what is not linear in the errors). An F test at 5 % says whether the first is more
    than chance.
    """
    half, middle = (as_drawn - mirrored) / 2, (as_drawn + mirrored) / 2
    found, chance = float(half.var(ddof=1)), float((2 * (middle - as_fitted)).var(ddof=1)) / 6
    from scipy import stats

    if not found > stats.f.ppf(LEVEL, len(half) - 1, len(half) - 1) * chance / 2:
        return None
    return (found - chance / 2) / (found + float(middle.var(ddof=1)))
