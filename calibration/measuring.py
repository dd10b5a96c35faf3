"""``kvcast calibrate measure``: the command, its progress bar and what it says at the end."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from calibration.arguments import engine_arguments
from simulator.counts import counted
from simulator.errors import InputError
from simulator.units import positive_duration_s

if TYPE_CHECKING:
    from calibration.engines import Engine
    from calibration.measure import Outcome
    from calibration.protocol import Rules, Verdict

_FAILED = 1
_INTERRUPTED = 130
_MOST_LISTED = 20


@click.command("measure", no_args_is_help=True)
@click.option("--model", required=True, type=click.Path(path_type=Path), help="Directory with config.json; without "
              "weights in it they are random. With --engine openai: the served model's name.")  # fmt: skip
@click.option("--engine", type=click.Choice(["vllm", "openai"]), default="vllm", show_default=True)
@click.option("--engine-arg", "engine_args", multiple=True, metavar="NAME=VALUE",
              help="An engine argument in vLLM's words, such as max_num_batched_tokens=2048. Repeatable.")  # fmt: skip
@click.option("--engine-python", default=sys.executable, show_default="this one", metavar="PYTHON",
              help="The interpreter that has vLLM.")  # fmt: skip
@click.option("--url", help="With --engine openai: the server, for example http://host:8000.")
@click.option("--scheduling", type=click.Choice(["default", "both"]), default="default", show_default=True,
              help="Both: also measure with the other scheduling, synchronous, into OUTPUT-sync.")  # fmt: skip
@click.option("--launches", type=click.IntRange(min=1), default=3, show_default=True,
              help="How often to start the engine; two launches differ by more than two repeats.")  # fmt: skip
@click.option("--budget", help="Time for all of it, for example 20min; the least informative cases are left out.")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of the order of cases.")
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False, path_type=Path),
              help="JSON-lines file; what is on it already is not measured again.")  # fmt: skip
def measure_command(
    model: Path, engine: str, engine_args: tuple[str, ...], engine_python: str, url: str | None, scheduling: str,
    launches: int, budget: str | None, seed: int, output: Path,
) -> None:  # fmt: skip
    """Ask an engine how long its steps take and append the raw answers to a file.

    Interrupt it at any time: the same command goes on where it stopped. Exit code 1 if a check failed.
    """
    from calibration.measure import Settings, measure
    from calibration.protocol import Rules

    arguments = engine_arguments(engine_args)
    rules = Rules(num_launches=launches)
    settings = Settings(rules, _seconds(budget), seed)
    variants = [(arguments, output)]
    if scheduling == "both":
        beside = output.with_name(f"{output.stem}-sync{output.suffix}")
        variants.append((arguments | {"async_scheduling": False}, beside))
    failed = False
    for chosen, file in variants:
        measured = _engine(engine, engine_python, model, chosen, url)
        with Progress() as progress:
            try:
                outcome = measure(measured, file, settings, progress)
            except KeyboardInterrupt:
                click.echo(f"{file}: interrupted; the same command goes on from here", err=True)
                raise SystemExit(_INTERRUPTED) from None
        click.echo(_summary(file, outcome, rules))
        failed |= bool(outcome.failures)
        if scheduling == "both" and not _is_asynchronous(output):
            click.echo("this engine schedules synchronously by itself: nothing else to measure")
            break
    if failed:
        raise SystemExit(_FAILED)


def _engine(name: str, python: str, model: Path, arguments: dict[str, Any], url: str | None) -> Engine:
    if name == "openai":
        from calibration.engines.openai_server import OpenAiEngine

        if url is None:
            raise InputError("--engine openai: --url is missing, for example http://host:8000")
        return OpenAiEngine(url, str(model), arguments)
    from calibration.engines.process import VllmEngine

    if url is not None:
        raise InputError("--url: belongs to --engine openai")
    return VllmEngine(python, model, arguments)


def _seconds(budget: str | None) -> float | None:
    if budget is None:
        return None
    try:
        return positive_duration_s(budget)
    except InputError as error:
        raise InputError(f"--budget: {error}") from None


def _is_asynchronous(path: Path) -> bool:
    from calibration.measurement import read_measurements

    return bool(read_measurements(path).header.identity.async_scheduling)


def _summary(path: Path, outcome: Outcome, rules: Rules) -> str:
    """What was measured, how good it is, what failed and what was left out."""
    from calibration.measurement import read_measurements
    from calibration.protocol import judge

    measurements = read_measurements(path)
    verdict = judge(measurements, rules)
    rows = f"{counted(len(measurements.rows), 'row')} ({len(measurements.unused)} more of warm-up or failed)"
    launches = counted(outcome.num_launches, "launch", "launches")
    lines = [
        f"{path}: {rows}, {counted(outcome.num_takes, 'take')} in {launches} now",
        *_judgements(verdict),
        *(f"  left out for want of time: {case.key}" for case in outcome.dropped[:_MOST_LISTED]),
    ]
    if len(outcome.dropped) > _MOST_LISTED:
        lines.append(f"  ... and {len(outcome.dropped) - _MOST_LISTED} more")
    lines += [f"  FAILED {key}: {why}" for key, why in outcome.failures.items()]
    lines.append(verdict.machine)
    if outcome.failures:
        lines.append(f"{counted(len(outcome.failures), 'case')} FAILED: those takes are marked and never used")
    return "\n".join(lines)


def _judgements(verdict: Verdict) -> list[str]:
    return [
        f"  {one.name:44} {one.mean_s * 1000:10.3f} ms  {one.verdict}"
        + (f" ({one.num_outliers} of {one.num_values} outliers)" if one.num_outliers else "")
        for one in sorted(verdict.judgements, key=lambda judgement: judgement.name)
    ]


class Progress:
    """A bar with the time left on a terminal; lines only where there is none."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        console = Console(stderr=True, highlight=False)
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"),
            console=console, transient=True, disable=not console.is_terminal,
        )  # fmt: skip
        self._task = self._bar.add_task("measuring", total=None, left="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """A line of its own."""
        self._bar.console.print(text, markup=False, soft_wrap=True)

    def left(self, num_done: int, num_left: int, seconds_left: float) -> None:
        """Move the bar."""
        minutes, seconds = divmod(round(seconds_left), 60)
        self._bar.update(
            self._task, completed=num_done, total=num_done + num_left, left=f"about {minutes}:{seconds:02} left"
        )
