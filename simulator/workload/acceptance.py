"""How many drafts of a speculative step are accepted."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from simulator.streams import python_stream


@dataclass(frozen=True)
class Acceptance:
    """Each of ``num_drafts`` is accepted with probability ``rate``, given that those before it were.

    So at least k are accepted with probability ``rate ** k``: a geometric number, cut off at ``num_drafts``, with mean
    ``rate * (1 - rate ** num_drafts) / (1 - rate)``.
    """

    rate: float
    num_drafts: int
    _at_least: tuple[float, ...] = field(init=False, repr=False, compare=False)  # P(k or more), k = num_drafts ... 1

    def __post_init__(self) -> None:
        chances = tuple(self.rate**k for k in range(self.num_drafts, 0, -1))
        object.__setattr__(self, "_at_least", chances)

    def draws(self, seed: int, *names: object) -> Iterator[int]:
        """Accepted drafts step by step, one draw a step, on the stream of that name, which is made at the first one."""
        draw = python_stream(seed, *names).random
        num_drafts, at_least = self.num_drafts, self._at_least
        while True:
            yield num_drafts - bisect_right(at_least, draw())
