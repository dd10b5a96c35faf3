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

from simulator.errors import InputError, nearest
from simulator.eviction.belady import Belady
from simulator.eviction.frequency import LengthAware, Lfu, Slru
from simulator.eviction.policy import Params, Policy, User
from simulator.eviction.quota import Quota
from simulator.eviction.recency import Fifo, Lru
from simulator.eviction.s3fifo import S3Fifo
from simulator.eviction.ttl import Ttl
from simulator.eviction.workload_aware import WorkloadAware
from simulator.parameters import label, read_params

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
    params = read_params("eviction", policy, POLICIES[policy].Params if policy != VLLM else Params, values)
    return EvictionSpec(policy, params, label(policy, params))


def make_policy(spec: EvictionSpec, num_blocks: int, tenants: Sequence[str] = ("",)) -> Policy:
    """A fresh policy for one cache of ``num_blocks`` blocks. Raises KeyError for ``vllm``, which has no class."""
    return POLICIES[spec.policy](spec.params, num_blocks, tenants)
