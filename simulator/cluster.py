"""Arrivals, a router, instances: one request's way through the cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf, nextafter
from typing import TYPE_CHECKING

from simulator.clock import Clock
from simulator.engine_args.unmeasured import unmeasured
from simulator.errors import InputError
from simulator.eviction import EvictionSpec
from simulator.frontend import Frontend
from simulator.instance import Instance, Watcher
from simulator.metrics import Metrics
from simulator.noise import StepNoise, draw_step_noise
from simulator.prefix import PRIVATE, Prefixes
from simulator.request import ABORTED, REFUSED, RUNNING, TOO_LONG, WAITING, Request, is_too_long
from simulator.routing.decision import Copy, Send
from simulator.routing.fleet import Fleet
from simulator.routing.router import Router
from simulator.scheduler import Scheduler
from simulator.step_time import StepTime
from simulator.tenancy import pool_maker

if TYPE_CHECKING:
    from simulator.engine_args.config import EngineConfig
    from simulator.profile import Profile

Follow = Callable[[Request, float], Iterable[Request]]


def simulate(
    config: EngineConfig,
    profile: Profile,
    routers: Sequence[Router],
    requests: Iterable[Request],
    num_instances: int,
    metrics: Metrics,
    *,
    seed: int = 0,
    replication: int = 0,
    eviction: EvictionSpec | None = None,
    watcher: Watcher | None = None,
) -> int:
    """Serve ``requests`` (in order of arrival, read as time goes on) until the last has ended; results are in
    ``metrics``. ``seed`` and ``replication`` name the streams of step noise, where the profile has any; ``eviction`` is
    the policy of the block pools, if not vLLM's own; ``watcher`` is told what is decided. Returns how many requests
    arrived.
    """
    step_time = profile.step_time(as_measured=not unmeasured(config, profile))
    noise = None
    if profile.step_noise_s is not None and profile.step_noise_s.value:
        deviation_s = profile.step_noise_s.value
        noise = [draw_step_noise(deviation_s, seed, replication, number) for number in range(num_instances)]
    cluster = Cluster(
        config, step_time, routers, num_instances, metrics, noise=noise, kv_bytes_per_token=profile.kv_bytes_per_token,
        eviction=eviction, watcher=watcher,
    )  # fmt: skip
    cluster.run(requests)
    return cluster.num_arrived


class Cluster:
    """``num_instances`` equal instances behind one router, or replicas of one.

    Without ``advancing`` or ``grouping`` every step and every request is visited: the plain reference of law 7.
    ``noise`` is that of each instance's steps. ``eviction`` is the policy of the block pools, if not vLLM's own.
    ``watcher`` is told what is decided.
    """

    def __init__(
        self,
        config: EngineConfig,
        step_time: StepTime,
        routers: Router | Sequence[Router],
        num_instances: int,
        metrics: Metrics,
        *,
        advancing: bool = True,
        grouping: bool = True,
        noise: Sequence[StepNoise] | None = None,
        kv_bytes_per_token: int = 0,
        eviction: EvictionSpec | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        routers = [routers] if isinstance(routers, Router) else routers
        self.config = config
        self.step_time = step_time
        self.metrics = metrics
        self.clock = Clock()
        self.prefixes = Prefixes(config.block_size)
        self._needs_block_keys = routers[0].needs_block_keys
        announce_below = PRIVATE if routers[0].index == "events" else None
        make_pool = pool_maker(config, eviction, metrics.tenants)
        self.instances = [
            Instance(
                self.clock,
                number,
                Scheduler(
                    config, self.prefixes, grouping=grouping, announce_below=announce_below, make_pool=make_pool
                ),
                step_time,
                metrics,
                self,
                advancing=advancing,
                noise=noise[number] if noise is not None else None,
            )
            for number in range(num_instances)
        ]
        if self.instances[0].scheduler.pool.ledger is not None:
            metrics.watch_residents()
        self._watcher = watcher
        for instance in self.instances:
            instance.watcher = watcher
        fleet = Fleet(
            num_instances, config.block_size, config.num_gpu_blocks, config.max_num_batched_tokens, config.max_num_seqs,
            step_time, kv_bytes_per_token, self.prefixes,
        )  # fmt: skip
        self.frontend = Frontend(self.clock, routers, fleet, self.instances, self)
        self._requests: Iterator[Request] = iter(())
        self._last_arrival = -inf
        self._follow: Follow | None = None
        self.num_arrived = 0
        self._room = inf  # how many more requests the client sends before one has to end
        self._held_back = False

    def run(self, requests: Iterable[Request], max_concurrency: int | None = None) -> None:
        """Serve all requests. Raises InputError where arrivals go back in time.

        With ``max_concurrency`` the client has at most so many under way, as load generators do: a request whose time
        has come is held back until another ends, and arrives then. Where ``requests`` has a method ``ended``, it is
        told of each end and answers with the requests that follow from it.
        """
        self._follow = getattr(requests, "ended", None)
        self._requests = iter(requests)
        if max_concurrency is not None:
            self._room = max_concurrency
        self._await_next()
        self.clock.run()
        for instance in self.instances:
            if (ledger := instance.scheduler.pool.ledger) is not None:
                self.metrics.evictions(ledger.evicted)

    def _await_next(self) -> None:
        if not self._room:
            self._held_back = True
            return
        request = next(self._requests, None)
        if request is None:
            return
        now_s = self.clock.now
        if request.arrival_s < now_s:
            if self._room == inf:
                raise InputError(
                    f"request {request.request_id}: arrives at {request.arrival_s} s, after one at {now_s} s"
                )
            request.arrival_s = now_s
        self._room -= 1
        self.clock.at(request.arrival_s, lambda _: self._arrive(request), first=True)

    def _ended(self, request: Request) -> None:
        """The request's row is written, and one that was held back may come."""
        self.metrics.request(request)
        self._room += 1
        if self._held_back:
            self._held_back = False
            self._await_next()
        if request.hung_up_s is None:
            self._let_follow(request)

    def _let_follow(self, request: Request) -> None:
        """What follows from the request's end, or from its client's hanging up, is on its way."""
        if self._follow is not None:
            for follower in self._follow(request, self.clock.now):
                self._expect(follower)

    def _expect(self, request: Request) -> None:
        self.clock.at(request.arrival_s, lambda _: self._come(request), first=True)

    def _arrive(self, request: Request) -> None:
        self._await_next()
        self._come(request)

    def _come(self, request: Request) -> None:
        self.num_arrived += 1
        if request.request_id < 0:
            request.request_id = self.num_arrived - 1
        if request.timeout_s is not None:
            self.clock.at(request.arrival_s + request.timeout_s, lambda _: self._give_up(request), first=True)
        # vLLM goes by a clock that never shows the same time twice; two requests of equal rank would preempt each other
        # for ever.
        self._last_arrival = request.arrival_time = max(request.arrival_s, nextafter(self._last_arrival, inf))
        if is_too_long(request, self.config.max_model_len):
            self.refuse(request, TOO_LONG)
            return
        if self._needs_block_keys:
            root = self.prefixes.root(request.cache_salt, request.lora)
            request.block_keys, request.prompt_end = self.prefixes.keys(request.prompt, root)
        self.frontend.arrived(request)

    def _give_up(self, request: Request) -> None:
        """The client has waited long enough and hangs up."""
        if request.state not in (WAITING, RUNNING):
            return
        request.hung_up_s = self.clock.now
        if request.queued_s is not None and request.instance is not None:
            self.instances[request.instance].abort(request)
        else:
            request.state, request.finish_s = ABORTED, self.clock.now  # on its way, or held by the router
            if request.instance is not None:
                self.frontend.finished(request, self.clock.now)
            self._ended(request)
        self._let_follow(request)

    # --- what routers decide --------------------------------------------------------------------------------------

    def send(self, request: Request, decision: Send) -> None:
        """The request is on its way to an instance, with the time that transport takes and what is to be copied."""
        instance = self.instances[decision.instance]
        delay_s = self.step_time.overhead_s(request.num_prompt_tokens)
        if self._watcher is not None:
            self._watcher.sent(request, self.clock.now, delay_s)
        copied: list[int] = []
        if decision.copy is not None:
            delay_s += decision.copy.copy_s
            copied = self._found(request, decision.copy)
        if delay_s:
            self.clock.at(self.clock.now + delay_s, lambda _: self._submit(request, instance, copied), first=True)
        else:
            self._submit(request, instance, copied)

    def refuse(self, request: Request, reason: str) -> None:
        """The request is turned away."""
        request.state = REFUSED
        request.refusal = reason
        self._ended(request)

    def _submit(self, request: Request, instance: Instance, copied: list[int]) -> None:
        if request.state != WAITING:
            return  # its client has gone
        if copied:
            instance.submit_with(request, copied)
        else:
            instance.submit(request)

    def _found(self, request: Request, copy: Copy) -> list[int]:
        """The keys of the blocks that are really there to be copied."""
        source = self.instances[copy.source]
        source.settle(nextafter(self.clock.now, -inf))
        num_blocks = len(source.scheduler.kv.longest_hit(request, request.num_prompt_tokens))
        return request.block_keys[: min(copy.num_blocks, num_blocks)]

    # --- what instances report ------------------------------------------------------------------------------------

    def first_token(self, request: Request, now_s: float) -> None:
        """The router sees the first token pass."""
        if self._watcher is not None:
            self._watcher.first_token(request, now_s)
        self.frontend.first_token(request, now_s)

    def finished(self, request: Request, now_s: float) -> None:
        """The router sees the last token pass; the request's row is written."""
        self.frontend.finished(request, now_s)
        if request.hung_up_s is not None:
            request.state = ABORTED  # though its last token may have come with the very step in which it would leave
        self._ended(request)

    def kv_events(self, instance: int, time_s: float, events: list[int | None]) -> None:
        """KV events left an instance."""
        self.frontend.kv_events(instance, time_s, events)

    def asleep(self, instance: Instance) -> None:
        """An instance takes several steps at once, with KV events in between."""
        self.frontend.asleep(instance)
