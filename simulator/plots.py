"""Figures of a comparison, pooled over replications: latency distributions, the run over time, load between instances.

Figures are drawn without pyplot, so nothing is kept between calls. Colours are seaborn's colour-blind palette, one a
policy throughout, and lines differ in their dashes as well.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulator import sharing
from simulator.comparison import Comparison
from simulator.result import RunResult

_DASHES = ("-", "--", "-.", ":")
_MAX_POINTS = 60
_MAX_BARS = 16
_ROOM_FOR_NAMES = 110


def figures(comparison: Comparison) -> dict[str, Figure]:
    """All figures by caption, in the order to show them; a figure without data is left out."""
    first_token = _cdf(comparison, "ttft_s", "time to first token [s]")
    end_to_end = _cdf(comparison, "e2e_s", "end-to-end latency [s]")
    drawn = {
        "Time to first token: share of requests served within a time": first_token,
        "End-to-end latency: share of requests finished within a time": end_to_end,
        "Hit rate and queue over time, until twice the last arrival: mean of the replications, shaded from lowest to "
        "highest": _over_time(comparison),
        "Load: busy share of each instance, from the least to the most busy (line: their mean)": _balance(comparison),
        "Tenants: the share of their prompts that was found in the cache, and the share of the cache that holds what "
        "they computed": sharing.figure(comparison),
    }
    return {caption: figure for caption, figure in drawn.items() if figure is not None}


def svg(figure: Figure) -> str:
    """The figure as an SVG document, the same bytes every time."""
    target = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "kvcast"}):
        figure.savefig(target, format="svg", metadata={"Date": None}, bbox_inches="tight")
    return target.getvalue()


@contextmanager
def style() -> Iterator[None]:
    """How all figures look."""
    with sns.axes_style("whitegrid"), sns.plotting_context("notebook", font_scale=0.95):
        yield


def _lines(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """How each policy's line is drawn."""
    palette = sns.color_palette("colorblind", max(10, len(comparison.policies)))
    return {
        policy: {
            "color": palette[index], "linestyle": _DASHES[index % len(_DASHES)], "label": comparison.names[policy],
        }
        for index, policy in enumerate(comparison.policies)
    }


def _legend(figure: Figure, axes: Axes) -> None:
    """Above the axes, where it hides nothing."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)


def _cdf(comparison: Comparison, column: str, label: str) -> Figure | None:
    """Distribution functions by policy over a logarithmic time axis, 500 quantiles each."""
    fractions = np.linspace(0, 1, 501)
    times = {
        policy: pd.concat([run.requests[column] for run in comparison.counted if run.policy == policy]).dropna()
        for policy in comparison.policies
    }
    if not any(len(values) for values in times.values()):
        return None
    with style():
        figure = Figure(figsize=(9, 4.4), layout="constrained")
        axes = figure.subplots()
        for policy, line in _lines(comparison).items():
            if len(times[policy]):
                # A logarithmic axis has no zero; a time of zero is drawn at a tenth of a millisecond.
                values = times[policy].clip(lower=1e-4)
                axes.plot(np.quantile(values, fractions), fractions, linewidth=2, **line)
        axes.set(xscale="log", xlabel=label, ylabel="share of requests", ylim=(0, 1.01))
        axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())
        axes.set_yticks([0, 0.25, 0.5, 0.75, 0.9, 1], ["0 %", "25 %", "50 %", "75 %", "90 %", "100 %"])
        _legend(figure, axes)
        sns.despine(ax=axes)
    return figure


def _over_time(comparison: Comparison) -> Figure:
    """Hit rate of admissions and length of the waiting queues, on bins that all runs share."""
    width_s = _shared_width_s(comparison)
    with style():
        figure = Figure(figsize=(9, 5.6), layout="constrained")
        hits, waiting = figure.subplots(2, 1, sharex=True)
        for policy, line in _lines(comparison).items():
            runs = [_binned(run, width_s) for run in comparison.results if run.policy == policy]
            table = pd.concat(runs, keys=range(len(runs)), names=["run", "bin"])
            _band(hits, table["hit_rate"] * 100, width_s, line)
            _band(waiting, table["waiting"], width_s, line)
        hits.set_ylabel("prefix hit rate [%]")
        hits.set_ylim(0, min(100, 1.1 * hits.get_ylim()[1]))
        # Linear up to one request, so that an empty queue has a place beside one of thousands.
        waiting.set_yscale("symlog", linthresh=1)
        waiting.set(ylabel="waiting requests\n(all instances)", xlabel="time [s]")
        waiting.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        waiting.set_ylim(bottom=0)
        # What piles up under an overload may take many times as long to drain, and would squeeze all else.
        waiting.set_xlim(0, min(waiting.get_xlim()[1], 2 * _last_arrival_s(comparison) or np.inf))
        _legend(figure, hits)
        sns.despine(fig=figure)
    return figure


def _last_arrival_s(comparison: Comparison) -> float:
    return max(float(run.requests["arrival_s"].max()) for run in comparison.results)


def _shared_width_s(comparison: Comparison) -> float:
    """A bin width that every run's own (a power of two seconds) divides, leaving at most 60 points in what is drawn."""
    width_s = max(float(run.timeline["start_s"].diff().max() or 0.0) for run in comparison.results)
    horizon_s = max(float((run.timeline["start_s"] + run.timeline["width_s"]).max()) for run in comparison.results)
    horizon_s = min(horizon_s, 2 * _last_arrival_s(comparison) or np.inf)
    width_s = width_s if width_s > 0 else 1.0
    while horizon_s / width_s > _MAX_POINTS:
        width_s *= 2
    return width_s


