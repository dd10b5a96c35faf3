"""Draws one by one, made in blocks of a fixed size: one numpy call a request would cost more than the request, and a
longer run extends a shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import numpy as np

from simulator.workload.distributions import LengthSpec
from simulator.workload.lengths import draw_lengths

NUM_PER_DRAW = 1024


def one_by_one(draw: Callable[[int], np.ndarray]) -> Iterator[Any]:
    """The numbers that ``draw`` gives, a block at a time, as Python's own."""
    while True:
        yield from draw(NUM_PER_DRAW).tolist()


def lengths(spec: LengthSpec, rng: np.random.Generator) -> Iterator[int]:
    """Whole numbers of tokens, without end."""
    return one_by_one(lambda size: draw_lengths(spec, rng, size))


def choices(number: int, exponent: float, rng: np.random.Generator) -> Iterator[int]:
    """Indices: the k-th of ``number``, from 1, has weight ``k ** -exponent`` (0: all alike)."""
    if number == 1:
        return repeat(0)
    shares = np.cumsum(np.arange(1, number + 1, dtype=float) ** -exponent)
    shares /= shares[-1]
    return one_by_one(lambda size: np.searchsorted(shares, rng.random(size), side="right"))
