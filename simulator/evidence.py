"""On what a profile rests, in words, and when its numbers are called indicative."""

from __future__ import annotations

import re
from collections.abc import Iterable
from statistics import median

from simulator.profile import Evidence, Profile, Residual

THROUGHPUT_LIMIT, TPOT_LIMIT = 0.10, 0.12
LEAST_GROUPS = 4


def evidence_of(profile: Profile) -> Evidence:
    """Of what kind its rows are; a file that does not state it has rows of steps and requests, or none at all."""
    stated = profile.provenance.evidence
    return stated or ("rows" if profile.provenance.rows else "synthetic")


def evidence_in_words(profile: Profile) -> str:
    """What was measured, and how much of it."""
    provenance = profile.provenance
    num_rows = sum(rows.num_rows for rows in provenance.rows)
    kind = evidence_of(profile)
    if kind == "benchmarks":
        return f"fitted from {_counted(num_rows, 'benchmark row')}"
    if kind == "operators":
        return f"operator tables, {_counted(num_rows, 'row')}"
    if kind == "synthetic":
        return "synthetic: nothing was measured"
    if provenance.num_launches:
        return f"measured, {_counted(provenance.num_launches, 'launch', 'launches')}, {_counted(num_rows, 'row')}"
    return f"{_counted(num_rows, 'measured row')}, launches not known"


def indicative(profile: Profile) -> str | None:
    """Why the profile is only indicative; None where it is not.

    A profile that claims measurement is indicative where

    - it has no held-out error, so that nothing says how it predicts; or
    - fewer than four groups of times were left out in turn, too few for an error to mean much; or
    - the median of its absolute held-out errors on throughput is above 10 %, or on TPOT above 12 %.

    One that claims none (synthetic, or of data sheets only) says so itself, and every time that it gives is a prior.
    """
    if not claims_measurement(profile):
        return None
    held_out = profile.errors.held_out
    if not held_out:
        return "nothing was held out of its fit"
    reasons = []
    found = num_groups(profile)
    if found < LEAST_GROUPS:
        reasons.append(f"only {_counted(found, 'group')} of times could be held out, expected at least {LEAST_GROUPS}")
    throughput = median_error(residual for residual in held_out if "/s" in residual.quantity)
    tpot = median_error(residual for residual in held_out if residual.quantity.startswith("TPOT"))
    for name, error, limit in (("throughput", throughput, THROUGHPUT_LIMIT), ("TPOT", tpot, TPOT_LIMIT)):
        if error is not None and error > limit:
            reasons.append(f"its median held-out error on {name} is {error:.1%}, above {limit:.0%}")
    return " and ".join(reasons) or None


def claims_measurement(profile: Profile) -> bool:
    """Whether a number of the profile, or a range in which it answers, is said to be measured."""
    coefficients = (*profile.coefficients.values(), profile.overhead.constant_s, profile.overhead.prompt_token_s)
    return profile.measured is not None or any(one.origin == "measured" for one in coefficients)


def num_groups(profile: Profile) -> int:
    """How many groups of times were predicted from a fit without them: as stated, else as the cases' names tell."""
    stated = profile.errors.num_groups
    return stated if stated is not None else len({_group(residual.case) for residual in profile.errors.held_out})


def median_error(residuals: Iterable[Residual]) -> float | None:
    """Median of the absolute relative errors, a share; None without any."""
    errors = [abs(residual.relative_error) for residual in residuals]
    return median(errors) if errors else None


def _group(case: str) -> str:
    """What a case was held out with (see ``calibration.hold_out``): its prompt, its batch, or its row."""
    subject = case.partition(":")[2].strip()
    prompt = re.match(r"(\d+) prompt tokens\b", subject)
    return f"prompt {prompt[1]}" if prompt else subject.partition(",")[0]


def _counted(count: int, one: str, many: str | None = None) -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"
