"""``kvcast calibrate ...``: the command group that ``kvcast`` loads by name."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from calibration.benchmarks.cli import from_benchmarks_command
from calibration.hold_out import FIFTH
from calibration.measuring import measure_command
from calibration.operators.cli import operators_command
from calibration.output import write
from simulator.counts import counted
from simulator.errors import InputError
from simulator.step_time import FORMULAS

if TYPE_CHECKING:
    from calibration.measurement import Measurements
    from simulator.profile import Profile

_ROWS = click.Path(exists=True, dir_okay=False, path_type=Path)
_BEYOND_LIMITS = 1


class _Share(click.ParamType):
    """A share: ``5%`` or ``0.05``."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ARG002
        if isinstance(value, float):
            return value
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%").strip()) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not 0 <= share < float("inf"):
            name = param.opts[0] if param else "share"
            raise InputError(f"{name}: expected a share such as 5% or 0.05, got {text!r}")
        return share


_SHARE = _Share()


@click.group()
def calibrate() -> None:
    """Measure a device, fit a profile, check it on what was never fitted, and report."""


calibrate.add_command(measure_command)
calibrate.add_command(from_benchmarks_command)
calibrate.add_command(operators_command)


@calibrate.command("fit", no_args_is_help=True)
@click.argument("rows", nargs=-1, required=True, type=_ROWS)
@click.option(
    "--formula",
    type=click.Choice(["auto", *FORMULAS]),
    default="auto",
    show_default=True,
    help="auto: the one with the least held-out error.",
)
@click.option(
    "--prior",
    type=click.Choice(["roofline", "none"]),
    help="What stands in for coefficients that the rows do not determine. [default: roofline with --device, else none]",
)
@click.option("--device", help="Whose data sheet to use: 'Atlas 800 A3 560T one die', or your own NAME.yaml.")
@click.option(
    "--geometry",
    type=_ROWS,
    help="Model geometry: ours as JSON, or the model's config.json. [default: the shipped one of the rows' model]",
)
@click.option(
    "--hold-out",
    default=FIFTH,
    show_default=True,
    metavar="fifth|none|TEXT",
    help="Which cases are kept for `check`: a fifth of each probe's, none, or those whose name contains TEXT.",
)
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False, writable=True, path_type=Path))
def fit_command(output: Path, **options: Any) -> None:
    """Fit a profile to ROWS (JSON-lines files of one identity) and write it as JSON, named after the output file."""
    from calibration.fitting import Options, fit_profile

    profile, summary = fit_profile(output.stem, Options(**options))
    write(output, profile.model_dump_json(indent=2) + "\n", "profile")
    click.echo(summary)


@calibrate.command("check", no_args_is_help=True)
@click.argument("profile", type=_ROWS)
@click.argument("rows", nargs=-1, required=True, type=_ROWS)
@click.option("--limit-decode", type=_SHARE, default=0.05, show_default=True, help="Median error of decode steps.")
@click.option("--limit-prefill", type=_SHARE, default=0.08, show_default=True, help="Median error of prefill steps.")
@click.option("--limit-mixed", type=_SHARE, default=0.08, show_default=True, help="Median error of mixed steps.")
@click.option("--limit-total", type=_SHARE, default=0.03, show_default=True, help="Error of all steps' total time.")
@click.option("--limit-ttft", type=_SHARE, default=0.25, show_default=True, help="Error of the worst TTFT case.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON, and nothing else.")
@click.option("-o", "--output", type=click.Path(file_okay=False, path_type=Path), help="Folder for figure and numbers.")
def check_command(profile: Path, rows: tuple[Path, ...], as_json: bool, output: Path | None, **limits: float) -> None:
    """Score PROFILE on the cases in ROWS that it was not fitted to; exit 1 beyond the limits.

    A limit on a median is 1.5 times the spread of the machine's own launches where that is more; the verdict is then
    "noisy" at best.
    """
    from calibration.check import Limits, check
    from calibration.verdict import lines, numbers

    bounds = Limits(
        decode=limits["limit_decode"],
        prefill=limits["limit_prefill"],
        mixed=limits["limit_mixed"],
        total=limits["limit_total"],
        ttft_worst=limits["limit_ttft"],
    )
    loaded, files = _load(profile, rows)
    checked = check(loaded, files, bounds)
    text = json.dumps(numbers(checked), indent=2)
    if output is not None:
        from calibration.figures import predicted_against_measured
        from simulator.plots import svg

        output.mkdir(parents=True, exist_ok=True)
        write(output / "check.json", text + "\n", "numbers")
        write(output / "predicted_against_measured.svg", svg(predicted_against_measured(checked.scored)), "figure")
    click.echo(text if as_json else "\n".join(lines(loaded, checked)))
    if checked.verdict == "fail":
        sys.exit(_BEYOND_LIMITS)


@calibrate.command("report", no_args_is_help=True)
@click.argument("rows", nargs=-1, required=True, type=_ROWS)
@click.argument("profile", type=_ROWS)
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False, writable=True, path_type=Path))
def report_command(rows: tuple[Path, ...], profile: Path, output: Path) -> None:
    """Write a page on what ROWS show of the device and how well PROFILE fits them; it needs no network."""
    from calibration.report import page

    loaded, files = _load(profile, rows)
    write(output, page(loaded, files), "report")
    num_rows = sum(len(file.rows) for file in files)
    click.echo(f"{output}: {counted(num_rows, 'row')} of {loaded.identity.device}")


def _load(profile: Path, rows: tuple[Path, ...]) -> tuple[Profile, tuple[Measurements, ...]]:
    from calibration.measurement import read_together
    from simulator.profile import load_profile

    return load_profile(profile), read_together(rows)
