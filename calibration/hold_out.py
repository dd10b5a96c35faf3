"""Which measured times are kept from the fit, so that ``check`` has something that was never fitted.

What is held out together is a *unit* (``observations.unit_of``): everything about one prompt alone, or one batch. Of
each probe's units the fifth with the lowest digests of their names is held out: the same units on every machine, chosen
by nobody. A unit at the edge of the measured range stays in the fit, because a profile promises nothing beyond that
range. Published tables are too small to spare a row and are held out only by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from calibration.observations import Observation, measured_range
from simulator.errors import InputError

FIFTH, NONE = "fifth", "none"
_SHARE = 5


@dataclass(frozen=True)
class Split:
    """Observations to fit, those held out, and the rule in words."""

    fitted: tuple[Observation, ...]
    held_out: tuple[Observation, ...]
    rule: str


def split(observations: Sequence[Observation], rule: str = FIFTH) -> Split:
    """Divide by ``rule``: ``fifth``, ``none``, or a text that the names of held-out cases contain.

    Raises InputError where a text names no case, or every one.
    """
    if rule == NONE:
        return Split(tuple(observations), (), "none")
    if rule == FIFTH:
        units = _fifth(observations)
        words = "of each probe's units the fifth with the lowest SHA-256 of their names, edges of the range excepted"
    else:
        units = {observation.unit for observation in observations if rule in observation.case}
        words = f"every unit with a case that contains {rule!r}"
        if not units:
            raise InputError(f"--hold-out: no case contains {rule!r}")
    fitted = tuple(observation for observation in observations if observation.unit not in units)
    held_out = tuple(observation for observation in observations if observation.unit in units)
    if not fitted:
        raise InputError(f"--hold-out: every case belongs to {rule!r}, nothing is left to fit")
    return Split(fitted, held_out, words)


def _fifth(observations: Sequence[Observation]) -> set[str]:
    """A fifth of each probe's units, by digest, such that what remains still covers their range."""
    by_unit: dict[str, list[Observation]] = {}
    for observation in observations:
        if not observation.published:
            by_unit.setdefault(observation.unit, []).append(observation)
    chosen: set[str] = set()
    for probe in sorted({unit.split()[0] for unit in by_unit}):
        units = sorted((unit for unit in by_unit if unit.split()[0] == probe), key=digest)
        wanted = ceil(len(units) / _SHARE) if len(units) > 2 else 0
        taken = 0
        for unit in units:
            if taken == wanted:
                break
            if _covered(observations, chosen | {unit}):
                chosen.add(unit)
                taken += 1
    return chosen


def _covered(observations: Sequence[Observation], left_out: set[str]) -> bool:
    kept = [observation for observation in observations if observation.unit not in left_out]
    return bool(kept) and measured_range(kept) == measured_range(observations)


def digest(unit: str) -> str:
    """What puts units in an order that nobody chose."""
    return hashlib.sha256(unit.encode()).hexdigest()
