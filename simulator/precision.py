"""Replicating until intervals are narrow enough.

Each round looks at all headline intervals and asks for as many replications as the widest of them needs, going by the
square root law, but at most twice as many as there are: a first look may be wrong. (Law (2015), "Simulation Modeling
and Analysis", section 9.4.1: a relative-precision procedure. Stopping by what was seen costs a little coverage.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.comparison import Comparison


@dataclass(frozen=True)
class Precision:
    """``share``: the largest half width that an interval may have, as a share of its mean. ``max_replications``: where
    replicating ends all the same.
    """

    share: float
    max_replications: int

    def next_number(self, comparison: Comparison) -> int | None:
        """How many replications to have next; None where it is enough, or where more would not help."""
        number = comparison.num_replications
        widest = max(self._wide(comparison).values(), default=0.0)
        if widest <= self.share or number >= self.max_replications:
            return None
        needed = math.ceil(number * (widest / self.share) ** 2)
        return min(max(needed, number + 1), 2 * number, self.max_replications)

    def line(self, comparison: Comparison) -> str:
        """What came of it, in a sentence."""
        wide, number = self._wide(comparison), comparison.num_replications
        if not wide:
            return f"{number} replications: no headline figure has an interval that more of them would narrow."
        if max(wide.values()) <= self.share:
            return f"{number} replications: every headline interval is within {_percent(self.share)} of its mean."
        (policy, label), share = max(wide.items(), key=lambda item: item[1])
        return (
            f"Not as precise as asked for after {number} replications: {label} of {comparison.names[policy]} is known "
            f"within {_percent(share)}, expected {_percent(self.share)}."
        )

    @staticmethod
    def _wide(comparison: Comparison) -> dict[tuple[str, str], float]:
        """Half widths as shares of the means, by policy and headline figure."""
        from simulator.comparison import COMPARED

        return {
            (policy, shown.label): found.half_width_share
            for policy in comparison.policies
            for shown in COMPARED
            if (found := comparison.estimate(policy, shown.key)) is not None and found.scope == "replications"
        }


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %"
