"""inference-perf's ``stage_N_lifecycle_metrics.json``: one stage, one benchmark. All times are seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibration.benchmarks.benchmark import Benchmark, Lengths, Measured, load_words
from calibration.benchmarks.readers.fields import Fields
from calibration.benchmarks.readers.figures import without_miscounted
from simulator.errors import InputError

TOOL = "inference-perf"
EXPECTED = "stage_N_lifecycle_metrics.json"

_LATENCIES = {"ttft": "time_to_first_token", "tpot": "time_per_output_token"}
_STATISTICS = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}


def recognises(document: Mapping[str, Any]) -> bool:
    """Whether this is such a report, of a stage or of all."""
    return {"load_summary", "successes"} <= document.keys()


def read(fields: Fields, name: str) -> list[Benchmark]:
    """The one benchmark of a stage. Raises InputError for what a stage cannot hold or lacks."""
    load, successes, failures = (fields.inner(key) for key in ("load_summary", "successes", "failures"))
    if not successes.has("throughput"):
        raise InputError(f"{fields.where}: successes.throughput is missing (a report of the server's own metrics?), "
                         f"expected {EXPECTED}")  # fmt: skip
    limit, rate = _load(load)
    inputs = _lengths(successes, "prompt_len", "prompt_tokens")
    outputs = _lengths(successes, "output_len", "output_tokens")
    measured, words = without_miscounted(_measured(successes), outputs)
    if rate is not None:
        words += ("arrivals are Poisson (the report does not say; inference-perf spaces them evenly by default)",)
    return [
        Benchmark(
            name=name,
            group=load_words(inputs, outputs, limit, rate, 0.0),
            file=fields.where,
            tool=TOOL,
            source="",
            model=None,
            engine_version=None,
            engine={},
            num_prompts=int(successes.needed("count", "the number of requests answered")),
            inputs=inputs,
            outputs=outputs,
            max_concurrency=limit,
            requests_per_s=rate,
            measured=Measured(**measured),
            assumed=(
                *words,
                "all prompts have the mean length, and all answers",
                "no prompt shares text with another: the report does not say",
            ),
            duration_s=fields.number("benchmark_time_seconds") or None,
            num_failed=failures.count("count") or 0,
        )
    ]


def _load(load: Fields) -> tuple[int | None, float | None]:
    limit = load.count("concurrency") or None
    if limit is not None:
        return limit, None
    if not load.has("requested_rate"):
        raise InputError(f"{load.where}: load_summary.requested_rate is missing (a summary of several stages?), "
                         f"expected {EXPECTED} of a stage")  # fmt: skip
    return None, load.needed("requested_rate", "requests a second")


def _lengths(successes: Fields, *keys: str) -> Lengths:
    """By the first key that there is: releases differ in what they call it."""
    key = next((key for key in keys if successes.has(key)), keys[0])
    return Lengths(successes.inner(key).needed("mean", "the mean length; lengths are needed"))


def _measured(successes: Fields) -> dict[str, Any]:
    latency, rates = successes.inner("latency"), successes.inner("throughput")
    found: dict[str, float | None] = {
        f"{ours}_{name}_s": latency.inner(theirs).number(key)
        for ours, theirs in _LATENCIES.items()
        for name, key in _STATISTICS.items()
    }
    found["itl_mean_s"] = latency.inner("inter_token_latency").number("mean")
    found["e2e_mean_s"] = latency.inner("request_latency").number("mean")
    found["requests_per_s"] = rates.needed("requests_per_sec", "requests a second")
    found["output_tokens_per_s"] = rates.number("output_tokens_per_sec")
    found["total_tokens_per_s"] = rates.number("total_tokens_per_sec")
    return {key: value for key, value in found.items() if value}
