"""Figures of a sweep: a line with its band, a heat map, or what each key does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from simulator.comparison import Shown
from simulator.sweep.axes import Axis, label, numbers
from simulator.sweep.effects import Effects
from simulator.sweep.findings import Findings

# A heat map of more cells than this has no room for numbers in them.
_MOST_WRITTEN = 120
_MOST_TICKS = 12


def figures(findings: Findings) -> dict[str, Figure]:
    """By the name of the file: ``settings``, and ``effects`` where several keys vary."""
    drawn = {"settings": _settings(findings)}
    if findings.effects is not None:
        drawn["effects"] = _effects(findings, findings.effects)
    return drawn


def _settings(findings: Findings) -> Figure:
    num_axes = len(findings.design.axes)
    metrics = [shown for shown in findings.metrics if not np.isnan(findings.values(shown.key)).all()]
    if not metrics:
        figure = Figure(figsize=(6.2, 1.5))
        figure.text(0.5, 0.5, "No run served a request.", ha="center")
        return figure
    panels = metrics if num_axes <= 2 else [findings.shown] * num_axes
    with sns.axes_style("whitegrid"), sns.plotting_context("notebook", font_scale=0.85):
        columns = min(2, len(panels))
        rows = math.ceil(len(panels) / columns)
        figure = Figure(figsize=(6.2 * columns, 3.9 * rows), layout="constrained")
        places = figure.subplots(rows, columns, squeeze=False).ravel()
        for place, (axes, shown) in enumerate(zip(places, panels, strict=False)):
            if num_axes == 1:
                _line(axes, findings, shown)
            elif num_axes == 2 and findings.design.is_grid:
                _heat_map(axes, findings, shown)
            elif num_axes == 2:
                _scatter(axes, findings, shown)
            else:
                _against_one(axes, findings, place)
        for axes in places[len(panels) :]:
            axes.set_axis_off()
        if num_axes == 2:
            dots = ", a dot: not shown to differ from it" if findings.reference == findings.best else ""
            framed = f"; framed: the best {findings.shown.label}{dots}" if findings.design.is_grid else ""
            dashes = "; –: unstable at this rate" if findings.design.is_grid and findings.unstable else ""
            figure.suptitle(f"Means over replications; dark is better{framed}{dashes}", fontsize="medium")
    return figure


def _line(axes: Axes, findings: Findings, shown: Shown) -> None:
    """Mean of each value with its 95 % band; a whisker where values have no order."""
    axis = findings.design.axes[0]
    column = _column(findings, 0)
    order = numbers(column)
    estimates = [findings.estimate(place, shown.key) for place in range(len(column))]
    means = np.array([np.nan if one is None else one.mean for one in estimates]) * shown.scale
    halves = np.array([0.0 if one is None else one.half_width or 0.0 for one in estimates]) * shown.scale
    colour = sns.color_palette("colorblind")[0]
    if order is None:
        axes.errorbar(range(len(column)), means, yerr=halves, fmt="o", color=colour, capsize=4)
        _ticks(axes, "x", column)
    else:
        by = np.argsort(order)
        at, means, halves = np.array(order)[by], means[by], halves[by]
        _whole_ticks(axes, "x", order)
        axes.plot(at, means, marker="o", markersize=4, color=colour)
        axes.fill_between(at, means - halves, means + halves, color=colour, alpha=0.2, linewidth=0)
    axes.set(xlabel=_with_unit(axis, column), ylabel=_heading(shown))


def _heat_map(axes: Axes, findings: Findings, shown: Shown) -> None:
    """Means by both values. Where settings are judged by this, the best one is framed, and every setting that is not
    shown to differ from it has a dot.
    """
    first, second = findings.design.axes
    shape = (len(first.values), len(second.values))
    means = _means(findings, shown).reshape(shape)
    dark_is_high = not shown.lower_is_better
    sns.heatmap(
        means, ax=axes, cmap="crest" if dark_is_high else "crest_r", cbar_kws={"label": _heading(shown)},
        annot=_texts(findings, shown, means) if means.size <= _MOST_WRITTEN else None, fmt="",
        annot_kws={"fontsize": 9}, linewidths=0.5, linecolor="white",
    )  # fmt: skip
    axes.grid(visible=False)
    for row, column in np.argwhere(np.isnan(means)) if means.size <= _MOST_WRITTEN else ():  # seaborn leaves them out
        axes.text(column + 0.5, row + 0.5, "–", fontsize=9, ha="center", va="center")
    _ticks(axes, "x", second.values, offset=0.5)
    _ticks(axes, "y", first.values, offset=0.5)
    axes.set(xlabel=second.name, ylabel=first.name)
    if shown.key == findings.metric and findings.best is not None and findings.best < means.size:
        row, column = divmod(findings.best, shape[1])
        axes.add_patch(_frame(column, row))


def _texts(findings: Findings, shown: Shown, means: np.ndarray) -> np.ndarray:
    dots = [""] * means.size
    if shown.key == findings.metric and findings.reference == findings.best:
        for place, difference in findings.differences.items():
            dots[place] = "" if difference.significant else "•"
    texts = [f"{mean:.3g}" + dot for mean, dot in zip(means.ravel(), dots, strict=True)]
    return np.array(texts).reshape(means.shape)


def _frame(column: int, row: int) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column, row), 1, 1, fill=False, edgecolor="black", linewidth=2)


def _scatter(axes: Axes, findings: Findings, shown: Shown) -> None:
    """Means as colours over two drawn keys."""
    columns = [_column(findings, place) for place in (0, 1)]
    across, up = (_positions(axes, side, column) for side, column in zip("xy", columns, strict=True))
    means = _means(findings, shown)
    drawn = axes.scatter(across, up, c=means, cmap="crest" if not shown.lower_is_better else "crest_r", s=45)
    axes.figure.colorbar(drawn, ax=axes, label=_heading(shown))
    first, second = findings.design.axes
    axes.set(xlabel=_with_unit(first, columns[0]), ylabel=_with_unit(second, columns[1]))


def _against_one(axes: Axes, findings: Findings, place: int) -> None:
    """Every setting's mean against one of the keys."""
    shown, axis = findings.shown, findings.design.axes[place]
    column = _column(findings, place)
    at = _positions(axes, "x", column)
    means = _means(findings, shown)
    axes.scatter(at, means, s=18, alpha=0.6, color=sns.color_palette("colorblind")[place % 10])
    axes.set(xlabel=_with_unit(axis, column), ylabel=_heading(shown))


