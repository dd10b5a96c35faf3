"""What one run produced, small enough to send between processes, and the headline numbers read from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from simulator.metrics import MEASURED, OUTSIDE, PRIOR, LogHistogram, Metrics
from simulator.statistics import PERCENTILES, percentiles
from simulator.steady import LEAST_REQUESTS, Waits, check_shorter, half_of_each

Summary = dict[str, float | None]

_OVERLOADED_SHARE = 0.1
_LATENCIES = ("ttft", "tpot", "e2e", "queue")


@dataclass
class CacheSharing:
    """How several tenants shared the caches of all instances together. A block is whose content it holds: of the tenant
    that computed it.

    ``residents``: one row a bin of the run, ``start_s``, ``width_s`` and for each tenant, by number, a column with its
    mean number of blocks. ``evicted[of][by]``: blocks of one tenant that lost their content to allocations for another,
    or for itself.
    """

    residents: pd.DataFrame
    final_blocks: list[int]
    evicted: list[list[int]]

    @classmethod
    def of(cls, metrics: Metrics) -> CacheSharing | None:
        """What ``metrics`` recorded; None where nobody kept account: with one tenant, or without caching."""
        if metrics.residents is None:
            return None
        final = metrics.residents.final()
        return cls(metrics.residents.table(metrics.horizon_s), final, metrics.evicted)

    def of_tenant(self, tenant: int) -> Summary:
        """Mean and final blocks of a tenant, and how many it lost to others, took from others, and lost to itself."""
        widths = self.residents["width_s"]
        lost, own = sum(self.evicted[tenant]), self.evicted[tenant][tenant]
        return {
            "resident_blocks_mean": _ratio((self.residents[tenant] * widths).sum(), widths.sum()),
            "resident_blocks_final": self.final_blocks[tenant],
            "blocks_lost_to_others": lost - own,
            "blocks_taken_from_others": sum(row[tenant] for row in self.evicted) - own,
            "blocks_lost_to_itself": own,
        }


@dataclass
class RunResult:
    """One policy in one replication: the requests' rows, the timeline, and what instances counted.

    ``busy_s[instance][support]`` are busy seconds by where the step time came from (0 measured, 1 prior, 2 outside).
    Prefix counters are tokens at admission; those of re-admissions after a preemption are apart, as in vLLM.
    ``num_skipped`` of the first requests are left out of ``requests`` as a warm-up, and ``num_cooldown`` of the
    last as a cool-down (of ``num_late`` that come after the last conversation has begun: as many are missing
    before, beside the full load of the long run); what is recorded by instance and step (busy time, KV use,
    inter-token times) is of the whole run, ``uncut_span_s`` long, but for the shares of time that instances are
    busy and blocks in use: these end with the last request before the cool-down.
    """

    policy: str
    replication: int
    tenants: tuple[str, ...]
    num_instances: int
    num_blocks: int | None
    requests: pd.DataFrame
    timeline: pd.DataFrame
    gaps: LogHistogram
    busy_s: list[list[float]]
    num_steps: list[int]
    max_used_blocks: list[int]
    prefix_queries: list[int]
    prefix_hits: list[int]
    preempted_queries: list[int]
    preempted_hits: list[int]
    targets_s: tuple[dict[str, float], ...] = ()
    sharing: CacheSharing | None = None
    num_skipped: int = 0
    num_cooldown: int = 0
    num_late: int = 0
    uncut_span_s: float | None = None

    @classmethod
    def of(
        cls, metrics: Metrics, *, policy: str, replication: int, targets_s: Sequence[dict[str, float]] = ()
    ) -> RunResult:
        """Everything that ``metrics`` recorded, as the result of one run. ``targets_s`` are the tenants', if any."""
        count = metrics.num_instances
        return cls(
            policy=policy,
            replication=replication,
            tenants=metrics.tenants,
            num_instances=count,
            num_blocks=metrics.num_blocks,
            requests=metrics.table(),
            timeline=metrics.timeline(),
            gaps=metrics.gaps,
            busy_s=[metrics.busy_s[3 * instance : 3 * instance + 3] for instance in range(count)],
            num_steps=metrics.num_steps,
            max_used_blocks=metrics.max_used_blocks,
            prefix_queries=metrics.prefix_queries,
            prefix_hits=metrics.prefix_hits,
            preempted_queries=metrics.preempted_queries,
            preempted_hits=metrics.preempted_hits,
            targets_s=tuple(targets_s),
            sharing=CacheSharing.of(metrics),
        )

    @property
    def span_s(self) -> float | None:
        """Seconds from the first arrival to the last end of a request, refused ones apart: what rates and shares are
        over; None if there is none.
        """
        last = self.requests["finish_s"].max()
        return _known(last - self.requests["arrival_s"].min())

    def before_cooldown(self) -> RunResult:
        """The result without the turns of conversations that come after the last one has begun, under a load that
        falls: a cool-down, at most half of all requests.
        """
        arrival_s = self.requests["arrival_s"]
        late = arrival_s > max(self.last_begun_s().values(), default=0.0)
        if not late.any():
            return self
        kept = ~late | (arrival_s <= arrival_s.median())
        return replace(self._only(kept), num_cooldown=int((~kept).sum()), num_late=int(late.sum()))

    def after(self, num_skipped: int) -> RunResult:
        """The result without its first ``num_skipped`` requests in order of arrival. Raises InputError where that is
        all of them.
        """
        if not num_skipped:
            return self
        check_shorter(num_skipped, len(self.requests))
        kept = self.requests["arrival_s"].rank(method="first") > num_skipped
        return replace(self._only(kept), num_skipped=num_skipped)

    def _only(self, kept: pd.Series) -> RunResult:
        requests = self.requests[kept].reset_index(drop=True)
        return replace(self, requests=requests, uncut_span_s=self.uncut_span_s or self.span_s)

    @property
    def most_skipped(self) -> int:
        """The most of its first requests that a warm-up may be that nobody stated: half of each tenant's."""
        in_order = np.argsort(self.requests["arrival_s"].to_numpy(), kind="stable")
        return half_of_each(self.requests["tenant"].cat.codes.to_numpy()[in_order])

    @property
    def is_overloaded(self) -> bool:
        """Whether half of the requests, of all or of one tenant (a hundred or more), queue longer than a tenth of the
        time in which they come.
        """
        return any(map(_queues_long, [self.requests, *(mine for _, mine in self.requests.groupby("tenant"))]))

    @property
    def arriving_s(self) -> float:
        """Seconds from the first arrival to the last; NaN without any."""
        return _arriving_s(self.requests)

    def waits(self) -> Waits:
        """TTFT (seconds) in order of arrival; where a request has none, that of the one before."""
        rows = self.requests.sort_values("arrival_s", kind="stable")
        values = rows["ttft_s"].ffill().bfill().dropna()
        tenant = rows["tenant"].cat.codes.to_numpy()[: len(values)]
        return Waits(values.to_numpy(dtype=float), self.arriving_s, tenant, self.is_overloaded)

    def last_begun_s(self) -> dict[str, float]:
        """When each tenant's last request that follows no other, or its last session, began (seconds)."""
        rows = self.requests.sort_values("arrival_s", kind="stable")
        begun = rows[_begins(rows)]
        return {str(tenant): float(last_s) for tenant, last_s in begun.groupby("tenant")["arrival_s"].max().items()}

    def summary(self) -> Summary:
        """Headline numbers of the run, flat; None where undefined.

        Latencies (seconds): ``ttft``, ``tpot``, ``inter_token``, ``e2e``, ``queue`` with ``_mean_s`` and ``_p50_s`` ...
        ``_p99_s``. TTFT and queue time are of all requests that got so far, the others of finished ones. Rates are over
        ``span_s``, of finished requests. ``hit_rate`` is the engine's (tokens found / tokens known at first admission),
        ``cached_share`` the user's (cached prompt tokens / prompt tokens of finished requests).
        """
        finished = self.requests[self.requests["state"] == "finished"]
        found = _counts(self.requests) | _latencies(self.requests) | self._inter_token()
        found["span_s"] = self.span_s
        found |= _rates(finished, self.span_s)
        found["hit_rate"] = self._hit_rate()
        found["preempted_hit_rate"] = _ratio(sum(self.preempted_hits), sum(self.preempted_queries))
        found["cached_share"] = _ratio(finished["num_cached_tokens"].sum(), finished["num_prompt_tokens"].sum())
        found |= self._kv_usage() | self._balance(finished)
        return found

    def by_tenant(self) -> list[dict[str, Any]]:
        """Counts, latencies (seconds), rates and cached share of each tenant, in the scenario's order.

        With targets also ``within_targets``, the share of all its requests that finished within them, and ``goodput``,
        their number a second; with several tenants what each had of the caches (`CacheSharing.of_tenant`). Inter-token
        times are recorded by instance and step, not by tenant; a tenant's pace is its TPOT.
        """
        rows = []
        for number, name in enumerate(self.tenants):
            mine = self.requests[self.requests["tenant"] == name]
            finished = mine[mine["state"] == "finished"]
            cached = _ratio(finished["num_cached_tokens"].sum(), finished["num_prompt_tokens"].sum())
            found = _counts(mine) | _latencies(mine) | _rates(finished, self.span_s) | {"cached_share": cached}
            shared = self.sharing.of_tenant(number) if self.sharing is not None else {}
            rows.append({"tenant": name, **found, **self._goodput(mine, number), **shared})
        return rows

    def _hit_rate(self) -> float | None:
        if not self.num_skipped and not self.num_cooldown:
            return _ratio(sum(self.prefix_hits), sum(self.prefix_queries))
        admitted = self.requests[self.requests["first_scheduled_s"].notna()]
        return _ratio(admitted["num_cached_tokens"].sum(), admitted["num_prompt_tokens"].sum())

    def _goodput(self, mine: pd.DataFrame, tenant: int) -> Summary:
        targets_s = self.targets_s[tenant] if self.targets_s else {}
        if not targets_s:
            return {}
        met = mine["state"] == "finished"
        for name, limit_s in targets_s.items():
            met &= ~(mine[f"{name}_s"] > limit_s)  # an answer of one token has no TPOT, and keeps any
        return {"within_targets": _ratio(met.sum(), len(mine)), "goodput": _ratio(met.sum(), self.span_s)}

    def by_instance(self) -> list[dict[str, Any]]:
        """Requests served, TTFT (seconds), busy share, hit rate and KV use of each instance."""
        finished = self.requests.loc[self.requests["state"] == "finished", "instance"].value_counts()
        first_token = self.requests.groupby("instance")["ttft_s"]
        p50, p90 = first_token.quantile(0.5), first_token.quantile(0.9)
        busy_shares = self._busy_shares()
        return [
            {
                "instance": instance,
                "num_finished": int(finished.get(instance, 0)),
                "num_steps": self.num_steps[instance],
                "busy_s": sum(self.busy_s[instance]),
                "busy_share": busy_shares[instance],
                "hit_rate": _ratio(self.prefix_hits[instance], self.prefix_queries[instance]),
                "kv_usage_max": _ratio(self.max_used_blocks[instance], self.num_blocks),
                "ttft_p50_s": _known(p50.get(instance)),
                "ttft_p90_s": _known(p90.get(instance)),
            }
            for instance in range(self.num_instances)
        ]

    def evicted_blocks(self) -> dict[str, dict[str, int]]:
        """By tenant, and by the tenant for whom it happened: blocks that lost their content to allocations. Empty where
        nobody kept account.
        """
        if self.sharing is None:
            return {}
        names, rows = self.tenants, self.sharing.evicted
        return {of: dict(zip(names, row, strict=True)) for of, row in zip(names, rows, strict=True)}

    def refusals(self) -> dict[str, int]:
        """Refused requests by reason, in order of first appearance."""
        return {str(reason): int(count) for reason, count in self.requests["refusal"].value_counts(sort=False).items()}

    def support_s(self) -> dict[str, float]:
        """Busy seconds of all instances by where the step time lies: measured, a prior, outside the measured range."""
        names = {"measured": MEASURED, "prior": PRIOR, "outside": OUTSIDE}
        return {name: sum(busy[code] for busy in self.busy_s) for name, code in names.items()}

    def _inter_token(self) -> Summary:
        found: Summary = {"inter_token_mean_s": self.gaps.mean()}
        for percent in PERCENTILES:
            found[f"inter_token_p{percent}_s"] = self.gaps.quantile(percent / 100)
        return found

    def _kv_usage(self) -> Summary:
        """KV use over time (an idle instance is empty, as in vLLM's gauge) and its peak, as shares of the pool."""
        line, span_s = self._before_cooldown()
        held = float((line["mean_used_blocks"] * line["width_s"]).sum())
        capacity = None if span_s is None or not self.num_blocks else span_s * self.num_blocks
        mean = _ratio(held, capacity and capacity * self.num_instances)
        return {"kv_usage_mean": mean, "kv_usage_max": _ratio(max(self.max_used_blocks), self.num_blocks)}

    def _balance(self, finished: pd.DataFrame) -> Summary:
        """How busy instances are, and how unequal: the largest over the mean (1 is even)."""
        busy = [sum(seconds) for seconds in self.busy_s]
        served = finished["instance"].value_counts()
        mean_busy, mean_served = sum(busy) / self.num_instances, len(finished) / self.num_instances
        shares = [share for share in self._busy_shares() if share is not None]
        return {
            "busy_share": sum(shares) / len(shares) if shares else None,
            "busy_max_over_mean": _ratio(max(busy), mean_busy),
            "requests_max_over_mean": _ratio(max(served, default=0), mean_served),
        }


    def _busy_shares(self) -> list[float | None]:
        """The share of the time that each instance is busy."""
        line, span_s = self._before_cooldown()
        if not self.num_cooldown:
            return [_ratio(sum(seconds), span_s) for seconds in self.busy_s]
        busy_s = line.groupby("instance")["busy_s"].sum()
        return [_ratio(busy_s.get(instance, 0.0), span_s) for instance in range(self.num_instances)]

    def _before_cooldown(self) -> tuple[pd.DataFrame, float | None]:
        """The bins of the timeline that begin before the cool-down does, and how long they are together."""
        if not self.num_cooldown:
            return self.timeline, self.uncut_span_s or self.span_s
        line = self.timeline[self.timeline["start_s"] <= self.requests["arrival_s"].max()]
        return line, float(line["width_s"].sum()) / self.num_instances


