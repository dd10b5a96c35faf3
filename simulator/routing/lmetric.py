"""LMetric: new prefill tokens times batch size, the smallest product wins. Nothing to tune."""

from __future__ import annotations

import random
from operator import mul
from typing import Any, Literal

from simulator.request import Request
from simulator.routing.decision import Send
from simulator.routing.prefix_index import apart, instances
from simulator.routing.router import Router, StatefulParams
from simulator.routing.ties import any_least
from simulator.routing.view import View
from simulator.units import Seconds


class LMetricParams(StatefulParams):
    """``load``: what stands for the batch size, the requests in flight (the paper), or the distinct blocks that they
    hold (Dynamo); ``event_delay``: seconds until a block event reaches the router.
    """

    load: Literal["requests", "blocks"] = "requests"
    event_delay: Seconds = 0.0


class LMetric(Router):
    """The least ``(tokens to prefill) * (load + 1)``, equals uniformly at random.

    *Tokens to prefill* are those dispatched and without a first token yet, plus the request's own, each less the
    leading blocks cached. *Load* is the number of requests in flight, or with ``load: blocks`` the active blocks after
    admission, as in the ``lmetric`` policy of ai-dynamo (selector ``07a6c9c``), from which the 1 is taken too: by the
    bare product of arXiv 2603.15202 (OSDI'26) all instances without a request are equal, whatever they have cached.
    """

    summary = "least tokens to prefill times requests in flight"
    source = "LMetric (arXiv 2603.15202); Dynamo lmetric (07a6c9c)"
    Params = LMetricParams
    index = "events"

    def __init__(self, params: Any, num_instances: int, rng: random.Random) -> None:
        super().__init__(params, num_instances, rng)
        self.event_delay_s = params.event_delay
        self.tracks_active_blocks = params.load == "blocks"

    def choose(self, request: Request, view: View, now_s: float) -> Send:
        return Send(any_least(self.costs(request, view, now_s), self.rng))

    def costs(self, request: Request, view: View, now_s: float) -> list[int]:
        """The product for each instance."""
        size, number = view.block_size, view.num_instances
        overlap, overlaps = apart(view.cached_levels(request, now_s), number)
        tokens = list(map((request.num_prompt_tokens - overlap * size).__add__, view.prefill_tokens))
        for mask, depth in overlaps:
            more = (depth - overlap) * size
            for instance in instances(mask):
                tokens[instance] -= more
        if not self.tracks_active_blocks:
            return [uncached * (count + 1) for uncached, count in zip(tokens, view.num_in_flight, strict=True)]
        shared, shares = apart(view.active_levels(request), number)
        loads = list(map((len(request.block_keys) + 1 - shared).__add__, view.active_blocks))
        for mask, depth in shares:
            more = depth - shared
            for instance in instances(mask):
                loads[instance] -= more
        return list(map(mul, tokens, loads))
