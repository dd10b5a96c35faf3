"""``vllm bench serve --save-result``, with or without ``--save-detailed``.

Times named ``_ms`` are milliseconds; the lists of ``--save-detailed`` (one entry a request, in order of sending) are
seconds. ``--metadata NAME=VALUE`` stands beside the results: engine arguments there are taken as such.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from calibration.benchmarks.benchmark import Benchmark, Lengths, Measured, load_words
from calibration.benchmarks.readers.engine import engine_arguments
from calibration.benchmarks.readers.fields import Fields
from calibration.benchmarks.readers.figures import statistics
from simulator.errors import InputError
from simulator.units import positive_count, share

TOOL = "vllm bench serve"
EXPECTED = "the JSON of --save-result"

_METRICS = {"ttft": ("mean", "p50", "p90", "p99"), "tpot": ("mean", "p50", "p90", "p99"), "itl": ("mean",)}
_SAME_AS = {"p50": "median"}
_FEW = 0.999  # a burstiness this close to 1 is Poisson


def recognises(document: Mapping[str, Any]) -> bool:
    """Whether this is such a result."""
    return {"request_throughput", "duration"} <= document.keys() and bool(
        {"completed", "num_prompts", "total_input_tokens"} & document.keys()
    )


def read(fields: Fields, name: str) -> list[Benchmark]:
    """The one benchmark of a result. Raises InputError for what a result cannot hold or lacks."""
    if fields.has("ramp_up_strategy"):
        raise fields.problem("ramp_up_strategy", fields.text("ramp_up_strategy"), "a constant request rate")
    inputs, outputs, measured, assumed = _detailed(fields) or _plain(fields)
    completed, num_failed = _requests(fields)
    limit, rate = fields.count("max_concurrency"), _rate(fields)
    prefix_share, num_prefixes, words = _prefix(fields)
    return [
        Benchmark(
            name=name,
            group=load_words(inputs, outputs, limit or None, rate, prefix_share),
            file=fields.where,
            tool=TOOL,
            source=fields.text("source") or "",
            model=fields.text("model_id"),
            engine_version=fields.text("engine_version") or fields.text("vllm_version"),
            engine=engine_arguments(fields.values, fields.where),
            num_prompts=completed,
            inputs=inputs,
            outputs=outputs,
            max_concurrency=limit or None,
            requests_per_s=rate,
            prefix_share=prefix_share,
            num_prefixes=num_prefixes,
            measured=Measured(**measured),
            assumed=(*assumed, *_arrivals(fields, rate), *words),
            duration_s=fields.number("duration"),
            num_failed=num_failed,
        )
    ]


def _requests(fields: Fields) -> tuple[int, int]:
    """Requests that were answered, and those that were not."""
    completed = int(fields.needed("completed", "the number of requests answered"))
    num_failed = fields.count("failed")
    if num_failed is None:  # clients before 0.11 do not count them
        asked = fields.count("num_prompts")
        num_failed = max(0, asked - completed) if asked is not None else 0
    return completed, num_failed


def _rate(fields: Fields) -> float | None:
    stated = fields.values.get("request_rate")
    if stated is None or stated == "inf" or (isinstance(stated, float) and stated == float("inf")):
        return None
    return fields.needed("request_rate", "a rate a second, or 'inf'")


def _arrivals(fields: Fields, rate: float | None) -> tuple[str, ...]:
    burstiness = fields.number("burstiness")
    if rate is None or burstiness is None or _FEW <= burstiness <= 1 / _FEW:
        return ()
    return (f"arrivals are Poisson, although burstiness was {burstiness:g}",)


def _prefix(fields: Fields) -> tuple[float, int, tuple[str, ...]]:
    """Results say nothing of shared text, unless --metadata does."""
    if not fields.has("prefix_share"):
        return 0.0, 1, ("no prompt shares text with another: the result does not say",)
    try:
        part = share(fields.values["prefix_share"])
        number = positive_count(fields.values["num_prefixes"]) if fields.has("num_prefixes") else 1
    except InputError as error:
        raise InputError(f"{fields.where}: prefix_share, num_prefixes: {error}") from None
    return part, number, ()


def _plain(fields: Fields) -> tuple[Lengths, Lengths, dict[str, Any], tuple[str, ...]]:
    completed, _ = _requests(fields)
    inputs, outputs = (
        Lengths(fields.needed(key, f"the tokens of all {what}; lengths are needed") / completed)
        for key, what in (("total_input_tokens", "prompts"), ("total_output_tokens", "answers"))
    )
    words = "all prompts have the mean length, and all answers (--save-detailed would list each)"
    return inputs, outputs, _figures(fields), (words,)


def _figures(fields: Fields) -> dict[str, Any]:
    found: dict[str, Any] = {
        "requests_per_s": fields.needed("request_throughput", "requests a second"),
        "output_tokens_per_s": fields.number("output_throughput"),
        "total_tokens_per_s": fields.number("total_token_throughput"),
    }
    for metric, statistic in ((metric, one) for metric, ones in _METRICS.items() for one in ones):
        value = fields.number(f"{statistic}_{metric}_ms")
        if value is None and statistic in _SAME_AS:
            value = fields.number(f"{_SAME_AS[statistic]}_{metric}_ms")
        if value:  # 0 stands for none: no streaming, or one token an answer
            found[f"{metric}_{statistic}_s"] = value / 1000
    total = fields.number("mean_e2el_ms")
    latencies = fields.numbers("latencies")
    if total:
        found["e2e_mean_s"] = total / 1000
    elif latencies and len(latencies) == fields.count("completed"):  # listed by clients of 0.32, detailed or not
        found["e2e_mean_s"] = sum(latencies) / len(latencies)
    return {key: value for key, value in found.items() if value is not None}


def _detailed(fields: Fields) -> tuple[Lengths, Lengths, dict[str, Any], tuple[str, ...]] | None:
    """Lengths of each request that was answered, and the statistics that the summary lacks (percentiles, total time).

    None without such lists.
    """
    if not fields.has("input_lens", "output_lens"):
        return None
    inputs, outputs = fields.counts("input_lens"), fields.counts("output_lens")
    ttfts, gaps = fields.numbers("ttfts"), fields.sums("itls")
    errors = fields.texts("errors")
    for key, values in (("output_lens", outputs), ("ttfts", ttfts), ("itls", gaps), ("errors", errors)):
        if values and len(values) != len(inputs):
            found = f"{fields.where}: {key} has {len(values)} entries"
            raise InputError(f"{found}, expected {len(inputs)}, as input_lens has")
    good = [index for index, tokens in enumerate(outputs) if (not errors[index] if errors else tokens)]
    completed, _ = _requests(fields)
    if len(good) != completed:
        found = f"{fields.where}: output_lens has {len(good)} answers"
        raise InputError(f"{found}, expected {completed}, as completed says")
    num_empty = sum(not outputs[index] for index in good)
    return (
        Lengths.of([max(1, inputs[index]) for index in good]),
        Lengths.of([max(1, outputs[index]) for index in good]),
        {**_single(good, outputs, ttfts, gaps), **_figures(fields)},
        (f"{num_empty} empty answers had one token",) if num_empty else (),
    )


def _single(
    good: list[int], outputs: tuple[int, ...], ttfts: tuple[float, ...], gaps: tuple[float, ...]
) -> dict[str, float]:
    if not ttfts or not any(ttfts):
        return {}
    found = statistics("ttft", [ttfts[index] for index in good])
    if gaps:
        tpots = [gaps[index] / (outputs[index] - 1) for index in good if outputs[index] > 1]
        found |= statistics("tpot", tpots)
        found["e2e_mean_s"] = sum(ttfts[index] + gaps[index] for index in good) / len(good)
    return found
