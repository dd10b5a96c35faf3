"""Benchmarks as a plain CSV, one row a test. Columns, all others being kept as they are:

- load: ``input_len``, ``output_len`` (tokens; means where they differ), ``input_len_std``, ``output_len_std``,
  ``num_prompts``, ``max_concurrency``, ``request_rate`` (a second; empty, 0 or inf: as fast as the limit allows),
  ``prefix_pct`` (share of each prompt that is shared text), ``num_prefixes``;
- figures: ``ttft_mean_ms``, ``tpot_p99_ms`` and the like (or ``_s``), ``req_s``, ``out_tok_s``, ``total_tok_s``,
  ``duration_s``, ``failed``;
- what was tested: ``id``, ``group``, ``source``, ``model``, ``engine``, ``engine_version``, ``tp``, ``dp``, ``ep``,
  ``prefix_caching`` and engine arguments by vLLM's names.

AISBench's baselines of vllm-ascend call some differently: ``concurrency``, ``max_out_len``, ``baseline_out_tok_s``,
which counts requests where answers have one token.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields as fields_of
from decimal import Decimal
from difflib import SequenceMatcher
from typing import Any

from calibration.benchmarks.benchmark import Benchmark, Lengths, Measured, load_words
from calibration.benchmarks.readers.engine import ENGINE_ARGUMENTS, engine_arguments
from simulator.errors import InputError, nearest
from simulator.units import number

TOOL = "csv"
EXPECTED = "a CSV with columns input_len, output_len and a measured figure"

_LOAD = """input_len output_len max_out_len input_len_std output_len_std num_prompts max_concurrency concurrency
    request_rate prefix_pct prefix_hit_pct num_prefixes"""
_RATES = {"req_s": "requests_per_s", "out_tok_s": "output_tokens_per_s", "total_tok_s": "total_tokens_per_s"}
_OTHER = """id group source file case bench model engine engine_version tp dp ep prefix_caching pd duration_s failed
    baseline_out_tok_s spec"""
# Kept as they are, and never a slip of the pen.
_KEPT = "date quant hardware hw_hint npus nodes mode dataset eager graph threshold topology note"
_LATENCY = re.compile(r"(ttft|tpot|itl|e2e)_(mean|std|p\d+)_(ms|s)")
_MEASURED = frozenset(one.name for one in fields_of(Measured))
_LATENCIES = frozenset(
    name.removesuffix("_s") + unit for name in _MEASURED if "_per_" not in name for unit in ("_s", "_ms")
)
COLUMNS = frozenset({*_LOAD.split(), *_RATES, *_OTHER.split(), *_KEPT.split(), *_LATENCIES, *ENGINE_ARGUMENTS})

_ALIKE = 0.85  # a column this much like a known one is a slip of the pen
_ABSENT = {"", "-", "not stated", "n/a", "none"}
_UNLIMITED = {"inf", "infinity"}
_NUM_WAVES, _FEWEST_PROMPTS = 4, 32


def rows(text: str, file: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and columns of each row; ends with what is not CSV as an InputError."""
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check(header, file)
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise InputError(
                    f"{file}, line {reader.line_num}: {len(cells)} columns, expected {len(header)} as in the header"
                )
            yield reader.line_num, dict(zip(header, (cell.strip() for cell in cells), strict=True))
    except csv.Error as error:
        raise InputError(f"{file}, line {reader.line_num}: not CSV: {error}") from None


def _check(header: list[str], file: str) -> None:
    twice = next((name for index, name in enumerate(header) if name in header[:index]), None)
    if twice is not None:
        raise InputError(f"{file}, line 1: column {twice!r} is there twice")
    for name in header:
        if name not in COLUMNS and not _LATENCY.fullmatch(name):
            hint = nearest(name, (known for known in COLUMNS if _alike(name, known)))
            if "did you mean" in hint:
                raise InputError(f"{file}, line 1: unknown column {name!r}{hint}")
    for needed, other in (("input_len", ""), ("output_len", "max_out_len")):
        if needed not in header and other not in header:
            raise InputError(f"{file}, line 1: column {needed} is missing; lengths are needed")


