"""Eviction policies by name: read an entry of a scenario with `parse_eviction`, build the policy with `make_policy`.

A policy (`policy.Policy`) orders the idle blocks of one cache: those that hold content and that no request holds. The
same class serves an engine's block pool and a trace-only replay of one cache (`replay.hits`). ``vllm`` is no class: it
is the order of the pool as it is, which costs nothing.

Adding a policy takes a class in one of the files here and its line in `POLICIES`. Reading order: policy, replay, then
any policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pydantic import ValidationError

from simulator.errors import InputError, nearest
from simulator.eviction.belady import Belady
from simulator.eviction.frequency import LengthAware, Lfu, Slru
from simulator.eviction.policy import Params, Policy, User
from simulator.eviction.quota import Quota
from simulator.eviction.recency import Fifo, Lru
from simulator.eviction.s3fifo import S3Fifo
from simulator.eviction.ttl import Ttl
from simulator.eviction.workload_aware import WorkloadAware

__all__ = ["POLICIES", "VLLM", "EvictionSpec", "Params", "Policy", "User", "make_policy", "parse_eviction"]

VLLM = "vllm"

POLICIES: Mapping[str, type[Policy]] = MappingProxyType(
    {
        "lru": Lru,
        "fifo": Fifo,
        "lfu": Lfu,
        "slru": Slru,
        "s3fifo": S3Fifo,
        "length_aware": LengthAware,
        "workload_aware": WorkloadAware,
        "ttl": Ttl,
        "quota": Quota,
        "belady": Belady,
    }
)


@dataclass(frozen=True)
class EvictionSpec:
    """A policy with its checked parameters. ``label`` names it in tables: the policy, and what is not a default."""

    policy: str
    params: Params
    label: str


def parse_eviction(entry: object) -> EvictionSpec:
    """Read ``lru`` or ``{policy: lfu, counts: kept}``; ``vllm`` is the pool as it is. Raises InputError, one line."""
    if isinstance(entry, str):
        entry = {"policy": entry}
    if not isinstance(entry, Mapping) or not isinstance(entry.get("policy"), str):
        raise InputError(f"eviction: got {entry!r}, expected the name of a policy or a mapping with 'policy'")
    policy = str(entry["policy"])
    if policy != VLLM and policy not in POLICIES:
        raise InputError(f"eviction: unknown policy {policy!r}{nearest(policy, [VLLM, *POLICIES])}")
    values = {str(key): value for key, value in entry.items() if key != "policy"}
    params = _read_params(policy, POLICIES[policy].Params if policy != VLLM else Params, values)
    return EvictionSpec(policy, params, _label(policy, params))


def make_policy(spec: EvictionSpec, num_blocks: int, tenants: Sequence[str] = ("",)) -> Policy:
    """A fresh policy for one cache of ``num_blocks`` blocks. Raises KeyError for ``vllm``, which has no class."""
    return POLICIES[spec.policy](spec.params, num_blocks, tenants)


def _read_params(policy: str, model: type[Params], values: Mapping[str, object]) -> Params:
    for key in values:
        if key not in model.model_fields:
            hint = nearest(key, model.model_fields) if model.model_fields else " (it has none)"
            raise InputError(f"eviction {policy}: {key}: unknown parameter{hint}")
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
        if first["type"] == "missing":
            message = f"missing, expected {model.model_fields[where].description}"
        elif not message.startswith("got ") and where:
            message = f"got {first['input']!r}, {message[:1].lower()}{message[1:]}"
        raise InputError(f"eviction {policy}: {where + ': ' if where else ''}{message}") from None


def _label(policy: str, params: Params) -> str:
    changed = [
        f"{name}={value if isinstance(value, str) else repr(value)}"
        for name, value in params
        if value != type(params).model_fields[name].default
    ]
    return f"{policy}({', '.join(changed)})" if changed else policy
