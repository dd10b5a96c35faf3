"""Tenants in the caches of a comparison: rows for tables, and a figure over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from simulator.result import CacheSharing, RunResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simulator.comparison import Comparison

_MOST_POLICIES = 4
_MOST_TENANTS = 8
_MAX_POINTS = 60


def theft_rows(comparison: Comparison) -> list[dict[str, Any]]:
    """For each policy and tenant: how many blocks it lost to allocations for each tenant, mean of the replications.

    Policies under which nothing was evicted are left out.
    """
    rows = []
    for policy, runs in _runs(comparison).items():
        counts = np.mean([run.sharing.evicted for run in runs if run.sharing is not None], axis=0)
        if not counts.any():
            continue
        for tenant, lost in zip(runs[0].tenants, counts, strict=True):
            cells = [f"{number:,.0f}" for number in lost]
            rows.append({"policy": comparison.names[policy], "name": tenant, "cells": cells})
    return rows


def tenants(comparison: Comparison) -> tuple[str, ...]:
    """The tenants that share caches; none where nobody kept account."""
    runs = [run for run in comparison.results if run.sharing is not None]
    return runs[0].tenants if runs else ()


def figure(comparison: Comparison) -> Figure | None:
    """Cached share of prompts and share of the cache by tenant over time, a column for each of the first policies.

    Shares of prompts are those of requests by when they were first scheduled. None with one tenant.
    """
    from matplotlib.figure import Figure

    from simulator.plots import style

    columns = list(_runs(comparison).items())[:_MOST_POLICIES]
    if not columns:
        return None
    width_s = _shared_width_s([run for _, runs in columns for run in runs])
    with style():
        drawn = Figure(figsize=(max(9.0, 3.6 * len(columns)), 5.6), layout="constrained")
        grid = drawn.subplots(2, len(columns), sharex=True, sharey="row", squeeze=False)
        for (policy, runs), (hits, blocks) in zip(columns, grid.T, strict=True):
            hits.set_title(comparison.names[policy], fontsize="medium")
            blocks.set_xlabel("time [s]")
            _draw(runs, width_s, hits, blocks)
        grid[0][0].set(ylabel="cached share of prompts [%]", ylim=(0, None))
        grid[1][0].set(ylabel="share of the cache [%]", ylim=(0, 101))
        handles = grid[0][0].get_legend_handles_labels()
        drawn.legend(*handles, loc="outside upper center", ncols=4, frameon=False)
    return drawn


def _runs(comparison: Comparison) -> dict[str, list[RunResult]]:
    found: dict[str, list[RunResult]] = {}
    for run in comparison.results:
        if run.sharing is not None:
            found.setdefault(run.policy, []).append(run)
    return found


def _shared_width_s(runs: Sequence[RunResult]) -> float:
    """A bin width that every run's own, a power of two, divides."""
    sharings = [run.sharing for run in runs if run.sharing is not None]
    width_s = max(float(sharing.residents["width_s"].iloc[0]) for sharing in sharings)
    horizon_s = max(float(sharing.residents["start_s"].iloc[-1]) for sharing in sharings)
    width_s = 2.0 ** np.ceil(np.log2(width_s)) if width_s > 0 else 1.0
    while horizon_s / width_s > _MAX_POINTS:
        width_s *= 2
    return width_s


def _draw(runs: Sequence[RunResult], width_s: float, hits: Any, blocks: Any) -> None:
    import seaborn as sns

    names = runs[0].tenants
    order = _largest_first(runs)[:_MOST_TENANTS]
    palette = sns.color_palette("colorblind", max(10, len(order)))
    for color, tenant in zip(palette, order, strict=False):
        line = {"color": color, "label": names[tenant], "linewidth": 1.8}
        share = _cached_share(runs, names[tenant], width_s)
        hits.plot((share.index + 0.5) * width_s, 100 * share, **line)
        held = _cache_share(runs, tenant, width_s)
        blocks.plot((held.index + 0.5) * width_s, 100 * held, **line)


def _largest_first(runs: Sequence[RunResult]) -> list[int]:
    """Tenants by the mean number of their blocks."""
    means = [sum(_mean_blocks(run.sharing, tenant) for run in runs) for tenant in range(len(runs[0].tenants))]
    return sorted(range(len(means)), key=lambda tenant: -means[tenant])


def _mean_blocks(sharing: CacheSharing | None, tenant: int) -> float:
    return 0.0 if sharing is None else float(sharing.of_tenant(tenant)["resident_blocks_mean"] or 0.0)


def _cached_share(runs: Sequence[RunResult], name: str, width_s: float) -> pd.Series:
    """Cached tokens over prompt tokens of the tenant's requests, by bin, all replications together."""
    rows = pd.concat([run.requests.loc[run.requests["tenant"] == name] for run in runs])
    rows = rows.dropna(subset="first_scheduled_s")
    sums = rows.groupby((rows["first_scheduled_s"] // width_s).astype(int))[["num_cached_tokens", "num_prompt_tokens"]]
    totals = sums.sum()
    return totals["num_cached_tokens"] / totals["num_prompt_tokens"]


def _cache_share(runs: Sequence[RunResult], tenant: int, width_s: float) -> pd.Series:
    """The tenant's blocks over all blocks of all pools, by bin, mean of the replications."""
    found = []
    for run in runs:
        if run.sharing is not None and run.num_blocks:
            table = run.sharing.residents
            bins = (table["start_s"] // width_s).astype(int)
            block_s = (table[tenant] * table["width_s"]).groupby(bins).sum()
            found.append(block_s / (table["width_s"].groupby(bins).sum() * run.num_blocks * run.num_instances))
    return pd.concat(found).groupby(level=0).mean()
