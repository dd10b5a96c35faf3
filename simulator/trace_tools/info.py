"""Everything that `kvcast trace info` says about a file, from one reading of it."""

from __future__ import annotations

import dataclasses
import heapq
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulator.counts import counted
from simulator.errors import InputError
from simulator.request import Prompt
from simulator.trace_tools.arrivals import Arrivals, arrivals
from simulator.trace_tools.reuse import Curve, Reuse
from simulator.trace_tools.sessions import SessionCount, Sessions, Tenant, TenantCount
from simulator.trace_tools.sharing import Ideal, Sharing
from simulator.trace_tools.spread import PERCENTILES, Spread, spread, weighted_percentiles
from simulator.trace_tools.tree import Prefix, PrefixTree
from simulator.workload.records import Record, Trace

BLOCK_SIZES = (16, 128)  # vLLM's defaults on GPUs and on Ascend NPUs; the file's own is added
CACHE_SHARES = (0.01, 0.03, 0.1, 0.3, 1.0)  # of the distinct blocks: where the hit curve is shown
LONG_PROMPTS = (32 * 1024, 128 * 1024)
_NUM_PREFIXES = 1000  # enough for the figure


@dataclass(frozen=True)
class CachePoint:
    """A cache of ``num_blocks`` (a share of the distinct ones) hits ``hit_share`` of the prompt tokens."""

    share_of_distinct: float
    num_blocks: int
    hit_share: float


@dataclass(frozen=True)
class Reuses:
    """LRU reuse of whole blocks in the file's order; distances in distinct blocks, intervals in seconds."""

    block_size: int
    num_reused: int
    distances: dict[str, int | None]
    intervals_s: dict[str, float] | None
    curve: tuple[CachePoint, ...]


@dataclass(frozen=True)
class Prompts:
    """What the file tells of the texts of ``num_requests`` prompts, ``num_tokens`` tokens in all. ``as_file`` counts
    blocks as the file does.
    """

    num_requests: int
    num_tokens: int
    ideal: tuple[Ideal, ...]
    as_file: Ideal | None
    reuse: Reuses
    popular: tuple[Prefix, ...]
    num_same_start: int  # requests with the most common first block


@dataclass(frozen=True)
class Info:
    """A file of recorded requests. ``arrivals`` is None where times are per session, ``prompts`` where no text is
    known. ``assumed`` is what the reader takes for granted, in words.
    """

    format: str
    block_tokens: int | None
    sessions_start_together: bool
    num_requests: int
    num_skipped: int
    skipped: tuple[tuple[int, str], ...]
    assumed: tuple[str, ...]
    arrivals: Arrivals | None
    num_unordered: int
    first_unordered_line: int | None
    input_tokens: Spread
    output_tokens: Spread
    num_longer: dict[int, int]
    prompts: Prompts | None
    sessions: Sessions | None
    tenants: tuple[Tenant, ...]

    def to_json(self) -> dict[str, Any]:
        """All of it but the long tail of prefixes."""
        found = dataclasses.asdict(self)
        if self.prompts is not None:
            found["prompts"]["popular"] = [prefix._asdict() for prefix in self.prompts.popular[:10]]
        return found


@dataclass(frozen=True)
class Samples:
    """What the figure draws beside the numbers: one value a request."""

    times_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    curve: Curve | None


def summarise(trace: Trace, path: Path, block_sizes: Sequence[int] = ()) -> tuple[Info, Samples]:
    """Read the file once. The first of ``block_sizes`` is that of the reuse distances.

    Raises InputError for a file without requests, beside what reading it raises.
    """
    own = trace.block_tokens if trace.block_tokens and trace.block_tokens > 1 else None
    sizes = list(dict.fromkeys(block_sizes or ([own] if own else []) + list(BLOCK_SIZES)))
    texts = _Texts(sizes, own, trace.sessions_start_together)
    sessions, tenants, order = SessionCount(), TenantCount(), _Order(trace.sessions_start_together)
    times, inputs, outputs = array("d"), array("q"), array("q")
    for line, record in trace.records():
        times.append(record.arrival_s)
        inputs.append(record.num_prompt_tokens)
        outputs.append(record.num_output_tokens)
        order.add(line, record)
        sessions.add(record)
        tenants.add(record)
        if record.prompt is not None:
            texts.add(record, record.prompt)
    samples = Samples(np.array(times), np.array(inputs), np.array(outputs), texts.curve())
    input_tokens, output_tokens = spread(samples.input_tokens), spread(samples.output_tokens)
    if input_tokens is None or output_tokens is None:
        raise InputError(f"{path}: no request that can be read ({counted(trace.num_skipped, 'line')} skipped)")
    info = Info(
        format=trace.format,
        block_tokens=trace.block_tokens,
        sessions_start_together=trace.sessions_start_together,
        num_requests=len(times),
        num_skipped=trace.num_skipped,
        skipped=tuple(trace.skipped()),
        assumed=tuple(getattr(trace, "assumed", ())),
        arrivals=None if trace.sessions_start_together else arrivals(samples.times_s),
        num_unordered=order.num,
        first_unordered_line=order.first_line,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        num_longer={limit: int((samples.input_tokens > limit).sum()) for limit in LONG_PROMPTS},
        prompts=texts.prompts(),
        sessions=sessions.sessions(),
        tenants=tenants.tenants(),
    )
    return info, samples


