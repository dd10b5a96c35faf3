"""Eviction policies, replayed at some capacities and set beside the exact LRU curve and the ceiling."""

from __future__ import annotations

import re
from collections.abc import Sequence

from simulator.errors import InputError, nearest
from simulator.eviction import POLICIES, VLLM, EvictionSpec, make_policy, parse_eviction
from simulator.eviction.replay import hits
from simulator.hit_curve.lru import Lru
from simulator.hit_curve.sample import Sample
from simulator.scenario import strict_yaml

_BETWEEN = re.compile(r",(?![^{]*\})")  # a comma outside of braces
BOUND = parse_eviction("belady")


def parse_policies(given: Sequence[str]) -> tuple[EvictionSpec, ...]:
    """``lfu``, ``lfu:counts=lost,...`` or ``quota:limit={chat: 5%, ...}``, values as in YAML. Raises InputError, one
    line.
    """
    found: list[EvictionSpec] = []
    for text in given:
        name, _, rest = text.partition(":")
        if name in ("lru", VLLM):
            raise InputError(f"--policy: got {name}, expected another policy: the curve is that of LRU anyway")
        if name not in POLICIES:
            raise InputError(f"--policy: unknown policy {name!r}{nearest(name, set(POLICIES) - {'lru'})}")
        entry: dict[str, object] = {"policy": name}
        for part in _BETWEEN.split(rest) if rest else ():
            key, equals, value = part.partition("=")
            if not equals:
                raise InputError(f"--policy {name}: got {part!r}, expected PARAMETER=VALUE")
            entry[key] = strict_yaml.read(f"value: {value}", f"--policy {name}: {key}")["value"]
        found.append(parse_eviction(entry))
    return tuple(found)


def with_bound(specs: Sequence[EvictionSpec]) -> tuple[EvictionSpec, ...]:
    """Each once, and the bound after them."""
    found = {spec.label: spec for spec in specs if spec != BOUND}
    return (*found.values(), BOUND)


def check_policies(specs: Sequence[EvictionSpec], sample: Sample, tenants: Sequence[str]) -> None:
    """Raises InputError for a policy that goes by sessions or tenants which no request has."""
    for spec in specs:
        for name in spec.params.tenants:
            if name not in tenants:
                raise InputError(f"--policy {spec.policy}: there is no tenant {name!r}{nearest(name, tenants)}")
        if POLICIES[spec.policy].needs_sessions and all(visitor.session is None for visitor in sample.visitors):
            raise InputError(f"--policy {spec.policy}: goes by sessions, and no request has one")


def replayed(
    spec: EvictionSpec, sample: Sample, whole: Lru, capacity: int, tenants: Sequence[str] = ("",)
) -> float | None:
    """The blocks that a cache of ``capacity`` blocks hits under the policy; of a sample, estimated for all requests.

    None where the sample's cache is smaller than a request of it.
    """
    if capacity >= whole.num_distinct:
        return whole.ceiling  # nothing is ever evicted
    size = sample.capacity(capacity)
    if not sample.is_whole and size < sample.lru.num_longest:
        return None
    policy = make_policy(spec, size, tenants)
    found = hits(policy, sample.names, size, sample.visitors)
    num_hits = sum(map(min, found, sample.num_wanted))
    if sample.is_whole:
        return num_hits
    return carried_over(
        num_hits, (sample.lru.curve.hits(size), sample.lru.ceiling), (whole.curve.hits(capacity), whole.ceiling)
    )


def carried_over(num_hits: float, sampled: tuple[int, int], whole: tuple[int, int]) -> float:
    """From the sample's LRU hits and ceiling to those of all requests: what lies between them in the sample lies as far
    between them in all; what is below LRU is as many times below.
    """
    (low, high), (whole_low, whole_high) = sampled, whole
    if num_hits < low:
        return whole_low * num_hits / low
    if low == high:
        return whole_low
    return whole_low + (whole_high - whole_low) * (num_hits - low) / (high - low)
