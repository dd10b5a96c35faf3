"""A sweep for people: sentences and tables in the terminal, and a folder with the rows, the numbers and the figures."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from simulator.comparison import Shown, show
from simulator.counts import counted
from simulator.errors import InputError
from simulator.statistics import LEVEL, Difference
from simulator.sweep.axes import label
from simulator.sweep.design import describe
from simulator.sweep.effects import Effect
from simulator.sweep.findings import Findings
from simulator.terminal import bare_table, print_table
from simulator.wording import Ending, basis_of, cooldown_lines, few_lines, send_more, warmup_line

if TYPE_CHECKING:
    from rich.console import Console

# Characters of the terminal that a key takes at most, what settings are judged by, and any other metric.
_KEY_WIDTH, _JUDGED_WIDTH, _COLUMN_WIDTH = 20, 50, 12
# More settings than this are printed from the best on, and not all of them.
_MOST_ROWS = 40
_MOST_NAMED = 3
# What all requests of a run are counted in.
_PARTS = ("num_requests", "num_skipped", "num_cooldown")


def print_findings(findings: Findings, console: Console) -> None:
    """Print what the numbers rest on, the best setting, the settings, what each key does, and how it was sampled."""

    def line(text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, highlight=False)

    line(basis(findings))
    line(verdict(findings), style="bold")
    print_table(_settings(findings, console.width), console, len(findings.design.axes))
    if len(findings.design.points) > _MOST_ROWS:
        line(f"The {_MOST_ROWS} best of {len(findings.design.points):,} settings; settings.csv has all.")
    if findings.effects is not None:
        print_table(_effects(findings), console)
        line(f"Adding these up explains {findings.effects.explained:.0%} of what varies between settings; the rest are "
             "interactions.")  # fmt: skip
    for text in (*notes(findings), sampling(findings)):
        line(text)


def notes(findings: Findings) -> list[str]:
    """What a reader must know before trusting the table: settings under overload, and what every figure counts."""
    found = []
    if findings.unstable:
        named = _named(findings, findings.unstable)
        found.append(f"Unstable at this rate, so that waits are as long as the run and are left out: {named}.")
        if len(findings.design.axes) > 1 and findings.lacks_values:
            found.append("Hence no effects of single keys: these need a value of every setting.")
    if findings.too_short:
        named = _named(findings, findings.too_short)
        found.append(f"Runs are too short for the load, so that means stand without an interval: {named}. "
                     f"{send_more(findings.lengthen)}")  # fmt: skip
        if len(findings.design.axes) > 1:
            found.append("Hence no effects of single keys: these need an interval of every setting.")
    elif findings.effects is None and len(findings.design.axes) > 1 and not findings.lacks_values:
        number = findings.design.num_varied
        found.append(f"No effects of single keys: {number:,} settings do not tell them apart; draw more (--samples).")
    for state, what in (("refused", "refused"), ("aborted", "given up by their clients")):
        number, sent = (sum(int(row[name]) for row in findings.rows) for name in (f"num_{state}", "num_requests"))
        if number:
            found.append(f"{number:,} of {sent:,} requests over all settings were {what}: latencies are of the others.")
    if findings.provenance.draws_profile:
        found.append("Each replication also draws the profile's errors, the same for all settings.")
    runs = [
        Ending(int(row["num_cooldown"]), int(row["num_late"]), sum(int(row[name]) for name in _PARTS))
        for row in findings.rows
    ]
    fewest = min(run.num_requests - run.num_cooldown for run in runs)
    few = few_lines(fewest) if findings.provenance.is_stationary and findings.num_replications > 1 else []
    return [*found, *few, *_warmup(findings), *cooldown_lines(runs)]


def _named(findings: Findings, places: Collection[int]) -> str:
    named = "; ".join(_in_words(findings, place) for place in sorted(places)[:_MOST_NAMED])
    return f"{named} and {len(places) - _MOST_NAMED} more" if len(places) > _MOST_NAMED else named


def _warmup(findings: Findings) -> list[str]:
    """How many requests do not count, and who says so."""
    least, most = min(findings.num_skipped), max(findings.num_skipped)
    if findings.provenance.warmup != "auto":
        return [warmup_line(most, "as the scenario says")] if most else []
    if not most and findings.provenance.is_stationary:
        return ["No warm-up is found in the scenario as it is."]
    if not most:
        return ["Every request counts: nothing has a steady state in the scenario as it is."]
    half = "" if least == most else ", but at most half of any tenant's"
    return [warmup_line(most, f"found by MSER-5 in the scenario as it is{half}")]


def basis(findings: Findings) -> str:
    """What the step times rest on (see ``wording.basis``), over all settings."""
    seconds = {
        name: sum(row[f"busy_{name}_s"] for row in findings.rows) for name in ("measured", "prior", "outside")
    }  # fmt: skip
    total = sum(seconds.values()) or 1.0
    profiles = dict.fromkeys(point.scenario.profile for point in findings.design.points)
    if len(profiles) > 1:
        shares = ", ".join(f"{name} {busy_s / total:.1%}" for name, busy_s in seconds.items())
        return f"Busy time by what its step times rest on, over the profiles {', '.join(profiles)}: {shares}."
    return basis_of({name: busy_s / total for name, busy_s in seconds.items()}, findings.provenance.profile)


def verdict(findings: Findings) -> str:
    """The best setting, how many others may be as good, and which key matters most."""
    best, shown = findings.best, findings.shown
    if best is None:
        return f"No setting has a {shown.label} in every replication."
    word = "lowest" if shown.lower_is_better else "highest"
    found = findings.estimate(best, findings.metric)
    value = "" if found is None else f" ({show(found, shown.scale)} {shown.unit})"
    said = f"{_in_words(findings, best)} has the {word} mean {shown.label}{value}"
    if findings.reference == best:
        alike = [place for place, one in findings.differences.items() if not one.significant]
        if not alike:
            said += ", and is shown to be better than every other setting"
        else:
            said += f"; {len(alike)} of {len(findings.design.points) - 1} other settings are not shown to be worse"
    if findings.effects is not None:
        first = findings.effects.effects[0]
        if first.difference.significant:
            levels = f"from {first.worst} to {first.best}"
            said += f". What matters most is {first.name}: {levels} {_effect(findings, first)}"
        else:
            said += ". No key is shown to matter on the average over the others"
    return f"{said}."


def sampling(findings: Findings) -> str:
    """How many runs there are, what they share, and what the intervals mean."""
    design, count = findings.design, findings.num_replications
    drawn = "all combinations" if design.is_grid else f"a Latin hypercube of {design.num_drawn}"
    base = " and the scenario as it is" if design.has_base else ""
    runs = f"{len(design.points):,} settings ({drawn}{base}) in {counted(count, 'replication')}"
    found = f", {findings.num_found:,} of {len(findings.rows):,} runs found computed" if findings.num_found else ""
    if count == 1:
        return f"{runs}{found}: no intervals, and no difference can be shown to hold beyond these draws."
    pairs = "all pairs, since the best is chosen from these runs" if findings.against is None else "all other settings"
    return (
        f"{runs}{found}, with common random numbers; ± is the half width of the {LEVEL:.0%} Student-t interval over "
        f"replications; p-values are Holm's over {pairs}."
    )


def write(findings: Findings, folder: Path) -> list[Path]:
    """Write settings.csv, summary.json and the figures beside the rows. Raises InputError where that fails."""
    from simulator.plots import svg
    from simulator.sweep.figures import figures

    texts = {
        "settings.csv": _csv(findings),
        "summary.json": json.dumps(findings.to_json() | {"verdict": verdict(findings)}, indent=1, allow_nan=False),
        **{f"{name}.svg": svg(figure) for name, figure in figures(findings).items()},
    }
    for name, text in texts.items():
        partial = folder / f".{name}.partial"
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(folder / name)
        except OSError as error:
            partial.unlink(missing_ok=True)
            why = error.strerror or error
            raise InputError(f"{folder / name}: cannot write it ({why}); the rows are kept") from None
    return [folder / name for name in texts]


def difference_in_words(findings: Findings, difference: Difference) -> str:
    """A ratio with its interval, or a difference with its half width."""
    estimate = difference.estimate
    if not findings.as_ratio:
        return show(estimate, findings.shown.scale)
    if not estimate.half_width:
        return f"× {math.exp(estimate.mean):.3g}"
    low, high = (math.exp(estimate.mean + side * estimate.half_width) for side in (-1, 1))
    return f"× {math.exp(estimate.mean):.3g} ({low:.3g}–{high:.3g})"


def _settings(findings: Findings, width: int) -> Table:
    """What settings are judged by, with its interval, and as many means of other metrics as have room."""
    table = bare_table()
    used = _JUDGED_WIDTH
    for place, name in enumerate(short_names([axis.name for axis in findings.design.axes])):
        longest = max(len(label(point.values[place])) for point in findings.design.points)
        wide = min(_KEY_WIDTH, max(len(name), longest))
        table.add_column(escape(name))
        used += wide + 2
    table.add_column(escape(_heading(findings.shown)), justify="right")
    table.add_column(f"against {_reference(findings)}", justify="right")
    table.add_column("p", justify="right")
    num_others = max(0, (width - used) // _COLUMN_WIDTH)
    others = findings.metrics[1:][:num_others]
    for shown in others:
        table.add_column(escape(_heading(shown)), justify="right")
    for place in _printed(findings):
        cells = _cells(findings, place, others)
        table.add_row(*map(escape, cells), style="bold" if place == findings.best else "")
    return table


def short_names(names: Sequence[str]) -> list[str]:
    """Each key by as few of its last parts as tell it from the others."""
    parts = [name.split(".") for name in names]
    shown = []
    for mine in parts:
        count = 1
        while sum(other[-count:] == mine[-count:] for other in parts) > 1 and count < len(mine):
            count += 1
        shown.append(".".join(mine[-count:]))
    return shown


def _printed(findings: Findings) -> list[int]:
    places = list(range(len(findings.design.points)))
    if findings.design.is_grid and len(places) <= _MOST_ROWS:
        return places
    sign = 1 if findings.shown.lower_is_better else -1
    means = [findings.estimate(place, findings.metric) for place in places]
    places.sort(key=lambda place: math.inf if (one := means[place]) is None else sign * one.mean)
    left_out = places[_MOST_ROWS:]
    return places[:_MOST_ROWS] + [place for place in left_out if place == findings.against]


def _cells(findings: Findings, place: int, others: Sequence[Shown]) -> Iterator[str]:
    for value in findings.design.points[place].values:
        yield label(value)
    found = findings.estimate(place, findings.metric)
    yield "–" if found is None else show(found, findings.shown.scale)
    difference = findings.differences.get(place)
    yield "" if difference is None else difference_in_words(findings, difference)
    yield "" if difference is None or difference.adjusted_p is None else f"{difference.adjusted_p:.2g}"
    for shown in others:
        found = findings.estimate(place, shown.key)
        yield "–" if found is None else f"{found.mean * shown.scale:,.4g}"


def _effects(findings: Findings) -> Table:
    table = bare_table()
    for heading in ("key", "best", "worst"):
        table.add_column(heading)
    for heading in (f"{findings.shown.label}, worst / best", "p", "rank correlation"):
        table.add_column(heading, justify="right")
    names = [axis.name for axis in findings.design.axes]
    short = dict(zip(names, short_names(names), strict=True))
    for effect in findings.effects.effects if findings.effects else ():
        p, correlation = effect.difference.adjusted_p, effect.rank_correlation
        table.add_row(
            escape(short[effect.name]), escape(effect.best), escape(effect.worst),
            difference_in_words(findings, effect.difference), "" if p is None else f"{p:.2g}",
            "–" if correlation is None else show(correlation),
        )  # fmt: skip
    return table


def _effect(findings: Findings, effect: Effect) -> str:
    """What its best level brings: the inverse of worst against best."""
    turned = effect.difference.estimate
    inverse = replace(effect.difference, estimate=replace(turned, mean=-turned.mean))
    return f"{findings.shown.label} {difference_in_words(findings, inverse)}"


def _csv(findings: Findings) -> str:
    """A row a setting: its values, means and half widths in seconds and shares, and the difference with its p-value."""
    target = io.StringIO()
    rows = csv.writer(target, lineterminator="\n")
    metrics = [shown.key for shown in findings.metrics]
    rows.writerow([
        *(axis.name for axis in findings.design.axes), *metrics, *(f"{name}_half_width" for name in metrics),
        "difference_is", "difference", "difference_half_width", "adjusted_p",
    ])  # fmt: skip
    kind = "log ratio" if findings.as_ratio else "difference"
    for place, point in enumerate(findings.design.points):
        found = [findings.estimate(place, name) for name in metrics]
        difference = findings.differences.get(place)
        own: list[Any] = [None] * 4
        if difference is not None:
            own = [kind, difference.estimate.mean, difference.estimate.half_width, difference.adjusted_p]
        rows.writerow([
            *map(label, point.values), *(one and one.mean for one in found), *(one and one.half_width for one in found),
            *own,
        ])  # fmt: skip
    return target.getvalue()


def _in_words(findings: Findings, place: int) -> str:
    return describe(findings.design.axes, findings.design.points[place])


def _reference(findings: Findings) -> str:
    return "the best" if findings.against is None else "as it is"


def _heading(shown: Shown) -> str:
    return f"{shown.label} [{shown.unit}]"
