"""Pools that last for as many requests as the generator is to draw.

A part of a trace says little of the size of the pool that it comes from. Few threads, all alike, look like more threads
of which those that have begun are taken up rather than new ones (as where several read the same document), and the
likelihoods of the two hardly differ. But once a pool is worked off another takes over, all of whose threads are new;
and that requests go on is known. So of the pools that explain the trace, each the likeliest with its weight of threads
not begun, the one is taken that lasts.
"""

from __future__ import annotations

from collections.abc import Callable

from simulator.workload import TenantSpec
from simulator.workload.tree import grow
from simulator.workload.tree_spec import TreeSpec
from simulator.workload_fit.returning import Pooled

_NUM_THREADS = 12_000  # whose turns are counted: their mean is known to about one percent
_MOST_TURNS = 50  # on average: threads that go on longer are not followed
_LEAST_WEIGHT, _NUM_HALVINGS = 0.4, 5


def num_requests_of_pool(spec: TreeSpec) -> float:
    """How many requests a pool of the source has on average until it is worked off."""
    assert spec.pool is not None  # who calls has looked
    num_pools = -(-_NUM_THREADS // spec.pool)
    num_threads = num_pools * spec.pool
    most = _MOST_TURNS * num_threads
    endless = spec.model_copy(update={"num_requests": most, "duration": None})
    sessions: set[int | None] = set()
    for number, request in enumerate(grow(TenantSpec(name="fitted", tree=endless), 0, 0, 0)):
        sessions.add(request.session)
        if len(sessions) > num_threads:  # all threads of the pools before have ended
            return number / num_pools
    return most / num_pools


def that_lasts(
    num_requests: int, pool_with: Callable[[float], Pooled], source_of: Callable[[Pooled], TreeSpec]
) -> Pooled:
    """The pool in which all threads weigh the same, or the one with the greatest weight of threads not begun with which
    it lasts; where none does, the first: then other pools take over. ``pool_with`` fits a pool with such a weight.
    """

    def lasts(pool: Pooled) -> bool:
        return num_requests_of_pool(source_of(pool)) >= num_requests

    alike = pool_with(1.0)
    if lasts(alike):
        return alike
    low, high = _LEAST_WEIGHT, 1.0
    found = pool_with(low)
    if not lasts(found):
        return alike
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2
        tried = pool_with(middle)
        if lasts(tried):
            found, low = tried, middle
        else:
            high = middle
    return found
