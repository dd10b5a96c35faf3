"""A plan for people: sentences and tables in the terminal, and a folder with the numbers, the runs and the figures."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.markup import escape
from rich.table import Table

from simulator.errors import InputError
from simulator.planning.answer import Findings
from simulator.planning.judging import Judgement, Verdict
from simulator.planning.words import basis, in_words, name_of, notes, quantity, status, verdict
from simulator.sweep.axes import label
from simulator.sweep.report import short_names
from simulator.terminal import bare_table, print_table

if TYPE_CHECKING:
    from rich.console import Console

_MOST_ROWS = 20
_MOST_BEYOND = 9.0


def print_findings(findings: Findings, console: Console) -> None:
    """Print what the numbers rest on, the answer, its margins, the settings looked at, and what else to know."""

    def line(text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, highlight=False)

    if findings.judgements:
        line(basis(findings))
    line(verdict(findings), style="bold")
    shown = findings.answer or findings.closest
    if shown is not None:
        print_table(_margins(findings, shown), console)
        print_table(_settings(findings), console, num_keys=len({"cluster.instances", *findings.space.keys}))
    for text in notes(findings):
        line(text)


def _margins(findings: Findings, shown: Judgement) -> Table:
    """Each target with its value, the bound that counts, and what is left."""
    table = bare_table()
    for heading in (f"targets, {shown.candidate.label}", "mean", f"bound ({findings.rules.confidence:.4g})", "margin"):
        table.add_column(escape(heading), justify="left" if heading.startswith("targets") else "right")
    for value in shown.values:
        bound = value.low if value.wants_more else value.high
        table.add_row(
            escape(in_words(value.target)), quantity(value.target, value.mean),
            "–" if not math.isfinite(bound) else quantity(value.target, min(bound, 1.0) if value.wants_more else bound),
            _margin(value.margin),
        )  # fmt: skip
    return table


def _margin(share: float) -> str:
    """In per cent; beyond ten times the limit how many times it is."""
    if not math.isfinite(share):
        return "–"
    return f"{share:.0%}" if share > -_MOST_BEYOND else f"{1 - share:,.3g} times the limit"


def _settings(findings: Findings) -> Table:
    """What was looked at, from the cheapest on: first what meets the targets."""
    table = bare_table()
    table.add_column("instances", justify="right")
    keys = [key for key in findings.space.keys if key != "cluster.instances"]
    for name in short_names(keys):
        table.add_column(escape(name))
    for heading in ("cost/h", "targets", "strained most", "runs"):
        table.add_column(heading, justify="left" if heading in ("targets", "strained most") else "right")
    for one in _printed(findings):
        worst = one.worst
        style = "bold" if one is findings.answer else ""
        table.add_row(
            str(one.candidate.instances), *(escape(label(one.candidate.values[key])) for key in keys),
            f"{one.candidate.cost:,.4g}", status(one),
            "" if one.unstable else f"{escape(name_of(worst.target))} {quantity(worst.target, worst.mean)}",
            str(one.num_replications), style=style,
        )  # fmt: skip
    return table


def _printed(findings: Findings) -> list[Judgement]:
    order = [Verdict.MEETS, Verdict.OPEN, Verdict.MISSES]
    judged = sorted(
        findings.judgements.values(),
        key=lambda one: (
            order.index(one.verdict),
            -one.candidate.cost if one.verdict == Verdict.MISSES else one.candidate.cost, one.candidate.place,
        ),
    )  # fmt: skip
    return judged[:_MOST_ROWS]


def write(findings: Findings, folder: Path) -> list[Path]:
    """Write plan.json, runs.parquet and the figures; return their paths. Raises InputError where that fails."""
    from simulator.planning.figures import figures
    from simulator.plots import svg

    text = json.dumps(to_json(findings), indent=1, allow_nan=False)
    writers: dict[str, Callable[[Path], Any]] = {"plan.json": lambda path: path.write_text(text, encoding="utf-8")}
    rows = _rows(findings)
    if len(rows):
        writers["runs.parquet"] = lambda path: rows.to_parquet(path, index=False)
    for name, figure in figures(findings).items():
        writers[f"{name}.svg"] = partial(Path.write_text, data=svg(figure), encoding="utf-8")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for stale in ("runs.parquet", "cost.svg", "load.svg"):
            (folder / stale).unlink(missing_ok=True)
        for name, write_file in writers.items():
            unfinished = folder / f".{name}.partial"
            try:
                write_file(unfinished)
                unfinished.replace(folder / name)
            finally:
                unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot write the plan ({error.strerror or error})") from None
    return [folder / name for name in writers]


def to_json(findings: Findings) -> dict[str, Any]:
    """The numbers, with the sentences."""
    return findings.to_json() | {"verdict": verdict(findings), "notes": list(notes(findings))}


def _rows(findings: Findings) -> pd.DataFrame:
    """A row a run: its setting, load and replication, the value of each target without the warm-up, and the facts."""
    rows = []
    other_loads = {} if findings.headroom is None else {one.load: one.judgement for one in findings.headroom.points}
    for candidate, load, drawn, replication, outcome in findings.evidence.runs():
        judged = findings.judgements.get(candidate.place) if load == 1 else other_loads.get(load)
        skipped = judged.num_skipped if judged is not None else 0
        rows.append({
            "setting": candidate.scenario.digest, "instances": candidate.instances,
            **{key: label(value) for key, value in candidate.values.items()},
            "cost_per_hour": candidate.cost, "load": load, "drawn_profile": drawn, "seed": candidate.scenario.seed,
            "replication": replication, "num_skipped": skipped,
            **{f"{one.tenant}.{one.name}": outcome.value(one, skipped) for one in findings.rules.targets},
            **outcome.facts,
        })  # fmt: skip
    return pd.DataFrame(rows)