def _alike(name: str, known: str) -> bool:

    return SequenceMatcher(None, name, known).ratio() >= _ALIKE


def read(line: int, columns: Mapping[str, str], file: str, stem: str) -> Benchmark:
    """The benchmark of a row. Raises InputError naming line and column."""
    row = _Row(columns, f"{file}, line {line}")
    if row.text("pd") is not None:
        raise row.problem("pd", "empty: prefill and decode on engines of their own are not one engine")
    inputs, outputs = row.lengths("input_len"), row.lengths("output_len", "max_out_len")
    limit, rate = row.count("max_concurrency", "concurrency"), row.rate()
    prefix_share = row.prefix_share()
    num_prompts = row.count("num_prompts") or row.assumed_prompts(limit)
    num_failed = row.count("failed", least=0) or 0
    measured = row.measured(outputs)
    if not measured:
        raise InputError(f"{row.where}: nothing measured, expected at least one of req_s, out_tok_s, total_tok_s and "
                         f"times such as ttft_mean_ms")  # fmt: skip
    group = row.text("group") or load_words(inputs, outputs, limit, rate, prefix_share)
    return Benchmark(
        name=f"{stem}/{row.text('id') or f'line {line}'}",
        group=group,
        file=row.where,
        tool=TOOL,
        source=row.text("source", "file") or "",
        model=row.text("model"),
        engine_version=row.text("engine_version"),
        engine=row.engine(),
        num_prompts=num_prompts - num_failed,
        inputs=inputs,
        outputs=outputs,
        max_concurrency=limit,
        requests_per_s=rate,
        prefix_share=prefix_share,
        num_prefixes=row.count("num_prefixes") or row.assumed_prefixes(prefix_share),
        measured=Measured(**measured),
        assumed=tuple(row.assumed),
        columns=dict(columns),
        rounding=row.rounding,
        duration_s=row.number("duration_s"),
        num_failed=num_failed,
    )


