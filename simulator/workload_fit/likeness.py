"""What of a trace and of its generator should be alike: rate, lengths, and what a prefix cache of any size hits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.request import Prompt, Request
from simulator.trace_tools.reuse import Reuse
from simulator.trace_tools.tree import PrefixTree
from simulator.workload.records import Record
from simulator.workload.spec import TenantSpec
from simulator.workload.tree import grow
from simulator.workload.tree_spec import TreeSpec
from simulator.workload_fit.arrivals import burst_window_s, dispersion

CACHE_SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)  # of the distinct blocks


@dataclass(frozen=True)
class Row:
    """One request: seconds, tokens, text."""

    time_s: float
    num_tokens: int
    num_outputs: int
    prompt: Prompt


@dataclass(frozen=True)
class Likeness:
    """The figures of a sequence of requests, by name, in the order in which a table shows them.

    ``num_distinct``: whole blocks, the first of each that a cache meets. Hits are shares of all whole blocks.
    ``window_s``: in which bursts were counted (variance over mean of the arrivals, 1 for a Poisson process).
    """

    figures: dict[str, float]
    num_distinct: int
    window_s: float


def of_records(records: Sequence[Record]) -> list[Row]:
    """Rows of a trace."""
    return [Row(one.arrival_s, one.num_prompt_tokens, one.num_output_tokens, one.prompt or ()) for one in records]


def drawn(source: TreeSpec, num_requests: int, seed: int) -> list[Row]:
    """Rows of the generator."""
    spec = source.model_copy(update={"num_requests": num_requests, "duration": None})
    return of_requests(grow(TenantSpec(name="fitted", tree=spec), 0, seed, 0))


def of_requests(requests: Iterable[Request]) -> list[Row]:
    """Rows of a workload."""
    return [Row(one.arrival_s, one.num_prompt_tokens, one.oracle_num_output_tokens, one.prompt) for one in requests]


def measure(rows: Sequence[Row], block_tokens: int, beside: Likeness | None = None) -> Likeness:
    """The figures of rows in order of arrival, with a cache that is empty before them.

    It has ``CACHE_SHARES`` of the distinct blocks of these rows, or as many blocks as ``beside`` had.
    """
    tree, reuse, num_blocks = PrefixTree(), Reuse(block_tokens), 0
    for row in rows:
        # As vLLM looks up: one token at least is computed.
        reuse.add(tree.visit(row.prompt).spans, row.num_tokens, row.num_tokens - 1)
        num_blocks += row.num_tokens // block_tokens
    curve = reuse.curve()
    times_s = np.array([row.time_s for row in rows])
    window_s = burst_window_s(times_s) if beside is None else beside.window_s
    figures = {
        "requests/s": (len(rows) - 1) / float(times_s[-1] - times_s[0]),
        "burstiness": dispersion(times_s, window_s),
        **_lengths("input", [row.num_tokens for row in rows]),
        **_lengths("output", [row.num_outputs for row in rows]),
        "ideal hit %": 100 * curve.hits(curve.num_distinct) / max(1, num_blocks),
    }
    for share in CACHE_SHARES:
        capacity = max(1, round(share * (curve if beside is None else beside).num_distinct))
        figures[f"LRU {share:.0%} hit %"] = 100 * curve.hits(capacity) / max(1, num_blocks)
    return Likeness(figures, curve.num_distinct, window_s)


def _lengths(name: str, tokens: Sequence[int]) -> dict[str, float]:
    values = np.array(tokens)
    return {
        f"{name} mean": float(values.mean()),
        f"{name} p50": float(np.median(values)),
        f"{name} p95": float(np.percentile(values, 95)),
    }
