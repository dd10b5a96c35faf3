"""Routing policies by name: read an entry of a scenario with `parse_routing`, build the policy with `make_router`.

An entry names a policy of `ROUTERS` or a preset of `PRESETS`. Adding a policy takes a class in one of the files here
and its line in `ROUTERS`. Reading order: decision, view, router, then any policy.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from simulator.errors import InputError, nearest
from simulator.parameters import label, read_params
from simulator.routing.affinity import LlmdAffinity
from simulator.routing.conductor import Conductor
from simulator.routing.decision import Decision, Hold, Refuse, Send
from simulator.routing.dynamo import Dynamo
from simulator.routing.gate import AibrixPrefixCache, CacheAware
from simulator.routing.hashing import SessionHash
from simulator.routing.lmetric import LMetric
from simulator.routing.load import AscendProxy, LeastRequests, LeastTokens, PowerOfTwo, Random, RoundRobin
from simulator.routing.oracle import Oracle
from simulator.routing.preble import Preble
from simulator.routing.prefix import KvAware, LoadAware, LongestPrefix, PrefixAware
from simulator.routing.presets import PRESETS, Preset
from simulator.routing.ring import ConsistentHash, KubeaiPrefixHash, PrefixHash
from simulator.routing.router import Params, Router
from simulator.routing.scores import WeightedScores
from simulator.routing.trtllm import TrtLlmAdp
from simulator.routing.view import View
from simulator.routing.vllm_dp import VllmDp

__all__ = [
    "PRESETS", "ROUTERS", "Decision", "Hold", "Preset", "Refuse", "Router", "RoutingSpec", "Send", "View",
    "make_router", "make_routers", "parse_routing",
]  # fmt: skip

ROUTERS: Mapping[str, type[Router]] = MappingProxyType(
    {
        "random": Random,
        "round_robin": RoundRobin,
        "least_requests": LeastRequests,
        "power_of_two": PowerOfTwo,
        "least_tokens": LeastTokens,
        "vllm_dp": VllmDp,
        "ascend_proxy": AscendProxy,
        "session_hash": SessionHash,
        "consistent_hash": ConsistentHash,
        "kubeai_prefix_hash": KubeaiPrefixHash,
        "prefix_hash": PrefixHash,
        "longest_prefix": LongestPrefix,
        "prefixaware": PrefixAware,
        "kvaware": KvAware,
        "loadaware": LoadAware,
        "cache_aware": CacheAware,
        "aibrix_prefix_cache": AibrixPrefixCache,
        "weighted_scores": WeightedScores,
        "llmd_affinity": LlmdAffinity,
        "dynamo": Dynamo,
        "lmetric": LMetric,
        "conductor": Conductor,
        "preble": Preble,
        "trtllm_adp": TrtLlmAdp,
        "oracle": Oracle,
    }
)


@dataclass(frozen=True)
class RoutingSpec:
    """A policy with its checked parameters. ``label`` names it in tables: the policy or preset, and what was changed.

    ``name`` is the policy's or preset's, and ``preset_values`` are the parameters that the preset alone gave.
    """

    policy: str
    params: Params
    label: str
    name: str
    preset_values: frozenset[str] = frozenset()


def parse_routing(entry: str | Mapping[str, object]) -> RoutingSpec:
    """Read ``round_robin``, ``{policy: dynamo, event_delay: 10 ms}`` or a preset. Raises InputError, one line."""
    if isinstance(entry, str):
        entry = {"policy": entry}
    if not isinstance(entry, Mapping) or not isinstance(entry.get("policy"), str):
        raise InputError(f"routing: got {entry!r}, expected the name of a policy or a mapping with 'policy'")
    name = str(entry["policy"])
    if name not in ROUTERS and name not in PRESETS:
        raise InputError(f"routing: unknown policy {name!r}{nearest(name, [*ROUTERS, *PRESETS])}")
    preset = PRESETS[name] if name in PRESETS else Preset(name, "", "")
    said = {str(key): value for key, value in entry.items() if key != "policy"}
    model = ROUTERS[preset.policy].Params
    params = read_params("routing", name, model, {**preset.values, **said})
    usual = dict(read_params("routing", name, model, preset.values)) if preset.values else {}
    unsaid = frozenset(preset.values.keys() - said.keys())
    return RoutingSpec(preset.policy, params, label(name, params, usual), name, unsaid)


def make_router(spec: RoutingSpec, num_instances: int, rng: random.Random) -> Router:
    """A fresh router for one run; ``rng`` is its own stream."""
    return ROUTERS[spec.policy](spec.params, num_instances, rng)


def make_routers(spec: RoutingSpec, num_instances: int, rng: random.Random) -> list[Router]:
    """All replicas for one run, which share the stream."""
    routers = [make_router(spec, num_instances, rng) for _ in range(spec.params.num_replicas)]
    for replica, router in enumerate(routers):
        router.replica = replica
    return routers
