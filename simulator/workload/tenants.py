"""All tenants' requests as one stream in order of arrival."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Protocol

from simulator.counts import counted
from simulator.request import Request
from simulator.workload.acceptance import Acceptance
from simulator.workload.conversations import Conversations
from simulator.workload.patience import Patience
from simulator.workload.replay import check, replay, replay_paced, skipped
from simulator.workload.spec import TenantSpec, TraceSpec, WorkloadSpec
from simulator.workload.synthetic import synthesize
from simulator.workload.tree import grow


class Reacting(Protocol):
    """A source of requests that others follow from."""

    def __iter__(self) -> Iterator[Request]: ...
    def ended(self, request: Request, now_s: float) -> list[Request]: ...
    def replace(self, request: Request, again: Request) -> None: ...


class Workload:
    """One replication of a workload: iterate it for its requests. Each iteration yields the same, in fresh objects.

    Requests come one at a time, by arrival and at equal times by tenant. Tell ``ended`` of each end: others may follow
    from it. They are numbered from 0 in that order where none can follow, else by who sends them.
    """

    def __init__(
        self, spec: WorkloadSpec, seed: int, replication: int, base_dir: Path, acceptance: Acceptance | None = None
    ) -> None:
        self._spec = spec
        self._seed = seed
        self._replication = replication
        self._base_dir = base_dir
        self._acceptance = acceptance
        self._reacting: dict[int, Reacting] = {}  # sources that are told of ends, of the iteration under way
        self._patience = {
            index: Patience(tenant, seed, replication) for index, tenant in enumerate(spec.tenants) if tenant.hangs_up
        }

    @property
    def open_loop(self) -> bool:
        """Whether no arrival depends on how earlier requests fared."""
        retries = any(tenant.retries for tenant in self._spec.tenants)
        return not retries and all(self._open_loop(tenant) for tenant in self._spec.tenants)

    @property
    def tenants(self) -> list[str]:
        """The tenants' names; a request's ``tenant`` counts along this list."""
        return [tenant.name for tenant in self._spec.tenants]

    @property
    def targets_s(self) -> list[dict[str, float]]:
        """Each tenant's targets in seconds by latency (``ttft``, ``tpot``, ``e2e``); empty where it has none."""
        return [tenant.targets.limits_s if tenant.targets else {} for tenant in self._spec.tenants]

    @property
    def resampling(self) -> str:
        """What makes two replications differ, in words for a report, and whether clients wait for answers."""
        each = {tenant.name: _resampling(tenant, self._base_dir) for tenant in self._spec.tenants}
        if len(set(each.values())) == 1:
            words = next(iter(each.values()))
        else:
            words = "; ".join(f"{name}: {text}" for name, text in each.items())
        return words if self.open_loop else f"{words}; closed loop: slow answers delay what follows them"

    def __iter__(self) -> Iterator[Request]:
        self._reacting = dict(self._sources_that_react())
        streams = [self._stream(index, tenant) for index, tenant in enumerate(self._spec.tenants)]
        # heapq.merge keeps the order of its arguments at equal keys; one stream needs no comparing.
        merged = heapq.merge(*streams, key=attrgetter("arrival_s")) if len(streams) > 1 else streams[0]
        if not self.open_loop:
            yield from merged
            return
        for request_id, request in enumerate(merged):
            request.request_id = request_id
            yield request

    def ended(self, request: Request, now_s: float) -> list[Request]:
        """The requests that follow from this one's end, with their times of arrival."""
        source, patience = self._reacting.get(request.tenant), self._patience.get(request.tenant)
        if patience is not None and (again := patience.again(request, now_s)) is not None:
            if source is not None:
                source.replace(request, again)
            return [again]
        if source is None:
            return []
        return source.ended(request, now_s)

    def _sources_that_react(self) -> Iterator[tuple[int, Reacting]]:
        for index, tenant in enumerate(self._spec.tenants):
            if tenant.conversations is not None:
                yield index, self._talks(index, tenant)
            elif tenant.trace is not None and tenant.trace.pace is not None:
                accept = self._accept(tenant)
                patience = self._patience.get(index)
                yield index, replay_paced(
                    tenant, index, self._seed, self._replication, self._base_dir, accept, patience, self._texts(index)
                )

    @staticmethod
    def _open_loop(tenant: TenantSpec) -> bool:
        if tenant.conversations is not None:
            return tenant.conversations.open_loop
        return tenant.trace is None or tenant.trace.pace is None

    def _accept(self, tenant: TenantSpec) -> Callable[..., Iterator[int]] | None:
        """Gives a request's accepted drafts by its place among the tenant's, which no other request changes."""
        if self._acceptance is None:
            return None
        return partial(self._acceptance.draws, self._seed, "acceptance", tenant.name, self._replication)

    def _talks(self, index: int, tenant: TenantSpec) -> Conversations:
        assert tenant.conversations is not None  # who calls has looked
        accept = self._accept(tenant)
        patience = self._patience.get(index)
        return Conversations(tenant, tenant.conversations, index, self._seed, self._replication, accept, patience)

    def _stream(self, index: int, tenant: TenantSpec) -> Iterator[Request]:
        requests = islice(self._source(index, tenant), tenant.limit)
        patience = self._patience.get(index)
        if patience is None or index in self._reacting:  # those that react ask it themselves
            return requests
        return (patience.limit(request, number) for number, request in enumerate(requests))

    def _source(self, index: int, tenant: TenantSpec) -> Iterator[Request]:
        if index in self._reacting:
            return iter(self._reacting[index])
        if tenant.trace is not None:
            requests = replay(tenant, index, self._seed, self._replication, self._base_dir, self._texts(index))
        elif tenant.tree is not None:
            requests = grow(tenant, index, self._seed, self._replication)
        else:
            requests = synthesize(tenant, index, self._seed, self._replication)
        return requests if self._acceptance is None else self._accepting(tenant, requests)

    def _texts(self, index: int) -> int:
        """The number of the tenant whose texts a trace's requests have: of tenants of one file, the first."""
        file = _file_of_tenants(self._spec.tenants[index])
        if file is None:
            return index
        return next(number for number, tenant in enumerate(self._spec.tenants) if _file_of_tenants(tenant) == file)

    def _accepting(self, tenant: TenantSpec, requests: Iterator[Request]) -> Iterator[Request]:
        """The requests with a stream of accepted drafts each, where the engine makes drafts."""
        accept = self._accept(tenant)
        for number, request in enumerate(requests):
            request.acceptance = None if accept is None else accept(number)
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
            check(tenant, folder)
    return Workload(spec, seed, replication, folder, acceptance)


