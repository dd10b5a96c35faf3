"""`kvcast`: thin commands over the library. The only module of `simulator` that prints or exits.

Everything heavy is imported inside the command that needs it, so that `kvcast --help` answers at once.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simulator import __version__
from simulator.errors import InputError, nearest
from simulator.experiment_options import experiment_options, progress, replicating, the_precision, the_setting
from simulator.trace_options import Quantity

if TYPE_CHECKING:
    from simulator.scenario import Scenario

_DIFFERENT = 1
_BAD_INPUT = 2
_INTERRUPTED = 130
# Groups of commands, loaded by name when called: those of `calibration` because `simulator` never imports it.
_BY_NAME = {
    "calibrate": ("calibration.cli", "calibrate", "Measure a device and fit a profile of it."),
    "explain": ("simulator.explain_cli", "explain", "Where times to first token go, and for whom others wait."),
    "hit-curve": ("simulator.hit_curve_cli", "hit_curve", "Hit rate against cache size, of a trace or a workload."),
    "plan": ("simulator.plan_cli", "plan", "Find the cheapest cluster that meets its targets, and how sure that is."),
    "profiles": ("calibration.profiles_cli", "profiles", "List, show and compare profiles of devices."),
    "sweep": ("simulator.sweep_cli", "sweep", "Run a scenario over a range of settings and say which matter."),
    "trace": ("simulator.trace_cli", "trace", "Look into files of recorded requests, and convert or edit them."),
    "whatif": ("simulator.whatif_cli", "whatif", "What twice the load, one instance fewer or another tenant change."),
    "workload": ("simulator.workload_cli", "workload", "Make generators of requests out of recorded ones."),
}


class _Commands(click.Group):
    """The commands of this module and, without importing them first, those of ``_BY_NAME``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_BY_NAME])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _BY_NAME:
            return super().get_command(ctx, cmd_name)
        module, attribute, _ = _BY_NAME[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.list_commands(ctx):
            raise InputError(f"unknown command {args[0]!r}{nearest(args[0], self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = {name: command.get_short_help_str(100) for name, command in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl(sorted({**own, **{name: text for name, (_, _, text) in _BY_NAME.items()}}.items()))


_COUNT, _POSITIVE_COUNT = Quantity("count", "number"), Quantity("positive_count", "number")


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kvcast")
def cli() -> None:
    """Simulate LLM serving clusters with prefix caching, calibrated on the device that will serve."""


@cli.command()
@experiment_options()
@replicating
def compare(**options: Any) -> None:
    """Run every routing policy, or variant, of SCENARIO in every replication and say which are better."""
    _simulate(**options)


@cli.command()
@experiment_options()
@replicating
@click.option("--router", help="The policy to run, where the scenario has several.")
@click.option("--variant", help="The variant to run, where the scenario has some.")
def run(router: str | None, variant: str | None, **options: Any) -> None:
    """Run one routing policy of SCENARIO, as it is or as one of its variants has it."""
    _simulate(choose=lambda scenario: the_setting(scenario, router, variant), **options)


@cli.command()
def schema() -> None:
    """Print the JSON schema of a scenario file, for editors."""
    from simulator.scenario import Scenario

    click.echo(json.dumps(Scenario.model_json_schema(), indent=2))


@cli.command()
def routers() -> None:
    """List the routing policies with their parameters and sources, and the presets that products ship."""
    from simulator.routing import PRESETS, ROUTERS

    for name, router in ROUTERS.items():
        _describe(name, router)
    _say("\nPresets, which stand wherever a policy's name may:")
    for name, preset in PRESETS.items():
        _say(f"{name}: {preset.summary}")
        for key, value in {"source": preset.source, "policy": preset.policy, **preset.values}.items():
            _say(f"    {key}: {value}")


@cli.command()
def evictions() -> None:
    """List the eviction policies of the block pool with their parameters and sources."""
    from simulator.eviction import POLICIES

    _say("vllm: the block given back first (the default: nothing is changed, and nothing costs more)")
    _say("    source: vLLM FreeKVCacheBlockQueue, of the release that the dialect names")
    for name, policy in POLICIES.items():
        _describe(name, policy)


def _describe(name: str, policy: Any) -> None:
    _say(f"{name}: {policy.summary}")
    _say(f"    source: {policy.source}")
    for parameter, info in policy.Params.model_fields.items():
        described = f" ({info.description})" if info.description else ""
        value = "required" if info.is_required() else repr(info.default)
        _say(f"    {parameter}: {value}{described}")


def _say(text: str) -> None:
    """A line of a list; what a terminal has no room for stands below, set in."""
    from rich.console import Console

    from simulator.terminal import print_line

    print_line(Console(), text, indent=8 * " ")


@cli.command(name="import")
@click.argument("command")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the YAML there instead of printing it.")
def import_command(command: str, output: Path | None) -> None:
    """Turn COMMAND, a quoted 'vllm serve MODEL --flag ...', into the engine block of a scenario."""
    import yaml

    from simulator.engine_args import EngineArgs, read_command

    found = read_command(command)
    for name, problem in found.refused.items():
        click.echo(f"refused: {name}: {problem}", err=True)
    if found.refused:
        raise InputError(f"command: {len(found.refused)} of its arguments cannot be simulated as they are")
    text = yaml.safe_dump({"engine": found.arguments}, sort_keys=False, allow_unicode=True)
    for name, info in EngineArgs.model_fields.items():
        if info.is_required() and name not in found.arguments:
            text += f"  # {name}: required, {info.description}\n"
    if "speculative_config" in found.arguments:
        text += f"  # acceptance_rate: required, {EngineArgs.model_fields['acceptance_rate'].description}\n"
    if output is None:
        click.echo(text, nl=False)
    else:
        _write_whole(output, text)


@cli.command()
@click.argument("case_files", nargs=-1, metavar="[CASE]...", type=click.Path(path_type=Path))
@click.option("--engine-python", default=sys.executable, help="Python interpreter that has vLLM [this one].")
@click.option(
    "--cases", "num_cases", type=_POSITIVE_COUNT, default=100, show_default=True, help="Random cases a family."
)
@click.option("--seed", type=_COUNT, default=0, show_default=True, help="Seed of the first case; the others follow it.")
@click.option("--family", "families", multiple=True, help="Only this family of cases (repeatable) [all].")
@click.option("--size", default="small", show_default=True, help="small, or large: cases of 500 requests.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="File for a differing case [kvcast-difference.json]."
)
def verify(engine_python: str, case_files: tuple[Path, ...], output: Path | None, **chosen: Any) -> None:
    """Compare every decision of the simulated scheduler with the vLLM installed in another interpreter.

    Plays random cases, or the given CASE files, to vLLM's own scheduler and to the simulator's, and compares each step:
    tokens, hits, preemptions, queues, free blocks, events. Exits with 1 and writes a case file if they differ.
    """
    from itertools import chain

    from simulator.parity.engine import Engine
    from simulator.parity.verify import Tally, dialect_of, random_cases, read_case, shrink
    from simulator.parity.verify import verify as compare_with

    with Engine(engine_python) as engine:
        version = engine.version()
        dialect, verified = dialect_of(version)
        if not verified:
            click.echo(
                f"warning: vLLM {version} is not a verified version; comparing with dialect vllm-{dialect}", err=True
            )
        given = [read_case(path, dialect) for path in case_files]
        cases = [given] if given else random_cases(dialect, **chosen)
        num_cases = len(given) or chosen["num_cases"] * len(cases)
        tally = Tally()
        with progress("comparing", num_cases) as advance:
            found = compare_with(engine, chain.from_iterable(cases), tally, advance)
        if found:
            smallest = shrink(engine, found)
            path = output or Path("kvcast-difference.json")
            _write_whole(path, json.dumps(smallest.to_json()))
            click.echo(smallest.describe())
            click.echo(f"Case: {path} (play it again: kvcast verify {path} --engine-python {engine_python})")
        click.echo(f"vLLM {version}: {tally.describe(num_differences=1 if found else 0)}")
    sys.exit(_DIFFERENT if found else 0)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 2 bad input (one line on stderr), 130 interrupted."""
    try:
        status = cli.main(args=arguments, prog_name="kvcast", standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except InputError as error:
        _fail(str(error))
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(_BAD_INPUT)
    except click.ClickException as error:
        _fail(error.format_message())
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        # Whoever read the output has gone. Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _fail(message: str) -> None:
    click.echo(f"error: {' '.join(message.split())}", err=True)
    sys.exit(_BAD_INPUT)


def _simulate(
    scenario: Path,
    output: Path | None,
    as_json: bool,
    jobs: int | None,
    seed: int | None,
    replications: int | None,
    limit: int | None,
    executor: str,
    address: str | None,
    precision: float | None = None,
    max_replications: int | None = None,
    fixed_profile: bool = False,
    choose: Callable[[Scenario], Scenario] | None = None,
) -> None:
    from simulator.scenario import load

    described = load(scenario)
    described = choose(described) if choose else described
    described = described.changed(seed=seed, replications=replications, limit=limit)
    wanted = the_precision(precision, max_replications, described.replications)
    # Only now what is slow to load: a scenario with a mistake is answered at once.
    from simulator import experiment, report
    from simulator.executors import make_executor

    out_dir = output or Path("out") / described.name
    report.check_writable(out_dir)
    num_runs = len(described.settings) * described.replications
    where = make_executor(executor, jobs=jobs, address=address)
    with progress("simulating", num_runs, shown=not as_json) as advance:
        comparison = experiment.compare(
            described, executor=where, progress=advance, precision=wanted, draws_profile=not fixed_profile
        )
    report.write(comparison, out_dir)
    if as_json:
        click.echo(json.dumps(comparison.to_json(), indent=2, allow_nan=False))
    else:
        from rich.console import Console

        report.print_table(comparison, Console())
        click.echo(f"Report: {out_dir / 'report.html'}")


def _write_whole(path: Path, text: str) -> None:
    """Write the file, or leave what was there: never half of it."""
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as partial:
            partial.write(text)
        Path(partial.name).chmod(0o644)
        Path(partial.name).replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot write it ({error.strerror})") from None


if __name__ == "__main__":
    main()
