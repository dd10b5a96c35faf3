"""A comparison for people and machines: a table in the terminal, and a folder with a page, the rows and the numbers."""

from __future__ import annotations

import base64
import importlib.resources
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import pandas as pd
from rich.markup import escape
from rich.table import Table

from simulator import terminal
from simulator.comparison import COMPARED, Comparison, Shown, show
from simulator.errors import InputError
from simulator.statistics import Estimate, t_interval
from simulator.wording import basis, ignored_lines, is_calibrated, notes, sampling

if TYPE_CHECKING:
    from rich.console import Console

    from simulator.result import RunResult

_HEADLINES = (
    Shown("ttft_p50_s", "TTFT p50", "s", 1, True),
    Shown("ttft_p90_s", "TTFT p90", "s", 1, True),
    Shown("ttft_p99_s", "TTFT p99", "s", 1, True),
    Shown("tpot_p90_s", "TPOT p90", "ms", 1000, True),
    Shown("e2e_p90_s", "E2E p90", "s", 1, True),
    Shown("output_tokens_per_s", "output", "tok/s", 1, False),
    Shown("hit_rate", "hit rate", "%", 100, False),
    Shown("busy_max_over_mean", "busiest / mean", "", 1, True),
)
_PAGE_ONLY = (
    Shown("inter_token_p99_s", "inter-token p99", "ms", 1000, True),
    Shown("queue_p90_s", "queue p90", "s", 1, True),
    Shown("busy_share", "busy", "%", 100, True),
    Shown("kv_usage_mean", "KV use mean", "%", 100, True),
    Shown("kv_usage_max", "KV use max", "%", 100, True),
    Shown("num_preemptions", "preemptions", "", 1, True),
    Shown("num_refused", "refused", "", 1, True),
)
_TENANT = (
    *_HEADLINES[:6],
    Shown("cached_share", "cached", "%", 100, False),
    Shown("num_requests", "requests", "", 1, False),
)
_TARGETS = (
    Shown("within_targets", "within targets", "%", 100, False),
    Shown("goodput", "goodput", "1/s", 1, False),
)
_CACHE = (
    Shown("resident_blocks_mean", "blocks in cache, mean", "", 1, False),
    Shown("resident_blocks_final", "at the end", "", 1, False),
    Shown("blocks_lost_to_others", "lost to others", "", 1, True),
)
_INSTANCE = (
    Shown("num_finished", "finished", "", 1, False),
    Shown("busy_share", "busy", "%", 100, True),
    Shown("hit_rate", "hit rate", "%", 100, False),
    Shown("kv_usage_max", "KV use max", "%", 100, True),
    Shown("ttft_p90_s", "TTFT p90", "s", 1, True),
)
_MAX_INSTANCE_ROWS = 400


def print_table(comparison: Comparison, console: Console) -> None:
    """Print what the numbers rest on, the verdict, the table (mean ± half width), notes and how it was sampled."""

    def line(text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, highlight=False)

    line(basis(comparison))
    line(comparison.verdict(), style="bold")
    terminal.print_table(_table(comparison), console)
    for text in (*notes(comparison), sampling(comparison), *ignored_lines(comparison)):
        line(text)


def _table(comparison: Comparison) -> Table:
    table = terminal.bare_table()
    table.add_column("mean ± 95% CI")
    for policy in comparison.policies:
        table.add_column(escape(comparison.names[policy]), justify="right")
    for shown in _HEADLINES:
        table.add_row(escape(_heading(shown)), *(_cell(comparison, policy, shown) for policy in comparison.policies))
    return table


def check_writable(out_dir: Path) -> None:
    """Raise InputError unless a report can be written to ``out_dir`` (made, with its parents, if it does not exist)."""
    base = out_dir
    while not base.exists() and base != base.parent:
        base = base.parent
    if not base.is_dir():
        raise InputError(f"{out_dir}: {base} is not a folder")
    try:
        with tempfile.TemporaryDirectory(dir=base, prefix=".kvcast-"):
            pass
    except OSError as error:
        raise InputError(f"{out_dir}: cannot write there ({error.strerror})") from None


def write(comparison: Comparison, out_dir: Path) -> list[Path]:
    """Write report.html, requests.parquet, summary.json and summary.csv; return their paths.

    Everything is written to a temporary folder on the same file system and moved at the end: whoever stops it on the
    way finds nothing half-written. Files of an earlier report in ``out_dir`` are replaced, others left alone. Raises
    InputError where the folder cannot be written.
    """
    writers: dict[str, Callable[[Comparison, Path], None]] = {
        "report.html": _write_page,
        "requests.parquet": _write_rows,
        "summary.json": _write_json,
        "summary.csv": _write_csv,
    }
    out_dir = out_dir.resolve()
    check_writable(out_dir)
    # Inside an existing folder (it may be a mount), beside one that is yet to be made.
    partial = (out_dir if out_dir.exists() else out_dir.parent) / f".{out_dir.name}-{os.getpid()}.partial"
    try:
        partial.mkdir(parents=True)
        for name, write_file in writers.items():
            write_file(comparison, partial / name)
        _move_into_place(partial, out_dir)
    except OSError as error:
        raise InputError(f"{out_dir}: cannot write the report ({error.strerror or error})") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return [out_dir / name for name in writers]


