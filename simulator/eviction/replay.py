"""A policy over one cache and a list of requests, without engine and without time: what a trace alone can tell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat

from simulator.eviction.policy import Policy, User


@dataclass(frozen=True)
class Visitor:
    """A request of a replay, for policies that ask whose blocks they are."""

    request_id: int = 0
    tenant: int = 0
    session: int | None = None
    priority: int = 0
    time_s: float = 0.0


_NOBODY = Visitor()


def hits(
    policy: Policy, requests: Iterable[Sequence[int]], capacity: int, visitors: Iterable[Visitor] | None = None
) -> list[int]:
    """How many leading blocks each request finds in a cache of ``capacity`` blocks under a fresh ``policy``.

    A request is the names of its blocks in order, each name once, where equal names mean equal prefixes. It is served
    whole before the next: its hit is the contiguous prefix present; then what is missing is inserted, after as many
    evictions as that takes, with the request's own blocks pinned, and all its blocks become idle, the last one first. A
    policy that needs the future is told it, and evicts afterwards: it may refuse a block by evicting it at once. Of a
    request longer than the cache only the first ``capacity`` blocks are looked at. (This is convention A of the golden
    figures; vLLM's, which caches full blocks only and always computes one token, is a matter of which names are given.)
    ``visitors``, as many as requests, say whose they are and when they come.
    """
    serve = _serve_one_by_one if policy.inserts_one_by_one else _serve
    if policy.needs_future:
        requests = list(requests)
        policy.foresee(requests)
        serve = _serve_and_evict_afterwards
    cached: set[int] = set()
    found = []
    for names, visitor in zip(requests, visitors if visitors is not None else repeat(_NOBODY), strict=False):
        policy.now_s = visitor.time_s
        names = names[:capacity]
        number = 0
        for name in names:
            if name not in cached:
                break
            number += 1
        found.append(number)
        serve(policy, names, capacity, cached, visitor)
    return found


def _serve(policy: Policy, names: Sequence[int], capacity: int, cached: set[int], user: User) -> None:
    present = [name for name in names if name in cached]
    if present:
        policy.use(present, present, user)
    for _ in range(len(cached) + len(names) - len(present) - capacity):
        cached.remove(policy.evict(user))
    cached.update(names)
    last_first = names[::-1]
    policy.keep(last_first, last_first, range(len(names) - 1, -1, -1), user)


def _serve_one_by_one(policy: Policy, names: Sequence[int], capacity: int, cached: set[int], user: User) -> None:
    for place, name in enumerate(names):
        block = (name,)
        if name in cached:
            policy.use(block, block, user)
        else:
            if len(cached) == capacity:
                cached.remove(policy.evict(user))
            cached.add(name)
        policy.keep(block, block, (place,), user)


def _serve_and_evict_afterwards(
    policy: Policy, names: Sequence[int], capacity: int, cached: set[int], user: User
) -> None:
    present = [name for name in names if name in cached]
    policy.use(present, present, user)
    cached.update(names)
    last_first = names[::-1]
    policy.keep(last_first, last_first, range(len(names) - 1, -1, -1), user)
    for _ in range(len(cached) - capacity):
        cached.remove(policy.evict(user))
