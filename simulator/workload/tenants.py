"""All tenants' requests as one stream in order of arrival."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

from simulator.request import Request
from simulator.workload import mooncake
from simulator.workload.acceptance import Acceptance
from simulator.workload.replay import replay
from simulator.workload.spec import TenantSpec, TraceSpec, WorkloadSpec
from simulator.workload.synthetic import synthesize


class Workload:
    """One replication of a workload: iterate it for its requests. Each iteration yields the same, in fresh objects.

    Requests come one at a time, by arrival and at equal times by tenant, and are numbered from 0 in that order.
    ``open_loop``: no arrival depends on how earlier requests fared.
    """

    open_loop = True

    def __init__(
        self, spec: WorkloadSpec, seed: int, replication: int, base_dir: Path, acceptance: Acceptance | None = None
    ) -> None:
        self._spec = spec
        self._seed = seed
        self._replication = replication
        self._base_dir = base_dir
        self._acceptance = acceptance

    @property
    def tenants(self) -> list[str]:
        """The tenants' names; a request's ``tenant`` counts along this list."""
        return [tenant.name for tenant in self._spec.tenants]

    @property
    def resampling(self) -> str:
        """What makes two replications differ, in words for a report."""
        if len(self._spec.tenants) == 1:
            return _resampling(self._spec.tenants[0])
        return "; ".join(f"{tenant.name}: {_resampling(tenant)}" for tenant in self._spec.tenants)

    def __iter__(self) -> Iterator[Request]:
        streams = [self._stream(index, tenant) for index, tenant in enumerate(self._spec.tenants)]
        # heapq.merge keeps the order of its arguments at equal keys; one stream needs no comparing.
        merged = heapq.merge(*streams, key=attrgetter("arrival_s")) if len(streams) > 1 else streams[0]
        for request_id, request in enumerate(merged):
            request.request_id = request_id
            yield request

    def _stream(self, index: int, tenant: TenantSpec) -> Iterator[Request]:
        if tenant.trace is not None:
            requests = replay(tenant, index, self._seed, self._replication, self._base_dir)
        else:
            requests = synthesize(tenant, index, self._seed, self._replication)
        return requests if self._acceptance is None else self._accepting(tenant.name, self._acceptance, requests)

    def _accepting(self, name: str, acceptance: Acceptance, requests: Iterator[Request]) -> Iterator[Request]:
        """The requests with a stream of accepted drafts each, named by its place among the tenant's."""
        for number, request in enumerate(requests):
            request.acceptance = acceptance.draws(self._seed, "acceptance", name, self._replication, number)
            yield request


def open_workload(
    spec: WorkloadSpec,
    seed: int,
    replication: int,
    base_dir: Path | str | None = None,
    acceptance: Acceptance | None = None,
) -> Workload:
    """The workload's replication number ``replication`` (from 0) under ``seed``.

    A tenant's draws depend on the seed, the replication and its own name and settings, never on other tenants. Traces
    are looked for in ``base_dir`` (the scenario's folder; the current one when None). Raises InputError for a trace
    that cannot be read or whose first line is bad; later lines are checked when they are reached. ``acceptance`` is
    that of drafts, where the engine makes any.
    """
    folder = Path(base_dir) if base_dir is not None else Path()
    for tenant in spec.tenants:
        if tenant.trace is not None:
            next(mooncake.read(folder / tenant.trace.path))
    return Workload(spec, seed, replication, folder, acceptance)


def _resampling(tenant: TenantSpec) -> str:
    if tenant.trace is None:
        return "every request drawn anew (seeded)"
    return ", ".join(_trace_resampling(tenant.trace))


def _trace_resampling(spec: TraceSpec) -> Iterator[str]:
    if spec.window is not None:
        yield f"random contiguous {_words(spec.window)} windows of this trace, each from cold caches"
    elif spec.smooth_s is not None:
        yield "the whole trace (this trace only)"
    else:
        yield "the whole trace as recorded, the same in every replication (this trace only)"
    if spec.smooth_s is not None:
        yield f"arrivals spread over {_words(spec.smooth_s)} (seeded)"
    if spec.rate_scale != 1:
        yield f"at {spec.rate_scale:g} times its rate"
    if spec.limit is not None:
        yield f"no more than {spec.limit} requests"


def _words(duration_s: float) -> str:
    return f"{duration_s / 60:g} min" if duration_s >= 60 and duration_s % 60 == 0 else f"{duration_s:g} s"
