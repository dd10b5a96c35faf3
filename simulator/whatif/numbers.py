"""Numbers that are said by what they were before: twice as much, half, one more."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from simulator.errors import InputError
from simulator.units import positive_number

_NUMBER = r"(?:\d+(?:\.\d*)?|\.\d+)"
_FACTOR = re.compile(rf"({_NUMBER})\s*(x|×|%)", re.ASCII)
_TIMES = re.compile(rf"({_NUMBER})\s*[x×]", re.ASCII)
_STEP = re.compile(rf"([+-])({_NUMBER})", re.ASCII)
_IN_WORDS = {2.0: "twice", 0.5: "half"}


class Relative(NamedTuple):
    """What becomes of a number, and how people wrote that."""

    of: Callable[[float], float]
    text: str


def factor(text: str) -> float:
    """The factor that ``2x`` and ``200%`` mean. Raises InputError where it is none, is 0, or is 1."""
    match = _FACTOR.fullmatch(text)
    if match is None:
        raise InputError(f"got {text!r}, expected a factor like 2x or 120%")
    found = positive_number(float(match[1])) / (100 if match[2] == "%" else 1)
    if found == 1:
        raise InputError("changes nothing, expected another factor than 1")
    return found


def relative(text: str) -> Relative | None:
    """What ``+2``, ``-1`` and ``0.5x`` do to a number; None for other text. Raises InputError for what does nothing.
    """
    if match := _STEP.fullmatch(text):
        step = float(match[1] + match[2])
        if not step:
            raise InputError("changes nothing, expected another number than 0")
        return Relative(lambda number: number + step, text)
    if _TIMES.fullmatch(text):
        times = factor(text)
        return Relative(lambda number: number * times, text)
    return None


def times(number: float) -> str:
    """A factor in words, as in "twice the rate"."""
    return _IN_WORDS.get(number) or f"{number:.4g} times"