class _Texts:
    """All that follows from what prompts share."""

    def __init__(self, sizes: Sequence[int], own: int | None, per_session: bool) -> None:
        self._tree = PrefixTree()
        self._sharing = [Sharing(size) for size in sizes]
        self._as_file = Sharing(own, as_file=True) if own else None
        self._reuse = Reuse(sizes[0])
        self._per_session = per_session
        self._times = array("d")
        self._sessions: list[int | str | None] = []  # by visit, where only times of one session compare
        self._intervals, self._weights = array("d"), array("q")
        self._num_tokens = 0

    def add(self, record: Record, prompt: Prompt) -> None:
        length, num_tokens = record.num_prompt_tokens, record.num_prompt_tokens
        names_tail = bool(prompt) and prompt[-1][0] is not None
        if record.output_segment is not None and record.num_output_tokens > 1:
            # vLLM never computes the KV of an answer's last token.
            prompt = (*prompt, (record.output_segment, 0, record.num_output_tokens - 1))
            num_tokens += record.num_output_tokens - 1
        self._num_tokens += length
        self._times.append(record.arrival_s)
        if self._per_session:
            self._sessions.append(record.session)
        visit = self._tree.visit(prompt)
        for sharing in self._sharing:
            sharing.add(visit, length, num_tokens, names_tail)
        if self._as_file:
            self._as_file.add(visit, length, num_tokens, names_tail)
        wanted = max(0, length - 1)
        self._reuse.add(visit.spans, num_tokens, wanted)
        size = self._reuse.block_size
        for before, start, end in visit.spans:
            weight = min(end, wanted) // size - start // size
            if weight > 0 and not (self._per_session and self._sessions[before] != record.session):
                self._intervals.append(record.arrival_s - self._times[before])
                self._weights.append(weight)

    def curve(self) -> Curve | None:
        return self._reuse.curve() if self._times else None

    def prompts(self) -> Prompts | None:
        if not self._times:
            return None
        ideal = tuple(sharing.ideal() for sharing in self._sharing)
        prefixes = self._tree.prefixes()
        block = self._reuse.block_size
        same_start = max((prefix.num_requests for prefix in prefixes if prefix.num_tokens >= block), default=1)
        return Prompts(
            num_requests=len(self._times),
            num_tokens=self._num_tokens,
            ideal=ideal,
            as_file=self._as_file.ideal() if self._as_file else None,
            reuse=self._reuses(self._reuse.curve()),
            popular=tuple(heapq.nlargest(_NUM_PREFIXES, prefixes, key=lambda prefix: prefix.num_saved)),
            num_same_start=same_start,
        )

    def _reuses(self, curve: Curve) -> Reuses:
        size = self._reuse.block_size
        points = []
        for share in CACHE_SHARES:
            num_blocks = round(share * curve.num_distinct)
            hit_share = curve.hits(num_blocks) * size / self._num_tokens if self._num_tokens else 0.0
            points.append(CachePoint(share, num_blocks, hit_share))
        return Reuses(
            block_size=size,
            num_reused=self._reuse.num_reused,
            distances={f"p{share}": curve.distance(share / 100) for share in PERCENTILES},
            intervals_s=weighted_percentiles(np.array(self._intervals), np.array(self._weights)),
            curve=tuple(points),
        )


class _Order:
    """Requests that are earlier than the one before them: in the file, or in their session where times are per
    session.
    """

    def __init__(self, per_session: bool) -> None:
        self.num = 0
        self.first_line: int | None = None
        self._per_session = per_session
        self._latest: dict[int | str | None, float] = {}

    def add(self, line: int, record: Record) -> None:
        whose = record.session if self._per_session else None
        if record.arrival_s < self._latest.get(whose, record.arrival_s):
            self.num += 1
            self.first_line = self.first_line or line
        self._latest[whose] = record.arrival_s
