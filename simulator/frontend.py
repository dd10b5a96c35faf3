"""The routers in front of the instances: what each is told and when, whom it holds, and where it sends.

Several replicas of one router take requests in turn, and each knows its own dispatches only. Block events and polled
metrics come from the engines and are the same for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf, nextafter
from typing import TYPE_CHECKING, Protocol

from simulator.request import WAITING, Request
from simulator.routing.decision import Decision, Hold, Refuse, Send
from simulator.routing.fleet import Fleet
from simulator.routing.polled import PolledMetrics
from simulator.routing.router import Router

if TYPE_CHECKING:
    from simulator.clock import Clock
    from simulator.instance import Instance


class Outcome(Protocol):
    """Who carries out what a router decides."""

    def send(self, request: Request, decision: Send) -> None: ...
    def refuse(self, request: Request, reason: str) -> None: ...


class Frontend:
    """``routers``: the replicas, in turn. All are of one policy with the same parameters."""

    def __init__(
        self, clock: Clock, routers: Sequence[Router], fleet: Fleet, instances: Sequence[Instance], outcome: Outcome
    ) -> None:
        self._clock = clock
        self._outcome = outcome
        self._instances = instances
        self.routers = routers
        self.views = [router.make_view(fleet) for router in routers]
        self._turn = 0
        router = routers[0]
        self._event_delay_s = router.event_delay_s
        self.watches = router.index == "events"
        if self.watches:
            for view in self.views[1:]:
                view.index = self.views[0].index  # the same events at the same times
        self._polled = None
        if router.poll_s is not None:
            self._polled = PolledMetrics(instances, router.poll_s, router.poll_delay_s)
            for view in self.views:
                view.polled = self._polled
            for instance in instances:
                instance.polled = self._polled
        self._truth = EngineTruth(clock, instances) if router.sees_truth else None
        if self._truth is not None:
            for view in self.views:
                view.truth = self._truth
        # By replica: its queue, by rank and arrival.
        self._queues: list[list[tuple[float, int, Request]]] = [[] for _ in routers]
        self._asks_soon = [False] * len(routers)
        self._num_queued = 0
        self._unsettled: list[tuple[float, int]] = []  # heap: when which sleeping instance's next KV events leave
        self._look_at_s = [inf] * len(instances)  # the entry of each instance there that counts: the earliest
        self._travelling: list[tuple[float, int, int, list[int | None]]] = []  # heap: KV events by the time they left
        self._num_batches = 0

    # --- requests -------------------------------------------------------------------------------------------------

    def arrived(self, request: Request) -> None:
        """A request is there to be routed."""
        replica = self._turn
        if len(self.routers) > 1:
            self._turn = (replica + 1) % len(self.routers)
        request.replica = replica
        if self._queues[replica]:
            self._enqueue(request)
            self._ask_queue(replica)
        else:
            self._ask(request)

    def first_token(self, request: Request, now_s: float) -> None:
        """A first token passes."""
        if self._truth is not None:
            self._truth.prefilled(request)
        replica = request.replica
        self.views[replica].first_token(request, now_s)
        if self._queues[replica]:
            self._ask_queue_soon(replica)

    def finished(self, request: Request, now_s: float) -> None:
        """The last token passes, or the client hangs up."""
        if self._truth is not None:
            self._truth.prefilled(request)
        replica = request.replica
        self.views[replica].finished(request, now_s)
        if self._queues[replica]:
            self._ask_queue_soon(replica)

    def _ask(self, request: Request) -> None:
        decision = self._choose(request)
        if isinstance(decision, Hold) and decision.until_s is None:
            self._enqueue(request)
        else:
            self._carry_out(request, decision)

    def _ask_held(self, request: Request) -> None:
        if request.state == WAITING:
            self._ask(request)

    def _ask_queue_soon(self, replica: int) -> None:
        """Something passed the router: ask when the engine that it came from has taken its next decision."""
        if not self._asks_soon[replica]:
            self._asks_soon[replica] = True
            self._clock.at(self._clock.now, lambda _: self._ask_queue(replica), first=True)

    def _ask_queue(self, replica: int) -> None:
        """Ask for the first of the queue, and the next, until one has to stay."""
        self._asks_soon[replica] = False
        queue = self._queues[replica]
        while queue:
            request = queue[0][2]
            if request.state == WAITING:  # else its client has gone
                decision = self._choose(request)
                if isinstance(decision, Hold) and decision.until_s is None:
                    return
                self._carry_out(request, decision)
            heappop(queue)

    def _enqueue(self, request: Request) -> None:
        self._num_queued += 1
        rank = self.routers[request.replica].rank(request)
        heappush(self._queues[request.replica], (rank, self._num_queued, request))

    def _choose(self, request: Request) -> Decision:
        now_s = self._clock.now
        if self.watches:
            # What happens at this very moment comes after the arrival, here as everywhere.
            self._deliver_events(min(now_s - self._event_delay_s, nextafter(now_s, -inf)))
        if self._polled is not None:
            self._polled.refresh(now_s)
        return self.routers[request.replica].choose(request, self.views[request.replica], now_s)

    def _carry_out(self, request: Request, decision: Decision) -> None:
        if isinstance(decision, Send):
            instance, copy, prefill_s = decision
            num_copied = 0 if copy is None else copy.num_blocks
            self.views[request.replica].dispatched(request, instance, self._clock.now, num_copied, prefill_s)
            request.instance = instance
            if self._truth is not None:
                self._truth.sent(request)
            self._outcome.send(request, decision)
        elif isinstance(decision, Refuse):
            self._outcome.refuse(request, decision.reason)
        else:
            assert decision.until_s is not None
            self._clock.at(decision.until_s, lambda _: self._ask_held(request), first=True)

    # --- what engines tell ----------------------------------------------------------------------------------------

    def kv_events(self, instance: int, time_s: float, events: list[int | None]) -> None:
        """KV events left an instance; they arrive after the router's event delay."""
        self._num_batches += 1
        heappush(self._travelling, (time_s, self._num_batches, instance, events))

    def asleep(self, instance: Instance) -> None:
        """An instance takes several steps at once: note when it must be looked at for KV events in between."""
        look_at_s, number = self._look_at_s, instance.number
        if look_at_s[number] <= self._clock.now:
            return  # at the next arrival it is looked at anyway
        time_s = instance.next_event_s()
        if time_s is not None and time_s < look_at_s[number]:
            look_at_s[number] = time_s
            heappush(self._unsettled, (time_s, number))

    def _deliver_events(self, limit_s: float) -> None:
        """Give the routers the events which left by ``limit_s``; only instances that have some are settled for it."""
        unsettled, travelling = self._unsettled, self._travelling
        while unsettled and unsettled[0][0] <= limit_s:
            time_s, number = heappop(unsettled)
            if time_s == self._look_at_s[number]:
                self._look_at_s[number] = inf
                self._instances[number].settle(limit_s)
                self.asleep(self._instances[number])
        view = self.views[0]  # the index is one for all
        while travelling and travelling[0][0] <= limit_s:
            _, _, number, events = heappop(travelling)
            view.kv_events(number, events)


