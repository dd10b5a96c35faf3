"""What to print of a profile from operator tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from simulator.counts import counted
from simulator.profile import Profile, Residual

REGIMES = ("decode", "prefill", "mixed")


def regime(residual: Residual) -> str:
    """Of which kind of step a residual is (see ``Step.name``)."""
    has_decodes, has_chunk = "decodes at" in residual.case, "chunk of" in residual.case
    return "mixed" if has_decodes and has_chunk else "decode" if has_decodes else "prefill"


def errors(residuals: Sequence[Residual]) -> dict[str, tuple[int, float, float]]:
    """Number, median and 90th percentile of the absolute relative errors of each regime that there is."""
    found = {}
    for name in REGIMES:
        absolute = [abs(residual.relative_error) for residual in residuals if regime(residual) == name]
        if absolute:
            found[name] = (len(absolute), float(np.median(absolute)), float(np.percentile(absolute, 90)))
    return found


def lines(profile: Profile) -> Iterator[str]:
    """Coefficients with errors and origin, then how well they give the tables' times."""
    yield f"{profile.name}: {profile.provenance.description}"
    for name, coefficient in profile.coefficients.items():
        error = f" ± {coefficient.standard_error:.2g}" if coefficient.standard_error is not None else ""
        yield f"  {name} {coefficient.value:.4g}{error} {coefficient.unit} ({coefficient.origin})"
    for title, residuals in (("fitted", profile.errors.in_sample), ("held out", profile.errors.held_out)):
        for name, (number, median, ninetieth) in errors(residuals).items():
            steps = counted(number, f"{name} step")
            yield f"{title}: {steps}: median error {median:.1%}, 90 % of them within {ninetieth:.1%}"
