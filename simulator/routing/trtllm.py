"""TensorRT-LLM's routers between the ranks of attention data parallelism."""

from __future__ import annotations

import math
import random
from typing import Annotated, Any

from pydantic import Field

from simulator.request import Request
from simulator.routing.decision import Send
from simulator.routing.prefix_index import apart, instances, mask_of
from simulator.routing.router import Router, StatefulParams
from simulator.routing.ties import any_least
from simulator.routing.view import View
from simulator.units import Number, Seconds, Share


class AdpParams(StatefulParams):
    """Upstream's names, without their ``kv_cache_routing_``, and defaults. ``event_delay`` is ours: the ranks are asked
    for their caches at each step, hence 0.
    """

    load_balance_weight: Annotated[Number, Field(ge=0)] = 1.0
    match_rate_threshold: Share = 0.1
    fair_share_multiplier: Annotated[Number, Field(ge=1)] = 2.0
    event_delay: Seconds = 0.0


class TrtLlmAdp(Router):
    """``KVCacheAwareADPRouter`` of TensorRT-LLM (``adp_router.py``, PR #12315 and what followed). The least

        score = prompt tokens - cached + b * (active tokens / load) * prompt tokens

    with b = load_balance_weight, *active tokens* the uncached tokens of the requests in flight and *load* their sum
    over the instances, at least the prompt's tokens. Ties go to the fewest active tokens, then to any. Instances take
    part that have fewer requests than ``fair_share_multiplier`` times their share of all, this one included (or than
    the fullest). Where nobody caches more than ``match_rate_threshold`` of the prompt, nobody is taken to cache any.

    Each request is routed when it arrives; upstream sorts those that came during one engine step by their first 64
    tokens and length. Its ranks step together, ours do not.
    """

    summary = "least uncached tokens + share of the load (KV-aware, between data-parallel ranks)"
    source = "TensorRT-LLM KVCacheAwareADPRouter (PR #12315)"
    Params = AdpParams
    index = "events"

    def __init__(self, params: Any, num_instances: int, rng: random.Random) -> None:
        super().__init__(params, num_instances, rng)
        self.event_delay_s = params.event_delay

    def choose(self, request: Request, view: View, now_s: float) -> Send:
        scores = self.scores(request, view, now_s)
        least = min(scores)
        if scores.count(least) == 1:
            return Send(scores.index(least))
        tied = [instance for instance, score in enumerate(scores) if score == least]
        active = [view.uncached_tokens[instance] for instance in tied]
        return Send(tied[any_least(active, self.rng)])

    def scores(self, request: Request, view: View, now_s: float) -> list[float]:
        """The score of each instance; infinite for those that take no part."""
        params, number, num_tokens = self.params, view.num_instances, request.num_prompt_tokens
        active, counts = view.uncached_tokens, view.num_in_flight
        fair_share = -(-(sum(counts) + 1) // number)
        limit, fullest = math.ceil(params.fair_share_multiplier * fair_share), max(counts)
        takes_part = (1 << number) - 1
        if fullest >= limit:
            takes_part = mask_of(map(fullest.__gt__, counts))
        full = list(instances((1 << number) - 1 ^ takes_part))
        load = sum(active) - sum([active[instance] for instance in full])
        weight = params.load_balance_weight * num_tokens / max(load, num_tokens)
        levels = view.cached_levels(request, now_s)
        if full:
            levels = [(mask & takes_part, depth) for mask, depth in levels if mask & takes_part]
        if not levels or levels[-1][1] * view.block_size <= params.match_rate_threshold * num_tokens:
            levels = []
        overlap, overlaps = apart(levels, number)
        # A prompt is never cached whole.
        own = num_tokens - min(overlap * view.block_size, num_tokens - 1)
        scores = [own + weight * tokens for tokens in active]
        for mask, depth in overlaps:
            own = num_tokens - min(depth * view.block_size, num_tokens - 1)
            for instance in instances(mask & takes_part):
                scores[instance] = own + weight * active[instance]
        for instance in full:
            scores[instance] = math.inf
        return scores
