"""vLLM's own balancer between data-parallel engines: queue lengths that the engines report."""

from __future__ import annotations

import random
from typing import Any, Literal

from simulator.request import Request
from simulator.routing.decision import Send
from simulator.routing.router import Router, StatefulParams
from simulator.routing.view import View
from simulator.units import PositiveSeconds


class VllmDpParams(StatefulParams):
    """``dialect``: whose rule; ``stats_interval``: seconds between two reports of the engines' queues. ``replicas`` are
    vLLM's API servers (``client_count``).
    """

    dialect: Literal["vllm-0.23", "vllm-0.32"] = "vllm-0.32"
    stats_interval: PositiveSeconds = 0.1


class VllmDp(Router):
    """``DPLBAsyncMPClient`` of vLLM 0.23.0 and 0.32.0 (``v1/engine/core_client.py``). The least score wins:

        0.23: 4 * waiting + running
        0.32: max(clients * own in flight, waiting + running) + 6 * waiting * max(0, usage - 0.5)

    with the queues and the share of KV blocks in use as last reported. After each choice the chosen one's *waiting* is
    raised by the number of clients, until the next report takes the place of all. Ties go to the first from the start
    of the scan on, client * engines / clients; 0.32 moves the start by one after each choice (PR #47420), which spreads
    equal engines and scatters the turns of a conversation (issue #52463).

    Reports come each ``stats_interval``, upstream's 100 ms (``coordinator.py``), at once everywhere; upstream sends
    none while nothing changes, and up to 50 ms later where engines step together. Late-interaction models and requests
    that name their rank are not modelled.
    """

    summary = "least reported queue (vLLM's data-parallel balancer)"
    source = "vLLM DPLBAsyncMPClient (0.23.0, 0.32.0)"
    Params = VllmDpParams

    def __init__(self, params: Any, num_instances: int, rng: random.Random) -> None:
        super().__init__(params, num_instances, rng)
        self.poll_s = params.stats_interval
        self._num_polls = -1
        self._waiting = [0] * num_instances
        self._num_rotated = 0

    def choose(self, request: Request, view: View, now_s: float) -> Send:  # noqa: ARG002
        if view.polled.num_polls != self._num_polls:
            self._num_polls = view.polled.num_polls
            self._waiting = list(view.polled.num_waiting)
        scores = self._scores(view)
        start = (self.num_instances * self.replica // self.params.replicas + self._num_rotated) % self.num_instances
        least = min(scores)
        instance = scores.index(least, start) if least in scores[start:] else scores.index(least)
        self._waiting[instance] += self.params.replicas
        self._num_rotated += self.params.dialect != "vllm-0.23"
        return Send(instance)

    def _scores(self, view: View) -> list[float]:
        running = view.polled.num_running
        if self.params.dialect == "vllm-0.23":
            return [4 * waiting + now for waiting, now in zip(self._waiting, running, strict=True)]
        clients = self.params.replicas
        return [
            max(clients * own, waiting + now) + (6.0 * waiting * (usage - 0.5) if waiting and usage > 0.5 else 0.0)
            for own, waiting, now, usage in zip(
                view.num_in_flight, self._waiting, running, view.polled.usage, strict=True
            )
        ]
