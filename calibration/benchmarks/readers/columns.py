"""Columns of a CSV of load tests: what each is called, here and by the tools that wrote it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields as fields_of
from difflib import SequenceMatcher
from typing import Any

from calibration.benchmarks.benchmark import Measured
from calibration.benchmarks.readers.engine import ENGINE_ARGUMENTS, switch
from simulator.engine_args import EngineArgs
from simulator.engine_args.names import HARMLESS, NOT_MODELLED, SECRET, SWITCHES
from simulator.errors import InputError, nearest

_LOAD = """input_len output_len max_out_len input_len_std output_len_std num_prompts max_concurrency concurrency
    request_rate prefix_pct prefix_hit_pct num_prefixes"""
_OTHER = """id group source file case bench model model_id engine engine_version tp dp ep prefix_caching pd duration_s
    duration failed baseline_out_tok_s spec"""
# Kept as they are, and never a slip of the pen.
_KEPT = "date quant hardware hw_hint npus nodes mode dataset eager graph threshold topology note"

_RATES = {
    "requests_per_s": ("req_s", "request_throughput"),
    "output_tokens_per_s": ("out_tok_s", "output_throughput"),
    "total_tokens_per_s": ("total_tok_s", "total_token_throughput"),
}
_LATENCIES = {"ttft": ("ttft",), "tpot": ("tpot",), "itl": ("itl",), "e2e": ("e2e", "e2el")}
_STATISTICS = {"mean": ("mean", "avg"), "p50": ("p50", "median"), "p90": ("p90",), "p99": ("p99",)}
_UNITS = {"s": 1.0, "ms": 1e-3}


def _spellings(name: str) -> dict[str, float]:
    """What a figure may be called, and what it is to be multiplied with: ours, vLLM's, and a bare name for a mean."""
    if name in _RATES:
        return dict.fromkeys(_RATES[name], 1.0)
    metric, statistic, _ = name.split("_")
    return {
        f"{words}_{unit}": factor
        for one in _LATENCIES[metric]
        for other in _STATISTICS[statistic]
        for words in (f"{one}_{other}", f"{other}_{one}", *([one] if statistic == "mean" else ()))
        for unit, factor in _UNITS.items()
    }


FIGURES: dict[str, dict[str, float]] = {one.name: _spellings(one.name) for one in fields_of(Measured)}
_READ = frozenset({*_LOAD.split(), *_OTHER.split(), *ENGINE_ARGUMENTS}.union(*FIGURES.values()))
# vLLM's arguments that no result is read for: kept for the engine's own check, which refuses those that matter.
# A secret is nobody's business, and "config" is any file's word for what was tested.
_UNREAD_ARGUMENTS = frozenset({*EngineArgs.model_fields, *HARMLESS, *NOT_MODELLED}) - _READ - SECRET - {"config"}
COLUMNS = _READ | frozenset(_KEPT.split())

_ALIKE = 0.85  # a column this much like a known one is a slip of the pen
# Statistics that tools write and nothing here is fitted to are no slips either.
_UNUSED = frozenset(
    words
    for ones in _LATENCIES.values()
    for one in ones
    for other in ("std", "min", "max", *(f"p{point}" for point in range(1, 100)), *_STATISTICS["mean"], "median")
    for unit in _UNITS
    for words in (f"{one}_{other}_{unit}", f"{other}_{one}_{unit}")
)
_NO_SLIPS = COLUMNS | _UNREAD_ARGUMENTS | _UNUSED


def check(header: list[str], file: str) -> None:
    """Raises InputError for a column that is there twice, one that looks misspelt, and for lengths that are missing."""
    twice = next((name for index, name in enumerate(header) if name in header[:index]), None)
    if twice is not None:
        raise InputError(f"{file}, line 1: column {twice!r} is there twice")
    for name in header:
        if name not in _NO_SLIPS:
            hint = nearest(name, (known for known in COLUMNS if _alike(name, known)))
            if "did you mean" in hint:
                raise InputError(f"{file}, line 1: unknown column {name!r}{hint}")
    for needed, other in (("input_len", ""), ("output_len", "max_out_len")):
        if needed not in header and other not in header:
            raise InputError(f"{file}, line 1: column {needed} is missing; lengths are needed")


def _alike(name: str, known: str) -> bool:
    return SequenceMatcher(None, name, known).ratio() >= _ALIKE


def not_read(stated: Mapping[str, str]) -> list[str]:
    """Those of a row's columns that nothing is taken from."""
    return [name for name in stated if name and name not in COLUMNS and name not in _UNREAD_ARGUMENTS]


def unread_arguments(stated: Mapping[str, str], where: str) -> dict[str, Any]:
    """Engine arguments that no result is read for, as a scenario would write their values. Raises InputError."""
    return {name: _value(name, cell, where) for name, cell in stated.items() if name in _UNREAD_ARGUMENTS}


def _value(name: str, cell: str, where: str) -> object:
    if name in SWITCHES:
        try:
            return switch(cell)
        except InputError as error:
            raise InputError(f"{where}: {name}: {error}") from None
    if cell[:1] in ("[", "{"):
        try:
            return json.loads(cell)
        except (ValueError, RecursionError):
            raise InputError(f"{where}: {name} is not JSON, expected a list or an object") from None
    return {"true": True, "false": False}.get(cell.lower(), cell)
