"""``kvcast explain``: the command that ``kvcast`` loads by name."""

from __future__ import annotations

from pathlib import Path

import click

from simulator.trace_options import Quantity

_PATH = click.Path(path_type=Path)
_COUNT, _POSITIVE_COUNT = Quantity("count", "number"), Quantity("positive_count", "number")


@click.command(context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.argument("run", type=_PATH)
@click.option("--router", help="The policy to explain, where the run has several.")
@click.option("--variant", help="The variant to explain, where the run has some.")
@click.option("--replication", type=_COUNT, default=0, show_default=True, help="Which one, counted from 0.")
@click.option("--tenant", help="Only this tenant's requests [all, and each].")
@click.option("--top", type=_POSITIVE_COUNT, default=3, show_default=True, help="So many of the slowest requests.")
@click.option("--base-dir", type=_PATH, help="Where paths in the run's scenario start [where they started then].")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON, and nothing else.")
@click.option("-o", "--output", type=_PATH, help="Folder for the tables (CSV), the figure (SVG, PNG) and the JSON.")
def explain(
    run: Path, router: str | None, variant: str | None, replication: int, tenant: str | None, top: int,
    base_dir: Path | None, as_json: bool, output: Path | None,
) -> None:  # fmt: skip
    """Say where the time to first token went, by tenant and percentile band, and what the slowest requests waited for.

    RUN is the output folder of kvcast run or compare, or a scenario file. The run is simulated again, looked on; where
    its rows are there they must come out the same. The parts are exclusive and sum to the time to first token exactly:

    \b
    router         held by the router
    overhead       hashing and transport to the engine
    copy           waiting for blocks copied from another instance
    queue          until the first schedule: for a step in progress to end (step),
                   a place (seats), free blocks (blocks), the step's token budget
                   (budget), a place for its adapter (adapter)
    own prefill    what its own chunks take alone
    sharing        the rest of their steps: decodes and chunks beside them
    behind others  running, while the step in progress computed no token of it
    preempted      from a preemption until it has again what it had

    What the cache saved (prefill of the tokens found, alone) is shown beside them.
    """
    from simulator.explain.source import open_source

    source = open_source(run, base_dir)
    # Only now what is slow to load: a mistake is answered at once.
    from simulator.explain.explanation import explain as explained

    if output is not None:
        from simulator.report import check_writable

        check_writable(output)
    found = explained(source, router=router, variant=variant, replication=replication, tenant=tenant)
    if as_json:
        from simulator.explain.files import as_text, to_json

        click.echo(as_text(to_json(found, top)))
    else:
        from rich.console import Console

        from simulator.explain.table import print_explanation

        print_explanation(found, top, Console())
    if output is not None:
        from simulator.explain.files import write

        write(found, top, output)
        if not as_json:
            click.echo(f"Figure: {output / 'ttft.svg'}")
