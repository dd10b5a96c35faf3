"""A load test on the simulator: the same requests from the same client, and the figures that its tool would print."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from math import log, sqrt
from typing import Any

import numpy as np

from calibration.benchmarks.benchmark import Benchmark, Lengths, Measured
from simulator.cluster import Cluster
from simulator.dialect import DIALECTS, VLLM_0_23, VLLM_0_32
from simulator.engine_args import EngineArgs, EngineConfig, resolve
from simulator.errors import InputError
from simulator.metrics import Metrics
from simulator.profile import Profile
from simulator.request import Request
from simulator.routing import make_router, parse_routing
from simulator.step_time import StepTime
from simulator.streams import stream

_MOST_PROMPTS = 1_000_000
_NEVER_SHORT = 16  # tokens that a model's longest text has beyond the longest request of a test


def engine_of(benchmark: Benchmark, profile: Profile) -> EngineConfig:
    """The engine that was tested: its arguments as far as stated, then vLLM's defaults.

    Raises InputError where vLLM would not start so.
    """
    stated: dict[str, Any] = {"dialect": dialect_of(profile.identity.vllm), **benchmark.engine}
    if benchmark.num_prompts > _MOST_PROMPTS:
        raise InputError(f"num_prompts: got {benchmark.num_prompts}, expected at most {_MOST_PROMPTS:,}")
    longest = max(map(sum, zip(_lengths(benchmark, "in"), _lengths(benchmark, "out"), strict=True)))
    stated.setdefault("max_model_len", int(longest) + _NEVER_SHORT)
    config = resolve(EngineArgs.model_validate(stated), profile)
    is_drawn = benchmark.inputs.deviation or benchmark.outputs.deviation  # drawn lengths are cut to what is served
    if longest > config.max_model_len and not is_drawn:
        raise InputError(
            f"max_model_len: got {config.max_model_len}, expected at least {longest}, the longest request of the test"
        )
    return config


def dialect_of(version: str) -> str:
    """The verified dialect of this vLLM version, or the nearest one: 0.32 and later, else 0.23."""
    numbers = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    return (VLLM_0_32 if numbers >= [0, 32] else VLLM_0_23).name


def has_verified_dialect(version: str) -> bool:
    """Whether decisions were compared with this very release of vLLM."""
    return any(f"{version}.".startswith(f"{name.removeprefix('vllm-')}.") for name in DIALECTS)


def play(benchmark: Benchmark, config: EngineConfig, step_time: StepTime) -> Measured:
    """What the tool would have printed of an engine with these step times."""
    router = make_router(parse_routing("round_robin"), 1, random.Random(0))  # noqa: S311 (one instance: no draw)
    metrics = Metrics(1)
    cluster = Cluster(config, step_time, router, 1, metrics)
    cluster.run(_requests(benchmark, config.max_model_len), benchmark.max_concurrency)
    return _figures(metrics)


def _figures(metrics: Metrics) -> Measured:
    """As ``vllm bench serve`` counts: rates over the time from the first request sent to the last answer."""
    rows = metrics.table()
    finished = rows[rows["state"] == "finished"]
    ttft, tpot, total = (finished[f"{name}_s"].dropna().to_numpy() for name in ("ttft", "tpot", "e2e"))
    span_s = float(finished["finish_s"].max() - finished["arrival_s"].min())
    outputs, prompts = float(finished["num_output_tokens"].sum()), float(finished["num_prompt_tokens"].sum())
    return Measured(
        **_latencies("ttft", ttft),
        **_latencies("tpot", tpot),
        itl_mean_s=metrics.gaps.mean(),
        e2e_mean_s=float(total.mean()),
        requests_per_s=len(finished) / span_s,
        output_tokens_per_s=outputs / span_s,
        total_tokens_per_s=(outputs + prompts) / span_s,
    )


def _latencies(name: str, values: Any) -> dict[str, float]:
    if not len(values):
        return {}
    points = np.percentile(values, (50, 90, 99))
    names = (f"{name}_mean_s", f"{name}_p50_s", f"{name}_p90_s", f"{name}_p99_s")
    return dict(zip(names, (float(values.mean()), *map(float, points)), strict=True))


def _requests(benchmark: Benchmark, longest: int) -> Iterator[Request]:
    """The requests in the order of sending, none longer than ``longest``. A shared prefix is cut from each prompt's own
    length.
    """
    inputs, outputs = _lengths(benchmark, "in"), _lengths(benchmark, "out")
    for number, (arrival_s, num_inputs, num_outputs) in enumerate(
        zip(_arrivals_s(benchmark), inputs, outputs, strict=True)
    ):
        num_outputs = min(num_outputs, longest - 1)
        num_inputs = min(num_inputs, longest - num_outputs)
        shared = int(benchmark.prefix_share * num_inputs)
        prompt = ((number % benchmark.num_prefixes, 0, shared), (None, 0, num_inputs - shared))
        yield Request(
            request_id=number,
            arrival_s=arrival_s,
            prompt=prompt,
            num_prompt_tokens=num_inputs,
            max_tokens=num_outputs,
            oracle_num_output_tokens=num_outputs,
        )


def _arrivals_s(benchmark: Benchmark) -> list[float]:
    if benchmark.requests_per_s is None:
        return [0.0] * benchmark.num_prompts
    gaps = stream(0, benchmark.group, "arrivals").exponential(1 / benchmark.requests_per_s, benchmark.num_prompts)
    # As vllm bench serve does: stretched so that all are sent in the time that the rate says.
    times_s = np.cumsum(gaps) * (benchmark.num_prompts / benchmark.requests_per_s / gaps.sum())
    return [float(time_s) for time_s in times_s]


def _lengths(benchmark: Benchmark, which: str) -> list[int]:
    """Tokens of each request: as recorded, drawn around the mean, or all alike up to what rounding leaves."""
    lengths = benchmark.inputs if which == "in" else benchmark.outputs
    number = benchmark.num_prompts
    if lengths.each:
        return [lengths.each[index % len(lengths.each)] for index in range(number)]
    if lengths.deviation:
        return _drawn(lengths, number, benchmark.group, which)
    # Whole numbers with the stated mean: running sums of it, rounded.
    sums = [round(lengths.mean * index) for index in range(number + 1)]
    return [max(1, after - before) for before, after in pairwise(sums)]


def _drawn(lengths: Lengths, number: int, *names: str) -> list[int]:
    """Lognormal with this mean and deviation, scaled so that the mean of these very draws is right."""
    assert lengths.deviation is not None
    variance = log(1 + (lengths.deviation / lengths.mean) ** 2)
    drawn = stream(0, *names).lognormal(0.0, sqrt(variance), number)
    return [max(1, round(float(value))) for value in drawn * (lengths.mean / drawn.mean())]
