"""Figures of a calibration: predicted against measured, and the article's two, for the user's own device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import seaborn as sns
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from calibration.check import REGIMES, Scored
from calibration.tables import StepLine, TtftLine

_MARKERS = ("o", "s", "^", "D")


@contextmanager
def _style() -> Iterator[None]:
    with sns.axes_style("whitegrid"), sns.plotting_context("notebook", font_scale=0.95):
        yield


def predicted_against_measured(held_out: Sequence[Scored], fitted: Sequence[Scored] = ()) -> Figure:
    """Each case once, by regime; fitted ones pale. Below it the relative errors over the measured time."""
    with _style():
        figure = Figure(figsize=(9, 6.4), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        palette = sns.color_palette("colorblind")
        for number, regime in enumerate(REGIMES):
            for cases, opacity, name in ((fitted, 0.3, "fitted"), (held_out, 0.95, "held out")):
                chosen = [one for one in cases if one.regime == regime]
                if not chosen:
                    continue
                look = {
                    "marker": _MARKERS[number], "color": palette[number], "alpha": opacity, "linestyle": "none",
                    "label": f"{regime.replace('_', ' ')}, {name}", "markersize": 5,
                }  # fmt: skip
                measured = [1000 * one.measured_s for one in chosen]
                above.plot(measured, [1000 * one.predicted_s for one in chosen], **look)
                below.plot(measured, [100 * one.error for one in chosen], **look)
        ends = [1000 * one.measured_s for one in (*held_out, *fitted)]
        line = [min(ends), max(ends)]
        above.plot(line, line, color="0.3", linewidth=1)
        below.axhline(0, color="0.3", linewidth=1)
        above.set(xscale="log", yscale="log", ylabel="predicted [ms]")
        below.set(ylabel="error [%]", xlabel="measured [ms]")
        _plain(above.yaxis)
        _plain(below.xaxis)
        figure.legend(*above.get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
    return figure


def ttft_by_prefix(lines: Sequence[TtftLine]) -> Figure:
    """The article's figure: cold and warm TTFT by prefix length, from least to most measured, with predictions."""
    with _style():
        figure = Figure(figsize=(9, 4.6), layout="constrained")
        axes = figure.subplots()
        palette = sns.color_palette("colorblind")
        for label, color, side in (("cold", palette[0], 0), ("warm", palette[1], 1)):
            spans = [(line.prefix_tokens, (line.cold, line.warm)[side]) for line in lines]
            x = [prefix for prefix, _ in spans]
            middle = np.array([1000 * span.median_s for _, span in spans])
            low = middle - [1000 * span.least_s for _, span in spans]
            high = np.array([1000 * span.most_s for _, span in spans]) - middle
            axes.errorbar(x, middle, (low, high), color=color, marker="o", capsize=4, label=f"{label}, measured")
            predicted = [1000 * span.predicted_s for _, span in spans]
            axes.plot(x, predicted, color=color, linestyle="--", marker="x", label=f"{label}, predicted")
        axes.set(xscale="log", yscale="log", xlabel="shared prefix [tokens]", ylabel="TTFT [ms]")
        axes.set_xticks(sorted({line.prefix_tokens for line in lines}))
        _plain(axes.xaxis)
        _plain(axes.yaxis)
        _legend(figure, axes)
    return figure


def steps_by_context(lines: Sequence[StepLine]) -> Figure:
    """Decode step by context, a line a batch size; dashed: predicted."""
    with _style():
        figure = Figure(figsize=(9, 4.6), layout="constrained")
        axes = figure.subplots()
        batches = sorted({line.num_decodes for line in lines})
        palette = sns.color_palette("viridis", len(batches))
        for color, batch in zip(palette, batches, strict=True):
            chosen = sorted((line for line in lines if line.num_decodes == batch), key=lambda line: line.context)
            contexts = [line.context for line in chosen]
            measured = [1000 * line.measured_s for line in chosen]
            axes.plot(contexts, measured, color=color, marker="o", label=f"batch {batch}")
            axes.plot(contexts, [1000 * line.predicted_s for line in chosen], color=color, linestyle="--")
        axes.set(xscale="log", yscale="log", xlabel="context of each request [tokens]", ylabel="decode step [ms]")
        _plain(axes.xaxis)
        _plain(axes.yaxis)
        _legend(figure, axes)
    return figure


def _legend(figure: Figure, axes: Axes) -> None:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)


def _plain(axis: Axis) -> None:
    """Plain numbers on a logarithmic axis, at 1, 2 and 5."""
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())
