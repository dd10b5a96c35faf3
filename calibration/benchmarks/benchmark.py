"""A load test and what it measured, whichever tool wrote it: tokens, seconds and plain numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from statistics import fmean
from typing import Any


@dataclass(frozen=True)
class Lengths:
    """Tokens of each prompt (or answer): given one by one, or by their mean alone (all equal then), or drawn.

    ``each`` is in the order of sending, where the result lists it. ``deviation`` is the standard deviation where only
    that is known: lengths are then drawn lognormal, whatever the test drew them from.
    """

    mean: float
    each: tuple[int, ...] = ()
    deviation: float | None = None

    @classmethod
    def of(cls, each: Sequence[int]) -> Lengths:
        """Lengths given one by one; there is at least one."""
        return cls(mean=fmean(each), each=tuple(each))

    @property
    def are_equal(self) -> bool:
        """Whether all are known to be alike. Means alone do not tell, and count as alike."""
        return len(set(self.each)) <= 1 and not self.deviation


@dataclass(frozen=True)
class Measured:
    """Figures of a load test in seconds and per second; None where the result does not say.

    ``tpot``: (end - first token) / (tokens - 1) of each request; ``itl``: each gap between tokens; as ``vllm bench
    serve`` counts.
    """

    ttft_mean_s: float | None = None
    ttft_p50_s: float | None = None
    ttft_p90_s: float | None = None
    ttft_p99_s: float | None = None
    tpot_mean_s: float | None = None
    tpot_p50_s: float | None = None
    tpot_p90_s: float | None = None
    tpot_p99_s: float | None = None
    itl_mean_s: float | None = None
    e2e_mean_s: float | None = None
    requests_per_s: float | None = None
    output_tokens_per_s: float | None = None
    total_tokens_per_s: float | None = None

    @property
    def stated(self) -> dict[str, float]:
        """The figures that there are."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) is not None}


@dataclass(frozen=True)
class Benchmark:
    """One load test of one engine.

    Attributes:
        name: unique in a file: the file's stem and what tells its tests apart.
        group: tests of one load (lengths, concurrency, rate, prefix) have the same, and are held out together.
        file: where it stands, for messages: ``results.csv, line 12``.
        tool: what wrote it.
        source: where the figures were published, when the file says so.
        engine: vLLM argument names and values that the result states.
        num_prompts: requests sent and answered.
        max_concurrency: None: no limit.
        requests_per_s: mean arrival rate, arrivals Poisson; None: as fast as the limit allows.
        prefix_share: share of each prompt that is text shared with other prompts.
        num_prefixes: how many such texts there are.
        assumed: what the reader assumed, in words.
        columns: all columns of a CSV row, as written.
        rounding: half a unit of the last digit, of figures written with few digits (by their name in ``Measured``).
        duration_s: seconds from the first request sent to the last answer.
        num_failed: requests that failed; they are in no figure.
        num_engines: engines behind the address that was tested.
    """

    name: str
    group: str
    file: str
    tool: str
    source: str
    model: str | None
    engine_version: str | None
    engine: Mapping[str, Any]
    num_prompts: int
    inputs: Lengths
    outputs: Lengths
    max_concurrency: int | None
    requests_per_s: float | None
    prefix_share: float = 0.0
    num_prefixes: int = 1
    measured: Measured = Measured()
    assumed: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    rounding: Mapping[str, float] = field(default_factory=dict)
    duration_s: float | None = None
    num_failed: int = 0
    num_engines: int = 1


# Lengths within one cell of a geometric grid count as alike: twelve cells an octave, 6 % each. They begin where few
# tests ask for lengths: 100, 128, 200, 500, 1000, 1024, 1500, 3500, their halves and doubles stand 0.7 % inside.
_CELLS_AN_OCTAVE, _CELLS_BEGIN = 12, 0.15
_COUNTED_OUT = 16  # tokens: below, whole numbers are further apart than the cells


def about(num_tokens: float) -> str:
    """A number of tokens to about 6 %: the middle of its cell, the same for all in it.

    Means of one test's repeats differ by fractions, and tell no two tests apart.
    """
    if num_tokens < _COUNTED_OUT:
        return f"{num_tokens:.0f}"
    cell = math.floor(_CELLS_AN_OCTAVE * math.log2(num_tokens) - _CELLS_BEGIN)
    middle = 2 ** ((cell + _CELLS_BEGIN + 0.5) / _CELLS_AN_OCTAVE)
    return f"{float(f'{middle:.3g}'):.0f}"


def load_words(
    inputs: Lengths, outputs: Lengths, max_concurrency: int | None, requests_per_s: float | None, prefix_share: float
) -> str:
    """What was asked of the engine, in words: the group of a benchmark, the same whichever tool tested.

    Nor does it matter whether lengths were listed, drawn or given by their mean: that is how much a tool tells. The
    shared part of prompts stands as the tokens that are not shared, which the engine has to compute.
    """
    words = [f"about {about(inputs.mean)}+{about(outputs.mean)} tokens"]
    words.append("no limit" if max_concurrency is None else f"concurrency {max_concurrency}")
    if requests_per_s is not None:
        words.append(f"{float(f'{requests_per_s:.2g}'):g}/s")
    if prefix_share:
        words.append(f"about {about(inputs.mean * (1 - prefix_share))} of each prompt not shared")
    return ", ".join(words)
