"""``kvcast calibrate from-operators``: times of single operators in, a profile out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

_FOLDERS = click.Path(exists=True, file_okay=False, path_type=Path)
_FILES = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("from-operators", no_args_is_help=True)
@click.argument("tables", nargs=-1, required=True, type=_FOLDERS)
@click.option("--layout", required=True, type=click.Choice(["llmservingsim", "aiconfigurator"]),
              help="Whose tables they are.")  # fmt: skip
@click.option("--model", required=True, help="The model whose operators were timed, for example Qwen/Qwen3-32B.")
@click.option("--geometry", type=_FILES, help="Its shape: ours as JSON, or its config.json. [default: the shipped one]")
@click.option("--device", required=True, help="Whose data sheet tells the memory: 'H100 SXM', or your own NAME.yaml.")
@click.option("--tensor-parallel-size", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--data-parallel-size", type=click.IntRange(min=1), default=1, show_default=True,
    help="Replicas in lockstep that share their experts; the profile is then of all of them as one engine.",
)
@click.option(
    "--host-step", metavar="DURATION",
    help="What a step takes beyond its operators, for example '1 ms'. [default: as in two recorded runs]",
)  # fmt: skip
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False, writable=True, path_type=Path))
def operators_command(tables: tuple[Path, ...], output: Path, **options: Any) -> None:
    """Build a profile from TABLES of operator times: folders, of which the first that has a table counts.

    Operators are added up to the time of many engine steps, and the formula is fitted to these. Host work is in no
    table: --host-step stands beside the fit. Communication comes from a table of collectives in one of the folders.
    """
    from calibration.operators.assembly import Options, from_tables
    from calibration.operators.summary import lines
    from calibration.output import write

    profile = from_tables(output.stem, tables, Options(**options))
    write(output, profile.model_dump_json(indent=2) + "\n", "profile")
    click.echo("\n".join(lines(profile)))
