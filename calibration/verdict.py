"""A check as text and as numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from calibration.check import SPREADS, Check, Judged
from simulator.counts import counted
from simulator.profile import Profile

_SENTENCES = {
    "pass": "PASS: every error is within its limit.",
    "noisy": (
        f"NOISY: every error is within its limit or {SPREADS} times this machine's own spread, but launches differ by "
        "more than the limits: this machine cannot show a pass. Repeat on a quiet one."
    ),
    "fail": "FAIL: beyond the limits.",
}


def lines(profile: Profile, checked: Check) -> Iterator[str]:
    """The verdict first, then every quantity with its limit, then the cases that are furthest off."""
    sentence = _SENTENCES[checked.verdict]
    if checked.verdict == "fail" and checked.noisy:
        sentence += " This machine is noisy too: repeats differ by more than lets it show a pass."
    yield sentence
    yield from checked.machines
    held = profile.provenance.hold_out
    chosen = f" (held out: {held.rule})" if held is not None and held.cases else ""
    yield (
        f"{profile.name}, {profile.formula}: {counted(len(checked.scored), 'case')} never fitted{chosen}; "
        f"{counted(checked.num_fitted, 'fitted case')} not scored, {counted(checked.num_outliers, 'outlying row')}, "
        f"{counted(checked.num_unused, 'warm-up or failed row')} and "
        f"{counted(checked.num_disturbed, 'disturbed launch', 'disturbed launches')} of a case left out"
    )
    yield f"  {'':34} {'cases':>5} {'error':>8} {'worst':>8} {'spread':>8} {'limit':>8}"
    for one in checked.judged:
        mark = "" if one.within else "  BEYOND"
        raised = f"  ({SPREADS} x spread: {one.allowed:.1%})" if one.noisy else ""
        yield (
            f"  {one.name:34} {one.num_cases:5} {_share(one.value)} {_share(one.worst)} {_share(one.spread)} "
            f"{_share(one.limit)}{raised}{mark}"
        )
    yield "furthest off:"
    for scored in checked.worst():
        yield (
            f"  {scored.case:70} measured {1000 * scored.measured_s:9.3f} ms, predicted "
            f"{1000 * scored.predicted_s:9.3f} ms {scored.error:+7.1%}"
        )


def numbers(checked: Check) -> dict[str, Any]:
    """The same for machines; shares, and seconds."""
    return {
        "verdict": checked.verdict,
        "machines": list(checked.machines),
        "resolves_limits": checked.resolves,
        "num_cases": len(checked.scored),
        "num_fitted_cases_not_scored": checked.num_fitted,
        "num_outlying_rows": checked.num_outliers,
        "num_unused_rows": checked.num_unused,
        "num_disturbed_launches": checked.num_disturbed,
        "judged": [_judged(one) for one in checked.judged],
        "cases": [
            {
                "case": one.case,
                "regime": one.regime,
                "measured_s": one.measured_s,
                "predicted_s": one.predicted_s,
                "error": one.error,
                "spread": one.spread,
            }
            for one in checked.scored
        ],
    }


def _judged(one: Judged) -> dict[str, Any]:
    return {
        "name": one.name,
        "num_cases": one.num_cases,
        "value": one.value,
        "worst": one.worst,
        "spread": one.spread,
        "limit": one.limit,
        "allowed": one.allowed,
        "within": one.within,
        "noisy": one.noisy,
    }


def _share(value: float | None) -> str:
    return f"{'':8}" if value is None else f"{value:8.2%}"
