"""Looks on while a run is simulated, and notes where each request's time to first token goes."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from simulator.explain.alone import chunk_s, prefill_s
from simulator.explain.chunks import Chunks
from simulator.explain.journey import Journey, Span
from simulator.explain.parts import NAMES
from simulator.explain.queue_log import QueueLog, reason

if TYPE_CHECKING:
    import pandas as pd

    from simulator.instance import Flight, Instance
    from simulator.plan import Piece
    from simulator.request import Request


class Recorder:
    """A `simulator.instance.Watcher` of ``num_instances`` instances.

    It costs some microseconds for each chunk of a prompt and for each request; steps that only decode cost one look.
    """

    def __init__(self, num_instances: int) -> None:
        self.chunks = [Chunks() for _ in range(num_instances)]
        self._logs = [QueueLog() for _ in range(num_instances)]
        self._journeys: dict[Request, Journey] = {}  # of those without a first token
        self._seconds = array("d")  # the parts and what the cache saved, by request in order of first tokens
        self._counts = array("q")  # request, preemptions before the first token

    # --- called during the run ------------------------------------------------------------------------------------

    def sent(self, request: Request, now_s: float, overhead_s: float) -> None:
        """The router has decided."""
        assert request.instance is not None
        log = self._logs[request.instance]
        self._journeys[request] = Journey(request.arrival_s, now_s, overhead_s, len(log))

    def launched(self, instance: Instance, flight: Flight, now_s: float) -> None:
        """The engine has decided on a step: who comes in, who has to go, and what is computed."""
        plan, scheduler = flight.plan, instance.scheduler
        for request in plan.preempted:
            if (journey := self._journeys.get(request)) is not None:
                journey.preempted(now_s)
        for request, num_hit in plan.admitted:
            if (journey := self._journeys.get(request)) is not None:
                self._admit(instance, request, journey, now_s, num_hit)
        for piece in plan.pieces:
            self._compute(instance, flight, piece)
        if scheduler.num_waiting:
            self._logs[instance.number].stood(now_s, reason(scheduler, plan))

    def first_token(self, request: Request, now_s: float) -> None:
        """The parts are complete."""
        journey = self._journeys.pop(request)
        self._seconds.extend((*journey.arrives(now_s - request.arrival_s, now_s), journey.saved_s))
        self._counts.extend((request.request_id, journey.num_preemptions))

    def _admit(self, instance: Instance, request: Request, journey: Journey, now_s: float, num_hit: int) -> None:
        if journey.num_hit is not None:
            journey.resumed(now_s, num_hit)
            return
        assert request.queued_s is not None
        step_s, waited_s = self._logs[instance.number].waited(request.queued_s, now_s, journey.log_length)
        journey.admitted(request.queued_s, now_s, num_hit, step_s, waited_s)
        if num_hit:
            step_time, scheduler, num_tokens = instance.step_time, instance.scheduler, request.num_prompt_tokens
            journey.saved_s = prefill_s(step_time, scheduler, 0, num_tokens) - prefill_s(
                step_time, scheduler, num_hit, num_tokens
            )

    def _compute(self, instance: Instance, flight: Flight, piece: Piece) -> None:
        request, num_tokens, plan = piece.request, piece.num_tokens, flight.plan
        journey = self._journeys.get(request)
        if journey is None and (num_tokens == 1 or piece.num_drafts):
            return  # a decode
        self.chunks[instance.number].add(
            flight.start_s, flight.end_s, request.request_id, num_tokens, plan.num_tokens, plan.num_decodes
        )
        if journey is None:
            return
        last = request.num_computed_tokens  # they count as computed from the decision on
        if num_tokens == plan.num_tokens:
            own_s = flight.end_s - flight.start_s
        else:
            own_s = chunk_s(instance.step_time, last - num_tokens, num_tokens, as_decode=piece.num_drafts > 0)
        journey.computes(Span(flight.start_s, flight.end_s, own_s, last - num_tokens, last))

    # --- read after the run ---------------------------------------------------------------------------------------

    def table(self) -> pd.DataFrame:
        """One row for each request that got a first token, in that order: ``request_id``, the parts in seconds by
        name, ``saved_s`` (what the tokens found in the cache would have taken alone) and ``num_preemptions`` before.
        """
        import numpy as np
        import pandas as pd

        names = (*NAMES, "saved_s")
        seconds = np.array(self._seconds).reshape(-1, len(names))
        counts = np.array(self._counts).reshape(-1, 2)
        table = pd.DataFrame(seconds, columns=list(names))
        table.insert(0, "request_id", counts[:, 0])
        table["num_preemptions"] = counts[:, 1]
        return table
