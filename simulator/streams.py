"""Random streams by name: one seed, one independent stream a purpose.

A stream depends on its names only, never on how many others exist or how much they drew, so that a new router or tenant
leaves every other draw as it was (law 4).
"""

from __future__ import annotations

import hashlib
import random

import numpy as np


def _digest(seed: int, names: tuple[object, ...]) -> int:
    text = "\x1f".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")


def stream(seed: int, *names: object) -> np.random.Generator:
    """The numpy stream that ``seed`` and ``names`` define (arrays of draws)."""
    return np.random.Generator(np.random.PCG64(_digest(seed, names)))


def python_stream(seed: int, *names: object) -> random.Random:
    """The same idea for single draws, where numpy's call costs more than the draw."""
    return random.Random(_digest(seed, names))  # noqa: S311 - nothing secret
