"""What a case costs in time, from those already taken, and which cases a budget has room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from calibration.probes import Case

_GUESSED_S = 1.0  # of a take, before anything was timed


class Costs:
    """Seconds of a take: as timed, else steps, prefill tokens and query-key pairs at the rates of those timed."""

    def __init__(self) -> None:
        self._timed: dict[Case, float] = {}
        self._first: dict[Case, float] = {}
        self._rates: tuple[float, float, float] | None = None
        self._block_size = 1

    def took(self, case: Case, seconds: float) -> None:
        """A take was timed. The shortest counts: the first of a case also prepares the cache for the others."""
        self._first.setdefault(case, seconds)
        self._timed[case] = min(seconds, self._timed.get(case, seconds))

    @property
    def setup_s(self) -> float:
        """Seconds of a launch in which first takes prepared something."""
        return sum(first - self._timed[case] for case, first in self._first.items())

    def settle(self, block_size: int) -> None:
        """Derive the rates from what was timed so far (least squares of relative errors, none negative)."""
        from scipy.optimize import nnls

        self._block_size = block_size
        if self._timed:
            work = np.array([self._work(case) for case in self._timed])
            seconds = np.maximum(np.array(list(self._timed.values())), 1e-9)
            solution, _ = nnls(work / seconds[:, None], np.ones(len(seconds)))
            self._rates = (float(solution[0]), float(solution[1]), float(solution[2]))

    def of(self, case: Case) -> float:
        """Estimated seconds of one take."""
        if case in self._timed:
            return self._timed[case]
        if self._rates is None:
            return _GUESSED_S
        return sum(rate * amount for rate, amount in zip(self._rates, self._work(case), strict=True))

    def _work(self, case: Case) -> tuple[float, float, float]:
        pieces = list(case.prefills(self._block_size))
        tokens = sum(new for new, _ in pieces)
        pairs = sum(new * computed + new * (new + 1) / 2 for new, computed in pieces)
        return float(case.num_steps), float(tokens), float(pairs)


def within(
    cases: Sequence[Case], num_launches: Mapping[str, int], num_repeats: int, costs: Costs, seconds: float
) -> tuple[list[Case], float]:
    """The cases that fit into ``seconds``, and what they need.

    The highest rank goes first, and of one rank the costliest; rank 0 always stays.
    """

    def needs(case: Case) -> float:
        return num_launches[case.key] * num_repeats * costs.of(case)

    kept = sorted(cases, key=lambda case: (case.rank, needs(case)))
    total = sum(map(needs, kept))
    while kept and total > seconds and kept[-1].rank > 0:
        total -= needs(kept.pop())
    return kept, total
