"""llm-d-benchmark's report, format 0.2: YAML (or JSON), one benchmark a file, every figure with its unit.

Which client tested stands in it; the figures are that client's, read from there into one form.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from calibration.benchmarks.benchmark import Benchmark, Lengths, Measured, load_words
from calibration.benchmarks.readers import inference_perf
from calibration.benchmarks.readers.engine import command_arguments
from calibration.benchmarks.readers.fields import Fields
from calibration.benchmarks.readers.figures import without_miscounted
from simulator.errors import InputError

TOOL = "llm-d"
EXPECTED = "the benchmark report of format 0.2"

_UNITS = {
    "s": 1.0, "seconds": 1.0, "ms": 1e-3, "s/token": 1.0, "ms/token": 1e-3, "count": 1.0, "tokens": 1.0,
    "tokens/s": 1.0, "queries/s": 1.0,
}  # fmt: skip
_LATENCIES = {"ttft": "time_to_first_token", "tpot": "time_per_output_token"}
_PARALLEL = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dp": "data_parallel_size"}
_DURATION = re.compile(r"PT(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d*)?)S)?")


def recognises(document: Mapping[str, Any]) -> bool:
    """Whether this is such a report, of any version."""
    return {"version", "scenario", "results"} <= document.keys()


def read(fields: Fields, name: str) -> list[Benchmark]:
    """The one benchmark of a report. Raises InputError for what a report cannot hold or lacks."""
    if not str(fields.values.get("version")).startswith("0.2"):
        raise fields.problem("version", fields.values.get("version"), "0.2.x: no other format of the report is known")
    load = fields.inner("scenario", "load", "standardized")
    results = fields.inner("results", "request_performance", "aggregate")
    requests = results.inner("requests")
    inputs, outputs = _lengths(requests, load, "input"), _lengths(requests, load, "output")
    limit, rate = _load(load)
    prefix_share, num_prefixes = _prefix(load.inner("prefix"), inputs)
    measured = _measured(results)
    assumed: tuple[str, ...] = ()
    if load.text("tool") == inference_perf.TOOL:
        measured, assumed = without_miscounted(measured, outputs)
    num_failed = requests.count("failures") or 0
    server = _Server(fields)
    return [
        Benchmark(
            name=name,
            group=load_words(inputs, outputs, limit, rate, prefix_share),
            file=fields.where,
            tool=TOOL,
            source=fields.inner("run").text("description") or "",
            model=server.model,
            engine_version=server.version,
            engine=server.arguments,
            num_prompts=int(requests.needed("total", "the number of requests")) - num_failed,
            inputs=inputs,
            outputs=outputs,
            max_concurrency=limit,
            requests_per_s=rate,
            prefix_share=prefix_share,
            num_prefixes=num_prefixes,
            measured=Measured(**measured),
            assumed=(*assumed, *_assumed(load, inputs, outputs, rate)),
            duration_s=_duration_s(fields.inner("run", "time")),
            num_failed=num_failed,
            num_engines=server.number,
        )
    ]


def _assumed(load: Fields, inputs: Lengths, outputs: Lengths, rate: float | None) -> tuple[str, ...]:
    words = []
    if inputs.deviation or outputs.deviation:
        words.append("lengths are drawn with the stated mean and deviation")
    else:
        words.append("all prompts have the mean length, and all answers")
    if rate is not None:
        words.append("arrivals are Poisson (the report does not say)")
    if load.inner("multi_turn").values.get("enabled"):
        words.append("turns of a conversation share no text with each other")
    return tuple(words)


def _value(metric: Fields, key: str) -> float | None:
    """A statistic in seconds, tokens or requests (a second)."""
    value = metric.number(key)
    if value is None:
        return None
    unit = metric.text("units")
    if unit not in _UNITS:
        raise metric.problem("units", unit, f"one of {', '.join(_UNITS)}")
    return value * _UNITS[unit]


def _lengths(requests: Fields, load: Fields, side: str) -> Lengths:
    """As measured; as asked for, where that was not."""
    measured, asked = requests.inner(f"{side}_length"), load.inner(f"{side}_seq_len")
    mean = _value(measured, "mean") or asked.number("value") or 0.0
    if not mean:
        measured.needed("mean", "the mean length; lengths are needed")
    deviation = _value(measured, "stddev") or asked.number("std_dev")
    return Lengths(mean=mean, deviation=deviation or None)


def _load(load: Fields) -> tuple[int | None, float | None]:
    stated = load.values.get("concurrency")
    unlimited = stated is None or (isinstance(stated, float) and math.isinf(stated))
    limit = None if unlimited else int(load.needed("concurrency", "a concurrency"))
    rate = load.needed("rate_qps", "requests a second") if load.has("rate_qps") else None
    if limit is None and rate is None:
        raise InputError(f"{load.where}: neither a concurrency nor a request rate, expected {load.path}.concurrency or "
                         f"{load.path}.rate_qps")  # fmt: skip
    return limit or None, rate


def _prefix(prefix: Fields, inputs: Lengths) -> tuple[float, int]:
    tokens = prefix.inner("prefix_len").number("value")
    number = (prefix.count("num_groups") or 1) * (prefix.count("num_prefixes") or 1)
    return (min(1.0, tokens / inputs.mean), number) if tokens else (0.0, 1)


def _measured(results: Fields) -> dict[str, Any]:
    latency, rates = results.inner("latency"), results.inner("throughput")
    found = {
        f"{ours}_{key}_s": _value(latency.inner(theirs), key)
        for ours, theirs in _LATENCIES.items()
        for key in ("mean", "p50", "p90", "p99")
    }
    found["itl_mean_s"] = _value(latency.inner("inter_token_latency"), "mean")
    found["e2e_mean_s"] = _value(latency.inner("request_latency"), "mean")
    found["requests_per_s"] = _value(rates.inner("request_rate"), "mean")
    found["output_tokens_per_s"] = _value(rates.inner("output_token_rate"), "mean")
    found["total_tokens_per_s"] = _value(rates.inner("total_token_rate"), "mean")
    return {key: value for key, value in found.items() if value}


def _duration_s(time: Fields) -> float | None:
    text = time.text("duration")
    match = _DURATION.fullmatch(text or "")
    if text is None or match is None or not any(match.groups()):
        return None
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds


class _Server:
    """The engine that the report's stack names; with several, the first, and their number."""

    def __init__(self, fields: Fields) -> None:
        stack = fields.inner("scenario").listed("stack")
        engines = [one for one in stack if one.inner("standardized").text("kind") == "inference_engine"]
        self.number = sum(one.inner("standardized").count("replicas") or 1 for one in engines) or 1
        self.model: str | None = None
        self.version: str | None = None
        self.arguments: dict[str, Any] = {}
        if engines:
            first = engines[0].inner("standardized")
            parallel = first.inner("accelerator", "parallelism")
            self.model, self.version = first.inner("model").text("name"), first.text("tool_version")
            stated = {name: parallel.count(key) for key, name in _PARALLEL.items()}
            self.arguments = {name: value for name, value in stated.items() if value and value > 1}
            options = engines[0].inner("native").values.get("args")
            if isinstance(options, Mapping):  # a list of words is not taken apart
                self.arguments |= command_arguments(options, engines[0].where)
