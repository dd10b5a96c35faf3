"""Operator tables of LLMServingSim's profiler (casys-kaist/LLMServingSim, MIT): one folder a tensor-parallel size.

All times are microseconds on one rank. ``attention``: one layer's attention over a chunk beside decodes of equal
context. ``dense``: every other operator by the tokens of the step. ``per_sequence``: output head and sampler by the
requests in it. ``moe``: one layer's experts by tokens and by how many experts those choose. ``meta.yaml``, there or one
folder up, names GPU and engine. What ranks say to each other is in other tables (``collectives``).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from calibration.geometry import Rank
from calibration.operators.claims import meta
from calibration.operators.collectives import Collectives
from calibration.operators.interpolation import Grid
from calibration.operators.origin import Origin
from calibration.operators.step import Step
from calibration.operators.table import Table, find_table
from simulator.errors import InputError

LAYOUT = "llmservingsim"
_US = 1e-6
_ONCE = ("embedding", "final_layernorm")  # once a step; all other dense operators run in every layer
_NUM_A_LAYER = {"layernorm": 2}  # before attention and before the feed-forward part; the others once


class LLMServingSimTables:
    """See ``StepTables``. Replicas share their experts, as with vLLM's expert parallelism."""

    def __init__(self, folders: tuple[Path, ...], rank: Rank) -> None:
        """The first folder that has a table counts. Raises InputError for a missing table, row or column."""
        self.rank = rank
        tables = {name: _required(folders, name) for name in ("attention", "dense", "per_sequence")}
        self._dense = _operators(tables["dense"], "tokens")
        self._sequence = _operators(tables["per_sequence"], "sequences")
        self._decode, self._prefill, self._mixed = _attention(tables["attention"])
        self._moe: Grid | None = None
        if rank.geometry.experts is not None:
            tables["moe"] = _required(folders, "moe")
            self._moe = _experts(tables["moe"])
        num_ranks = rank.tensor_parallel_size * rank.data_parallel_size
        self._collectives = Collectives(folders if num_ranks > 1 else (), num_ranks)
        gpu, vllm = _meta(folders)
        self.origin = Origin(
            layout=LAYOUT,
            source="LLMServingSim's profiler (casys-kaist/LLMServingSim)",
            license="MIT; collectives: Apache-2.0" if self._collectives.tables else "MIT",
            device=gpu,
            vllm=vllm,
            tables=(*tables.values(), *self._collectives.tables),
            left_out="launching kernels, scheduling and preparing inputs on the host",
        )

    def covers(self, step: Step) -> bool:
        """See ``StepTables``."""
        dense, sequence = next(iter(self._dense.values())), next(iter(self._sequence.values()))
        grid, point = self._attention_of(step)
        return dense.covers(step.num_tokens) and sequence.covers(step.num_sequences) and grid.covers(*point)

    def step_s(self, step: Step) -> float:
        """See ``StepTables``: all layers, embedding, last norm, output head and sampler."""
        num_layers = self.rank.geometry.num_layers
        layer_s = sum(
            _NUM_A_LAYER.get(name, 1) * grid(step.num_tokens) for name, grid in self._dense.items() if name not in _ONCE
        )
        layer_s += self.attention_s(step) + self.experts_s(step) + self.collectives_s(step)
        once_s = sum(self._dense[name](step.num_tokens) for name in _ONCE if name in self._dense)
        return num_layers * layer_s + once_s + sum(grid(step.num_sequences) for grid in self._sequence.values())

    def attention_s(self, step: Step) -> float:
        """Seconds of one layer's attention."""
        grid, point = self._attention_of(step)
        return grid(*point)

    def experts_s(self, step: Step) -> float:
        """Seconds of one layer's experts on one rank, where each token chooses by itself and any expert equally often.

        Replicas spread their experts: the rank has its share of the choices of all tokens. Fewer experts than the table
        has take as long as its fewest.
        """
        experts, num_replicas = self.rank.geometry.experts, self.rank.data_parallel_size
        if self._moe is None or experts is None:
            return 0.0
        read = self.rank.geometry.experts_read(step.num_all_tokens) * experts.num_experts / num_replicas
        return self._moe(max(1.0, step.num_all_tokens / num_replicas), max(read, experts.num_active))

    def collectives_s(self, step: Step) -> float:
        """Seconds of one layer's communication.

        Tensor-parallel ranks sum their parts after attention and after the feed-forward part. Replicas gather the
        tokens of all before the experts, padded to the largest of them (vLLM's ``allgather_reducescatter``, and
        ``coordinate_batch_across_dp``), and scatter the sums.
        """
        hidden = self.rank.geometry.hidden_size
        if self.rank.data_parallel_size > 1:
            return self._collectives.exchange_s(self.rank.data_parallel_size * step.num_tokens * hidden)
        return 2 * self._collectives.all_reduce_s(step.num_tokens * hidden)

    def _attention_of(self, step: Step) -> tuple[Grid, tuple[int, ...]]:
        chunk, decodes = (step.chunk_tokens, step.chunk_context), (step.num_decodes, step.decode_context)
        if not step.chunk_tokens:
            return self._decode, decodes
        return (self._mixed, (*chunk, *decodes)) if step.num_decodes else (self._prefill, chunk)