def _file_of_tenants(tenant: TenantSpec) -> str | None:
    """The trace of which it is one of the tenants."""
    return tenant.trace.path if tenant.trace is not None and tenant.trace.tenant is not None else None


def _resampling(tenant: TenantSpec, base_dir: Path) -> str:
    if tenant.conversations is not None:
        return "every conversation drawn anew (seeded)"
    if tenant.trace is None:
        return "every request drawn anew (seeded)"
    passed_over = skipped(tenant, base_dir)
    return ", ".join([*_trace_resampling(tenant.trace), *([] if passed_over is None else [passed_over])])


def _trace_resampling(spec: TraceSpec) -> Iterator[str]:
    if spec.format == "servegen":
        yield "every request drawn anew from these clients' rates and lengths (seeded)"
    if spec.window is not None:
        yield f"random contiguous {_words(spec.window)} windows of this trace, each from cold caches"
    elif spec.smooth_s is not None or spec.session_arrivals is not None:
        yield "the whole trace (this trace only)"
    elif spec.format != "servegen":
        yield "the whole trace as recorded, the same in every replication (this trace only)"
    if spec.tenant is not None:
        yield f"its tenant {spec.tenant} alone"
    if spec.session_arrivals is not None:
        yield "sessions begin when drawn (seeded)"
    if spec.smooth_s is not None:
        yield f"arrivals spread over {_words(spec.smooth_s)} (seeded)"
    if spec.rate_scale != 1:
        yield f"at {spec.rate_scale:g} times its rate"
    if spec.limit is not None:
        yield f"no more than {counted(spec.limit, 'request')}"


def _words(duration_s: float) -> str:
    return f"{duration_s / 60:g} min" if duration_s >= 60 and duration_s % 60 == 0 else f"{duration_s:g} s"
