"""AIPerf's ``profile_export_aiperf.json``: metrics at the top (0.3 and later) or under ``records`` (before).

Every metric states its unit, which is taken at its word. Failed requests are in no metric.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from calibration.benchmarks.benchmark import Benchmark, Lengths, Measured, load_words
from calibration.benchmarks.readers.fields import Fields, optional_sum
from simulator.errors import InputError
from simulator.units import number

TOOL = "aiperf"
EXPECTED = "profile_export_aiperf.json"

_UNITS = {
    "s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9,
    "tokens": 1.0, "requests": 1.0, "requests/sec": 1.0, "tokens/sec": 1.0,
}  # fmt: skip
_LATENCIES = {"ttft": ("time_to_first_token", "ttft"), "tpot": ("inter_token_latency",)}
_NEITHER = "expected --concurrency or --request-rate in its input_config or cli_command"


def recognises(document: Mapping[str, Any]) -> bool:
    """Whether this is such an export."""
    metrics = document.get("records", document)
    rate = metrics.get("request_throughput") if isinstance(metrics, Mapping) else None
    return isinstance(rate, Mapping) and "unit" in rate


def read(fields: Fields, name: str) -> list[Benchmark]:
    """The one benchmark of an export. Raises InputError for what an export cannot hold or lacks."""
    export = _Export(fields)
    inputs = export.lengths("input_sequence_length", "prompts")
    outputs = export.lengths("output_sequence_length", "answers")
    limit, rate = export.load()
    prefix_share, num_prefixes = export.prefix(inputs)
    completed = round(export.needed("request_count", "the number of requests answered"))
    pattern = export.option("arrival-pattern", "request-rate-mode")
    assumed = ["lengths are drawn with the stated mean and deviation"] * bool(inputs.deviation or outputs.deviation)
    if rate is not None and pattern != "poisson":
        assumed.append(f"arrivals are Poisson (the export says {pattern or 'nothing'})")
    return [
        Benchmark(
            name=name,
            group=load_words(inputs, outputs, limit, rate, prefix_share),
            file=fields.where,
            tool=TOOL,
            source="",
            model=export.model,
            engine_version=None,
            engine={},
            num_prompts=completed,
            inputs=inputs,
            outputs=outputs,
            max_concurrency=limit,
            requests_per_s=rate,
            prefix_share=prefix_share,
            num_prefixes=num_prefixes,
            measured=export.measured(),
            assumed=tuple(assumed),
            duration_s=export.value("benchmark_duration"),
            num_failed=round(export.value("error_request_count") or 0),
        )
    ]


class _Export:
    """An export's metrics in SI units, and what its configuration says of the load."""

    def __init__(self, fields: Fields) -> None:
        self._fields = fields
        self._metrics = fields.inner("records") if fields.has("records") else fields
        self._config = fields.inner("input_config")
        command = self._config.text("cli_command") or fields.inner("run_info").text("cli_command")
        self._command = command or ""

    def value(self, tag: str, statistic: str = "avg") -> float | None:
        """A metric's statistic in seconds, tokens or requests (a second)."""
        metric = self._metrics.inner(tag)
        value = metric.number(statistic)
        if value is None:
            return None
        unit = metric.text("unit") or ""
        if unit not in _UNITS:
            raise metric.problem("unit", unit, f"one of {', '.join(_UNITS)}")
        return value * _UNITS[unit]

    def needed(self, tag: str, meaning: str) -> float:
        """A metric's average, above zero."""
        value = self.value(tag)
        return value or self._metrics.inner(tag).needed("avg", meaning)

    def lengths(self, tag: str, what: str) -> Lengths:
        """Mean and deviation of a length."""
        mean = self.needed(tag, f"the mean length of {what}; lengths are needed")
        return Lengths(mean=mean, deviation=self.value(tag, "std") or None)

    def measured(self) -> Measured:
        """All figures; AIPerf's inter-token latency is one request's mean, TPOT elsewhere."""
        found: dict[str, Any] = {}
        for name, tags in _LATENCIES.items():
            tag = next((tag for tag in tags if self._metrics.has(tag)), tags[0])
            for statistic, ours in (("avg", "mean"), ("p50", "p50"), ("p90", "p90"), ("p99", "p99")):
                found[f"{name}_{ours}_s"] = self.value(tag, statistic)
        output = self.value("output_token_throughput")
        total = self.value("total_token_throughput")
        if total is None:
            total = optional_sum(self.value("input_token_throughput"), output)
        return Measured(
            **found,
            itl_mean_s=self.value("inter_chunk_latency"),
            e2e_mean_s=self.value("request_latency"),
            requests_per_s=self.needed("request_throughput", "requests a second"),
            output_tokens_per_s=output,
            total_tokens_per_s=total,
        )

    @property
    def model(self) -> str | None:
        """The first model that the configuration names."""
        names = self._config.inner("endpoint").texts("model_names")
        found = names[0] if names and isinstance(names[0], str) else None
        return found or self.option("model", "m")

    def load(self) -> tuple[int | None, float | None]:
        """Concurrency limit and request rate, from the configuration or the command line."""
        limit, rate = self._stated("concurrency"), self._stated("request_rate", "rate")
        if limit is None and rate is None:
            raise InputError(f"{self._fields.where}: neither a concurrency nor a request rate, {_NEITHER}")
        if limit is not None and (limit < 1 or limit != int(limit)):
            raise self._config.problem("concurrency", limit, "a whole number >= 1")
        if rate is not None and rate <= 0:
            raise self._config.problem("request_rate", rate, "more than 0")
        return None if limit is None else int(limit), rate

    def prefix(self, inputs: Lengths) -> tuple[float, int]:
        """Share of shared text in a prompt and number of such texts."""
        prompt = self._config.inner("input").inner("prompt")
        written = prompt.inner("prefix_prompt")
        length = written.number("length") or self._number("prefix-prompt-length")
        pool = written.number("pool_size") or self._number("num-prefix-prompts", "prefix-prompt-pool-size")
        return (min(1.0, length / inputs.mean), max(1, int(pool or 1))) if length else (0.0, 1)

    def option(self, *names: str) -> str | None:
        """The value of an option on the command line, or of the same key in the load's configuration."""
        for name in names:
            stated = self._config.inner("loadgen").text(name.replace("-", "_"))
            if stated is not None:
                return stated
            dashes = "--" if len(name) > 1 else "-"
            match = re.search(rf"(?:^|\s){dashes}{re.escape(name)}[\s=]+[\"']?([^\s\"']+)", self._command)
            if match:
                return match[1]
        return None

    def _stated(self, *keys: str) -> float | None:
        for holder in (self._config.inner("loadgen"), *self._phases()):
            for key in keys:
                if holder.has(key):
                    return holder.number(key)
        return self._number(keys[0].replace("_", "-"))

    def _phases(self) -> list[Fields]:
        phases = self._config.values.get("phases")
        if isinstance(phases, list):
            return list(self._config.listed("phases"))
        named = self._config.inner("phases")
        return [named.inner(key) for key in named.values if key != "warmup"]

    def _number(self, *names: str) -> float | None:
        text = self.option(*names)
        try:
            return None if text is None else number(text)
        except InputError as error:
            raise InputError(f"{self._fields.where}: --{names[0]}: {error}") from None
