"""Columns filled during a run: one row a request, running sums an advance, nothing a token.

Pure Python on purpose: instances call it in their loop, and appending to an ``array`` costs less than any numpy call.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from itertools import accumulate
from operator import add
from typing import TYPE_CHECKING

from simulator.residents import Residents

if TYPE_CHECKING:
    import pandas as pd

    from simulator.plan import Plan
    from simulator.request import Request

STATES = ("finished", "refused", "aborted")
MEASURED, PRIOR, OUTSIDE = range(3)

_STATE_CODES = {state: code for code, state in enumerate(STATES)}
_NAN = math.nan
_TIME_FIELDS = ("arrival_s", "queued_s", "first_scheduled_s", "first_token_s", "finish_s")
_COUNT_FIELDS = (
    "request_id", "tenant", "session", "instance", "state", "refusal", "num_prompt_tokens", "num_output_tokens",
    "num_cached_tokens", "num_preemptions", "num_retries",
)

# A timeline bin holds sums: seconds, tokens, and queue lengths and blocks multiplied by the seconds they lasted.
_BUSY, _DECODE, _PREFILL, _WAITING, _RUNNING, _BLOCKS, _QUERIES, _HITS, _BIN_WIDTH = range(9)
_FIRST_BIN_S = 1.0
_MAX_BINS = 360
_MAX_CELLS = 100_000


class LogHistogram:
    """Weights of positive durations in bins 1 % wide: quantiles within 0.5 %, exact total and mean.

    Durations below a microsecond or above about three hours fall into the first or last bin; a bin's value is its
    geometric middle.
    """

    __slots__ = ("counts", "total", "weight")

    LOWEST_S = 1e-6
    SCALE = 1.0 / math.log(1.01)
    NUM_BINS = 2315

    def __init__(self) -> None:
        self.counts = [0] * self.NUM_BINS
        self.weight = 0
        self.total = 0.0

    def add(self, value_s: float, weight: int) -> None:
        """Count ``weight`` durations of ``value_s`` seconds."""
        index = int(math.log(value_s / self.LOWEST_S) * self.SCALE) if value_s > self.LOWEST_S else 0
        self.counts[index if index < self.NUM_BINS else -1] += weight
        self.weight += weight
        self.total += value_s * weight

    def merge(self, other: LogHistogram) -> None:
        """Add another histogram's counts to this one's."""
        self.counts = list(map(add, self.counts, other.counts))
        self.weight += other.weight
        self.total += other.total

    def mean(self) -> float | None:
        """Mean duration in seconds, exact; None when empty."""
        return self.total / self.weight if self.weight else None

    def quantile(self, fraction: float) -> float | None:
        """The smallest duration (seconds) with at least ``fraction`` of the weight at or below it; None when empty.

        This is the inverse of the empirical distribution function, definition 1 of Hyndman & Fan (1996), "Sample
        quantiles in statistical packages", The American Statistician 50(4).
        """
        if not self.weight:
            return None
        needed = fraction * self.weight
        index = next(
            index for index, seen in enumerate(accumulate(self.counts)) if self.counts[index] and seen >= needed
        )
        return self.LOWEST_S * math.exp((index + 0.5) / self.SCALE)


class Metrics:
    """What one run records. Instances are numbered from zero; tenants are named in the order of ``request.tenant``.

    ``num_blocks`` is what an instance's pool can hold (vLLM's null block not counted): KV use is a share of it, or
    unknown (None) without it. The timeline starts with bins of one second and doubles their width whenever a run
    outgrows the bins it may have, so that a result stays small however long the run.
    """

    def __init__(self, num_instances: int, tenants: Sequence[str] = ("",), num_blocks: int | None = None) -> None:
        self.num_instances = num_instances
        self.tenants = tuple(tenants)
        self.num_blocks = num_blocks
        self.gaps = LogHistogram()
        self.horizon_s = 0.0
        self.bin_s = _FIRST_BIN_S
        self.busy_s = [0.0] * (3 * num_instances)
        self.num_steps = [0] * num_instances
        self.max_used_blocks = [0] * num_instances
        self.prefix_queries = [0] * num_instances
        self.prefix_hits = [0] * num_instances
        self.preempted_queries = [0] * num_instances
        self.preempted_hits = [0] * num_instances
        self.residents: Residents | None = None  # where pools know whose content they hold
        self.evicted = [[0] * len(self.tenants) for _ in self.tenants]  # [of][by], as `tenancy.Ledger` counts
        self.refusals: list[str] = []
        self._refusal_codes: dict[str, int] = {}
        self._times = array("d")
        self._counts = array("q")
        # An even number of bins, so that coarsening merges them in pairs.
        self._num_bins = 2 * (max(24, min(_MAX_BINS, _MAX_CELLS // num_instances)) // 2)
        self._bins = [array("d", bytes(8 * _BIN_WIDTH * self._num_bins)) for _ in range(num_instances)]

    # --- Called during the run -------------------------------------------------------------------------------------

    def request(self, request: Request) -> None:
        """Append the row of a request that has just finished, been refused or been aborted.

        Raises KeyError for a request in any other state.
        """
        queued_s, scheduled_s = request.queued_s, request.first_scheduled_s
        token_s, finish_s = request.first_token_s, request.finish_s
        session, instance, refusal = request.session, request.instance, request.refusal
        self._times.extend((
            request.arrival_s,
            _NAN if queued_s is None else queued_s,
            _NAN if scheduled_s is None else scheduled_s,
            _NAN if token_s is None else token_s,
            _NAN if finish_s is None else finish_s,
        ))
        self._counts.extend((
            request.request_id,
            request.tenant,
            -1 if session is None else session,
            -1 if instance is None else instance,
            _STATE_CODES[request.state],
            -1 if refusal is None else self._refusal_code(refusal),
            request.num_prompt_tokens,
            request.num_output_tokens,
            request.num_cached_tokens,
            request.num_preemptions,
            request.num_retries,
        ))

    def advance(
        self, instance: int, start_s: float, end_s: float, num_steps: int, plan: Plan, support: int,
        num_waiting: int, num_running: int, used_blocks: int,
    ) -> None:
        """Record ``num_steps`` steps of ``plan`` which kept ``instance`` busy from ``start_s`` to ``end_s``.

        ``support`` says where the step time comes from (0 measured, 1 prior, 2 outside the measured range). Queue
        lengths and blocks in use are taken to hold for the whole advance.
        """
        elapsed_s = end_s - start_s
        self.busy_s[3 * instance + support] += elapsed_s
        self.num_steps[instance] += num_steps
        if used_blocks > self.max_used_blocks[instance]:
            self.max_used_blocks[instance] = used_blocks
        if end_s > self.horizon_s:
            self.horizon_s = end_s
        num_decoded = num_steps * plan.num_decodes
        first = int(start_s / self.bin_s)
        if int(end_s / self.bin_s) != first or first >= self._num_bins:
            self._spread(instance, start_s, end_s, (
                num_decoded, num_steps * plan.num_prefill_tokens,
                num_waiting * elapsed_s, num_running * elapsed_s, used_blocks * elapsed_s,
            ))
            return
        bins = self._bins[instance]
        first *= _BIN_WIDTH
        bins[first] += elapsed_s
        if num_decoded:
            bins[first + 1] += num_decoded
        if plan.num_prefill_tokens:
            bins[first + 2] += num_steps * plan.num_prefill_tokens
        if num_waiting:
            bins[first + 3] += num_waiting * elapsed_s
        bins[first + 4] += num_running * elapsed_s
        bins[first + 5] += used_blocks * elapsed_s

    def token_gaps(self, gap_s: float, count: int = 1) -> None:
        """Count ``count`` inter-token times of ``gap_s`` seconds: as vLLM, one for each output after a request's first,
        however many tokens come with it.
        """
        self.gaps.add(gap_s, count)

    def watch_residents(self) -> None:
        """Instances will report whose content their pools hold."""
        self.residents = Residents(self.num_instances, len(self.tenants))

    def evictions(self, evicted: Sequence[Sequence[int]]) -> None:
        """Add an instance's count of blocks by whose content they lost and for whom (`tenancy.Ledger.evicted`)."""
        self.evicted = [list(map(add, mine, more)) for mine, more in zip(self.evicted, evicted, strict=True)]

    def prefix(self, instance: int, now_s: float, queries: int, hits: int, preempted: bool = False) -> None:
        """Count an admission's known tokens (``queries``) and those found in the cache (``hits``).

        As vLLM does (``PrefixCacheStats.record``), admissions after a preemption are kept apart: they would otherwise
        raise the hit rate with blocks that the request itself left behind.
        """
        if preempted:
            self.preempted_queries[instance] += queries
            self.preempted_hits[instance] += hits
            return
        self.prefix_queries[instance] += queries
        self.prefix_hits[instance] += hits
        cell = self._cell(now_s)
        bins = self._bins[instance]
        bins[cell + _QUERIES] += queries
        bins[cell + _HITS] += hits

    # --- Read after the run ----------------------------------------------------------------------------------------

    @property
    def num_requests(self) -> int:
        """Requests that have ended so far."""
        return len(self._times) // len(_TIME_FIELDS)

    def table(self) -> pd.DataFrame:
        """One row a request in the order in which they ended; times in seconds, missing values null.

        Durations follow vLLM's histograms: ``ttft_s`` first token − arrival (null where the client had hung up before),
        ``queue_s`` queued → first scheduled, ``e2e_s`` finish − arrival (finished requests only), ``tpot_s`` (finish −
        first token) / (outputs − 1), null where there was one token only (vLLM reports zero there, which would pull the
        percentiles down).
        """
        import numpy as np
        import pandas as pd

        times = np.array(self._times).reshape(-1, len(_TIME_FIELDS)).T
        counts = np.array(self._counts).reshape(-1, len(_COUNT_FIELDS)).T
        columns = dict(zip(_COUNT_FIELDS, counts, strict=True)) | dict(zip(_TIME_FIELDS, times, strict=True))
        table = pd.DataFrame(columns)
        for name in ("session", "instance"):
            table[name] = table[name].astype("Int64").mask(table[name] < 0)
        for name, words in (("tenant", self.tenants), ("state", STATES), ("refusal", self.refusals)):
            table[name] = pd.Categorical.from_codes(table[name], categories=list(words))
        finished = table["state"] == "finished"
        table["queue_s"] = table["first_scheduled_s"] - table["queued_s"]
        table["ttft_s"] = table["first_token_s"] - table["arrival_s"]
        table["e2e_s"] = (table["finish_s"] - table["arrival_s"]).where(finished)
        intervals = (table["num_output_tokens"] - 1).where(finished & (table["num_output_tokens"] > 1))
        table["tpot_s"] = (table["finish_s"] - table["first_token_s"]) / intervals
        return table

    def timeline(self) -> pd.DataFrame:
        """One row per instance and bin: busy seconds, tokens, mean queue lengths, mean KV use, prefix tokens.

        Means are over the bin's whole time (the last bin ends with the run); an idle instance counts as empty, since
        vLLM counts cached but unreferenced blocks as free. ``kv_usage`` is a share, null without ``num_blocks``.
        """
        import numpy as np
        import pandas as pd

        num_bins = max(1, min(math.ceil(self.horizon_s / self.bin_s), self._num_bins))
        sums = np.array([bins[: num_bins * _BIN_WIDTH] for bins in self._bins]).reshape(-1, _BIN_WIDTH).T
        starts = np.arange(num_bins) * self.bin_s
        widths = np.tile(np.minimum(self.bin_s, np.maximum(self.horizon_s - starts, 1e-12)), self.num_instances)
        return pd.DataFrame({
            "instance": np.repeat(np.arange(self.num_instances), num_bins),
            "start_s": np.tile(starts, self.num_instances),
            "width_s": widths,
            "busy_s": sums[_BUSY],
            "num_decode_tokens": sums[_DECODE],
            "num_prefill_tokens": sums[_PREFILL],
            "mean_waiting": sums[_WAITING] / widths,
            "mean_running": sums[_RUNNING] / widths,
            "mean_used_blocks": sums[_BLOCKS] / widths,
            "kv_usage": sums[_BLOCKS] / widths / (self.num_blocks or _NAN),
            "prefix_queries": sums[_QUERIES],
            "prefix_hits": sums[_HITS],
        })

    # --- Inside ----------------------------------------------------------------------------------------------------

    def _refusal_code(self, reason: str) -> int:
        code = self._refusal_codes.get(reason)
        if code is None:
            code = self._refusal_codes[reason] = len(self.refusals)
            self.refusals.append(reason)
        return code

    def _cell(self, now_s: float) -> int:
        """Where the bin of ``now_s`` begins, after making room for it."""
        index = int(now_s / self.bin_s)
        while index >= self._num_bins:
            self._coarsen()
            index = int(now_s / self.bin_s)
        return index * _BIN_WIDTH

    def _spread(self, instance: int, start_s: float, end_s: float, amounts: tuple[float, ...]) -> None:
        """Share an advance out over the bins it touches, by time."""
        last = self._cell(end_s) // _BIN_WIDTH
        first = int(start_s / self.bin_s)
        bins = self._bins[instance]
        elapsed_s = end_s - start_s
        for index in range(first, last + 1):
            inside_s = min(end_s, (index + 1) * self.bin_s) - max(start_s, index * self.bin_s)
            share = inside_s / elapsed_s if elapsed_s else 1.0
            cell = index * _BIN_WIDTH
            bins[cell] += inside_s
            for offset, amount in enumerate(amounts, start=1):
                bins[cell + offset] += amount * share

    def _coarsen(self) -> None:
        """Double the width of a bin by merging neighbours."""
        half = self._num_bins // 2 * _BIN_WIDTH
        for bins in self._bins:
            merged = array("d", bytes(8 * len(bins)))
            for column in range(_BIN_WIDTH):
                evens, odds = bins[column :: 2 * _BIN_WIDTH], bins[column + _BIN_WIDTH :: 2 * _BIN_WIDTH]
                merged[column:half:_BIN_WIDTH] = array("d", map(add, evens, odds))
            bins[:] = merged
        self.bin_s *= 2
