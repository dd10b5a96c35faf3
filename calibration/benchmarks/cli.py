"""``kvcast calibrate from-benchmarks``: load-test results in, a profile out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from simulator.errors import InputError

_FILES = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("from-benchmarks", no_args_is_help=True)
@click.argument("results", nargs=-1, required=True, type=_FILES)
@click.option("--model", required=True, help="The model served, for example Qwen3-8B.")
@click.option("--geometry", type=_FILES,
              help="Its shape: ours as JSON, or its config.json. [default: the shipped one]")  # fmt: skip
@click.option("--dtype", default="bfloat16", show_default=True, help="Of the weights: bfloat16, fp8, w8a8 ...")
@click.option("--device", required=True, help="Whose data sheet it starts from: 'H100 SXM', or your own NAME.yaml.")
@click.option("--tested-on", help="The device as the results name it, where that is less exact. [default: --device]")
@click.option("--tensor-parallel-size", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--vllm", default="not stated", show_default=True, metavar="VERSION", help="Of the engine tested.")
@click.option("--vllm-ascend", metavar="VERSION", help="The same of vllm-ascend: its defaults hold then.")
@click.option("--graph-mode", default="not stated", show_default=True, help="eager, FULL_DECODE_ONLY ...")
@click.option("--engine-arg", "engine_args", multiple=True, metavar="NAME=VALUE",
              help="An argument of the engine in vLLM's words, where the results do not say it.")  # fmt: skip
@click.option("--where", multiple=True, metavar="COLUMN=VALUE", help="Of a CSV file, only rows like this. Repeatable.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes to simulate on. [default: one a core]")
@click.option("-o", "--output", required=True, type=click.Path(dir_okay=False, writable=True, path_type=Path))
def from_benchmarks_command(results: tuple[Path, ...], output: Path, **options: Any) -> None:
    """Learn a profile from RESULTS of load tests: vllm bench serve, GuideLLM, AIPerf, inference-perf, llm-d, or CSV.

    Each test is simulated with a data sheet's step times, which are then adjusted until latencies and throughput
    agree. Engine arguments that nobody states take vLLM's defaults. Coefficients that the results do not tell stay the
    data sheet's and are marked as priors.
    """
    from calibration.benchmarks.learn import Options, learn
    from calibration.output import write

    if output.resolve() in {path.resolve() for path in results}:
        raise InputError(f"--output {output}: one of the results, expected another file")
    if not output.parent.is_dir():
        raise InputError(f"--output {output}: no such folder {str(output.parent)!r}")
    profile, text = learn(output.stem, results, Options(**options))
    click.echo(text)
    write(output, profile.model_dump_json(indent=2) + "\n", "profile")
