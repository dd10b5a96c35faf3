"""Which of several times of the same work stand out. They are kept and marked, never dropped in silence."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

# A time counts as outlying beyond five robust standard deviations (median absolute deviations x 1.4826, which is one
# standard deviation of a normal distribution) and a tenth of the median: where repeats agree to the microsecond, two of
# them more are no outlier. The bounds are conventions.
_DEVIATIONS = 5 * 1.4826
_LEAST_SHARE = 0.10
_LEAST_NUMBER = 4


def outlying(times: Sequence[tuple[int, float]]) -> Iterable[int]:
    """The labels of those (label, seconds) that lie far from the median; none among fewer than four."""
    if len(times) < _LEAST_NUMBER:
        return []
    median = statistics.median(value for _, value in times)
    spread = statistics.median(abs(value - median) for _, value in times)
    bound = max(_DEVIATIONS * spread, _LEAST_SHARE * median)
    return [label for label, value in times if abs(value - median) > bound]