def _arriving_s(rows: pd.DataFrame) -> float:
    return float(rows["arrival_s"].max() - rows["arrival_s"].min())


def _queues_long(rows: pd.DataFrame) -> bool:
    return len(rows) >= LEAST_REQUESTS and bool(rows["queue_s"].median() > _OVERLOADED_SHARE * _arriving_s(rows) > 0)


def _begins(rows: pd.DataFrame) -> pd.Series:
    """Which of the requests, in order of arrival, belong to no session or begin one."""
    return rows["session"].isna() | ~rows.duplicated(["tenant", "session"])


def _counts(requests: pd.DataFrame) -> Summary:
    states = requests["state"].value_counts()
    found: Summary = {"num_requests": len(requests)}
    found |= {f"num_{state}": int(count) for state, count in sorted(states.items())}
    found["num_preemptions"] = int(requests["num_preemptions"].sum())
    return found


def _latencies(requests: pd.DataFrame) -> Summary:
    """Mean and percentiles of the four durations that a request's row holds."""
    found: Summary = {}
    for name in _LATENCIES:
        values = requests[f"{name}_s"].dropna().to_numpy()
        found[f"{name}_mean_s"] = float(values.mean()) if len(values) else None
        points = percentiles(values)
        for index, percent in enumerate(PERCENTILES):
            found[f"{name}_p{percent}_s"] = points[index] if points else None
    return found


def _rates(finished: pd.DataFrame, span_s: float | None) -> Summary:
    output, prompt = int(finished["num_output_tokens"].sum()), int(finished["num_prompt_tokens"].sum())
    return {
        "requests_per_s": _ratio(len(finished), span_s),
        "output_tokens_per_s": _ratio(output, span_s),
        "total_tokens_per_s": _ratio(output + prompt, span_s),
    }


def _known(value: float | None) -> float | None:
    return None if value is None or pd.isna(value) else float(value)


def _ratio(part: float, whole: float | None) -> float | None:
    return float(part) / float(whole) if whole else None
