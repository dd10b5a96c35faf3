"""Benchmarks as a plain CSV, one row a test (names: ``columns``):

- load: ``input_len``, ``output_len`` (tokens; means where they differ), ``input_len_std``, ``output_len_std``,
  ``num_prompts``, ``max_concurrency``, ``request_rate`` (a second; empty, 0 or inf: as fast as the limit allows),
  ``prefix_pct`` (per cent of each prompt that are shared text), ``num_prefixes``;
- figures: ``ttft_mean_ms``, ``tpot_p99_ms`` and the like (or ``_s``), ``req_s``, ``out_tok_s``, ``total_tok_s``, or
  vLLM's names of them (``mean_ttft_ms``, ``request_throughput``); ``ttft_ms`` is a mean; ``duration_s``, ``failed``;
- what was tested: ``id``, ``group``, ``source``, ``model``, ``engine``, ``engine_version``, ``tp``, ``dp``, ``ep``,
  ``prefix_caching`` and engine arguments by vLLM's names.

All columns are kept as they are; those that nothing is taken from are named in ``assumed``.

AISBench's baselines of vllm-ascend call some differently: ``concurrency``, ``max_out_len``, ``baseline_out_tok_s``,
which counts requests where answers have one token.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

from calibration.benchmarks.benchmark import Benchmark, Lengths, Measured, load_words
from calibration.benchmarks.readers.columns import COLUMNS, FIGURES, check, not_read, unread_arguments
from calibration.benchmarks.readers.engine import ENGINE_ARGUMENTS, engine_arguments
from simulator.errors import InputError
from simulator.units import number

__all__ = ["COLUMNS", "EXPECTED", "TOOL", "read", "rows"]

TOOL = "csv"
EXPECTED = "a CSV with columns input_len, output_len and a measured figure"

_ABSENT = {"", "-", "not stated", "n/a", "none"}
_UNLIMITED = {"inf", "infinity"}
_NUM_WAVES, _FEWEST_PROMPTS = 4, 32


def rows(text: str, file: str) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and columns of each row; ends with what is not CSV as an InputError."""
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        check(header, file)
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
    row.say_what_is_not_read()
    group = row.text("group") or load_words(inputs, outputs, limit, rate, prefix_share)
    return Benchmark(
        name=f"{stem}/{row.text('id') or f'line {line}'}",
        group=group,
        file=row.where,
        tool=TOOL,
        source=row.text("source", "file") or "",
        model=row.text("model", "model_id"),
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
        duration_s=row.number("duration_s", "duration"),
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
        if name == "prefix_pct" and 0 < per_cent < 1:
            raise self.problem(name, "per cent (75, not 0.75)")
        if name == "prefix_hit_pct" and per_cent:
            self.assumed.append(f"the share of tokens found cached ({per_cent:g} %) is the share of shared text")
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
        stated = engine_arguments(found, self.where) | unread_arguments(self._stated, self.where)
        drafts = self.count("spec")
        if drafts:
            stated["speculative_config"] = {"num_speculative_tokens": drafts}
        engine = self.text("engine")
        if engine is not None and not engine.lower().startswith("vllm"):
            self.assumed.append(f"{engine} decides as vLLM does")
        return stated

    def measured(self, outputs: Lengths) -> dict[str, float]:
        """All figures, in seconds and per second."""
        found = {name: self._figure(name, spellings) for name, spellings in FIGURES.items()}
        counted = "requests_per_s" if outputs.mean == 1 else "output_tokens_per_s"
        if found[counted] is None:
            found[counted] = self._figure(counted, {"baseline_out_tok_s": 1.0})
        return {name: value for name, value in found.items() if value is not None}

    def _figure(self, ours: str, spellings: Mapping[str, float]) -> float | None:
        given = [name for name in spellings if self.text(name) is not None]
        if len(given) > 1:
            raise InputError(f"{self.where}: {' and '.join(given)} state the same figure, expected one of them")
        if not given:
            return None
        (theirs,) = given
        value = self.number(theirs)
        if not value:
            raise self.problem(theirs, "more than 0 (empty, where it was not measured)")
        factor = spellings[theirs]
        exponent = Decimal(self._columns[theirs]).as_tuple().exponent
        self.rounding[ours] = factor * 10.0 ** int(exponent) / 2
        return value * factor

    def say_what_is_not_read(self) -> None:
        """Names the columns that state something which nothing is taken from."""
        names = not_read(self._stated)
        if names:
            self.assumed.append(f"columns not read: {', '.join(names)}")

    @property
    def _stated(self) -> dict[str, str]:
        return {name: cell for name in self._columns if (cell := self.text(name)) is not None}
