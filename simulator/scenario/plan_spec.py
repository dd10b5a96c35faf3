"""What a scenario says about capacity planning: targets, what may be chosen, and what it costs. Frozen and strict."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, Self

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from simulator.errors import InputError, nearest
from simulator.scenario import changes
from simulator.units import PositiveCount, PositiveNumber, Share, share, target_s, write_seconds
from simulator.workload.distributions import Spec
from simulator.workload.spec import TenantSpec

GOODPUT = "goodput_share"
MEAN = "mean"
# Latencies as rows of requests have them, from the shortest to the longest part of a request's life.
LATENCIES = ("queue", "ttft", "tpot", "e2e")
# A target on the first can bind only below one on the second, whose time it is a part of.
_PARTS = (("queue", "ttft"), ("queue", "e2e"), ("ttft", "e2e"))
_LATENCY = re.compile(r"(queue|ttft|tpot|e2e)_(mean|p\d{1,2}(?:\.\d{1,3})?)", re.ASCII)
_EXAMPLES = ("ttft_p90", "tpot_p90", "e2e_p99", "queue_p90", "ttft_mean", "tpot_mean", "e2e_mean", GOODPUT)
_RANGE = re.compile(r"\s*(\d+)\s*\.\.\s*(\d+)\s*(?:by\s*(\d+)\s*)?", re.ASCII)
_MOST_VALUES = 10_000
# What may be chosen: the cluster. Who sends what is given.
_CHOOSABLE = ("cluster", "engine", "eviction", "profile", "routing")


class Target(NamedTuple):
    """One promise to a tenant: a latency's ``percent`` (None: its mean) is at most ``limit`` seconds; or, where
    ``latency`` is None, at least the share ``limit`` of its requests finish within the tenant's own targets.
    """

    tenant: str
    name: str
    limit: float
    latency: str | None = None
    percent: float | None = None


def _read_targets(value: Any) -> dict[str, dict[str, float]]:
    if not isinstance(value, Mapping) or not value:
        raise InputError("expected a mapping of tenants to targets, like chat: {ttft_p90: 500 ms}")
    found = {}
    for tenant, targets in value.items():
        if not isinstance(targets, Mapping) or not targets:
            raise InputError(f"{tenant}: expected targets like {{ttft_p90: 500 ms, {GOODPUT}: 95 %}}")
        found[str(tenant)] = {str(name): _read_limit(tenant, str(name), one) for name, one in targets.items()}
        _refuse_contradictions(str(tenant), found[str(tenant)])
    return found


def _read_limit(tenant: str, name: str, value: Any) -> float:
    try:
        if name == GOODPUT:
            return _read_share(value)
        _check_latency(name)
        return target_s(value)
    except InputError as error:
        raise InputError(f"{tenant}.{name}: {error}") from None


def _write_targets(targets: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float | str]]:
    return {
        tenant: {name: limit if name == GOODPUT else write_seconds(limit) for name, limit in limits.items()}
        for tenant, limits in targets.items()
    }


def _read_share(value: Any) -> float:
    limit = share(value)
    if not 0 < limit < 1:
        raise InputError(f"got {value!r}, expected a share above 0 and below 100 %")
    return limit


def _check_latency(name: str) -> None:
    match = _LATENCY.fullmatch(name)
    if match is None or (match[2] != MEAN and not 0 < float(match[2][1:]) < 100):
        raise InputError(f"unknown target, expected a latency's percentile or mean{nearest(name, _EXAMPLES)}")


def _refuse_contradictions(tenant: str, limits: Mapping[str, float]) -> None:
    """Raise InputError for two limits of which one leaves nothing to the other."""
    known = [target(tenant, name, limit) for name, limit in limits.items() if name != GOODPUT]
    ranked = [one for one in known if one.percent is not None]
    for low in ranked:
        for high in ranked:
            same, part = low.latency == high.latency, (low.latency, high.latency) in _PARTS
            above = low.limit >= high.limit if same else low.limit > high.limit
            if above and ((same and _percent(low) < _percent(high)) or (part and _percent(low) <= _percent(high))):
                raise InputError(
                    f"{tenant}: {low.name} of {low.limit:g} s contradicts {high.name} of {high.limit:g} s, expected "
                    + ("the higher percentile to have the larger limit" if same else
                       f"less time for {low.latency} than for {high.latency}, which it is a part of")
                )  # fmt: skip


def _percent(one: Target) -> float:
    assert one.percent is not None  # who calls has looked
    return one.percent


def target(tenant: str, name: str, limit: float) -> Target:
    """The target of this name, which has been checked."""
    match = _LATENCY.fullmatch(name)
    if match is None:
        return Target(tenant, name, limit)
    return Target(tenant, name, limit, match[1], None if match[2] == MEAN else float(match[2][1:]))


def _read_free(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not value:
        raise InputError("expected a mapping of keys to values, like cluster.instances: 1..16")
    found: dict[str, Any] = {}
    for key, values in value.items():
        try:
            path = changes.read_path(str(key))
        except InputError as error:
            raise InputError(str(error)) from None
        name = changes.write_path(path)
        if path[0] not in _CHOOSABLE:
            raise InputError(f"{name}: is not free, expected a key of {', '.join(_CHOOSABLE)}")
        if name in found:
            raise InputError(f"{name}: given twice")
        _ = free_values(name, values)
        found[name] = values
    return found


def free_values(name: str, said: Any) -> list[Any]:
    """The values that a free key may take: a list of them, or whole numbers from ``1..16`` or ``4..32 by 4``.

    Raises InputError for fewer than two, and for one that is listed twice.
    """
    if isinstance(said, str) and (match := _RANGE.fullmatch(said)):
        low, high, step = int(match[1]), int(match[2]), int(match[3] or 1)
        if not step or high <= low or (high - low) // step + 1 > _MOST_VALUES:
            raise InputError(f"{name}: got {said!r}, expected a range that rises, of at most {_MOST_VALUES:,} values")
        values: list[Any] = list(range(low, high + 1, step))
    elif isinstance(said, Sequence) and not isinstance(said, str):
        values = list(said)
    else:
        raise InputError(f"{name}: got {said!r}, expected a list of values or a range like 1..16")
    if len(values) < 2:
        raise InputError(f"{name}: got {len(values)} value{'s' * (not values)}, expected two or more to choose from")
    if repeated := [one for place, one in enumerate(values) if one in values[:place]]:
        raise InputError(f"{name}: {changes.write_value(repeated[0])} is listed twice")
    return values


class CostSpec(Spec):
    """What an hour costs, in any currency: of an instance, or of an NPU, of which an instance has as many as its
    profile was measured on (tensor times pipeline parallel). One price, or one for each profile.
    """

    instance_hour: PositiveNumber | dict[str, PositiveNumber] | None = None
    npu_hour: PositiveNumber | dict[str, PositiveNumber] | None = None

    @model_validator(mode="after")
    def _one_of_the_two(self) -> Self:
        if (self.instance_hour is None) == (self.npu_hour is None):
            raise ValueError("give exactly one of instance_hour and npu_hour")
        return self

    @property
    def prices(self) -> float | dict[str, float]:
        """The price of an hour, or one for each profile."""
        found = self.instance_hour if self.npu_hour is None else self.npu_hour
        assert found is not None  # the specification demands one of the two
        return found


class PlanSpec(Spec):
    """What `kvcast plan` looks for: the cheapest setting of the ``free`` keys that meets all ``targets``, shown with
    this ``confidence``. ``budget`` is the most runs that it may take.
    """

    targets: Annotated[
        dict[str, dict[str, float]],
        BeforeValidator(_read_targets, json_schema_input_type=dict[str, dict[str, float | str]]),
        PlainSerializer(_write_targets),
    ] = Field(description="a mapping of tenants to targets")
    free: Annotated[dict[str, Any], BeforeValidator(_read_free)] = Field(description="a mapping of keys to values")
    cost: CostSpec = CostSpec(npu_hour=1.0)
    confidence: Share = Field(default=0.95, ge=0.5, le=0.9999)
    budget: PositiveCount | None = None

    @property
    def promises(self) -> list[Target]:
        """All targets, in the order of the file."""
        return list(self._promises())

    def _promises(self) -> Iterator[Target]:
        for tenant, limits in self.targets.items():
            for name, limit in limits.items():
                yield target(tenant, name, limit)


def check(plan: PlanSpec, tenants: Sequence[TenantSpec]) -> None:
    """Raise InputError ``plan.targets...`` where targets and tenants do not fit together."""
    known = {tenant.name: tenant for tenant in tenants}
    for promise in plan.promises:
        if promise.tenant not in known:
            raise InputError(f"plan.targets: there is no tenant {promise.tenant!r}{nearest(promise.tenant, known)}")
        if promise.name == GOODPUT and known[promise.tenant].targets is None:
            raise InputError(f"plan.targets.{promise.tenant}.{GOODPUT}: the tenant has no targets for its requests to "
                             "be within, expected some in the workload, like targets: {ttft: 2 s}")  # fmt: skip
