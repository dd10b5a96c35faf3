"""``kvcast plan``: the command that ``kvcast`` loads by name."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from simulator.errors import InputError
from simulator.experiment_options import experiment_options, progress, the_setting, the_variant

_NO_ANSWER = 1


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@experiment_options("out/NAME_plan")
@click.option("--fixed-profile", is_flag=True, help="Leave out the runs of the answer with drawn profiles.")
@click.option("--router", help="The policy, where the scenario has several and routing is not free.")
@click.option("--variant", help="The variant to plan for, where the scenario has some.")
def plan(
    scenario: Path, output: Path | None, as_json: bool, jobs: int | None, executor: str, address: str | None,
    seed: int | None, replications: int | None, limit: int | None, fixed_profile: bool,
    router: str | None, variant: str | None,
) -> None:  # fmt: skip
    """Find the cheapest cluster that meets the targets of SCENARIO, and say how sure that is.

    Its `plan:` says what is promised to each tenant (targets), what may be chosen (free) and what it costs. A setting
    is run as often as it takes to tell whether it meets the targets, and no more often than the scenario's
    replications; most are not run at all. Then more load is sent to the answer until the first target breaks, and the
    price of one more nine is looked for.

    Exits with 1 where no setting is shown to meet the targets. An interrupt prints what is known by then. Numbers, runs
    and figures go to a folder (-o) [out/NAME_plan].
    """
    from simulator.scenario import load

    described = load(scenario)
    chooses_routing = described.plan is not None and "routing" in described.plan.free
    if chooses_routing and router is not None:
        raise InputError("--router: changes nothing, since routing is free")
    described = the_variant(described, variant) if chooses_routing else the_setting(described, router, variant)
    described = described.changed(seed=seed, replications=replications, limit=limit)
    # Only now what is slow to load: a mistake is answered at once.
    from simulator.executors import make_executor
    from simulator.planning import planner, report
    from simulator.planning.answer import Stopped
    from simulator.report import check_writable

    folder = output or Path("out") / f"{described.name}_plan"
    check_writable(folder)
    where = make_executor(executor, jobs=jobs, address=address)
    with progress("planning", None, shown=not as_json) as advance:
        findings = planner.plan(described, where, advance, draws_profile=not fixed_profile)
    written = report.write(findings, folder)
    if as_json:
        click.echo(json.dumps(report.to_json(findings), indent=2, allow_nan=False))
    else:
        from rich.console import Console

        report.print_findings(findings, Console())
        click.echo(f"Written: {', '.join(map(str, written))}")
    if findings.stopped == Stopped.INTERRUPTED:
        raise KeyboardInterrupt
    if findings.answer is None:
        sys.exit(_NO_ANSWER)
