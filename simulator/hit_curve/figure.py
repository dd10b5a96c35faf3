"""The hit curve drawn, with the pools marked, and hit rates by number of instances beside it."""

from __future__ import annotations

import numpy as np
import seaborn as sns
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulator.counts import counted
from simulator.hit_curve.study import Study

_NUM_POINTS = 300
_DASHES = ("--", "-.", ":")


def figure_of(found: Study) -> Figure:
    """One panel, or two where instances were routed to."""
    with sns.axes_style("whitegrid"), sns.plotting_context("notebook", font_scale=0.9):
        panels = 2 if found.routed else 1
        figure = Figure(figsize=(7.5 * panels, 4.8), layout="constrained")
        axes = figure.subplots(1, panels, squeeze=False)[0]
        _curve(axes[0], found)
        if found.routed:
            _instances(axes[1], found)
        what = f"{found.name}: {counted(found.lru.num_requests, 'request')}"
        figure.suptitle(what, x=0.01, horizontalalignment="left")
        sns.despine(fig=figure)
    return figure


def _curve(axes: Axes, found: Study) -> None:
    whole = found.lru
    sizes = [point.num_blocks for point in found.points]
    dense = np.unique(np.geomspace(sizes[0], max(sizes[-1], sizes[0] + 1), _NUM_POINTS).astype(int))
    colours = sns.color_palette("colorblind", max(10, 1 + len(found.policies)))
    lru = [whole.share(whole.curve.hits(size)) for size in dense.tolist()]
    axes.plot(dense, lru, color=colours[0], linewidth=2.2, label="lru")
    for number, policy in enumerate(found.policies):
        known = [(point.num_blocks, point.policies[policy]) for point in found.points]
        drawn = [(size, whole.share(num_hits)) for size, num_hits in known if num_hits is not None]
        if drawn:
            style = _DASHES[number % len(_DASHES)]
            axes.plot(*zip(*drawn, strict=True), style, marker=".", color=colours[1 + number], label=policy)
    axes.axhline(whole.share(whole.ceiling), color="0.4", linestyle=":", linewidth=1.2, label="boundless cache")
    for num_blocks, number in found.pools.items():
        axes.axvline(num_blocks, color="0.6", linewidth=1)
        name = counted(number, "pool")
        axes.annotate(
            name, (num_blocks, 0.01), xycoords=("data", "axes fraction"), rotation=90, fontsize="small", color="0.4",
            horizontalalignment="right",
        )  # fmt: skip
    what = "blocks hit" if whole.counting.as_file else "prompt tokens hit"
    axes.set(
        xscale="log", xlabel=f"one cache [blocks of {counted(whole.counting.block_size, 'token')}]", ylabel=what,
        ylim=(0, None),
    )  # fmt: skip
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    within_a_decade = dense[-1] < 10 * dense[0]  # where hardly a power of ten is in sight, what lies between has labels
    axes.xaxis.set_minor_formatter(axes.xaxis.get_major_formatter() if within_a_decade else ticker.NullFormatter())
    axes.yaxis.set_major_formatter(ticker.PercentFormatter(1))
    axes.legend(frameon=False)


def _instances(axes: Axes, found: Study) -> None:
    assert found.pool is not None  # nothing is routed without
    whole = found.lru
    together = [(number, whole.share(found.point(blocks).num_hits)) for blocks, number in found.pools.items()]
    axes.plot(*zip(*together, strict=True), ":", color="0.4", label="one cache of all")
    labels = dict.fromkeys(one.rule.label for one in found.routed)
    colours = sns.color_palette("colorblind", max(10, len(labels)))
    for number, label in enumerate(labels):
        points = [(one.num_instances, whole.share(one.num_hits)) for one in found.routed if one.rule.label == label]
        axes.plot(*zip(*points, strict=True), marker="o", color=colours[number], label=label)
    axes.set(
        xlabel=f"instances of {counted(found.pool.num_blocks, 'block')}", ylabel="hit rate", ylim=(0, None),
        xticks=sorted(found.pools.values()),
    )  # fmt: skip
    axes.yaxis.set_major_formatter(ticker.PercentFormatter(1))
    axes.legend(frameon=False)
