"""One serving instance: schedule, wait, complete.

The engine loop is vLLM's (``v1/core/core.py``: ``step``, ``step_with_batch_queue``): while fewer plans are in flight
than the engine's depth, schedule another; wait for the oldest; process its output. A step ends at *stretch start +
elapsed (+ noise)*, whether it is waited for alone or together with those after it, so that both give the same times to
the bit.
"""

from __future__ import annotations

from collections import deque
from math import inf, nextafter
from typing import TYPE_CHECKING, Protocol

from simulator.clock import Alarm, Clock
from simulator.plan import Plan
from simulator.request import RUNNING, WAITING, Request
from simulator.scheduler import Scheduler
from simulator.step_time import StepTime

if TYPE_CHECKING:
    import simpy

    from simulator.metrics import Metrics
    from simulator.noise import StepNoise
    from simulator.routing.polled import PolledMetrics


class Listener(Protocol):
    """Who is told what happens on an instance."""

    def first_token(self, request: Request, now_s: float) -> None: ...
    def finished(self, request: Request, now_s: float) -> None: ...
    def kv_events(self, instance: int, time_s: float, events: list[int | None]) -> None: ...
    def asleep(self, instance: Instance) -> None: ...


class Watcher(Protocol):
    """Who looks on, where somebody does: told what is decided, without a say in it.

    ``sent``: the router has decided, and transport takes ``overhead_s``. ``launched``: the engine has decided on a step
    (its tokens count as computed already) and put it behind those in flight.
    """

    def sent(self, request: Request, now_s: float, overhead_s: float) -> None: ...
    def launched(self, instance: Instance, flight: Flight, now_s: float) -> None: ...
    def first_token(self, request: Request, now_s: float) -> None: ...


class Flight:
    """A plan on its way: the ``step``-th step of the stretch that began at ``anchor_s`` with the plan ``base``, when
    the instance had launched ``first`` steps. A plan without tokens takes no time: its ``step`` is 0.
    """

    __slots__ = ("anchor_s", "base", "end_s", "first", "plan", "start_s", "step", "support")

    def __init__(
        self, plan: Plan, base: Plan, anchor_s: float, first: int, step: int, start_s: float, support: int
    ) -> None:
        self.plan = plan
        self.base = base
        self.anchor_s = anchor_s
        self.first = first
        self.step = step
        self.start_s = start_s
        self.end_s = start_s
        self.support = support