class EngineTruth:
    """`routing.view.Truth`, read from the engines at the moment of the question."""

    def __init__(self, clock: Clock, instances: Sequence[Instance]) -> None:
        self._clock = clock
        self._instances = instances
        self._prefilling: list[dict[int, Request]] = [{} for _ in instances]  # by instance and id: sent, no token yet

    def sent(self, request: Request) -> None:
        assert request.instance is not None
        self._prefilling[request.instance][request.request_id] = request

    def prefilled(self, request: Request) -> None:
        assert request.instance is not None
        self._prefilling[request.instance].pop(request.request_id, None)

    def cached_blocks(self, request: Request, instance: int) -> int:
        """See `routing.view.Truth.cached_blocks`."""
        self._instances[instance].settle(nextafter(self._clock.now, -inf))
        return len(self._instances[instance].scheduler.kv.longest_hit(request, request.num_prompt_tokens))

    def queued_tokens(self, instance: int) -> int:
        """See `routing.view.Truth.queued_tokens`; of those on their way too."""
        size = self._instances[instance].scheduler.kv.block_size
        total = 0
        for request in self._prefilling[instance].values():
            computed = request.num_computed_tokens or self.cached_blocks(request, instance) * size
            # What was computed beyond the prompt, before its first token came out, is no prefill.
            total += max(0, request.num_prompt_tokens - computed)
        return total
