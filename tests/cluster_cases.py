"""Small clusters with drawn workloads, run on the simulation's clock, with everything that can be seen of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple

from simulator.cluster import Cluster
from simulator.engine_args.config import EngineConfig
from simulator.eviction import parse_eviction
from simulator.metrics import Metrics
from simulator.plan import Plan
from simulator.request import Request
from simulator.routing import Hold, Refuse, Router, Send, make_routers, parse_routing
from simulator.routing.decision import Copy
from simulator.scheduler import Scheduler
from simulator.step_time import FORMULAS, StepTime

MODES = {
    "advancing": {"advancing": True, "grouping": True},
    "stepping": {"advancing": False, "grouping": True},
    "plain": {"advancing": False, "grouping": False},
}
ROW = (
    "request_id", "state", "refusal", "instance", "queued_s", "first_scheduled_s", "first_token_s", "finish_s",
    "num_cached_tokens", "num_preemptions", "num_output_tokens",
)  # fmt: skip


def config(**changes: Any) -> EngineConfig:
    """A small engine: one-size-fits-most values, each of which a test may change."""
    values = {
        "dialect": "vllm-0.32", "block_size": 4, "num_gpu_blocks": 101, "max_model_len": 200,
        "max_num_batched_tokens": 64, "max_num_seqs": 8, "max_num_active_seqs": 8, "enable_prefix_caching": True,
        "enable_chunked_prefill": True, "long_prefill_token_threshold": 0, "scheduler_reserve_full_isl": True,
        "watermark": 0.0, "policy": "fcfs", "async_scheduling": False,
    } | changes  # fmt: skip
    if "max_num_seqs" in changes and "max_num_active_seqs" not in changes:
        values["max_num_active_seqs"] = changes["max_num_seqs"]
    return EngineConfig(**values)


class Measured(NamedTuple):
    """A measured range that some steps of a small run leave."""

    max_prefill_tokens: int = 16
    max_context: int = 20
    max_decodes: int = 3
    max_prefills: int = 2
    mixed_steps: bool = True


def step_time(formula: str = "linear", overhead: tuple[float, float] = (0.0, 0.0), **coefficients: float) -> StepTime:
    """A formula with the coefficients given, all others 0; ``overhead``: seconds, and seconds a prompt token."""
    unknown = set(coefficients) - set(FORMULAS[formula].coefficients)
    assert not unknown, unknown
    values = dict.fromkeys(FORMULAS[formula].coefficients, 0.0) | coefficients
    return FORMULAS[formula](values, *overhead, Measured())


def request(number: int, arrival_s: float, prompt: Any, num_outputs: int, **changes: Any) -> Request:
    """A request whose prompt is runs, or a number of tokens that nobody else has. It stops after ``num_outputs``."""
    runs = ((None, 0, prompt),) if isinstance(prompt, int) else tuple(prompt)
    values = {
        "request_id": number, "arrival_s": arrival_s, "prompt": runs,
        "num_prompt_tokens": sum(length for _, _, length in runs),
        "max_tokens": num_outputs, "oracle_num_output_tokens": num_outputs,
    } | changes  # fmt: skip
    return Request(**values)


class Moody(Router):
    """Takes turns, but makes every third request wait for a while and refuses every seventh."""

    summary = "for tests"
    source = "none"

    def choose(self, request: Request, view: Any, now_s: float) -> Send | Hold | Refuse:
        if request.request_id % 7 == 6:
            return Refuse("a mood")
        if request.request_id % 3 == 2 and now_s < request.arrival_s + 0.5:
            return Hold(request.arrival_s + 0.5)
        return Send(request.request_id % self.num_instances)


class Nosy(Router):
    """Polls, queues requests while all instances have three, and has blocks copied from who holds most of them."""

    summary = "for tests"
    source = "none"
    index = "events"
    event_delay_s = 0.05
    poll_s = 0.3
    poll_delay_s = 0.1

    def rank(self, request: Request) -> float:
        return -request.num_prompt_tokens

    def choose(self, request: Request, view: Any, now_s: float) -> Send | Hold:
        if min(view.num_in_flight) >= 3:
            return Hold()
        polled = view.polled
        loads = [
            (4 * waiting + running + usage, busy)
            for waiting, running, usage, busy in zip(
                polled.num_waiting, polled.num_running, polled.usage, view.num_in_flight, strict=True
            )
        ]
        instance = loads.index(min(loads))
        levels = view.cached_levels(request, now_s)
        if not levels or levels[-1][0] >> instance & 1:
            return Send(instance)
        holders, num_blocks = levels[-1]
        return Send(instance, Copy(holders.bit_length() - 1, num_blocks, 0.07))


FOR_TESTS: dict[str, type[Router]] = {"moody": Moody, "nosy": Nosy}


@dataclass(frozen=True)
class Case:
    """A cluster and what it is asked, as plain values: every run of it gets fresh objects."""

    engine: dict[str, Any]
    formula: str
    coefficients: dict[str, float]
    overhead: tuple[float, float]
    routing: Any
    watch: bool  # record KV events though the router does not ask for them
    num_instances: int
    requests: tuple[dict[str, Any], ...]
    eviction: Any = "vllm"
    tenants: tuple[str, ...] = ("",)

    def changed(self, **engine: Any) -> Case:
        """The same with other engine arguments."""
        return replace(self, engine=self.engine | engine)

    def config(self) -> EngineConfig:
        return config(**self.engine)

    def workload(self) -> list[Request]:
        return [Request(**values) for values in self.requests]

    def routers(self) -> list[Router]:
        if isinstance(self.routing, str) and self.routing in FOR_TESTS:
            return [FOR_TESTS[self.routing](None, self.num_instances, random.Random(0))]
        return make_routers(parse_routing(self.routing), self.num_instances, random.Random(0))


@dataclass
class Advance:
    """Busy time of one instance, as metrics are told."""

    instance: int
    start_s: float
    end_s: float
    num_steps: int
    num_tokens: int
    support: int


@dataclass
class Seen:
    """What a run did. ``endings``: rows in the order in which requests ended, for each instance (None: refused)."""

    cluster: Cluster
    metrics: Metrics
    requests: list[Request]
    events: list[tuple[float, int, list[int | None]]] = field(default_factory=list)
    advances: list[Advance] = field(default_factory=list)
    ended: list[Request] = field(default_factory=list)

    def rows(self) -> list[tuple]:
        return [tuple(getattr(one, name) for name in ROW) for one in self.requests]

    def endings(self) -> dict[int | None, list[int]]:
        found: dict[int | None, list[int]] = {}
        for one in self.ended:
            found.setdefault(one.instance, []).append(one.request_id)
        return found

    @property
    def num_preemptions(self) -> int:
        return sum(instance.scheduler.num_preemptions for instance in self.cluster.instances)


Hook = Callable[[int, Scheduler, str, Any], None]


def serve(case: Case, hook: Hook | None = None, started: Callable[[Cluster], None] | None = None, **mode: bool) -> Seen:
    """Run the case to its end. ``hook(instance, scheduler, what, value)`` is called before and after each decision.

    ``what``: "before", then "plan" with the plan, "finished" with the requests that a completion ended. ``started`` is
    given the cluster before it runs.
    """
    requests, routers = case.workload(), case.routers()
    for router in routers if case.watch else ():
        router.index = "events"  # the cluster then feeds the view; policies that have no index do not look at it
    metrics = Metrics(case.num_instances, case.tenants)
    times = step_time(case.formula, case.overhead, **case.coefficients)
    eviction = parse_eviction(case.eviction)
    cluster = Cluster(
        case.config(), times, routers, case.num_instances, metrics, eviction=eviction, kv_bytes_per_token=1, **mode
    )
    seen = Seen(cluster, metrics, requests)
    _observe(seen)
    for instance in cluster.instances:
        if hook is not None:
            _attach(hook, instance.number, instance.scheduler)
        _bound(instance.scheduler)
    if started is not None:
        started(cluster)
    cluster.run(iter(requests))
    return seen


def _observe(seen: Seen) -> None:
    cluster, metrics = seen.cluster, seen.metrics
    tell_events, tell_advance, tell_request = cluster.kv_events, metrics.advance, metrics.request

    def kv_events(instance: int, time_s: float, events: list[int | None]) -> None:
        seen.events.append((time_s, instance, list(events)))
        tell_events(instance, time_s, events)

    def advance(
        instance: int, start_s: float, end_s: float, num_steps: int, plan: Plan, support: int, *rest: Any
    ) -> None:
        seen.advances.append(Advance(instance, start_s, end_s, num_steps, plan.num_tokens, support))
        tell_advance(instance, start_s, end_s, num_steps, plan, support, *rest)

    def ended(request: Request) -> None:
        seen.ended.append(request)
        tell_request(request)

    cluster.kv_events, metrics.advance, metrics.request = kv_events, advance, ended  # type: ignore[method-assign]


def _attach(hook: Hook, number: int, scheduler: Scheduler) -> None:
    schedule, complete = scheduler.schedule, scheduler.complete

    def watched_schedule() -> Plan:
        hook(number, scheduler, "before", None)
        plan = schedule()
        hook(number, scheduler, "plan", plan)
        return plan

    def watched_complete(num_steps: int = 1) -> list[Request]:
        finished = complete(num_steps)
        hook(number, scheduler, "finished", finished)
        return finished

    scheduler.schedule, scheduler.complete = watched_schedule, watched_complete  # type: ignore[method-assign]


def _bound(scheduler: Scheduler, most: int = 30_000) -> None:
    """Make a run that never ends an error: no drawn case needs a tenth as many schedules."""
    schedule, calls = scheduler.schedule, count()

    def bounded() -> Plan:
        assert next(calls) < most, "the run does not end"
        return schedule()

    scheduler.schedule = bounded  # type: ignore[method-assign]


def decisions(case: Case, **mode: bool) -> list[tuple]:
    """Every plan of a run that takes each step by itself: (time, instance, who computes how much, who had to go)."""
    log: list[tuple] = []
    clusters: list[Cluster] = []

    def note(number: int, scheduler: Scheduler, what: str, value: Any) -> None:
        if what == "plan":
            rows = tuple((one.request_id, tokens) for one, tokens, _ in scheduler.scheduled(value))
            gone = tuple(one.request_id for one in value.preempted)
            hits = tuple((one.request_id, hit) for one, hit in value.admitted)
            log.append((clusters[0].clock.now, number, rows, gone, hits))

    serve(case, note, clusters.append, advancing=False, **mode)
    return log


# --- comparing runs ---------------------------------------------------------------------------------------------------


class Names:
    """Block keys by order of appearance: fresh chains are numbered in the order of first use, which no law fixes."""

    def __init__(self) -> None:
        self._names: dict[int, int] = {}

    def __call__(self, key: int | None) -> Any:
        if key is None:
            return None
        if key < 0:
            return ("removed", self(~key))
        return self._names.setdefault(key, len(self._names))


def record(seen: Seen) -> dict[str, Any]:
    """All that law 7 holds equal, in a form that two runs can be compared by."""
    names = Names()
    # In order of time; ties between instances have no order, those of one instance keep theirs.
    events = sorted(seen.events, key=lambda event: event[:2])
    return {
        "rows": seen.rows(),
        "endings": seen.endings(),
        "statistics": [instance.scheduler.statistics for instance in seen.cluster.instances],
        "events": [(time_s, number, [names(key) for key in keys]) for time_s, number, keys in events],
        "pools": [_pool(instance.scheduler, names) for instance in seen.cluster.instances],
        "steps": seen.metrics.num_steps,
        "gaps": seen.metrics.gaps.weight,
        "prefix": (seen.metrics.prefix_queries, seen.metrics.prefix_hits, seen.metrics.preempted_hits),
        "busy": [_busy(seen, number) for number in range(seen.metrics.num_instances)],
    }


def _pool(scheduler: Scheduler, names: Names) -> tuple:
    pool = scheduler.pool
    contents = [names(key) for key in pool.key]
    ledger = getattr(pool, "ledger", None)
    whose = (ledger.owner, ledger.evicted) if ledger is not None else None
    found = {names(key): block for key, block in pool.cached.items()}
    return list(pool.free), list(pool.ref_cnt), contents, found, pool.num_evictions, whose


def _busy(seen: Seen, number: int) -> list[list[tuple[float, float]]]:
    """When the instance was busy with steps of each kind of support."""
    mine = [one for one in seen.advances if one.instance == number]
    return [intervals((one.start_s, one.end_s) for one in mine if one.support == support) for support in range(3)]


def intervals(pairs: Any) -> list[tuple[float, float]]:
    """The union of closed intervals, as disjoint ones in order; empty ones are left out."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(pair for pair in pairs if pair[1] > pair[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def holders(requests: Sequence[Request]) -> Counter[int]:
    """How many of the requests hold each block."""
    return Counter(block for one in requests for block in one.blocks)


def check(case: Case, **more: Any) -> dict[str, Seen]:
    """Run the case in all modes, hold all records equal (law 7), and return the runs."""
    seen = {name: serve(case, **more, **mode) for name, mode in MODES.items()}
    plain = record(seen["plain"])
    for name in ("stepping", "advancing"):
        other = record(seen[name])
        for what, value in plain.items():
            assert other[what] == value, (name, what)
    return seen