def _required(folders: tuple[Path, ...], name: str) -> Table:
    table = find_table(folders, name)
    assert table is not None
    return table


def _operators(table: Table, size: str) -> dict[str, Grid]:
    """One grid an operator, in seconds."""
    names = list(dict.fromkeys(str(row.get("layer")) for row in table.rows))
    return {
        name: Grid(
            f"{table.file} ({name})", (size,),
            {(number,): us * _US for number, us in table.numbers({"layer": name}, size, "time_us")},
        )
        for name in names
    }  # fmt: skip


def _attention(table: Table) -> tuple[Grid, Grid, Grid]:
    """Seconds of decodes alone, of a chunk alone, and of both together.

    The profiler swept two grids, whose sizes double and grow by half; where they do not mix, the first is kept.
    """
    axes = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    decode: dict[tuple[float, ...], float] = {}
    prefill: dict[tuple[float, ...], float] = {}
    mixed: dict[tuple[float, ...], float] = {}
    for chunk, before, num_decodes, context, us in table.numbers({}, *axes, "time_us"):
        doubling = all(size == 0 or size == 2 ** int(np.log2(size)) for size in (chunk, before, num_decodes, context))
        if doubling and chunk and num_decodes:
            mixed[chunk, before, num_decodes, context] = us * _US
        elif doubling and chunk:
            prefill[chunk, before] = us * _US
        elif doubling:
            decode[num_decodes, context] = us * _US
    return (
        Grid(f"{table.file} (decodes)", axes[2:], decode),
        Grid(f"{table.file} (chunks)", axes[:2], prefill),
        Grid(f"{table.file} (chunks beside decodes)", axes, mixed),
    )


def _experts(table: Table) -> Grid:
    """Seconds by tokens and experts read. Few tokens cannot choose many experts: there the most that they could."""
    measured: dict[float, dict[float, float]] = {}
    for tokens, experts, us in table.numbers({}, "tokens", "activated_experts", "time_us"):
        measured.setdefault(tokens, {})[experts] = us * _US
    sizes = sorted({experts for column in measured.values() for experts in column})
    points: dict[tuple[float, ...], float] = {
        (tokens, size): float(np.interp(size, sorted(column), [column[key] for key in sorted(column)]))
        for tokens, column in measured.items()
        for size in sizes
    }
    return Grid(table.file, ("tokens", "activated_experts"), points)


def _meta(folders: tuple[Path, ...]) -> tuple[str, str]:
    """GPU and vLLM version, of the first folder that has a ``meta.yaml``."""
    for folder in folders:
        found = meta(folder)
        if found is not None:
            if not all(found.get(key) for key in ("gpu", "vllm_version")):
                raise InputError("meta.yaml: expected keys gpu and vllm_version")
            return str(found["gpu"]), str(found["vllm_version"])
    raise InputError(f"{', '.join(str(folder) for folder in folders)}: no meta.yaml, there or one folder up")
