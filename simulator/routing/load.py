"""Policies that ignore the cache: chance, turns, and the number of requests in flight."""

from __future__ import annotations

import random
from typing import Any

from simulator.request import Request
from simulator.routing.decision import Send
from simulator.routing.router import Router, StatefulParams
from simulator.routing.view import View


class Random(Router):
    """Uniform over the instances, one draw a request. Dynamo's frontend (config ``0243c51``) defaults to this mode."""

    summary = "uniformly random"
    source = "Dynamo random mode (0243c51)"

    def choose(self, request: Request, view: View, now_s: float) -> Send:  # noqa: ARG002
        return Send(self.rng.randrange(self.num_instances))


class RoundRobin(Router):
    """In turn, from the first instance. vLLM production-stack ``a6c01db``, ``roundrobin`` (URLs in order of name)."""

    summary = "each instance in turn"
    Params = StatefulParams
    source = "vLLM production-stack roundrobin (a6c01db)"

    def __init__(self, params: Any, num_instances: int, rng: random.Random) -> None:
        super().__init__(params, num_instances, rng)
        self._turn = 0

    def choose(self, request: Request, view: View, now_s: float) -> Send:  # noqa: ARG002
        instance = self._turn
        self._turn = (instance + 1) % self.num_instances
        return Send(instance)


class LeastRequests(Router):
    """Fewest requests in flight by the router's own count. AIBrix ``e3e10f9``, ``least-request``.

    AIBrix shuffles ties; here they go to the lowest index, as in every policy that mirrors no random tie.
    """

    summary = "fewest own requests in flight, ties to the lowest index"
    Params = StatefulParams
    source = "AIBrix least-request (e3e10f9)"

    def choose(self, request: Request, view: View, now_s: float) -> Send:  # noqa: ARG002
        loads = view.num_in_flight
        return Send(loads.index(min(loads)))


class PowerOfTwo(Router):
    """Two distinct random instances, the one with fewer requests in flight, a tie to the first drawn.

    vllm-router ``fa999f9``, ``power_of_two``. Theory: Azar, Broder, Karlin, Upfal, "Balanced allocations" (1999).
    """

    summary = "fewer in flight of two random instances"
    Params = StatefulParams
    source = "vllm-router power_of_two (fa999f9)"

    def choose(self, request: Request, view: View, now_s: float) -> Send:  # noqa: ARG002
        if self.num_instances == 1:
            return Send(0)
        first = self.rng.randrange(self.num_instances)
        second = self.rng.randrange(self.num_instances - 1)
        if second >= first:
            second += 1
        loads = view.num_in_flight
        return Send(second if loads[second] < loads[first] else first)
