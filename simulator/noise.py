"""Step noise: what a step takes longer or shorter than its formula says, drawn ahead and kept as running sums.

Additive, with zero mean, independent from step to step, and the same however steps are taken together: the n-th step
that an instance launches has the n-th draw, and a stretch of steps reads the difference of two sums.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import accumulate

MAX_DEVIATIONS = 3  # draws are clipped here

_NUM_DRAWS = 2**14
# Draws are multiples of 2^-40 s (a picosecond), so that sums of them are exact up to hours of noise, and a difference
# of two sums is the sum of what lies between, whatever came before.
_PER_SECOND = 2.0**40


class StepNoise:
    """The noise of one instance's steps. After the last draw the first follows again."""

    __slots__ = ("_num_draws", "_sums", "_total_s")

    def __init__(self, draws_s: Iterable[float]) -> None:
        """``draws_s``: seconds, which are rounded to multiples of 2^-40 s."""
        rounded = (round(draw_s * _PER_SECOND) / _PER_SECOND for draw_s in draws_s)
        self._sums = array("d", accumulate(rounded, initial=0.0))
        self._total_s = self._sums.pop()
        self._num_draws = len(self._sums)

    def elapsed(self, first: int, num_steps: int) -> float:
        """Seconds that ``num_steps`` steps, from number ``first`` (from 0) on, take beyond their formula together."""
        laps, place = divmod(first, self._num_draws)
        end_laps, end_place = divmod(first + num_steps, self._num_draws)
        return (self._sums[end_place] - self._sums[place]) + (end_laps - laps) * self._total_s


def draw_step_noise(deviation_s: float, seed: int, replication: int, instance: int) -> StepNoise:
    """Normal draws with that standard deviation, clipped at ``MAX_DEVIATIONS`` of it, on the instance's own stream."""
    from simulator.streams import stream

    draws = stream(seed, "noise", replication, instance).standard_normal(_NUM_DRAWS)
    return StepNoise((draws.clip(-MAX_DEVIATIONS, MAX_DEVIATIONS) * deviation_s).tolist())
