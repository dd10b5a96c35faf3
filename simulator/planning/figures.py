"""Figures of a plan: what each setting costs and does, how goodput follows the rate, and which resource is used up."""

from __future__ import annotations

import math

import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulator.planning.answer import Findings
from simulator.planning.headroom import LoadPoint
from simulator.planning.judging import Verdict
from simulator.planning.words import name_of, quantity

_RESOURCES = {
    "busy_share": "compute: busy share",
    "kv_usage_mean": "KV memory in use",
    "seats_share": "seats taken (max_num_seqs)",
}
# A strain is drawn between these, so that an overload leaves room for what matters.
_LEAST, _MOST = 0.01, 100.0


def figures(findings: Findings) -> dict[str, Figure]:
    """By the name of the file: ``cost``, and ``load`` where other loads were looked at."""
    drawn = {}
    if findings.judgements:
        drawn["cost"] = _cost(findings)
    points = findings.headroom.points if findings.headroom is not None else ()
    # Where all requests come at once there is no rate.
    if len(points) > 1 and all(math.isfinite(point.facts["requests_per_s"]) for point in points):
        drawn["load"] = _load(findings)
    return drawn


def _cost(findings: Findings) -> Figure:
    """The strain of each target against the price of the settings that were looked at."""
    palette = sns.color_palette("colorblind", 10)
    with sns.axes_style("whitegrid"), sns.plotting_context("notebook", font_scale=0.85):
        figure = Figure(figsize=(7.5, 4.4), layout="constrained")
        axes = figure.subplots()
        judged = sorted(findings.judgements.values(), key=lambda one: one.candidate.cost)
        marks = {Verdict.MEETS: "o", Verdict.OPEN: "D", Verdict.MISSES: "x"}
        for number, target in enumerate(findings.rules.targets):
            for verdict, mark in marks.items():
                rows = [one for one in judged if one.verdict == verdict]
                strains = [_drawn(one.values[number].strain) for one in rows]
                axes.plot(
                    [one.candidate.cost for one in rows], strains, linestyle="none", marker=mark,
                    color=palette[number % 10], label=name_of(target) if verdict == Verdict.MEETS else None,
                )  # fmt: skip
        axes.axhline(1, color="black", linewidth=1)
        if findings.answer is not None:
            axes.axvline(findings.answer.candidate.cost, color="grey", linestyle="--", linewidth=1)
        axes.set(yscale="log", xlabel="cost of an hour", ylabel="value over target (of a share: failures over allowed)")
        figure.legend(loc="outside upper center", ncols=3, frameon=False)
        axes.set_title("Dot: meets; diamond: may meet; cross: misses; dashed: the answer", fontsize="medium")
    return figure


def _load(findings: Findings) -> Figure:
    """Goodput and resources of the answer against its load."""
    assert findings.headroom is not None  # who calls has looked
    points = findings.headroom.points
    loads = [point.facts["requests_per_s"] for point in points]
    with sns.axes_style("whitegrid"), sns.plotting_context("notebook", font_scale=0.85):
        figure = Figure(figsize=(11, 7.4), layout="constrained")
        goodput, targets, resources, others = figure.subplots(2, 2).ravel()
        _goodput(goodput, findings, loads)
        _targets(targets, findings, loads)
        for (name, label), mark in zip(_RESOURCES.items(), "osD", strict=True):
            resources.plot(loads, [100 * point.facts[name] for point in points], marker=mark, label=label)
        resources.set(ylabel="share of what there is [%]", ylim=(0, 105))
        others.plot(loads, [100 * _waiting(point) for point in points], marker="o", label="queueing: share of TTFT [%]")
        uneven = [100 * (point.facts["held_max_over_mean"] - 1) for point in points]
        others.plot(loads, uneven, marker="s", label="routing: fullest above the mean [%]")
        per_hundred = [100 * point.facts["num_preemptions"] / point.facts["num_requests"] for point in points]
        others.plot(loads, per_hundred, marker="D", label="preemptions a hundred requests")
        others.set_ylim(bottom=0)
        for axes in (goodput, targets, resources, others):
            axes.set_xlabel("requests arriving [1/s]")
            axes.axvline(_own_rate(findings), color="grey", linestyle=":", linewidth=1)
            axes.legend(frameon=False, fontsize="small")
        label = findings.answer.candidate.label if findings.answer else ""
        figure.suptitle(f"{label}: other loads (dotted: the scenario's own)", fontsize="medium")
    return figure


def _goodput(axes: Axes, findings: Findings, rates: list[float]) -> None:
    assert findings.headroom is not None  # who calls has looked
    goods = [point.goodput_per_s for point in findings.headroom.points]
    axes.plot(rates, rates, color="grey", linewidth=1, label="every request")
    axes.plot(rates, goods, marker="o", label="within all limits")
    broken = findings.headroom.broken
    if broken is not None and findings.headroom.first_to_break is not None:
        rate = broken.facts["requests_per_s"]
        target = findings.headroom.first_to_break.target
        axes.axvline(rate, color="black", linestyle="--", linewidth=1, label=f"{name_of(target)} breaks")
    axes.set(ylabel="goodput [1/s]", ylim=(0, 1.08 * max([*goods, max(rates)])))


def _targets(axes: Axes, findings: Findings, rates: list[float]) -> None:
    assert findings.headroom is not None  # who calls has looked
    for number, target in enumerate(findings.rules.targets):
        strains = [_drawn(point.judgement.values[number].strain) for point in findings.headroom.points]
        axes.plot(rates, strains, marker="o", label=f"{name_of(target)} over {quantity(target, target.limit)}")
    axes.axhline(1, color="black", linewidth=1)
    axes.set(yscale="log", ylabel="value over its target")


def _own_rate(findings: Findings) -> float:
    assert findings.headroom is not None  # who calls has looked
    return next(point.facts["requests_per_s"] for point in findings.headroom.points if point.load == 1)


def _waiting(point: LoadPoint) -> float:
    return point.facts["queue_mean_s"] / point.facts["ttft_mean_s"]


def _drawn(strain: float) -> float:
    return _MOST if not math.isfinite(strain) else min(_MOST, max(_LEAST, strain))
