"""``kvcast sweep``: the command that ``kvcast`` loads by name."""

from __future__ import annotations

import json
from pathlib import Path

import click

from simulator.errors import InputError
from simulator.experiment_options import experiment_options, progress, the_setting, the_variant
from simulator.trace_options import Quantity

_BEST, _BASE = "best", "base"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@experiment_options("out/NAME_sweep")
@click.option(
    "--vary", multiple=True, metavar="KEY=VALUES",
    help="A key and its values (repeatable): a=4,8,16, a=0.3:0.9:0.1 or, with --samples, a=0.3:0.9.",
)  # fmt: skip
@click.option("--samples", type=Quantity("positive_count", "number"), help="Draw so many settings [all combinations].")
@click.option(
    "--metric", default="ttft_p90", show_default=True,
    help="What settings are judged by: ttft, tpot, e2e or queue with _mean, _p50 ... _p99, hit_rate, "
         "output_tokens_per_s; of one tenant NAME.ttft_p99, NAME.within_targets.",
)  # fmt: skip
@click.option("--against", default=_BEST, show_default=True, help="Compare with the best, or with base: as it is.")
@click.option("--fixed-profile", is_flag=True, help="Take the profile as it was fitted; do not draw its errors.")
@click.option("--router", help="The policy, where the scenario has several and routing is not varied.")
@click.option("--variant", help="The variant to vary, where the scenario has some.")
def sweep(
    scenario: Path, output: Path | None, as_json: bool, jobs: int | None, executor: str, address: str | None,
    seed: int | None, replications: int | None, limit: int | None, vary: tuple[str, ...], samples: int | None,
    metric: str, against: str, fixed_profile: bool, router: str | None, variant: str | None,
) -> None:  # fmt: skip
    """Run SCENARIO over a range of settings, and say which is best and which key matters most.

    A KEY is any of the scenario's: cluster.instances, engine.max_num_seqs, routing.temperature,
    workload.tenants.NAME.synthetic.arrivals.rate_per_s. VALUES are written as in the file, units too; of a range with a
    step both ends belong to it. All settings meet the same draws, and leave out the same warm-up: that which is found
    in the scenario as it is.

    Rows go to the folder rows in that of the report (-o) [out/NAME_sweep], one a replication: Parquet, to be read at
    every moment. The same command computes what is missing there; other keys or another scenario need another folder.
    """
    from simulator.scenario import load
    from simulator.sweep.axes import read_axis

    if not vary:
        raise InputError("--vary: missing, expected KEY=VALUES, like cluster.instances=4,8,16")
    if against not in (_BEST, _BASE):
        raise InputError(f"--against: got {against!r}, expected {_BEST} or {_BASE}")
    axes = [read_axis(text) for text in vary]
    varies_routing = any(axis.path == ("routing",) for axis in axes)
    if varies_routing and router is not None:
        raise InputError("--router: changes nothing, since routing is varied")
    described = load(scenario)
    described = the_variant(described, variant) if varies_routing else the_setting(described, router, variant)
    described = described.changed(seed=seed, replications=replications, limit=limit)
    # Only now what is slow to load: a mistake is answered at once.
    from simulator.executors import make_executor
    from simulator.report import check_writable
    from simulator.sweep import report
    from simulator.sweep.design import grid, hypercube
    from simulator.sweep.metrics import read_metric
    from simulator.sweep.runs import run

    judged_by = read_metric(metric, described)
    design = grid(described, axes) if samples is None else hypercube(described, axes, samples)
    place = None
    if against == _BASE:
        design, place = design.with_base(described)
    folder = output or Path("out") / f"{described.name}_sweep"
    check_writable(folder)
    where = make_executor(executor, jobs=jobs, address=address)
    with progress("simulating", len(design.points) * described.replications, shown=not as_json) as advance:
        findings = run(described, design, folder, where, advance, draws_profile=not fixed_profile)
    findings.metric, findings.against = judged_by, place
    report.write(findings, folder)
    if as_json:
        found = findings.to_json() | {"verdict": report.verdict(findings)}
        click.echo(json.dumps(found, indent=2, allow_nan=False))
    else:
        from rich.console import Console

        report.print_findings(findings, Console())
        click.echo(f"Rows: {folder / 'rows'}; figure: {folder / 'settings.svg'}")
