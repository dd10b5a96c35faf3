"""``kvcast calibrate ...``: the command group that ``kvcast`` loads by name."""

from __future__ import annotations

from pathlib import Path

import click

from calibration.assemble import assemble
from calibration.fit import fit
from calibration.geometry import Geometry, load_geometry
from calibration.measurement import read_together
from calibration.observations import observe
from calibration.roofline import load_device, roofline
from simulator.errors import InputError
from simulator.profile import Coefficient, Identity, Profile
from simulator.step_time import FORMULAS


@click.group()
def calibrate() -> None:
    """Measure a device, and fit profiles from what was measured."""


@calibrate.command("fit", no_args_is_help=True)
@click.argument("rows", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--formula", type=click.Choice(list(FORMULAS)), default="host_device", show_default=True)
@click.option(
    "--prior",
    type=click.Choice(["roofline", "none"]),
    default="roofline",
    show_default=True,
    help="What stands in for coefficients that the rows do not determine; with none they are an error.",
)
@click.option("--device", required=True, help="Whose data sheet to use, for example 'Atlas 800 A3 560T one die'.")
@click.option(
    "--geometry",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Model geometry as JSON [default: the shipped one of the rows' model].",
)
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False, writable=True, path_type=Path))
def fit_command(
    rows: tuple[Path, ...], formula: str, prior: str, device: str, geometry: Path | None, output: Path
) -> None:
    """Fit a profile to ROWS (JSON-lines files of one identity) and write it as JSON, named after the output file."""
    files = read_together(rows)
    shape = _shape(files[0].header.identity, geometry)
    figures = load_device(device)
    priors = roofline(shape, figures)
    observations = observe(files)
    fitted = fit(observations, formula, priors, keep_priors=prior == "roofline")
    profile = assemble(output.stem, fitted, files, observations, shape, figures, priors)
    try:
        output.write_text(profile.model_dump_json(indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{output}: cannot write the profile ({error.strerror})") from None
    click.echo(_summary(profile))


def _shape(identity: Identity, path: Path | None) -> Geometry:
    """The geometry of what one device of this engine holds."""
    num_devices = identity.tensor_parallel_size * identity.pipeline_parallel_size
    if path is None and num_devices > 1:
        raise InputError(f"{identity.model} was measured on {num_devices} devices: pass the share of one, --geometry")
    shape = load_geometry(identity.model, path)
    if shape.model != identity.model:
        raise InputError(f"{path}: model is {shape.model!r}, the rows are of {identity.model!r}")
    return shape


def _summary(profile: Profile) -> str:
    """The coefficients and errors of a profile as text."""
    coefficients = {
        **profile.coefficients,
        "overhead, constant": profile.overhead.constant_s,
        "overhead, prompt token": profile.overhead.prompt_token_s,
    }
    lines = [f"{profile.name}: {profile.formula}, {len(profile.errors.in_sample)} measured times"]
    lines += [_coefficient_line(name, coefficient) for name, coefficient in coefficients.items()]
    lines += [f"  in sample  {r.case:55} {r.relative_error:+7.2%}" for r in profile.errors.in_sample]
    lines += [f"  held out   {r.case:55} {r.relative_error:+7.2%}" for r in profile.errors.held_out]
    if profile.errors.num_not_held_out:
        lines.append(f"  {profile.errors.num_not_held_out} times could not be held out: nothing else determines them")
    return "\n".join(lines)


def _coefficient_line(name: str, coefficient: Coefficient) -> str:
    error = "" if coefficient.standard_error is None else f" +- {coefficient.standard_error:.2g}"
    return f"  {name:24} {coefficient.value:.4g}{error} {coefficient.unit} ({coefficient.origin})"
