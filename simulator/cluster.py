"""Arrivals, a router, instances: one request's way through the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from math import inf, nextafter
from typing import TYPE_CHECKING

from simulator.clock import Clock
from simulator.engine_args.unmeasured import unmeasured
from simulator.errors import InputError
from simulator.instance import Instance
from simulator.metrics import Metrics
from simulator.noise import StepNoise, draw_step_noise
from simulator.prefix import PRIVATE, Prefixes
from simulator.request import REFUSED, Request
from simulator.routing.decision import Hold, Refuse, Send
from simulator.routing.router import Router
from simulator.scheduler import Scheduler
from simulator.step_time import StepTime

if TYPE_CHECKING:
    import simpy

    from simulator.engine_args.config import EngineConfig
    from simulator.profile import Profile

TOO_LONG = "prompt and max_tokens exceed max_model_len"


def simulate(
    config: EngineConfig,
    profile: Profile,
    router: Router,
    requests: Iterable[Request],
    num_instances: int,
    metrics: Metrics,
    *,
    seed: int = 0,
    replication: int = 0,
) -> None:
    """Serve ``requests`` (in order of arrival, read as time goes on) until the last has ended; results are in
    ``metrics``. ``seed`` and ``replication`` name the streams of step noise, where the profile has any.
    """
    step_time = profile.step_time(as_measured=not unmeasured(config, profile))
    noise = None
    if profile.step_noise_s is not None and profile.step_noise_s.value:
        deviation_s = profile.step_noise_s.value
        noise = [draw_step_noise(deviation_s, seed, replication, number) for number in range(num_instances)]
    Cluster(config, step_time, router, num_instances, metrics, noise=noise).run(requests)


class Cluster:
    """``num_instances`` equal instances behind one router.

    Without ``advancing`` or ``grouping`` every step and every request is visited: the plain reference of law 7.
    ``noise`` is that of each instance's steps.
    """

    def __init__(
        self,
        config: EngineConfig,
        step_time: StepTime,
        router: Router,
        num_instances: int,
        metrics: Metrics,
        *,
        advancing: bool = True,
        grouping: bool = True,
        noise: Sequence[StepNoise] | None = None,
    ) -> None:
        self.config = config
        self.step_time = step_time
        self.router = router
        self.metrics = metrics
        self.clock = Clock()
        self.prefixes = Prefixes(config.block_size)
        self.view = router.make_view(config.block_size)
        self._watches = router.index == "events"
        self.instances = [
            Instance(
                self.clock,
                number,
                Scheduler(config, self.prefixes, grouping=grouping, announce_below=PRIVATE if self._watches else None),
                step_time,
                metrics,
                self,
                advancing=advancing,
                noise=noise[number] if noise is not None else None,
            )
            for number in range(num_instances)
        ]
        self._requests: Iterator[Request] = iter(())
        self._last_arrival = -inf
        self._unsettled: list[tuple[float, int]] = []  # heap: when which sleeping instance's next KV events leave
        self._travelling: list[tuple[float, int, int, list[int | None]]] = []  # heap: KV events by the time they left
        self._num_batches = 0

    def run(self, requests: Iterable[Request]) -> None:
        """Serve all requests. Raises InputError where arrivals go back in time."""
        self._requests = iter(requests)
        self._await_next(None)
        self.clock.run()

    def _await_next(self, _: simpy.Event | None) -> None:
        request = next(self._requests, None)
        if request is None:
            return
        if request.arrival_s < self.clock.now:
            raise InputError(
                f"request {request.request_id}: arrives at {request.arrival_s} s, after one at {self.clock.now} s"
            )
        self.clock.at(request.arrival_s, lambda _: self._arrive(request), first=True)

    def _arrive(self, request: Request) -> None:
        self._await_next(None)
        # vLLM goes by a clock that never shows the same time twice; two requests of equal rank would preempt each other
        # for ever.
        self._last_arrival = request.arrival_time = max(request.arrival_s, nextafter(self._last_arrival, inf))
        if request.num_prompt_tokens + request.max_tokens > self.config.max_model_len:
            self._refuse(request, TOO_LONG)
            return
        if self.router.needs_block_keys:
            root = self.prefixes.root(request.cache_salt, request.lora)
            request.block_keys, request.prompt_end = self.prefixes.keys(request.prompt, root)
        self._route(request)

    def _route(self, request: Request) -> None:
        now_s = self.clock.now
        if self._watches:
            # What happens at this very moment comes after the arrival, here as everywhere.
            self._deliver_events(min(now_s - self.router.event_delay_s, nextafter(now_s, -inf)))
        decision = self.router.choose(request, self.view, now_s)
        if isinstance(decision, Send):
            self._send(request, decision.instance, now_s)
        elif isinstance(decision, Hold):
            self.clock.at(decision.until_s, lambda _: self._route(request), first=True)
        elif isinstance(decision, Refuse):
            self._refuse(request, decision.reason)

    def _send(self, request: Request, number: int, now_s: float) -> None:
        self.view.dispatched(request, number, now_s)
        request.instance = number
        overhead_s = self.step_time.overhead_s(request.num_prompt_tokens)
        instance = self.instances[number]
        if overhead_s:
            self.clock.at(now_s + overhead_s, lambda _: instance.submit(request), first=True)
        else:
            instance.submit(request)

    def _refuse(self, request: Request, reason: str) -> None:
        request.state = REFUSED
        request.refusal = reason
        self.metrics.request(request)

    # --- what instances report ------------------------------------------------------------------------------------

    def first_token(self, request: Request, now_s: float) -> None:
        """The router sees the first token pass."""
        self.view.first_token(request, now_s)

    def finished(self, request: Request, now_s: float) -> None:
        """The router sees the last token pass; the request's row is written."""
        self.view.finished(request, now_s)
        self.metrics.request(request)

    def kv_events(self, instance: int, time_s: float, events: list[int | None]) -> None:
        """KV events left an instance; they arrive after the router's event delay."""
        self._num_batches += 1
        heappush(self._travelling, (time_s, self._num_batches, instance, events))

    def asleep(self, instance: Instance) -> None:
        """An instance takes several steps at once: note when it must be looked at for KV events in between."""
        time_s = instance.next_event_s()
        if time_s is not None:
            heappush(self._unsettled, (time_s, instance.number))

    def _deliver_events(self, limit_s: float) -> None:
        """Give the router the events which left by ``limit_s``; only instances that have some are settled for it."""
        unsettled, travelling = self._unsettled, self._travelling
        while unsettled and unsettled[0][0] <= limit_s:
            instance = self.instances[heappop(unsettled)[1]]
            instance.settle(limit_s)
            self.asleep(instance)
        while travelling and travelling[0][0] <= limit_s:
            _, _, number, events = heappop(travelling)
            self.view.kv_events(number, events)
