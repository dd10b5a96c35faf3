"""The parts as stacked bars: seconds and shares, by tenant and percentile band."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import seaborn as sns
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulator.explain.explanation import Band, Explanation
from simulator.explain.parts import PARTS

_MAX_TENANTS = 6
# A colour for each part, whichever are drawn: greys for what is on the way, then the colour-blind palette but its grey.
_PALETTE = sns.color_palette("colorblind", 10)
_COLOURS = ("0.75", "0.55", "0.35", *_PALETTE[:7], *_PALETTE[8:])


def figure_of(found: Explanation) -> Figure:
    """A column a tenant (those with most requests, where there are many): seconds above, shares below."""
    groups = [list(members) for _, members in groupby(found.bands(), key=lambda band: band.tenant)]
    groups = sorted(groups, key=lambda bands: -bands[-1].num_requests)[:_MAX_TENANTS]
    drawn = [
        index for index, part in enumerate(PARTS)
        if any(band.mean_s.get(part.name) for bands in groups for band in bands)
    ]  # fmt: skip
    with sns.axes_style("whitegrid"), sns.plotting_context("notebook", font_scale=0.85):
        figure = Figure(figsize=(1.6 + 2.7 * max(len(groups), 2), 6.6), layout="constrained")
        axes = figure.subplots(2, len(groups), squeeze=False, sharex="col")
        for column, bands in enumerate(groups):
            _stack(axes[0][column], bands, drawn, as_share=False)
            _stack(axes[1][column], bands, drawn, as_share=True)
            axes[0][column].set_title(bands[0].tenant)
        axes[0][0].set_ylabel("mean time to first token [s]")
        axes[1][0].set_ylabel("share of it")
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles[::-1], labels[::-1], loc="outside right center", frameon=False)
        sns.despine(fig=figure)
    return figure


def _stack(axes: Axes, bands: list[Band], drawn: list[int], *, as_share: bool) -> None:
    bands = [band for band in bands if band.num_requests]
    bottom = np.zeros(len(bands))
    for index in drawn:
        name = PARTS[index].name
        heights = np.array([(band.share(name) or 0.0) if as_share else band.mean_s[name] for band in bands])
        axes.bar(
            [band.name for band in bands], heights, bottom=bottom, color=_COLOURS[index], label=PARTS[index].label,
            linewidth=0,
        )  # fmt: skip
        bottom += heights
    if as_share:
        axes.yaxis.set_major_formatter(ticker.PercentFormatter(1))
        axes.set_ylim(0, 1)
    axes.grid(visible=False, axis="x")
    axes.tick_params(axis="x", labelrotation=30)