class Instance:
    """Runs one scheduler on the clock. ``advancing=False`` takes every step by itself."""

    def __init__(
        self,
        clock: Clock,
        number: int,
        scheduler: Scheduler,
        step_time: StepTime,
        metrics: Metrics,
        listener: Listener,
        *,
        advancing: bool = True,
        noise: StepNoise | None = None,
    ) -> None:
        self.clock = clock
        self.number = number
        self.scheduler = scheduler
        self.step_time = step_time
        self.metrics = metrics
        self.listener = listener
        self.advancing = advancing
        self.noise = noise
        self.reports_events = scheduler.pool.events is not None
        self._ledger = scheduler.pool.ledger
        self._tells_time = scheduler.pool.goes_by_time
        if self._tells_time:
            scheduler.stretch.scheduled_at = self._scheduled_at
        self.polled: PolledMetrics | None = None  # who polls the metrics, if anyone does
        self.watcher: Watcher | None = None
        self.num_advances = 0
        self._flights: deque[Flight] = deque()
        self._last: Flight | None = None
        self._num_steps = 0  # steps of the oldest flight's stretch that end at the alarm
        self._num_settled = 0  # of these, how many have been written down ahead of it
        self._alarm: Alarm | None = None
        self._alarm_s = 0.0
        self._aborts: list[Request] = []  # to be ended before the next decision
        self._copies: list[tuple[Request, list[int]]] = []  # to be submitted before it, with blocks from elsewhere
        self._num_waiting = self._num_running = 0  # as the last decision left them

    def submit(self, request: Request) -> None:
        """A request reaches the engine now: considered at the first schedule from here on."""
        request.queued_s = self.clock.now
        self.scheduler.add(request)
        self._look_again()

    def submit_with(self, request: Request, keys: list[int]) -> None:
        """A request reaches the engine together with its first blocks, computed elsewhere."""
        request.queued_s = self.clock.now
        self._copies.append((request, keys))
        self._look_again()

    def abort(self, request: Request) -> None:
        """The client hung up: the request leaves at the first step end from now on."""
        self._aborts.append(request)
        self._look_again()

    def settle(self, limit_s: float) -> None:
        """Write down what the steps that ended by ``limit_s`` did to the blocks, without ending the advance."""
        if self._num_steps < 2:
            return
        num_steps = self._steps_by(limit_s, at_most=self._num_steps - 1) - self._num_settled
        if num_steps > 0:
            self.scheduler.settle(num_steps)
            self._num_settled += num_steps
            self._date_events()

    def metrics_at(self, time_s: float) -> tuple[int, int, float]:
        """What the engine exports at ``time_s``: its queues as the last decision left them, and the share of its blocks
        in use. A step that ends at this very moment comes after.
        """
        self.settle(nextafter(time_s, -inf))
        pool = self.scheduler.pool
        num_blocks = pool.num_blocks - 1
        return self._num_waiting, self._num_running, (num_blocks - pool.num_free) / num_blocks

    def next_event_s(self) -> float | None:
        """When the next step ends that brings KV events, or None if the alarm comes no later."""
        num_steps = self.scheduler.stretch.steps_to_events()
        if num_steps is None or self._num_settled + num_steps >= self._num_steps:
            return None
        return self._end(self._num_settled + num_steps)

    # --- the loop -------------------------------------------------------------------------------------------------

    def _look_again(self) -> None:
        """Wake at the first step end from now on, where the scheduler can see what has come; at once if idle."""
        if not self._flights:
            if self._alarm is None:  # after all that arrives at this very moment
                self._alarm = self.clock.at(self.clock.now, self._wake)
        elif self._num_steps > 1:
            num_steps = self._steps_by(self.clock.now, at_most=self._num_steps - 1)
            if num_steps == 0 or self._end(num_steps) < self.clock.now:
                num_steps += 1
            if num_steps < self._num_steps:
                self._sleep(num_steps)

    def _wake(self, alarm: simpy.Event) -> None:
        if alarm is not self._alarm:
            return  # it was set before something came in between
        self._alarm = None
        now_s = self.clock.now
        if self.polled is not None:
            self.polled.before_change(self.number, now_s)
        if self._flights:
            self._complete(self._num_steps, now_s)
        elif self._tells_time:
            self.scheduler.pool.tell_time(now_s)
        if self._copies:
            self._take_copies()
        if self._aborts:
            self._end_aborted(now_s)
        self._decide(now_s)

    def _end_aborted(self, now_s: float) -> None:
        aborts, self._aborts = self._aborts, []
        for request in aborts:
            if request.state in (WAITING, RUNNING):
                self.scheduler.abort(request)
                request.finish_s = now_s
                self.listener.finished(request, now_s)

    def _take_copies(self) -> None:
        copies, self._copies = self._copies, []
        for request, keys in copies:
            if request.state == WAITING:
                self.scheduler.kv.receive(request, keys)
                self.scheduler.add(request)

    def _decide(self, now_s: float) -> None:
        """Keep as many plans in flight as the engine does, then sleep until the oldest has ended."""
        scheduler, flights = self.scheduler, self._flights
        while True:
            while len(flights) < scheduler.depth and scheduler.has_work():
                plan = scheduler.schedule()
                if plan.admitted or plan.preempted:
                    self._note(plan, now_s)
                self._launch(plan, now_s)
                if self.watcher is not None:
                    self.watcher.launched(self, flights[-1], now_s)
            if not flights:
                self._num_steps = 0
                return
            if flights[0].step:
                break
            # A batch without tokens takes no time. It follows a preemption; else another is still in flight.
            plan = flights[0].plan
            self._complete(1, now_s)
            if not flights and not plan.preempted and scheduler.has_work():
                raise RuntimeError(f"instance {self.number}: requests wait and none can run")
        self._num_waiting, self._num_running = scheduler.num_waiting, len(scheduler.running)
        self._sleep(self._steps_ahead())
        if self._num_steps > 1 and self.reports_events:
            self.listener.asleep(self)

    def _steps_ahead(self) -> int:
        flights = self._flights
        if not self.advancing or flights[0].base is not flights[-1].base:
            return 1
        return self.scheduler.max_steps()

    def _sleep(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._alarm_s = self._end(num_steps)
        self._alarm = self.clock.at(self._alarm_s, self._wake)

    def _launch(self, plan: Plan, now_s: float) -> None:
        """Put a plan behind those in flight; the device takes it up when it is free."""
        last, flights = self._last, self._flights
        start_s = max(now_s, flights[-1].end_s) if flights else now_s
        if plan.continues and last is not None and last.end_s == start_s:
            flight = Flight(plan, last.base, last.anchor_s, last.first, last.step + 1, start_s, last.support)
        else:
            first = last.first + last.step if last is not None else 0
            # A plan without tokens runs no model, but holds a place in the queue.
            step, support = (1, self.step_time.support(plan)) if plan.num_tokens else (0, 0)
            flight = Flight(plan, plan, start_s, first, step, start_s, support)
        if flight.step:
            flight.end_s = self._boundary(flight, flight.step)
        flights.append(flight)
        self._last = flight

    def _boundary(self, flight: Flight, step: int) -> float:
        """When the ``step``-th step of the flight's stretch ends."""
        end_s = flight.anchor_s + self.step_time.elapsed(flight.base, step)
        return end_s if self.noise is None else end_s + self.noise.elapsed(flight.first, step)

    def _shift_others(self, num_steps: int, start_s: float) -> None:
        """Let those in flight become the steps ``num_steps`` further on, the first of them from ``start_s``."""
        for flight in self._flights:
            flight.step += num_steps
            flight.start_s = start_s
            flight.end_s = start_s = self._boundary(flight, flight.step)

    def _end(self, num_steps: int) -> float:
        """When the ``num_steps``-th step from the oldest flight on ends."""
        flight = self._flights[0]
        if num_steps == 1:
            return flight.end_s
        return self._boundary(flight, flight.step + num_steps - 1)

    def _scheduled_at(self, index: int) -> float:
        """When the step with this schedule index is scheduled, of the stretch in progress: as a place falls free."""
        first = self.scheduler.completing - self._num_settled  # of the oldest flight
        return self._end(index - self.scheduler.depth - first + 1)

    def _steps_by(self, limit_s: float, at_most: int) -> int:
        """How many steps from the oldest flight on have ended by ``limit_s``."""
        flight = self._flights[0]
        if limit_s < flight.end_s:
            return 0
        # A guess by the mean step, then its neighbours.
        elapsed_s = self._alarm_s - flight.start_s
        guess = int((limit_s - flight.start_s) / elapsed_s * self._num_steps) if elapsed_s > 0 else at_most
        num_steps = 1 if guess < 1 else min(guess, at_most)
        if self._end(num_steps) <= limit_s:
            while num_steps < at_most and self._end(num_steps + 1) <= limit_s:
                num_steps += 1
        else:
            num_steps -= 1
            while num_steps > 1 and self._end(num_steps) > limit_s:
                num_steps -= 1
        return num_steps

    # --- what happened --------------------------------------------------------------------------------------------

    def _note(self, plan: Plan, now_s: float) -> None:
        """Records of a decision: first schedules, prefix hits, the last token before a preemption."""
        for request, hit in plan.admitted:
            if request.first_scheduled_s is None:
                request.first_scheduled_s = now_s
            known = request.num_prompt_tokens + request.num_output_tokens
            self.metrics.prefix(self.number, now_s, known, hit, request.num_preemptions > 0)
        for request in plan.preempted:
            if request.first_token_s is not None and request.last_token_s is None:
                request.last_token_s = now_s

    def _complete(self, num_steps: int, now_s: float) -> None:
        """Process the output of the next ``num_steps`` steps, the last of which ends now."""
        scheduler, flight = self.scheduler, self._flights[0]
        first, outputs = scheduler.completing - self._num_settled, scheduler.num_piece_outputs
        if num_steps - self._num_settled > 1:
            scheduler.settle(num_steps - self._num_settled - 1)
        if self._tells_time:
            scheduler.pool.tell_time(now_s)
        used_blocks = scheduler.pool.num_blocks - 1 - scheduler.pool.num_free
        finished = scheduler.complete()
        self._num_settled = num_steps
        if scheduler.event_batches:
            self._date_events()
        self._flights.popleft()
        self._num_settled = 0
        outputs = num_steps * flight.plan.num_grouped + scheduler.num_piece_outputs - outputs
        if scheduler.absent:
            outputs -= sum(scheduler.absent.pop(index, 0) for index in range(first, first + num_steps))
        if flight.plan.pieces:
            outputs -= self._first_tokens(flight.plan, now_s)
        if flight.step:
            self._record(flight, num_steps, now_s, used_blocks, outputs)
        if num_steps > 1:
            flight.step += num_steps - 1
            flight.end_s = now_s
            if self._flights:
                self._shift_others(num_steps - 1, now_s)
        for request in finished:
            request.finish_s = now_s
            self.listener.finished(request, now_s)

    def _first_tokens(self, plan: Plan, now_s: float) -> int:
        """Note the first tokens that the plan's pieces brought, and how many they are."""
        found = 0
        for piece in plan.pieces:
            request = piece.request
            if not piece.samples or not request.num_output_tokens:
                continue
            if piece.seq == request.seq:
                found += self._first_token(request, now_s)
            elif request.first_token_s is None:  # it was preempted while its first token was on its way
                found += self._first_token(request, now_s)
                request.last_token_s = now_s
        return found

    def _first_token(self, request: Request, now_s: float) -> bool:
        """Note a token that is the request's first, or its first after a preemption; whether it is one of these."""
        if request.first_token_s is None:
            if request.hung_up_s is None:  # else nobody is there to see it
                request.first_token_s = now_s
                self.listener.first_token(request, now_s)
            return True
        if request.last_token_s is not None:
            self.metrics.token_gaps(now_s - request.last_token_s)
            request.last_token_s = None
            return True
        return False

    def _record(self, flight: Flight, num_steps: int, end_s: float, used_blocks: int, num_gaps: int) -> None:
        """What the advance took: queues as it began, blocks as it ended, and inter-token times of the mean step."""
        self.num_advances += 1
        self.metrics.advance(
            self.number, flight.start_s, end_s, num_steps, flight.plan, flight.support,
            self._num_waiting, self._num_running, used_blocks,
        )  # fmt: skip
        if self._ledger is not None and self.metrics.residents is not None:
            self.metrics.residents.report(self.number, end_s, self._ledger.num_resident)
        if num_gaps:
            self.metrics.token_gaps((end_s - flight.start_s) / num_steps, num_gaps)

    def _date_events(self) -> None:
        """Report KV events with the ends of the steps whose output they left with."""
        scheduler = self.scheduler
        first = scheduler.completing - self._num_settled - 1  # one before the oldest flight's
        for index, events in scheduler.event_batches:
            self.listener.kv_events(self.number, self._end(index - first), events)
        scheduler.event_batches = []
