"""Routing policies by name: read an entry of a scenario with `parse_routing`, build the policy with `make_router`.

Adding a policy takes a class in one of the files here and its line in `ROUTERS`. Reading order: decision, view, router,
then any policy.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from simulator.errors import InputError, nearest
from simulator.routing.decision import Decision, Hold, Refuse, Send
from simulator.routing.dynamo import Dynamo
from simulator.routing.hashing import SessionHash
from simulator.routing.load import LeastRequests, PowerOfTwo, Random, RoundRobin
from simulator.routing.oracle import Oracle
from simulator.routing.prefix import LongestPrefix
from simulator.routing.router import Params, Router, read_params
from simulator.routing.view import View

__all__ = [
    "ROUTERS", "Decision", "Hold", "Refuse", "Router", "RoutingSpec", "Send", "View", "make_router",
    "make_routers", "parse_routing",
]  # fmt: skip

ROUTERS: Mapping[str, type[Router]] = MappingProxyType(
    {
        "random": Random,
        "round_robin": RoundRobin,
        "least_requests": LeastRequests,
        "power_of_two": PowerOfTwo,
        "session_hash": SessionHash,
        "longest_prefix": LongestPrefix,
        "dynamo": Dynamo,
        "oracle": Oracle,
    }
)


@dataclass(frozen=True)
class RoutingSpec:
    """A policy with its checked parameters. ``label`` names it in tables: the policy, and what is not a default."""

    policy: str
    params: Params
    label: str


def parse_routing(entry: str | Mapping[str, object]) -> RoutingSpec:
    """Read ``round_robin`` or ``{policy: dynamo, event_delay: 10 ms}``. Raises InputError, one line."""
    if isinstance(entry, str):
        entry = {"policy": entry}
    if not isinstance(entry, Mapping) or not isinstance(entry.get("policy"), str):
        raise InputError(f"routing: got {entry!r}, expected the name of a policy or a mapping with 'policy'")
    policy = str(entry["policy"])
    if policy not in ROUTERS:
        raise InputError(f"routing: unknown policy {policy!r}{nearest(policy, ROUTERS)}")
    values = {str(key): value for key, value in entry.items() if key != "policy"}
    params = read_params(policy, ROUTERS[policy].Params, values)
    return RoutingSpec(policy, params, _label(policy, params))


def make_router(spec: RoutingSpec, num_instances: int, rng: random.Random) -> Router:
    """A fresh router for one run; ``rng`` is its own stream."""
    return ROUTERS[spec.policy](spec.params, num_instances, rng)


def make_routers(spec: RoutingSpec, num_instances: int, rng: random.Random) -> list[Router]:
    """All replicas for one run, which share the stream."""
    return [make_router(spec, num_instances, rng) for _ in range(spec.params.num_replicas)]


def _label(policy: str, params: Params) -> str:
    changed = [
        f"{name}={value if isinstance(value, str) else repr(value)}"
        for name, value in params
        if value != type(params).model_fields[name].default
    ]
    return f"{policy}({', '.join(changed)})" if changed else policy
