"""``kvcast profiles ...``: the command group that ``kvcast`` loads by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simulator.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FOLDER = click.Path(path_type=Path)
_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON, and nothing else.")
_OUTPUT = click.option("-o", "--output", type=_FOLDER, help="Folder for the figure (SVG, PNG) and the numbers (JSON).")
_BUDGET = click.option(
    "--max-num-batched-tokens",
    "budget",
    type=click.IntRange(min=1),
    help="Most tokens in a step [vLLM's default on the profile's platform].",
)


@click.group()
def profiles() -> None:
    """List, show and compare profiles: what they rest on, their errors, and what they predict.

    A profile is named as in a scenario: by its name where it ships, by its path where it is a file.
    """


@profiles.command("list")
@click.argument("files", nargs=-1, metavar="[FILE]...")
@_AS_JSON
def list_command(files: tuple[str, ...], as_json: bool) -> None:
    """List the profiles that ship, and those in FILEs."""
    from calibration.catalogue import entries

    found = entries(files)
    if as_json:
        click.echo(_json([one.to_json() for one in found]))
        return
    from rich.console import Console

    from calibration.profile_text import print_list

    print_list(found, Console())


@profiles.command("show", no_args_is_help=True)
@click.argument("profile", metavar="NAME|FILE")
@_BUDGET
@_AS_JSON
@_OUTPUT
def show_command(profile: str, budget: int | None, as_json: bool, output: Path | None) -> None:
    """Show one profile: what it is, where each number comes from, its errors, its memory, and what it predicts.

    Predicted are the time to first token of one request served alone, and the time per output token of a batch.
    """
    from calibration.predictions import Predictor
    from calibration.profile_numbers import numbers
    from simulator.profile import load_profile, shipped_profiles

    predictor = Predictor(load_profile(profile), budget)
    _check_folder(output)
    found = numbers(predictor, None if profile in shipped_profiles() else profile)
    if as_json:
        click.echo(_json(found))
    else:
        from rich.console import Console

        from calibration.profile_text import print_profile

        print_profile(predictor, Console())
    if output is not None:
        from calibration.profile_figures import figure_of

        _write(output, "profile", figure_of(predictor), found, quiet=as_json)


@profiles.command("compare", no_args_is_help=True)
@click.argument("names", nargs=-1, required=True, metavar="PROFILE PROFILE...")
@_BUDGET
@_AS_JSON
@_OUTPUT
def compare_command(names: tuple[str, ...], budget: int | None, as_json: bool, output: Path | None) -> None:
    """Compare what PROFILEs predict, and say which is faster at what as far as evidence allows."""
    from calibration.catalogue import labelled
    from calibration.profile_comparison import compare

    if len(names) == 1:
        raise InputError(f"compare: got one profile ({names[0]}), expected at least two")
    comparison = compare(labelled(names), budget)
    _check_folder(output)
    if as_json:
        click.echo(_json(comparison.to_json()))
    else:
        from rich.console import Console

        from calibration.profile_text import print_comparison

        print_comparison(comparison, Console())
    if output is not None:
        from calibration.profile_figures import figure_of_several

        figure = figure_of_several(comparison.predictors)
        _write(output, "comparison", figure, comparison.to_json(), quiet=as_json)


def _check_folder(output: Path | None) -> None:
    """Before anything is computed or printed: raise InputError unless files can be written there."""
    if output is not None:
        from simulator.report import check_writable

        check_writable(output)


def _write(folder: Path, stem: str, figure: Figure, found: Any, *, quiet: bool) -> None:
    """The figure as SVG and PNG, and the numbers as JSON, under one name."""
    from simulator.plots import svg

    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{stem}.svg").write_text(svg(figure), encoding="utf-8")
        figure.savefig(folder / f"{stem}.png", dpi=150)
        (folder / f"{stem}.json").write_text(_json(found) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{folder}: cannot write there ({error.strerror})") from None
    if not quiet:
        click.echo(f"Figure: {folder / stem}.svg")


def _json(found: Any) -> str:
    return json.dumps(found, indent=2, ensure_ascii=False, allow_nan=False)