class _Row:
    """The cells of a row, each by the first of several column names.

    ``assumed`` and ``rounding`` grow as it is read.
    """

    def __init__(self, columns: Mapping[str, str], where: str) -> None:
        self._columns = columns
        self.where = where
        self.assumed: list[str] = []
        self.rounding: dict[str, float] = {}

    def text(self, *names: str) -> str | None:
        """A cell, None where it states nothing."""
        return next((cell for name in names if (cell := self._columns.get(name, "")).lower() not in _ABSENT), None)

    def problem(self, name: str, expected: str) -> InputError:
        """The error of one cell."""
        return InputError(f"{self.where}: {name} is {self._columns.get(name)!r}, expected {expected}")

    def number(self, *names: str) -> float | None:
        """A finite number >= 0."""
        for name in names:
            if (cell := self.text(name)) is not None:
                try:
                    value = number(cell)
                except InputError:
                    raise self.problem(name, "a number") from None
                if value < 0:
                    raise self.problem(name, "a number >= 0")
                return value
        return None

    def count(self, *names: str, least: int = 1) -> int | None:
        """A whole number."""
        for name in names:
            value = self.number(name)
            if value is not None:
                if value != int(value) or value < least:
                    raise self.problem(name, f"a whole number >= {least}")
                return int(value)
        return None

    def lengths(self, *names: str) -> Lengths:
        """Mean and, where given, deviation of lengths."""
        name = next((name for name in names if self.text(name) is not None), None)
        if name is None:
            raise InputError(f"{self.where}: {names[0]} is empty, expected a number of tokens; lengths are needed")
        mean, deviation = self.number(name), self.number(f"{names[0]}_std")
        if not mean:
            raise self.problem(name, "more than 0")
        if name == "max_out_len" and mean > 1:
            self.assumed.append("every answer is as long as max_out_len allows")
        if deviation:
            self.assumed.append(f"{names[0]} is drawn lognormal with the stated mean and deviation")
        elif mean != int(mean):
            self.assumed.append(f"all requests have the mean {names[0]}")
        return Lengths(mean=mean, deviation=deviation or None)

    def rate(self) -> float | None:
        """Arrivals a second; None as fast as the limit allows."""
        cell = self.text("request_rate")
        return None if cell is None or cell.lower() in _UNLIMITED else self.number("request_rate") or None

    def prefix_share(self) -> float:
        """Share of each prompt that is shared text."""
        name = "prefix_pct" if self.text("prefix_pct") is not None else "prefix_hit_pct"
        per_cent = self.number(name) or 0.0
        if per_cent > 100:
            raise self.problem(name, "at most 100")
        if name == "prefix_hit_pct" and per_cent:
            self.assumed.append("the share of tokens found cached is the share of shared text")
        return per_cent / 100

    def assumed_prefixes(self, prefix_share: float) -> int:
        """One, in so many words where it matters."""
        if prefix_share:
            self.assumed.append("all prompts share one text")
        return 1

    def assumed_prompts(self, limit: int | None) -> int:
        """A few times as many requests as are sent at once."""
        if limit is None:
            raise InputError(f"{self.where}: neither num_prompts nor max_concurrency, expected at least one of them")
        num_prompts = max(_FEWEST_PROMPTS, _NUM_WAVES * limit)
        self.assumed.append(
            f"num_prompts is {num_prompts} ({_NUM_WAVES} times the concurrency, at least {_FEWEST_PROMPTS})"
        )
        return num_prompts

    def engine(self) -> dict[str, Any]:
        """Engine arguments that the row states."""
        short = {"tp": "tensor_parallel_size", "dp": "data_parallel_size", "ep": "enable_expert_parallel"}
        found: dict[str, object] = {name: self.text(key) for key, name in short.items()}
        found |= {name: self.text(name) for name in ENGINE_ARGUMENTS if self.text(name) is not None}
        caching = (self.text("prefix_caching") or "").lower()
        if caching.startswith(("on", "off")):
            found.setdefault("enable_prefix_caching", caching.startswith("on"))
            if caching not in ("on", "off"):
                self.assumed.append(f"prefix caching is {caching.split()[0]} ({caching})")
        elif caching and not caching.startswith("default"):
            raise self.problem("prefix_caching", "on, off or default")
        stated = engine_arguments(found, self.where)
        drafts = self.count("spec")
        if drafts:
            stated["speculative_config"] = {"num_speculative_tokens": drafts}
        engine = self.text("engine")
        if engine is not None and not engine.lower().startswith("vllm"):
            self.assumed.append(f"{engine} decides as vLLM does")
        return stated

    def measured(self, outputs: Lengths) -> dict[str, float]:
        """All figures, in seconds and per second."""
        found = {ours: self._figure(ours, theirs) for theirs, ours in _RATES.items()}
        counted = "requests_per_s" if outputs.mean == 1 else "output_tokens_per_s"
        if found[counted] is None:
            found[counted] = self._figure(counted, "baseline_out_tok_s")
        for name in sorted(_MEASURED - found.keys()):
            found[name] = self._figure(name, name)
            if found[name] is None:
                found[name] = self._figure(name, name.removesuffix("_s") + "_ms", 1e-3)
        return {name: value for name, value in found.items() if value is not None}

    def _figure(self, ours: str, theirs: str, factor: float = 1.0) -> float | None:
        value = self.number(theirs)
        if value is None:
            return None
        if value == 0:
            raise self.problem(theirs, "more than 0 (empty, where it was not measured)")
        exponent = Decimal(self._columns[theirs]).as_tuple().exponent
        self.rounding[ours] = factor * 10.0 ** int(exponent) / 2
        return value * factor
