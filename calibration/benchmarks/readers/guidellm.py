"""GuideLLM's JSON report, version 2: one benchmark a strategy (rate or number of streams).

Times named ``_ms`` are milliseconds, others seconds. Its ``time_per_output_token_ms`` counts the first token, so TPOT
is its ``inter_token_latency_ms``: each request's mean gap, weighted by its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibration.benchmarks.benchmark import Benchmark, Lengths, Measured, load_words
from calibration.benchmarks.readers.fields import Fields
from simulator.errors import InputError

TOOL = "guidellm"
EXPECTED = "the JSON report of version 2"

_VERSION = 2
_STRATEGIES = {"constant", "poisson", "concurrent", "synchronous", "throughput"}


def recognises(document: Mapping[str, Any]) -> bool:
    """Whether this is such a report, of any version."""
    metadata = document.get("metadata")
    return isinstance(document.get("benchmarks"), list) and isinstance(metadata, Mapping) and (
        "guidellm_version" in metadata or "version" in metadata
    )  # fmt: skip


def read(fields: Fields, name: str) -> list[Benchmark]:
    """All benchmarks of a report. Raises InputError for what a report cannot hold or lacks."""
    metadata = fields.inner("metadata")
    version = metadata.count("version")
    if version != _VERSION:
        raise metadata.problem("version", version, f"{_VERSION}: no other version of the report is known")
    data = list(fields.inner("config", "spec").listed("data"))
    found = [_read(one, f"{name}-{index}", data) for index, one in enumerate(fields.listed("benchmarks"))]
    if not found:
        raise InputError(f"{fields.where}: benchmarks is empty, expected at least one")
    return found


def _read(fields: Fields, name: str, data: list[Fields]) -> Benchmark:
    metrics = fields.inner("metrics")
    totals = metrics.inner("request_totals")
    successful = int(totals.needed("successful", "the number of requests answered"))
    num_failed = (totals.count("errored") or 0) + (totals.count("incomplete") or 0)
    inputs, outputs = _lengths(fields, metrics, successful)
    limit, rate, assumed = _load(fields.inner("config", "strategy"), successful + num_failed)
    prefix_share, num_prefixes = _prefix(data, inputs)
    if any((one.number("turns") or 1) > 1 for one in data):
        assumed += ("turns of a conversation share no text with each other",)
    if not inputs.each and (inputs.deviation or outputs.deviation):
        assumed += ("lengths are drawn with the stated mean and deviation",)
    return Benchmark(
        name=name,
        group=load_words(inputs, outputs, limit, rate, prefix_share),
        file=f"{fields.where}: {fields.path}",
        tool=TOOL,
        source="",
        model=fields.inner("config", "backend").text("model"),
        engine_version=None,
        engine={},
        num_prompts=successful,
        inputs=inputs,
        outputs=outputs,
        max_concurrency=limit,
        requests_per_s=rate,
        prefix_share=prefix_share,
        num_prefixes=num_prefixes,
        measured=_measured(metrics, outputs),
        assumed=assumed,
        duration_s=fields.number("duration"),
        num_failed=num_failed,
    )


def _load(strategy: Fields, num_requests: int) -> tuple[int | None, float | None, tuple[str, ...]]:
    """Concurrency limit, request rate, and what was assumed. A limit that no number of requests reaches is none."""
    kind = strategy.text("type_")
    if kind not in _STRATEGIES:
        raise strategy.problem("type_", kind, f"one of {', '.join(sorted(_STRATEGIES))}")
    limit = strategy.count("max_concurrency")
    if kind == "synchronous":
        return 1, None, ()
    if kind == "concurrent":
        streams = strategy.count("streams") or limit
        return (streams or int(strategy.needed("streams", "the number of streams"))), None, ()
    limit = limit if limit and limit < num_requests else None
    if kind == "throughput":
        return limit, None, ()
    words = ("arrivals are Poisson, although they were evenly spaced",) if kind == "constant" else ()
    return limit, strategy.needed("rate", "requests a second"), words


def _lengths(fields: Fields, metrics: Fields, successful: int) -> tuple[Lengths, Lengths]:
    """Of each request where all are listed, else mean and deviation."""
    answered = fields.inner("requests").listed("successful")
    single = sorted(answered, key=lambda one: one.number("request_start_time") or 0.0)
    listed = len(single) == successful and all(one.has("prompt_tokens", "output_tokens") for one in single)
    found = []
    for key, short, what in (
        ("prompt_token_count", "prompt_tokens", "prompts"),
        ("output_token_count", "output_tokens", "answers"),
    ):
        count = metrics.inner(key, "successful")
        mean = count.needed("mean", f"the mean length of {what}; lengths are needed")
        each = [one.count(short) or 1 for one in single] if listed else []
        found.append(Lengths.of(each) if each else Lengths(mean=mean, deviation=count.number("std_dev") or None))
    return found[0], found[1]


def _prefix(data: list[Fields], inputs: Lengths) -> tuple[float, int]:
    """Share of shared text in a mean prompt, and number of such texts, over all buckets by their weight."""
    tokens = weights = number = 0.0
    for bucket in (bucket for one in data for bucket in one.listed("prefix_buckets")):
        weight = bucket.number("bucket_weight") or 0.0
        tokens += weight * (bucket.number("prefix_tokens") or 0.0)
        weights += weight
        number += bucket.count("prefix_count") or 0
    if not tokens:
        return 0.0, 1
    return min(1.0, tokens / weights / inputs.mean), max(1, int(number))


def _measured(metrics: Fields, outputs: Lengths) -> Measured:
    ttft = _times(metrics.inner("time_to_first_token_ms", "successful"), "ttft")
    tpot = _times(metrics.inner("inter_token_latency_ms", "successful"), "tpot") if outputs.mean > 1 else {}
    rates = {
        key: metrics.inner(theirs, "successful").number("mean") or None
        for key, theirs in (
            ("requests_per_s", "requests_per_second"),
            ("output_tokens_per_s", "output_tokens_per_second"),
            ("total_tokens_per_s", "tokens_per_second"),
        )
    }
    total_s = metrics.inner("request_latency", "successful").number("mean") or None
    return Measured(**ttft, **tpot, itl_mean_s=tpot.get("tpot_mean_s"), e2e_mean_s=total_s, **rates)


def _times(metric: Fields, name: str) -> dict[str, float]:
    points = metric.inner("percentiles")
    values = {"mean": metric.number("mean")} | {point: points.number(point) for point in ("p50", "p90", "p99")}
    return {f"{name}_{statistic}_s": value / 1000 for statistic, value in values.items() if value}
