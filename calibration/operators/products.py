"""Times of matrix products for any matrix, from a table of round ones."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from calibration.operators.table import Table
from simulator.errors import InputError

_MS = 1e-3


class Products:
    """Products of m tokens with an n x k matrix, in one format; linear between the table's m, n and k.

    A time is bytes or operations of the matrix over a rate, and either grows with n k: between two of the table's
    matrices linear, above its largest in proportion.
    """

    def __init__(self, table: Table, gemm_format: str) -> None:
        """Raises InputError where the table has no row of this format."""
        self._name = f"{table.file} ({gemm_format})"
        self._points: dict[tuple[int, int], dict[float, float]] = {}
        for m, n, k, ms in table.numbers({"gemm_dtype": gemm_format}, "m", "n", "k", "latency"):
            self._points.setdefault((int(n), int(k)), {})[m] = ms * _MS
        if not self._points:
            raise InputError(f"{self._name}: no rows")
        self._columns = {
            shape: (np.array(sorted(column)), np.array([column[m] for m in sorted(column)]))
            for shape, column in self._points.items()
        }
        self._k = sorted({k for _, k in self._points})
        self._n = {k: sorted(n for n, other in self._points if other == k) for k in self._k}
        self.max_tokens = min(float(m[-1]) for m, _ in self._columns.values())

    def covers(self, num_tokens: float) -> bool:
        """Whether every matrix was measured with so many tokens."""
        return 1 <= num_tokens <= self.max_tokens

    def seconds(self, num_tokens: float, rows: int, columns: int) -> float:
        """Seconds of a product with a ``rows`` x ``columns`` matrix (n x k). Raises InputError outside the table."""
        if not self.covers(num_tokens):
            raise InputError(f"{self._name}: {num_tokens:g} tokens, expected 1 to {self.max_tokens:g} as measured")
        return sum(
            share_n * share_k * self._measured(num_tokens, n, k)
            for k, share_k in _between(columns, self._k)
            for n, share_n in _between(rows, self._n[k])
        )

    def _measured(self, num_tokens: float, n: int, k: int) -> float:
        tokens, seconds = self._columns[n, k]
        return float(np.interp(num_tokens, tokens, seconds))


def _between(size: int, sizes: list[int]) -> list[tuple[int, float]]:
    """The table's sizes around ``size`` with their weights; the nearest one, in proportion, outside."""
    place = bisect_left(sizes, size)
    if place == len(sizes) or sizes[place] == size or place == 0:
        nearest = sizes[min(place, len(sizes) - 1)]
        return [(nearest, size / nearest)]
    low, high = sizes[place - 1], sizes[place]
    share = (size - low) / (high - low)
    return [(low, 1 - share), (high, share)]
