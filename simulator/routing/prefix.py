"""Policies that follow the longest cached prefix alone."""

from __future__ import annotations

import random
from typing import Any, Literal

from pydantic import model_validator

from simulator.request import Request
from simulator.routing.decision import Send
from simulator.routing.prefix_index import instances
from simulator.routing.router import Router, StatefulParams
from simulator.routing.view import View
from simulator.units import Seconds


class LongestPrefixParams(StatefulParams):
    """``index``: own dispatches, never forgotten, or block events; ``event_delay``: how late those arrive, seconds."""

    index: Literal["dispatch", "events"] = "dispatch"
    event_delay: Seconds = 0.0

    @model_validator(mode="after")
    def _delay_needs_events(self) -> LongestPrefixParams:
        if "event_delay" in self.model_fields_set and self.index != "events":
            raise ValueError("event_delay has a meaning with index: events only")
        return self


class LongestPrefix(Router):
    """The instance with the most leading blocks, ties to the lowest index; nobody has one: fewest in flight.

    vLLM production-stack ``a6c01db``, ``prefixaware``: a trie that never evicts and no look at load, which sends
    everything to one instance where every prompt begins alike. Differences: engine blocks in place of chunks of 128
    characters, ties to the lowest index in place of a uniform draw, requests in flight in place of QPS for a miss.
    """

    summary = "most leading blocks cached, whatever the load"
    source = "vLLM production-stack prefixaware (a6c01db)"
    Params = LongestPrefixParams

    def __init__(self, params: Any, num_instances: int, rng: random.Random) -> None:
        super().__init__(params, num_instances, rng)
        self.index = params.index
        self.event_delay_s = params.event_delay

    def choose(self, request: Request, view: View, now_s: float) -> Send:
        levels = view.cached_levels(request, now_s)
        if not levels:
            loads = view.num_in_flight
            return Send(loads.index(min(loads)))
        deepest, _ = levels[-1]
        return Send(next(instances(deepest)))
