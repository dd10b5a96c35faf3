"""A trace at a glance: rate over time, lengths, what an LRU cache of each size would hit, and how popular prefixes are.
"""

from __future__ import annotations

import numpy as np
import seaborn as sns
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulator.counts import counted
from simulator.trace_tools.arrivals import per_window
from simulator.trace_tools.info import Info, Samples

_MAX_BINS = 120
_WIDTHS_S = (0.1, 1, 10, 60, 600, 3600, 6 * 3600, 86400)
_NUM_POINTS = 100


def figure_of(info: Info, samples: Samples, name: str) -> Figure:
    """Four panels; where the file does not tell what one needs, the panel says so."""
    with sns.axes_style("whitegrid"), sns.plotting_context("notebook", font_scale=0.85):
        figure = Figure(figsize=(11, 7.5), layout="constrained")
        (rate, lengths), (hits, popularity) = figure.subplots(2, 2)
        colours = sns.color_palette("colorblind", 3)
        _rate(rate, info, samples, colours[0])
        _lengths(lengths, samples, colours)
        _hits(hits, info, samples, colours[0])
        _popularity(popularity, info, colours[0])
        figure.suptitle(f"{name}: {counted(info.num_requests, 'request')}", x=0.01, horizontalalignment="left")
        sns.despine(fig=figure)
    return figure


def _rate(axes: Axes, info: Info, samples: Samples, colour: object) -> None:
    if info.arrivals is None:
        _nothing(axes, "times are per session: no rate")
        return
    span_s = info.arrivals.span_s
    if not span_s:
        _nothing(axes, "all requests at once")
        return
    width_s = next((width for width in _WIDTHS_S if span_s / width <= _MAX_BINS), span_s / _MAX_BINS)
    width_s = min(width_s, span_s)
    rates = per_window(samples.times_s, width_s) / width_s
    axes.stairs(rates, width_s * np.arange(rates.size + 1), fill=True, color=colour, alpha=0.8)
    axes.set(xlabel="time [s]", ylabel=f"requests/s in {width_s:g} s", ylim=(0, None))


def _lengths(axes: Axes, samples: Samples, colours: list) -> None:
    shares = np.linspace(0, 1, 501)
    for values, label, colour, dashes in (
        (samples.input_tokens, "prompt", colours[0], "-"),
        (samples.output_tokens, "answer", colours[1], "--"),
    ):
        # A logarithmic axis has no zero; no tokens are drawn as one.
        axes.plot(np.quantile(np.maximum(values, 1), shares), shares, dashes, color=colour, linewidth=2, label=label)
    axes.set(xscale="log", xlabel="tokens", ylabel="share of requests", ylim=(0, 1.01))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(ticker.PercentFormatter(1))
    axes.legend(frameon=False)


def _hits(axes: Axes, info: Info, samples: Samples, colour: object) -> None:
    found = info.prompts
    if found is None or samples.curve is None or not samples.curve.num_distinct:
        _nothing(axes, "nothing is known of what prompts share")
        return
    size, distinct = found.reuse.block_size, samples.curve.num_distinct
    capacities = np.unique(np.geomspace(1, max(2, distinct), _NUM_POINTS).astype(int))
    hits = np.array([samples.curve.hits(capacity) for capacity in capacities.tolist()])
    axes.plot(capacities, hits * size / found.num_tokens, color=colour, linewidth=2)
    axes.axhline(samples.curve.hits(distinct) * size / found.num_tokens, color="0.4", linestyle=":", linewidth=1.2)
    axes.set(
        xscale="log", xlabel=f"LRU cache [blocks of {counted(size, 'token')}]", ylabel="prompt tokens hit",
        ylim=(0, None), title="dotted: boundless cache",
    )  # fmt: skip
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(ticker.PercentFormatter(1))


def _popularity(axes: Axes, info: Info, colour: object) -> None:
    if info.prompts is None or not info.prompts.popular:
        _nothing(axes, "no prefix is shared" if info.prompts else "nothing is known of what prompts share")
        return
    requests = sorted((prefix.num_requests for prefix in info.prompts.popular), reverse=True)
    axes.plot(range(1, len(requests) + 1), requests, marker=".", color=colour, linewidth=1.5)
    axes.set(
        xscale="log", yscale="log", xlabel="shared prefix, by popularity", ylabel="requests that have it",
        title=f"prefixes that save most: {len(requests):,}",
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _nothing(axes: Axes, why: str) -> None:
    axes.text(0.5, 0.5, why, transform=axes.transAxes, horizontalalignment="center", color="0.4")
    axes.set_axis_off()
