"""What a sweep may judge settings by: headline numbers and latencies of all requests, or of those of one tenant."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from simulator.comparison import COMPARED, Shown
from simulator.errors import InputError, nearest
from simulator.scenario import Scenario
from simulator.statistics import PERCENTILES

_STATISTICS = ("mean", *(f"p{percent}" for percent in PERCENTILES))
_LATENCIES = {
    "ttft": ("TTFT", "s", 1), "tpot": ("TPOT", "ms", 1000), "inter_token": ("inter-token time", "ms", 1000),
    "e2e": ("end-to-end latency", "s", 1), "queue": ("queue time", "s", 1),
}  # fmt: skip

# Of all requests, by key of a run's summary.
METRICS: Mapping[str, Shown] = MappingProxyType({
    **{
        f"{name}_{which}_s": Shown(f"{name}_{which}_s", f"{which} {label}", unit, scale, lower_is_better=True)
        for name, (label, unit, scale) in _LATENCIES.items() for which in _STATISTICS
    },
    "cached_share": Shown("cached_share", "cached share", "%", 100, lower_is_better=False),
    **{shown.key: shown for shown in COMPARED},
})  # fmt: skip

_OF_TARGETS = (
    Shown("within_targets", "share within targets", "%", 100, lower_is_better=False),
    Shown("goodput", "goodput", "requests/s", 1, lower_is_better=False),
)
# Of one tenant, by key of its row; what is recorded by step is nobody's.
OF_TENANT: Mapping[str, Shown] = MappingProxyType({
    **{key: shown for key, shown in METRICS.items() if not key.startswith(("inter_token", "hit_rate"))},
    **{shown.key: shown for shown in _OF_TARGETS},
})


@cache
def shown_of(metric: str) -> Shown:
    """How people read a column of the rows: a key of METRICS, or ``TENANT.KEY`` with one of OF_TENANT."""
    tenant, dot, key = metric.rpartition(".")
    if not dot:
        return METRICS[metric]
    return OF_TENANT[key]._replace(key=metric, label=f"{OF_TENANT[key].label} of {tenant}")


def read_metric(text: str, scenario: Scenario) -> str:
    """The column of a metric given by its key or short: ``ttft_p90``, ``chat.ttft_p99``. Raises InputError for another
    one.
    """
    tenant, dot, name = text.rpartition(".")
    known = {_short(key): key for key in (OF_TENANT if dot else METRICS)}
    if dot:
        tenants = {one.name: one for one in scenario.workload.tenants}
        if tenant not in tenants:
            raise InputError(f"--metric {text}: the scenario has no tenant {tenant!r}{nearest(tenant, tenants)}")
        if name in ("within_targets", "goodput") and not tenants[tenant].targets:
            raise InputError(f"--metric {text}: the tenant has no targets")
    if name not in known and name not in known.values():
        latencies = ", ".join(one for one in _LATENCIES if f"{one}_mean" in known)
        statistics = ", ".join(f"_{which}" for which in _STATISTICS)
        others = ", ".join(key for key in known if not key.startswith(tuple(_LATENCIES)))
        raise InputError(f"--metric: unknown {text!r}, expected {latencies} with {statistics}, or {others}")
    key = known.get(name, name)
    return key if len(scenario.workload.tenants) == 1 and key in METRICS else f"{tenant}{dot}{key}"


def _short(key: str) -> str:
    return key if key.endswith("_per_s") else key.removesuffix("_s")
