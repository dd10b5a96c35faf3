"""On what a profile rests, in words, and when its numbers are called indicative."""

from __future__ import annotations

import re
from collections.abc import Iterable
from statistics import median
from typing import Literal

from simulator.counts import counted
from simulator.profile import Evidence, Profile, Residual

Quantity = Literal["TTFT", "TPOT"]

THROUGHPUT_LIMIT, TPOT_LIMIT, TTFT_LIMIT = 0.10, 0.12, 0.25
LEAST_GROUPS = 4
_DECODES, _CHUNK = re.compile(r"\b\d+ decodes\b"), re.compile(r"\b(?:\d+ prefill tokens|chunk of \d+)\b")


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
        lacking = "" if _has_ttft(profile) else ", no TTFT measured"
        return f"fitted from {counted(num_rows, 'benchmark row')}{lacking}"
    if kind == "operators":
        return f"operator tables, {counted(num_rows, 'row')}"
    if kind == "synthetic":
        return "synthetic: nothing was measured"
    if provenance.num_launches:
        return f"measured, {counted(provenance.num_launches, 'launch', 'launches')}, {counted(num_rows, 'row')}"
    return f"{counted(num_rows, 'measured row')}, launches not known"


def indicative(profile: Profile) -> str | None:
    """Why the profile is only indicative; None where it is not.

    A profile that claims measurement is indicative where

    - it has no held-out error, so that nothing says how it predicts; or
    - fewer than four groups of times were left out in turn, too few for an error to mean much; or
    - the median of its absolute held-out errors on throughput is above 10 %, or on TPOT above 12 %; or
    - it was fitted to benchmarks, and that on TTFT is above 25 %.

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
        reasons.append(f"only {counted(found, 'group')} of times could be held out, expected at least {LEAST_GROUPS}")
    throughput = median_error(residual for residual in held_out if "/s" in residual.quantity)
    tpot = median_error(residual for residual in held_out if residual.quantity.startswith("TPOT"))
    ttft = held_out_error(profile, "TTFT") if evidence_of(profile) == "benchmarks" else None
    for name, error, limit in (
        ("throughput", throughput, THROUGHPUT_LIMIT),
        ("TPOT", tpot, TPOT_LIMIT),
        ("TTFT", ttft, TTFT_LIMIT),
    ):
        if error is not None and error > limit:
            reasons.append(f"its median held-out error on {name} is {error:.1%}, above {limit:.0%}")
    return " and ".join(reasons) or None


def held_out_error(profile: Profile, quantity: Quantity) -> float | None:
    """Median of the absolute held-out errors of this quantity alone, a share; None where none was held out.

    A step of decodes alone is a time per output token, and one of chunks alone (part of) a time to the first; a step of
    both and any throughput are neither.
    """
    return median_error(residual for residual in profile.errors.held_out if _shows(residual) == quantity)


def unmeasured(profile: Profile) -> dict[str, str]:
    """What a profile of benchmarks predicts without any benchmark having told it, and why: ``TTFT``, ``cached`` (TTFT
    with a hit), ``TPOT``. Empty for profiles of other evidence, whose measured range says it all.
    """
    if evidence_of(profile) != "benchmarks":
        return {}
    fitted = profile.errors.in_sample
    found = {}
    if not any(_shows(residual) == "TTFT" for residual in fitted):
        found["TTFT"] = "no TTFT was fitted"
    if not any(residual.at is not None and residual.at.cached for residual in fitted):
        found["cached"] = "no benchmark known to have found cached tokens was fitted"
    if not any(_shows(residual) == "TPOT" or "/s" in residual.quantity for residual in fitted):
        found["TPOT"] = "no TPOT, ITL or throughput was fitted"
    return found


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


def _shows(residual: Residual) -> Quantity | None:
    if residual.quantity.startswith("TTFT"):
        return "TTFT"
    if residual.quantity.startswith(("TPOT", "ITL")):
        return "TPOT"
    if residual.quantity == "step":
        decodes, chunk = _DECODES.search(residual.case), _CHUNK.search(residual.case)
        if (decodes is None) != (chunk is None):
            return "TPOT" if decodes else "TTFT"
    return None


def _has_ttft(profile: Profile) -> bool:
    errors = profile.errors
    return any(_shows(residual) == "TTFT" for residual in (*errors.in_sample, *errors.held_out))


def _group(case: str) -> str:
    """What a case was held out with (see ``calibration.hold_out``): its prompt, its batch, or its row."""
    subject = case.partition(":")[2].strip()
    prompt = re.match(r"(\d+) prompt tokens\b", subject)
    return f"prompt {prompt[1]}" if prompt else subject.partition(",")[0]