def _binned(run: RunResult, width_s: float) -> pd.DataFrame:
    """The timeline of all instances together, in wider bins."""
    line = run.timeline
    sums = pd.DataFrame({
        "queries": line["prefix_queries"],
        "hits": line["prefix_hits"],
        "waiting_s": line["mean_waiting"] * line["width_s"],
        "covered_s": line["width_s"] / run.num_instances,
    }).groupby((line["start_s"] // width_s).astype(int)).sum()
    return pd.DataFrame({
        "hit_rate": sums["hits"] / sums["queries"].where(sums["queries"] > 0),
        "waiting": sums["waiting_s"] / sums["covered_s"],
    })


def _band(axes: Axes, values: pd.Series, width_s: float, line: dict[str, Any]) -> None:
    """Mean over replications, with the range between the lowest and the highest."""
    bins = values.groupby(level="bin").agg(["mean", "min", "max"])
    middle_s = (bins.index + 0.5) * width_s
    axes.plot(middle_s, bins["mean"], linewidth=1.8, **line)
    axes.fill_between(middle_s, bins["min"], bins["max"], color=line["color"], alpha=0.15, linewidth=0)


def _balance(comparison: Comparison) -> Figure:
    """Busy shares sorted within each run, then averaged by rank, so that pooling does not hide an uneven load."""
    lines = _lines(comparison)
    with style():
        figure = Figure(figsize=(9, 4.2), layout="constrained")
        axes = figure.subplots()
        for index, (policy, line) in enumerate(lines.items()):
            shares = [
                sorted(sum(busy) / (run.span_s or np.inf) for busy in run.busy_s)
                for run in comparison.results if run.policy == policy
            ]
            ranked = 100 * np.mean(shares, axis=0)
            if len(ranked) > _MAX_BARS:
                ranked = np.quantile(ranked, np.linspace(0, 1, _MAX_BARS))
            offsets = (np.arange(len(ranked)) + 0.5) / len(ranked) - 0.5
            axes.bar(index + 0.8 * offsets, ranked, width=0.74 / len(ranked), color=line["color"])
            axes.hlines(ranked.mean(), index - 0.42, index + 0.42, color="0.15", linewidth=1.2)
        names = [comparison.names[policy] for policy in lines]
        axes.set_xticks(range(len(names)), names)
        if max(map(len, names)) * len(names) > _ROOM_FOR_NAMES:
            axes.tick_params(axis="x", labelrotation=20)
            for name in axes.get_xticklabels():
                name.set(horizontalalignment="right", rotation_mode="anchor")
        axes.set(ylabel="busy share of the run [%]", ylim=(0, None))
        axes.grid(visible=False, axis="x")
        sns.despine(ax=axes)
    return figure
