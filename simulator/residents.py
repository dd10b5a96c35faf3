"""How much of the caches is whose, over time: block-seconds by tenant, all instances together."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import add
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

_NUM_BINS = 240
_FIRST_BIN_S = 1.0


class Residents:
    """Blocks that hold each tenant's content, as instances report them: a report holds until the next one.

    Bins start a second wide and double their width whenever time outgrows them.
    """

    def __init__(self, num_instances: int, num_tenants: int) -> None:
        self.bin_s = _FIRST_BIN_S
        self._block_s = [array("d", bytes(8 * _NUM_BINS)) for _ in range(num_tenants)]
        self._latest: list[tuple[float, Sequence[int]]] = [(0.0, [0] * num_tenants)] * num_instances

    def report(self, instance: int, now_s: float, num_blocks: Sequence[int]) -> None:
        """From ``now_s`` on so many blocks of the instance are each tenant's."""
        since_s, before = self._latest[instance]
        if now_s > since_s:
            self._add(since_s, now_s, before)
        self._latest[instance] = (now_s, list(num_blocks))

    def final(self) -> list[int]:
        """Blocks of each tenant as last reported."""
        return [sum(column) for column in zip(*(num_blocks for _, num_blocks in self._latest), strict=True)]

    def table(self, horizon_s: float) -> pd.DataFrame:
        """One row a bin until ``horizon_s``, when the run ends: ``start_s``, ``width_s`` and, by tenant's number, the
        mean number of blocks.
        """
        import numpy as np
        import pandas as pd

        for instance, (_, num_blocks) in enumerate(self._latest):
            self.report(instance, horizon_s, num_blocks)
        starts = np.arange(0.0, max(horizon_s, self.bin_s), self.bin_s)
        widths = np.minimum(self.bin_s, np.maximum(horizon_s - starts, 1e-12))
        means = {tenant: np.array(sums)[: len(starts)] / widths for tenant, sums in enumerate(self._block_s)}
        return pd.DataFrame({"start_s": starts, "width_s": widths} | means)

    def _add(self, start_s: float, end_s: float, num_blocks: Sequence[int]) -> None:
        while end_s >= self.bin_s * _NUM_BINS:
            self._coarsen()
        bin_s = self.bin_s
        for index in range(int(start_s / bin_s), int(end_s / bin_s) + 1):
            inside_s = min(end_s, (index + 1) * bin_s) - max(start_s, index * bin_s)
            for sums, blocks in zip(self._block_s, num_blocks, strict=True):
                sums[index] += blocks * inside_s

    def _coarsen(self) -> None:
        for sums in self._block_s:
            merged = array("d", map(add, sums[::2], sums[1::2]))
            sums[:] = merged + array("d", bytes(8 * (_NUM_BINS - len(merged))))
        self.bin_s *= 2
