"""Batches padded to captured graph sizes: what the device computes where the engine replays graphs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from simulator.errors import InputError


class Padding:
    """Number of decodes -> the smallest captured size that holds them; a larger batch runs without a graph, unpadded.

    vLLM (``CudagraphDispatcher``) pads so; only decodes are padded here, since a chunk is long beside its padding.
    """

    __slots__ = ("_sizes", "_table")

    def __init__(self, sizes: Sequence[int]) -> None:
        """``sizes``: captured batch sizes, ascending. Raises InputError where they are not."""
        self._sizes = tuple(sizes)
        if not sizes or sizes[0] < 1 or any(high <= low for low, high in pairwise(sizes)):
            raise InputError("graph_sizes: expected ascending positive batch sizes")
        bounds = pairwise((0, *sizes))
        self._table = (0, *(high for low, high in bounds for _ in range(high - low)))

    def __call__(self, num_decodes: Any) -> Any:
        """Decodes after padding; an int, or an array of counts."""
        if isinstance(num_decodes, int):
            return self._table[num_decodes] if num_decodes < len(self._table) else num_decodes
        padded = num_decodes * (num_decodes > self._sizes[-1])
        for low, high in pairwise((0, *self._sizes)):
            padded = padded + high * ((num_decodes > low) & (num_decodes <= high))
        return padded
