"""Before and after for people and machines: tables in the terminal, and a folder with the report and the numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from simulator.comparison import Comparison, show
from simulator.errors import InputError
from simulator.report import write as write_report
from simulator.scenario import Scenario
from simulator.statistics import LEVEL, Estimate
from simulator.terminal import bare_table, print_table
from simulator.whatif import coupling
from simulator.whatif.answer import Row, rows, tenant_rows
from simulator.whatif.asked import BEFORE, Case
from simulator.whatif.words import sentence
from simulator.wording import basis, ignored_lines, notes, sampling, variant_lines

if TYPE_CHECKING:
    from rich.console import Console

# Where a table has less room than a sentence.
_SHORT = {"e2e_p90_s": ("p90 E2E", "s"), "output_tokens_per_s": ("output", "tok/s")}


def print_answers(comparison: Comparison, scenario: Scenario, cases: Sequence[Case], console: Console) -> None:
    """Print what the numbers rest on, for each case its sentence and its tables, and what else to know."""

    def line(text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, highlight=False)

    line(basis(comparison))
    for case in cases:
        line(sentence(comparison, case), style="bold")
        print_table(_table(f"mean ± {LEVEL:.0%} CI", case.label, rows(comparison, case.label)), console)
        if of_tenants := tenant_rows(comparison, case.label):
            print_table(_table("by tenant", case.label, of_tenants), console)
        for text in coupling.lines(scenario, case):
            line(text)
    for text in other_notes(comparison):
        line(text)


def other_notes(comparison: Comparison) -> Iterator[str]:
    """What a reader must know beside the tables; what each case changes is said there."""
    said = variant_lines(comparison)
    yield from (text for text in notes(comparison) if text not in said)
    yield sampling(comparison)
    yield ("A change is after against before, paired by replication, with a 95 % interval of its own; × is the "
           "geometric mean of the replications' ratios, not the ratio of the means. Whether a change is shown goes by "
           "Holm's correction over all that is tested.")  # fmt: skip
    yield from ignored_lines(comparison)


def write(comparison: Comparison, scenario: Scenario, cases: Sequence[Case], folder: Path) -> list[Path]:
    """Write what ``simulator.report`` writes of a comparison, and whatif.json; return the paths. Raises InputError."""
    paths = write_report(comparison, folder)
    path, unfinished = folder / "whatif.json", folder / ".whatif.json.partial"
    try:
        text = json.dumps(to_json(comparison, scenario, cases), indent=1, ensure_ascii=False, allow_nan=False)
        unfinished.write_text(f"{text}\n", encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise InputError(f"{folder}: cannot write the answer ({error.strerror or error})") from None
    finally:
        unfinished.unlink(missing_ok=True)
    return [*paths, path]


def to_json(comparison: Comparison, scenario: Scenario, cases: Sequence[Case]) -> list[dict[str, Any]]:
    """For each case its changes, sentence and rows, as JSON types; times in seconds, shares between 0 and 1."""
    return [
        {
            "label": case.label,
            "changes": [{"change": change.text, "in_words": change.words} for change in case.changes],
            "sentence": sentence(comparison, case),
            "requests": coupling.lines(scenario, case),
            "rows": [row.to_json() for row in rows(comparison, case.label)],
            "tenants": [{"tenant": row.tenant, **row.to_json()} for row in tenant_rows(comparison, case.label)],
        }
        for case in cases
    ]


def _table(title: str, label: str, found: Sequence[Row]) -> Table:
    table = bare_table()
    table.add_column(escape(title))
    for heading in (BEFORE, escape(label), "change"):
        table.add_column(heading, justify="right")
    tested = any(row.is_tested for row in found)
    if tested:
        table.add_column("shown")
    for row in found:
        cells = [escape(_heading(row)), _cell(row, row.before), _cell(row, row.after), _change(row)]
        table.add_row(*cells, *([_shown(row)] if tested else []))
    return table


def _heading(row: Row) -> str:
    shown = row.shown
    label, unit = _SHORT.get(shown.key, (shown.label, shown.unit))
    name = f"{label} [{unit}]" if unit else label
    return name if row.tenant is None else f"{row.tenant}: {name}"


def _cell(row: Row, estimate: Estimate | None) -> str:
    return "–" if estimate is None else show(estimate, row.shown.scale)


def _change(row: Row) -> str:
    """``× 3.1 (2.8 to 3.4)``, or ``-12 (-14 to -10)`` in the unit of the row."""
    bounds = row.bounds()
    if bounds is None:
        return "–"
    if row.as_ratio:
        said = [f"{value:.3g}" for value in bounds]
        said[0] = f"× {said[0]}"
    else:
        said = [f"{row.shown.scale * value:+,.3g}" if value else "0" for value in bounds]
    return f"{said[0]} ({said[1]} to {said[2]})" if row.has_interval and bounds[1] < bounds[2] else said[0]


def _shown(row: Row) -> str:
    if not row.is_tested or row.change is None or not row.has_interval:
        return ""
    return "yes" if row.is_shown else "no"
