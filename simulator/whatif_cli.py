"""``kvcast whatif``: the command that ``kvcast`` loads by name."""

from __future__ import annotations

import json
from pathlib import Path

import click

from simulator.experiment_options import experiment_options, progress, replicating, the_precision, the_setting


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@experiment_options("out/NAME_whatif")
@click.argument("changes", nargs=-1, metavar="CHANGE...")
@replicating
@click.option("--each", is_flag=True, help="Make each change alone, instead of all together.")
@click.option("--router", help="The policy, where the scenario has several.")
@click.option("--variant", help="The variant to change, where the scenario has some.")
def whatif(
    scenario: Path, changes: tuple[str, ...], output: Path | None, as_json: bool, jobs: int | None, executor: str,
    address: str | None, seed: int | None, replications: int | None, limit: int | None, precision: float | None,
    max_replications: int | None, fixed_profile: bool, each: bool, router: str | None, variant: str | None,
) -> None:  # fmt: skip
    """Run SCENARIO before and after one or more CHANGEs on the same draws, and say what differs.

    \b
    rate=2x, rate=120%, rate.TENANT=0.5x   requests come so many times as often
    instances=-1, instances=+2, instances=6
    kv_memory=50%, kv_memory=2x            blocks of each instance's pool
    without=TENANT
    with=TENANT, with=TENANT*3             one or three more like it, on draws of their own
    with=FILE.yaml                         the tenant (or workload) in that file
    KEY=VALUE                              any key: engine.max_num_seqs=64, routing=dynamo
    KEY=+16, KEY=-16, KEY=2x               a number relative to the one before

    The report, the rows and the numbers go to a folder (-o) [out/NAME_whatif].
    """
    from simulator.scenario import load
    from simulator.whatif import ask, compared

    described = the_setting(load(scenario), router, variant)
    described = described.changed(seed=seed, replications=replications, limit=limit)
    if described.plan is not None:  # its targets may be of tenants that a change takes away, and nothing here reads it
        described = described.with_changes({("plan",): None})
    cases = ask(described, changes, each=each)
    both = compared(described, cases)
    wanted = the_precision(precision, max_replications, described.replications)
    # Only now what is slow to load: a mistake is answered at once.
    from simulator import experiment
    from simulator.executors import make_executor
    from simulator.report import check_writable
    from simulator.whatif import report

    folder = output or Path("out") / f"{described.name}_whatif"
    check_writable(folder)
    where = make_executor(executor, jobs=jobs, address=address)
    with progress("simulating", len(both.settings) * both.replications, shown=not as_json) as advance:
        comparison = experiment.compare(
            both, executor=where, progress=advance, precision=wanted, draws_profile=not fixed_profile
        )
    report.write(comparison, described, cases, folder)
    if as_json:
        found = comparison.to_json() | {"whatif": report.to_json(comparison, described, cases)}
        click.echo(json.dumps(found, indent=2, allow_nan=False))
    else:
        from rich.console import Console

        report.print_answers(comparison, described, cases, Console())
        click.echo(f"Report: {folder / 'report.html'}; numbers: {folder / 'whatif.json'}")
