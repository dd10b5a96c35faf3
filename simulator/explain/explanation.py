"""One run explained: the parts of its times to first token, by tenant and percentile band."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator.errors import InputError, nearest
from simulator.explain.parts import NAMES
from simulator.explain.recorder import Recorder
from simulator.explain.source import Source, check_same

if TYPE_CHECKING:
    import pandas as pd

    from simulator.explain.chunks import Chunks
    from simulator.scenario import Scenario

BANDS = ((0, 50), (50, 90), (90, 99), (99, 100))
"""Percentile bands of the time to first token, among one tenant's requests."""
ALL = "all tenants"


@dataclass(frozen=True)
class Band:
    """Requests between two percentiles of ``tenant``'s (``ALL``: everybody's) times to first token.

    ``mean_s`` are means over ``num_requests`` of them: ``ttft_s``, the parts by name, and ``saved_s``, what the cache
    saved, which is no part. Empty without requests.
    """

    tenant: str
    low: int
    high: int
    num_requests: int
    mean_s: dict[str, float]

    @property
    def name(self) -> str:
        return "all" if (self.low, self.high) == (0, 100) else f"p{self.low}-{self.high}"

    def share(self, part: str) -> float | None:
        """The part's share of the band's time to first token; None where there is none."""
        ttft_s = self.mean_s.get("ttft_s")
        return self.mean_s[part] / ttft_s if ttft_s else None


@dataclass
class Explanation:
    """One policy or variant (``label``) of a scenario in one replication; of all tenants, or one (``tenant``).

    ``scenario`` is what was simulated. ``requests`` are all rows of the run in order of ids, whoever is meant, with the
    parts (null without a first token) and ``num_preemptions_before`` the first token. ``num_uncounted``:
    how many of these the report of the run does not count; None where there was no run whose rows they are.
    """

    scenario: Scenario
    label: str
    replication: int
    tenants: tuple[str, ...]
    requests: pd.DataFrame
    chunks: list[Chunks]
    num_uncounted: int | None
    tenant: str | None = None

    def bands(self) -> list[Band]:
        """For all tenants together, where there are several, and for each: one row for each of ``BANDS``, and one for
        all its requests. With ``tenant`` only its.
        """
        answered = self.answered
        if self.tenant is not None:
            return list(_bands(self.tenant, answered))
        found = list(_bands(ALL, answered)) if len(self.tenants) > 1 else []
        for tenant in self.tenants:
            found += _bands(tenant, answered[answered["tenant"] == tenant])
        return found

    @property
    def meant(self) -> pd.DataFrame:
        """The rows of ``tenant``, or all."""
        return self.requests if self.tenant is None else self.requests[self.requests["tenant"] == self.tenant]

    @property
    def answered(self) -> pd.DataFrame:
        """Those of ``meant`` that got a first token."""
        return self.meant[self.meant["ttft_s"].notna()]

    def slowest(self, number: int) -> pd.DataFrame:
        """Those of ``answered`` that waited longest, slowest first, earlier ones first among equals."""
        return self.answered.sort_values(["ttft_s", "request_id"], ascending=[False, True]).head(number)


def explain(
    source: Source,
    *,
    router: str | None = None,
    variant: str | None = None,
    replication: int = 0,
    tenant: str | None = None,
) -> Explanation:
    """Simulate the run again, looking on. Raises InputError for a setting, replication or tenant that it does not have,
    and where it comes out otherwise than it was recorded.
    """
    from simulator.experiment import run
    from simulator.experiment_options import the_setting

    if source.num_replications is not None and replication >= source.num_replications:
        raise InputError(f"--replication: got {replication}, the run has {source.num_replications}, counted from 0")
    chosen = the_setting(source.scenario, router, variant)
    [spec] = chosen.routing
    names = [one.name for one in chosen.workload.tenants]
    if tenant is not None and tenant not in names:
        raise InputError(f"--tenant: the scenario has no tenant {tenant!r}{nearest(tenant, names)}")
    wanted = (variant, spec.label)
    label = next(one.label for one in source.scenario.settings if (one.variant, one.router.label) == wanted)
    recorder = Recorder(chosen.cluster.instances)
    result = run(
        chosen, router=spec, replication=replication, draws_profile=source.draws_profile, watcher=recorder
    )
    num_uncounted = check_same(source, label, replication, result.requests)
    parts = recorder.table().rename(columns={"num_preemptions": "num_preemptions_before"})
    rows = result.requests.merge(parts, on="request_id", how="left", validate="one_to_one")
    rows = rows.sort_values("request_id", ignore_index=True)
    return Explanation(
        chosen, label, replication, result.tenants, rows, recorder.chunks, num_uncounted, tenant
    )


def _bands(tenant: str, answered: pd.DataFrame) -> Iterator[Band]:
    """By rank, so that every request is in exactly one band, and the same one every time."""
    ranked = answered.sort_values(["ttft_s", "request_id"])
    for low, high in (*BANDS, (0, 100)):
        first, last = (math.ceil(len(ranked) * percent / 100) for percent in (low, high))
        members = ranked.iloc[first:last]
        means = {name: float(members[name].mean()) for name in ("ttft_s", *NAMES, "saved_s")} if len(members) else {}
        yield Band(tenant, low, high, len(members), means)
