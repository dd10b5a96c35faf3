"""What ranks say to each other: latencies of collective operations inside a node, by the elements of a message.

Tables of AIConfigurator (ai-dynamo/aiconfigurator, Apache-2.0): ``custom_allreduce`` (vLLM's own, in a graph) and
``nccl``. Latency is in ms, messages are in elements of 16 bits, those of a gather or scatter counted over all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from calibration.operators.interpolation import Grid
from calibration.operators.table import Table, find_table
from simulator.errors import InputError

_MS = 1e-3


class Collectives:
    """Seconds of each operation among ``num_ranks`` ranks."""

    def __init__(self, folders: tuple[Path, ...], num_ranks: int) -> None:
        """Raises InputError where ``folders`` have no table, or none for so many ranks."""
        self.num_ranks = num_ranks
        own = find_table(folders, "custom_allreduce", required=False)
        nccl = find_table(folders, "nccl", required=False)
        self.tables = tuple(table for table in (own, nccl) if table is not None)
        self._grids: dict[str, list[Grid]] = {}
        if own is not None:
            self._add("all_reduce", own, {"allreduce_dtype": "bfloat16", "backend": "vllm_graph"})
        if nccl is not None:
            for name in ("all_reduce", "all_gather", "reduce_scatter"):
                self._add(name, nccl, {"nccl_dtype": "half", "op_name": name})

    def all_reduce_s(self, num_elements: float) -> float:
        """An all-reduce, by the faster of vLLM's own kernel and NCCL."""
        return self._seconds("all_reduce", num_elements)

    def exchange_s(self, num_elements: float) -> float:
        """A gather of ``num_elements`` over all ranks, and a scatter of their sums: the way to experts and back."""
        return self._seconds("all_gather", num_elements) + self._seconds("reduce_scatter", num_elements)

    def _add(self, name: str, table: Table, where: Mapping[str, str]) -> None:
        rows = table.numbers({**where, "num_gpus": str(self.num_ranks)}, "message_size", "latency")
        points: dict[tuple[float, ...], float] = {(size,): latency * _MS for size, latency in rows}
        if points:
            self._grids.setdefault(name, []).append(Grid(f"{table.file} ({name})", ("message_size",), points))

    def _seconds(self, name: str, num_elements: float) -> float:
        if self.num_ranks == 1:
            return 0.0
        grids = [grid for grid in self._grids.get(name, ()) if grid.covers(num_elements)]
        if not grids:
            files = ", ".join(table.file for table in self.tables) or "no table custom_allreduce or nccl"
            raise InputError(f"{files}: no {name} of {num_elements:g} elements among {self.num_ranks} ranks")
        return min(grid(num_elements) for grid in grids)
