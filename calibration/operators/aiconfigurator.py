"""Operator tables of AIConfigurator (ai-dynamo/aiconfigurator, Apache-2.0): one folder a GPU system, measured in vLLM.

All latencies are milliseconds. ``gemm``: a product of m tokens with an n x k matrix, for round n and k.
``context_attention``: prompts from their first token; ``generation_attention``: decodes, whose new token is the one
after ``step``. ``custom_allreduce`` and ``nccl``: see ``collectives``. Norms, activations, rotations and the writing of
keys and values are not in the tables: they take their bytes over the device's bandwidth and a latency each.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from pathlib import Path

from calibration.devices import Device
from calibration.geometry import Rank
from calibration.operators.collectives import Collectives
from calibration.operators.interpolation import Grid
from calibration.operators.origin import Origin
from calibration.operators.products import Products
from calibration.operators.step import Step
from calibration.operators.table import Table, find_table
from simulator.errors import InputError

LAYOUT = "aiconfigurator"
_MS = 1e-3
_BYTES = 2  # of an activation
# Beside matrices and attention a layer has two norms, an activation, and a rotation with the writing of keys and
# values. Each waits 3 us for memory at least (AIConfigurator's own correction, mem_empirical_constant_latency).
_NUM_SMALL, _SMALL_S = 4, 3e-6


class AIConfiguratorTables:
    """See ``StepTables``. Dense models only."""

    def __init__(self, folders: tuple[Path, ...], rank: Rank, device: Device) -> None:
        """Raises InputError for a missing table or row, for a mixture of experts, and for weights of 8 bits: their
        kernels pad, so that a token more than a round number takes up to 1.8 times as long, which is no roofline.
        """
        shape = rank.geometry
        if shape.experts is not None or shape.latent is not None:
            raise InputError(f"{shape.model}: layout {LAYOUT}: expected a dense model with grouped-query attention")
        if shape.arithmetic != "16-bit":
            raise InputError(f"{shape.model}: layout {LAYOUT}: {shape.arithmetic} weights, expected weights of 16 bits")
        self.rank = rank
        self._device = device
        self._heads, self._kv_heads = self._split(shape.num_attention_heads), self._split(shape.num_kv_heads)
        tables = {name: _required(folders, name) for name in ("gemm", "context_attention", "generation_attention")}
        self._products = Products(tables["gemm"], "bfloat16")
        self._prefill = self._prompts(tables["context_attention"])
        self._decode = self._decodes(tables["generation_attention"])
        self._collectives = Collectives(folders if rank.tensor_parallel_size > 1 else (), rank.tensor_parallel_size)
        first = tables["gemm"].rows[0]
        self.origin = Origin(
            layout=LAYOUT,
            source="AIConfigurator's collector (ai-dynamo/aiconfigurator)",
            license="Apache-2.0",
            device=str(first.get("device")),
            vllm=str(first.get("version")),
            tables=(*tables.values(), *self._collectives.tables),
            left_out=(
                "host work, the sampler, chunks after a prefix (taken as a prompt of as many query-key pairs), chunks "
                "and decodes in one kernel (added up), and small operators (bytes over bandwidth, 3 us at least)"
            ),
        )

    def covers(self, step: Step) -> bool:
        """See ``StepTables``."""
        decodes = not step.num_decodes or (
            step.num_decodes in self._decode and self._decode[step.num_decodes].covers(step.decode_context)
        )
        chunk = not step.chunk_tokens or self._prefill.covers(_prompt_of(step))
        return decodes and chunk and self._products.covers(step.num_tokens)

    def step_s(self, step: Step) -> float:
        """See ``StepTables``: all layers and the output head. Batches between the tables' are refused."""
        layer_s = self.matrices_s(step) + self.attention_s(step) + self.small_s(step)
        layer_s += 2 * self._collectives.all_reduce_s(step.num_tokens * self.rank.geometry.hidden_size)
        shape = self.rank.geometry
        head = self._products.seconds(step.num_sequences, self._split(shape.vocabulary_size), shape.hidden_size)
        return shape.num_layers * layer_s + head

    def matrices_s(self, step: Step) -> float:
        """Seconds of one layer's four products."""
        shape, num_tokens = self.rank.geometry, step.num_tokens
        wide = self._split(shape.intermediate_size)
        heads, head_size, hidden = self._heads, shape.head_size, shape.hidden_size
        return (
            self._products.seconds(num_tokens, (heads + 2 * self._kv_heads) * head_size, hidden)
            + self._products.seconds(num_tokens, hidden, heads * head_size)
            + self._products.seconds(num_tokens, 2 * wide, hidden)
            + self._products.seconds(num_tokens, hidden, wide)
        )

    def attention_s(self, step: Step) -> float:
        """Seconds of one layer's attention, chunk and decodes one after the other."""
        seconds = self._prefill(_prompt_of(step)) if step.chunk_tokens else 0.0
        if not step.num_decodes:
            return seconds
        if step.num_decodes not in self._decode:
            known = ", ".join(map(str, sorted(self._decode)))
            raise InputError(f"generation_attention: no batch of {step.num_decodes}, expected one of {known}")
        return seconds + self._decode[step.num_decodes](step.decode_context)

    def small_s(self, step: Step) -> float:
        """Seconds of one layer's small operators: hidden states read and written with the residual in either norm,
        the feed-forward part's activation, queries and keys rotated, keys and values written.
        """
        shape = self.rank.geometry
        wide = self._split(shape.intermediate_size)
        elements = 2 * 4 * shape.hidden_size + 3 * wide + 2 * (self._heads + 2 * self._kv_heads) * shape.head_size
        return _NUM_SMALL * _SMALL_S + step.num_tokens * elements * _BYTES / self._device.bytes_per_s

    def _split(self, size: int) -> int:
        """A rank's share of ``size``."""
        return -(-size // self.rank.tensor_parallel_size)

    def _where(self) -> Mapping[str, str]:
        kv = "bfloat16" if self.rank.geometry.bytes_per_kv_element == _BYTES else "fp8"
        return {
            "num_heads": str(self._heads), "num_key_value_heads": str(self._kv_heads),
            "head_dim": str(self.rank.geometry.head_size), "kv_cache_dtype": kv, "window_size": "0",
        }  # fmt: skip

    def _prompts(self, table: Table) -> Grid:
        """Seconds of one prompt's attention by its tokens."""
        rows = table.numbers({**self._where(), "batch_size": "1"}, "isl", "latency")
        return Grid(f"{table.file} ({self._heads} heads)", ("isl",), {(size,): ms * _MS for size, ms in rows})

    def _decodes(self, table: Table) -> dict[int, Grid]:
        """Seconds of a batch's attention by its context, new token included; one grid a batch."""
        batches: dict[int, dict[tuple[float, ...], float]] = {}
        for batch, before, ms in table.numbers(self._where(), "batch_size", "step", "latency"):
            batches.setdefault(int(batch), {})[before + 1,] = ms * _MS
        if not batches:
            raise InputError(f"{table.file}: no rows of {self._heads} heads, {self._kv_heads} of keys and values")
        return {
            batch: Grid(f"{table.file} (batch {batch})", ("context",), points) for batch, points in batches.items()
        }


def _prompt_of(step: Step) -> float:
    """Length of the prompt that has as many query-key pairs, s (s + 1) / 2, as the step's chunk."""
    return 0.5 * (sqrt(1 + 8 * step.plan.prefill_pairs) - 1)


def _required(folders: tuple[Path, ...], name: str) -> Table:
    table = find_table(folders, name)
    assert table is not None
    return table
