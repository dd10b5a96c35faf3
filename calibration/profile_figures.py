"""Figures of profiles: TTFT against context and TPOT against batch, with the measured times on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import seaborn as sns
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from calibration.points import MeasuredPoint, measured_points
from calibration.predictions import BATCHES, CONTEXTS, HIT_SHARE, Prediction, Predictor
from simulator.step_time import MEASURED, OUTSIDE, PRIOR

Curve = Sequence[tuple[float, Prediction]]
COMPARED_CONTEXT = 4096  # at which TPOT is compared
_DASHES: dict[int, Any] = {MEASURED: "-", PRIOR: "--", OUTSIDE: ":"}
_WORDS = {MEASURED: "within the measured range", PRIOR: "rests on a prior", OUTSIDE: "outside everything measured"}
_STEPS = 8  # points of a curve between two powers of two
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def figure_of(predictor: Predictor) -> Figure:
    """Of one profile: above, TTFT by context, cold and with a hit; below, TPOT by batch, a line a context.

    Filled markers are measured times, crosses what the fit predicts for them.
    """
    points = measured_points(predictor.profile)
    with _style():
        figure = Figure(figsize=(9, 9), layout="constrained")
        above, below = figure.subplots(2, 1)
        supports = _ttft(above, predictor, [point for point in points if point.quantity == "TTFT"])
        supports |= _tpot(below, predictor, [point for point in points if point.quantity == "TPOT"])
        handles = _support_handles(supports)
        if points:
            cross: dict[str, Any] = {"color": "0.3", "linestyle": "none", "marker": "x", "markersize": 5}
            handles.append(Line2D([], [], label="predicted by the fit", **cross))
        figure.legend(handles=handles, loc="outside lower center", fontsize="small", ncols=4, frameon=False)
        figure.suptitle(predictor.profile.name, x=0.01, horizontalalignment="left", fontsize="large")
    return figure


def figure_of_several(predictors: Mapping[str, Predictor]) -> Figure:
    """Of several profiles, a line each: TTFT cold, TTFT with a hit, and TPOT at one context."""
    with _style():
        figure = Figure(figsize=(9, 11.5), layout="constrained")
        panels = figure.subplots(3, 1)
        palette = sns.color_palette("colorblind", max(10, len(predictors)))
        supports: set[int] = set()
        for number, (label, one) in enumerate(predictors.items()):
            look = {"color": palette[number], "linewidth": 1.8}
            supports |= _draw(panels[0], _cold(one), **look, label=label)
            supports |= _draw(panels[1], _warm(one), **look)
            supports |= _draw(panels[2], _over_batches(one, COMPARED_CONTEXT), **look)
        for axes, title in zip(
            panels,
            (
                "TTFT of one request, cold [ms]",
                f"TTFT with {HIT_SHARE:.0%} cached [ms]",
                f"TPOT at {_k(COMPARED_CONTEXT)} tokens [ms]",
            ),
            strict=True,
        ):
            axes.set(ylabel=title)
        _axes(panels[0], "context [tokens]", tokens=True)
        _axes(panels[1], "context [tokens]", tokens=True)
        _axes(panels[2], "batch [requests]")
        handles = [*panels[0].get_legend_handles_labels()[0], *_support_handles(supports)]
        figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False)
    return figure


def _ttft(axes: Axes, predictor: Predictor, points: Sequence[MeasuredPoint]) -> set[int]:
    cold, warm = sns.color_palette("colorblind")[:2]
    supports = _draw(axes, _cold(predictor), color=cold, label="cold")
    supports |= _draw(axes, _warm(predictor), color=warm, label=f"{HIT_SHARE:.0%} cached")
    chunk = predictor.measured_chunk()
    whole = Predictor(predictor.profile, chunk) if chunk else None
    curve = [(x, one) for x, one in _cold(whole) if one.support == MEASURED] if whole else []
    if curve:  # the measured prompts were not cut as the platform's default cuts them
        axes.plot(
            [x for x, _ in curve], [1000 * one.seconds for _, one in curve], color="0.55", linewidth=1.2,
            label=f"cold, in chunks of {chunk:,} as measured",
        )  # fmt: skip
    for name, color, chosen in (
        ("cold", cold, [point for point in points if not point.at.cached]),
        ("with a hit", warm, [point for point in points if point.at.cached]),
    ):
        _mark(axes, [(float(point.at.context), point) for point in chosen], color, "o", f"measured, {name}")
    axes.set(ylabel="TTFT of one request [ms]")
    _axes(axes, "context [tokens]", tokens=True)
    _legend(axes)
    return supports


def _tpot(axes: Axes, predictor: Predictor, points: Sequence[MeasuredPoint]) -> set[int]:
    contexts = [context for context in CONTEXTS[::2] if predictor.tpot(1, context) is not None]
    palette = sns.color_palette("viridis", len(contexts))
    supports: set[int] = set()
    for color, context in zip(palette, contexts, strict=True):
        supports |= _draw(axes, _over_batches(predictor, context), color=color, label=f"{_k(context)} tokens")
    measured = sorted({point.at.context for point in points})
    if len(measured) <= len(_MARKERS):
        for marker, context in zip(_MARKERS, measured, strict=False):
            chosen = [(point.at.batch, point) for point in points if point.at.context == context]
            _mark(axes, chosen, "0.15", marker, f"measured at {context:,}")
    else:
        _mark(axes, [(point.at.batch, point) for point in points], "0.15", "o", "measured")
    axes.set(ylabel="TPOT [ms]")
    _axes(axes, "batch [requests]")
    _legend(axes)
    return supports


def _cold(predictor: Predictor) -> Curve:
    return _over_contexts(predictor.ttft)


def _warm(predictor: Predictor) -> Curve:
    return _over_contexts(lambda context: predictor.ttft(context, predictor.hit(context)))


def _over_contexts(ask: Callable[[int], Prediction | None]) -> Curve:
    """Predictions from a quarter of the shortest context of the tables to the longest."""
    return [(float(x), one) for x in _between(CONTEXTS[0] // 4, CONTEXTS[-1]) if (one := ask(x)) is not None]


def _over_batches(predictor: Predictor, context: int) -> Curve:
    batches = _between(1, BATCHES[-1])
    return [(float(x), one) for x in batches if (one := predictor.tpot(x, context)) is not None]


def _between(low: int, high: int) -> list[int]:
    """Whole numbers, evenly spaced on a logarithmic axis."""
    num_octaves = (high // low).bit_length() - 1
    return sorted({round(low * 2 ** (number / _STEPS)) for number in range(num_octaves * _STEPS + 1)})


def _draw(axes: Axes, curve: Curve, *, label: str | None = None, **look: Any) -> set[int]:
    """A curve in milliseconds, dashed by what it rests on; answers what it rests on somewhere."""
    drawn: set[int] = set()
    last: tuple[float, Prediction] | None = None
    for support, group in groupby(curve, key=lambda point: point[1].support):
        piece = list(group)
        joined = [last, *piece] if last else piece  # no gap where the support changes
        x, y = [x for x, _ in joined], [1000 * one.seconds for _, one in joined]
        axes.plot(x, y, linestyle=_DASHES[support], **look)
        last = piece[-1]
        drawn.add(support)
    axes.plot([], [], label=label, **look)  # the legend names colours here, dashes by themselves
    return drawn


def _mark(axes: Axes, chosen: Sequence[tuple[float, MeasuredPoint]], color: Any, marker: str, label: str) -> None:
    if not chosen:
        return
    x = [place for place, _ in chosen]
    axes.plot(
        x, [1000 * point.measured_s for _, point in chosen], linestyle="none", marker=marker, color=color,
        markersize=6, label=label,
    )  # fmt: skip
    axes.plot(
        x, [1000 * point.predicted_s for _, point in chosen], linestyle="none", marker="x", color="0.3", markersize=5,
    )  # fmt: skip


def _axes(axes: Axes, label: str, *, tokens: bool = False) -> None:
    """Logarithmic in both directions, with plain numbers."""
    axes.set(xscale="log", yscale="log", xlabel=label)
    low, high = axes.get_xlim()
    ticks = [2**power for power in range(21) if low <= 2**power <= high]
    axes.set_xticks(ticks, [_k(tick) if tokens else str(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(ticker.NullLocator())
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())


def _legend(axes: Axes) -> None:
    """Above the axes, where it hides nothing."""
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), fontsize="small", ncols=3, frameon=False)


def _support_handles(supports: set[int]) -> list[Line2D]:
    return [
        Line2D([], [], color="0.3", linestyle=_DASHES[support], label=_WORDS[support]) for support in sorted(supports)
    ]


def _k(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)


@contextmanager
def _style() -> Iterator[None]:
    with sns.axes_style("whitegrid"), sns.plotting_context("notebook", font_scale=0.95):
        yield