def _effects(findings: Findings, effects: Effects) -> Figure:
    """What each key does between its worst and its best level, with the interval; grey where nothing is shown."""
    found = effects.effects[::-1]
    with sns.axes_style("whitegrid"), sns.plotting_context("notebook", font_scale=0.9):
        figure = Figure(figsize=(9, 1.2 + 0.6 * len(found)), layout="constrained")
        axes = figure.subplots()
        for place, effect in enumerate(found):
            estimate = effect.difference.estimate
            ends = [abs(estimate.mean), estimate.half_width or 0.0]
            low, middle, high = (ends[0] - ends[1], ends[0], ends[0] + ends[1])
            if findings.as_ratio:
                low, middle, high = math.exp(low), math.exp(middle), math.exp(high)
            else:
                low, middle, high = (findings.shown.scale * value for value in (low, middle, high))
            colour = sns.color_palette("colorblind")[0] if effect.difference.significant else "0.6"
            start = 1.0 if findings.as_ratio else 0.0
            axes.barh(place, middle - start, left=start, color=colour, height=0.55)
            axes.plot([low, high], [place, place], color="0.15", linewidth=1.5)
        names = [f"{effect.name}\n{effect.worst} / {effect.best}" for effect in found]
        axes.set_yticks(range(len(found)), names)
        what = "times as high" if findings.as_ratio else "points" if findings.shown.unit == "%" else findings.shown.unit
        axes.set(xlabel=f"{findings.shown.label}, worst against best level: {what}")
        axes.grid(visible=False, axis="y")
        sns.despine(ax=axes)
    return figure


def _column(findings: Findings, place: int) -> list[Any]:
    """The values of one key, without those of a scenario beside the varied settings, which may have another unit."""
    return [point.values[place] for point in findings.design.points[: findings.design.num_varied]]


def _means(findings: Findings, shown: Shown) -> np.ndarray:
    """The mean of each varied setting, in the unit in which it is shown."""
    return findings.values(shown.key)[: findings.design.num_varied].mean(axis=1) * shown.scale


def _positions(axes: Axes, side: str, column: Sequence[Any]) -> list[float]:
    """Where values lie on an axis: at their numbers or, where they have none, in the order in which they appear."""
    order = numbers(column)
    if order is not None:
        _whole_ticks(axes, side, order)
        return order
    names = list(dict.fromkeys(map(label, column)))
    _ticks(axes, side, names)
    return [float(names.index(label(value))) for value in column]


def _whole_ticks(axes: Axes, side: str, values: Sequence[float]) -> None:
    """No half instances where all values are whole."""
    if all(value.is_integer() for value in values):
        (axes.xaxis if side == "x" else axes.yaxis).set_major_locator(MaxNLocator(integer=True))


def _ticks(axes: Axes, side: str, values: Sequence[Any], offset: float = 0.0) -> None:
    every = math.ceil(len(values) / _MOST_TICKS)
    places = range(0, len(values), every)
    set_ticks = axes.set_xticks if side == "x" else axes.set_yticks
    set_ticks([place + offset for place in places], [label(values[place]) for place in places], rotation=0)


def _with_unit(axis: Axis, column: Sequence[Any]) -> str:
    from simulator.sweep.axes import common_unit

    unit = common_unit(column)
    return f"{axis.name} [{unit}]" if unit else axis.name


def _heading(shown: Shown) -> str:
    return f"{shown.label} [{shown.unit}]"