def page(comparison: Comparison) -> str:
    """The report as one HTML document that needs nothing else."""
    from simulator import sharing
    from simulator.plots import figures, svg

    has_targets = any(any(run.targets_s) for run in comparison.results)
    tenant_columns = (*_TENANT, *(_TARGETS if has_targets else ()), *(_CACHE if sharing.tenants(comparison) else ()))
    source = (importlib.resources.files("simulator") / "report.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    images = [
        {"caption": caption, "data": base64.b64encode(svg(figure).encode()).decode()}
        for caption, figure in figures(comparison).items()
    ]
    return environment.from_string(source).render(
        provenance=comparison.provenance,
        scenario=json.dumps(comparison.provenance.scenario, indent=2, ensure_ascii=False),
        verdict=comparison.verdict(),
        basis=basis(comparison),
        calibrated=is_calibrated(comparison),
        sampling=sampling(comparison),
        notes=notes(comparison),
        ignored=ignored_lines(comparison),
        num_requests=sum(len(run.requests) for run in comparison.results),
        num_instances=_counts([run.num_instances for run in comparison.results]),
        noun=comparison.noun,
        nouns="variants" if comparison.noun == "variant" else "policies",
        policies=[comparison.names[policy] for policy in comparison.policies],
        rows=[_row(comparison, shown) for shown in (*_HEADLINES, *_PAGE_ONLY)],
        differences=_difference_rows(comparison),
        tenants=_group_rows(comparison, "tenant", tenant_columns),
        tenant_headings=[_heading(shown) for shown in tenant_columns],
        has_targets=has_targets,
        sharing_tenants=sharing.tenants(comparison),
        thefts=sharing.theft_rows(comparison),
        instances=_group_rows(comparison, "instance", _INSTANCE),
        instance_headings=[_heading(shown) for shown in _INSTANCE],
        images=images,
    )


def _counts(numbers: Sequence[int]) -> str:
    """``8``, or ``8 to 16`` where they differ."""
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _move_into_place(partial: Path, out_dir: Path) -> None:
    if not out_dir.exists():
        partial.rename(out_dir)
        return
    for path in sorted(partial.iterdir()):
        path.replace(out_dir / path.name)


def _write_page(comparison: Comparison, path: Path) -> None:
    path.write_text(page(comparison), encoding="utf-8")


def _write_rows(comparison: Comparison, path: Path) -> None:
    tables = [
        run.requests.assign(policy=run.policy, replication=run.replication, **_cuts(run.requests, counted))
        for run, counted in zip(comparison.results, comparison.counted, strict=True)
    ]
    rows = pd.concat(tables, ignore_index=True)
    # Runs may have refused for different reasons, so their categories differ until here.
    names = ("policy", "tenant", "state", "refusal")
    rows.astype(dict.fromkeys(names, "category")).to_parquet(path, index=False)


def _cuts(requests: pd.DataFrame, counted: RunResult) -> dict[str, pd.Series]:
    """Whether a request is one of the first, or of the last to arrive, which do not count."""
    place = requests["arrival_s"].rank(method="first")
    return {
        "is_warmup": place <= counted.num_skipped,
        "is_cooldown": place > len(requests) - counted.num_cooldown,
    }


def _write_json(comparison: Comparison, path: Path) -> None:
    text = json.dumps(comparison.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
    path.write_text(f"{text}\n", encoding="utf-8")


def _write_csv(comparison: Comparison, path: Path) -> None:
    comparison.table().to_csv(path, index=False)


def _heading(shown: Shown) -> str:
    return f"{shown.label} [{shown.unit}]" if shown.unit else shown.label


def _cell(comparison: Comparison, policy: str, shown: Shown) -> str:
    found = comparison.estimate(policy, shown.key)
    return "–" if found is None else show(found, shown.scale)


def _row(comparison: Comparison, shown: Shown) -> dict[str, Any]:
    cells = [
        {"text": _cell(comparison, policy, shown), "wins": comparison.wins(policy, shown)}
        for policy in comparison.policies
    ]
    return {"heading": _heading(shown), "cells": cells}


def _ratio(logarithm: Estimate) -> str:
    """A ratio with its interval, from the estimate of its logarithm."""
    if logarithm.half_width is None:
        return f"{math.exp(logarithm.mean):.3g}"
    low, high = (math.exp(logarithm.mean + side * logarithm.half_width) for side in (-1, 1))
    return f"{math.exp(logarithm.mean):.3g} ({low:.3g} to {high:.3g})"


def _difference_rows(comparison: Comparison) -> list[dict[str, Any]]:
    shown_by_key = {shown.key: shown for shown in COMPARED}
    return [
        {
            "label": _heading(shown_by_key[pair.metric]),
            "pair": f"{comparison.names[pair.first]} {'/' if pair.as_ratio else '−'} {comparison.names[pair.second]}",
            "difference": _ratio(pair.estimate)
            if pair.as_ratio
            else show(pair.estimate, shown_by_key[pair.metric].scale),
            "p": "–" if pair.adjusted_p is None else f"{pair.adjusted_p:.2g}",
            "answer": "yes" if pair.significant else "not shown",
            "width_ratio": f"{pair.width_ratio:.2g}" if pair.width_ratio else "–",
        }
        for pair in comparison.pairs()
    ]


def _group_rows(comparison: Comparison, kind: str, columns: Sequence[Shown]) -> list[dict[str, Any]]:
    """Rows by policy and tenant or instance, estimated over replications; too many instances to read give none."""
    num_instances = {run.policy: run.num_instances for run in comparison.results}
    if kind == "instance" and sum(num_instances.values()) > _MAX_INSTANCE_ROWS:
        return []
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in comparison.counted:
        for found in run.by_tenant() if kind == "tenant" else run.by_instance():
            groups.setdefault((run.policy, str(found[kind])), []).append(found)
    rows = []
    for (policy, name), members in groups.items():
        cells = []
        for shown in columns:
            values = [value for member in members if (value := member.get(shown.key)) is not None]
            cells.append(show(t_interval(values), shown.scale) if len(values) == len(members) else "–")
        rows.append({"policy": comparison.names[policy], "name": name, "cells": cells})
    return rows
