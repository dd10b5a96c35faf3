"""How far a figure of one run moves with the stretches of time that it happens to hold: a block bootstrap.

A trace replayed as it is gives one run, and nothing in it varies. Its time is cut into equal blocks, each long enough
to hold what belongs together; blocks are drawn with replacement, and the figure is computed of the requests that
arrived in them (Carlstein (1986), "The use of subseries values for estimating the variance of a general statistic from
a stationary sequence", Annals of Statistics 14(3); percentile intervals: Efron and Tibshirani (1993), "An Introduction
to the Bootstrap", chapter 13). The interval speaks of this trace only: of another day it knows nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from simulator.statistics import LEVEL, Estimate
from simulator.streams import stream

if TYPE_CHECKING:
    import pandas as pd

_NUM_BLOCKS = 20
_NUM_DRAWS = 400
_LEAST_REQUESTS = 10 * _NUM_BLOCKS
_LATENCY = re.compile(r"(ttft|tpot|e2e|queue)_(mean|p(\d+))_s")
_RATES = {
    "requests_per_s": lambda rows: np.ones(len(rows)),
    "output_tokens_per_s": lambda rows: rows["num_output_tokens"].to_numpy(),
    "total_tokens_per_s": lambda rows: (rows["num_output_tokens"] + rows["num_prompt_tokens"]).to_numpy(),
}


class BlockBootstrap:
    """Intervals for the figures of one run; ``requests`` are its rows (see ``Metrics.table``)."""

    def __init__(self, requests: pd.DataFrame) -> None:
        self._rows = requests
        arrival_s = requests["arrival_s"].to_numpy()
        first_s, last_s = (float(arrival_s.min()), float(arrival_s.max())) if len(arrival_s) else (0.0, 0.0)
        width_s = (last_s - first_s) / _NUM_BLOCKS
        self._is_usable = len(requests) >= _LEAST_REQUESTS and width_s > 0
        if self._is_usable:
            self._block = np.minimum(((arrival_s - first_s) / width_s).astype(int), _NUM_BLOCKS - 1)
            rng = stream(0, "block bootstrap")
            self._drawn = rng.integers(0, _NUM_BLOCKS, (_NUM_DRAWS, _NUM_BLOCKS))

    def interval(self, metric: str, mean: float) -> Estimate | None:
        """The run's own figure with half the width of its bootstrap interval, for latencies, rates and cached shares;
        None for other figures, and where there are too few requests or all arrive at once.
        """
        if not self._is_usable:
            return None
        if match := _LATENCY.fullmatch(metric):
            values = self._latencies(match[1], None if match[2] == "mean" else float(match[3]))
        elif metric in _RATES:
            values = self._relative_rates(metric) * mean
        elif metric in ("hit_rate", "cached_share"):
            values = self._cached_shares(finished_only=metric == "cached_share")
        else:
            return None
        low, high = np.nanquantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return Estimate(mean, float(high - low) / 2, 1) if high > low else None

    def _latencies(self, name: str, percent: float | None) -> np.ndarray:
        values = self._rows[f"{name}_s"].to_numpy(dtype=float)
        known = ~np.isnan(values)
        by_block = [values[known & (self._block == block)] for block in range(_NUM_BLOCKS)]
        if percent is None:
            sums, counts = np.array([part.sum() for part in by_block]), np.array([len(part) for part in by_block])
            return self._total(sums) / self._total(counts)
        return np.array([
            np.percentile(np.concatenate([by_block[block] for block in drawn]), percent)
            if any(len(by_block[block]) for block in drawn) else np.nan
            for drawn in self._drawn
        ])  # fmt: skip

    def _relative_rates(self, metric: str) -> np.ndarray:
        """Rates as multiples of the whole run's: blocks last equally long."""
        finished = (self._rows["state"] == "finished").to_numpy()
        amounts = np.where(finished, _RATES[metric](self._rows), 0.0)
        sums = np.bincount(self._block, weights=amounts, minlength=_NUM_BLOCKS)
        return self._total(sums) / sums.sum() if sums.sum() else np.full(_NUM_DRAWS, np.nan)

    def _cached_shares(self, *, finished_only: bool) -> np.ndarray:
        rows = self._rows
        counted = (rows["state"] == "finished" if finished_only else rows["first_scheduled_s"].notna()).to_numpy()
        cached = np.where(counted, rows["num_cached_tokens"].fillna(0), 0)
        prompts = np.where(counted, rows["num_prompt_tokens"], 0)
        found, asked = (np.bincount(self._block, weights=one, minlength=_NUM_BLOCKS) for one in (cached, prompts))
        totals = self._total(asked)
        return np.divide(self._total(found), totals, out=np.full(_NUM_DRAWS, np.nan), where=totals > 0)

    def _total(self, by_block: np.ndarray) -> np.ndarray:
        return by_block[self._drawn].sum(axis=1)
