"""Ties broken as by a router that shuffles: uniformly, and without a draw where there is no tie."""

from __future__ import annotations

import random
from collections.abc import Sequence


def any_of(candidates: Sequence[int], rng: random.Random) -> int:
    """One of the candidates, of which there is at least one."""
    return candidates[0] if len(candidates) == 1 else candidates[rng.randrange(len(candidates))]


def any_least(values: Sequence[float], rng: random.Random) -> int:
    """The index of the least value; of equals any."""
    return _any_equal(values, min(values), rng)


def any_most(values: Sequence[float], rng: random.Random) -> int:
    """The index of the greatest value; of equals any."""
    return _any_equal(values, max(values), rng)


def _any_equal(values: Sequence[float], value: float, rng: random.Random) -> int:
    num_ties = values.count(value)
    found = values.index(value)
    for _ in range(rng.randrange(num_ties) if num_ties > 1 else 0):
        found = values.index(value, found + 1)
    return found
