"""More or less load: the same tenants sending the same kind of requests, so many times as often.

What is scaled is how often clients begin; how a client goes on once it has begun (pauses between turns, times within a
recorded session, time-outs) stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from simulator.errors import InputError
from simulator.scenario.changes import KeyPath
from simulator.units import positive_number
from simulator.workload.distributions import ArrivalSpec
from simulator.workload.spec import TenantSpec, TraceSpec, WorkloadSpec

if TYPE_CHECKING:
    from simulator.scenario.model import Scenario


def at_load(scenario: Scenario, factor: float) -> Scenario:
    """The scenario, without variants, with ``factor`` times its load. Raises InputError as ``load_changes``."""
    return scenario.with_changes(load_changes(scenario.workload, factor))


def load_changes(workload: WorkloadSpec, factor: float, names: Collection[str] | None = None) -> dict[KeyPath, Any]:
    """The keys of a scenario that give every tenant (of these names) ``factor`` times its load, by path.

    Rates are multiplied, of a ``profile`` of them too; batches keep their size and come so much sooner; a trace's
    ``rate_scale`` is multiplied or, where its sessions begin by ``session_arrivals``, the rate of those. Of a closed
    loop the number of users is multiplied and rounded, to one at least. Where gaps are drawn independently, and of a
    trace, the same requests come ``factor`` times as fast.

    A drawn stream lasts as long as before: one that ends after so many requests or conversations, or at a tenant's
    ``limit``, has so many times as many. A trace has no more requests than it has, and is over sooner.

    Raises InputError for a factor that is no number above 0, and for a tenant whose load nothing in the file sets.
    """
    factor = positive_number(factor)
    return {
        ("workload", "tenants", str(number), *path): value
        for number, tenant in enumerate(workload.tenants)
        if names is None or tenant.name in names
        for path, value in _of_tenant(number, tenant, factor)
    }


def _of_tenant(number: int, tenant: TenantSpec, factor: float) -> Iterator[tuple[KeyPath, Any]]:
    if tenant.trace is not None:
        yield _of_trace(number, tenant.trace, factor)
        return
    name = next(name for name in ("synthetic", "conversations", "tree") if getattr(tenant, name) is not None)
    source = getattr(tenant, name)
    for end in ("num_requests", "num_conversations"):
        if (number_of_them := getattr(source, end, None)) is not None:
            yield (name, end), _whole(number_of_them * factor)
    if tenant.limit is not None:
        yield ("limit",), _whole(tenant.limit * factor)
    if source.arrivals is None:
        yield (name, "users", "number"), _whole(source.users.number * factor)
    else:
        key, value = _of_arrivals(source.arrivals, factor)
        yield (name, "arrivals", key), value


def _whole(number: float) -> int:
    return max(1, round(number))


def _of_trace(number: int, trace: TraceSpec, factor: float) -> tuple[KeyPath, Any]:
    if trace.session_arrivals is not None:
        key, value = _of_arrivals(trace.session_arrivals, factor)
        return ("trace", "session_arrivals", key), value
    if trace.pace is not None:
        raise InputError(f"workload.tenants[{number}].trace: sessions begin when the file says and go on when answers "
                         "end, so that no load can be set; expected session_arrivals, or no pace: answers")  # fmt: skip
    return ("trace", "rate_scale"), trace.rate_scale * factor


def _of_arrivals(arrivals: ArrivalSpec, factor: float) -> tuple[str, Any]:
    if arrivals.rates_per_s is not None:
        return "rates_per_s", [rate * factor for rate in arrivals.rates_per_s]
    if arrivals.every is not None:
        return "every", arrivals.every / factor
    assert arrivals.rate_per_s is not None  # the specification demands one of the three
    return "rate_per_s", arrivals.rate_per_s * factor
