"""NVIDIA Dynamo's KV router: uncached blocks plus active blocks, the cheapest instance wins."""

from __future__ import annotations

import math
import random
from typing import Annotated, Any

from pydantic import Field, model_validator

from simulator.request import Request
from simulator.routing.decision import Send
from simulator.routing.prefix_index import instances
from simulator.routing.router import Router, StatefulParams
from simulator.routing.view import View
from simulator.units import Number, PositiveSeconds, Seconds

_Weight = Annotated[Number, Field(ge=0)]


class DynamoParams(StatefulParams):
    """Upstream's names and 2026 defaults. ``event_delay`` is ours: seconds until a block event reaches the router."""

    overlap_score_credit: _Weight = 1.0
    overlap_score_credit_decay: _Weight = 0.0
    prefill_load_scale: _Weight = 1.0
    decode_active_request_weight: _Weight = 0.0
    temperature: _Weight = 0.0
    use_kv_events: bool = True
    event_delay: Seconds = 0.0
    router_ttl_secs: PositiveSeconds = 120.0

    @model_validator(mode="after")
    def _one_kind_of_index(self) -> DynamoParams:
        if "event_delay" in self.model_fields_set and not self.use_kv_events:
            raise ValueError("event_delay has a meaning with use_kv_events: true only")
        if "router_ttl_secs" in self.model_fields_set and self.use_kv_events:
            raise ValueError("router_ttl_secs has a meaning with use_kv_events: false only")
        return self


class Dynamo(Router):
    """The KV router of ai-dynamo, config ``0243c51``, selector ``07a6c9c``. Lower cost wins, in blocks of B tokens:

        raw      = (active prefill tokens + prompt tokens) / B
        decay    = 1 / (1 + d * (active prefill tokens - least of any instance) / B / blocks of the request)
        adjusted = max(0, raw - c * decay * leading blocks cached)
        cost     = s * adjusted + active blocks after admission + w * active requests

    with c = overlap_score_credit, d = overlap_score_credit_decay, s = prefill_load_scale and
    w = decode_active_request_weight. *Active blocks after admission* are the distinct full prompt blocks of requests in
    flight, this one included, so that a block which a running request shares is counted once (upstream ``assume
    reuse``, ``prompt_registry.rs``: active blocks plus the prompt's blocks less its leading ones in use there). Output
    growth and partial blocks are not counted, as upstream.

    Temperature 0: the least cost, exact ties uniformly at random. Above: drawn by exp(-cost / ((max - min) * T)).
    Blocks are known from events, or with ``use_kv_events: false`` from own dispatches of the last ``router_ttl_secs``.
    Not modelled: lower tiers, shared cache, router queue, replicas, pruning of a predicted index beyond 2**20 blocks.
    """

    summary = "least uncached blocks + active blocks (KV-aware)"
    source = "NVIDIA Dynamo KV router (config 0243c51, selector 07a6c9c)"
    Params = DynamoParams

    tracks_active_blocks = True

    def __init__(self, params: Any, num_instances: int, rng: random.Random) -> None:
        super().__init__(params, num_instances, rng)
        self.index = "events" if params.use_kv_events else "dispatch"
        self.event_delay_s = params.event_delay
        self.ttl_s = None if params.use_kv_events else params.router_ttl_secs

    def choose(self, request: Request, view: View, now_s: float) -> Send:
        costs = self.costs(request, view, now_s)
        if self.params.temperature:
            return Send(self._draw(costs))
        least = min(costs)
        num_ties = costs.count(least)
        instance = costs.index(least)
        for _ in range(self.rng.randrange(num_ties) if num_ties > 1 else 0):
            instance = costs.index(least, instance + 1)
        return Send(instance)

    def costs(self, request: Request, view: View, now_s: float) -> list[float]:
        """The cost of each instance, in blocks."""
        params = self.params
        num_instances, block_size, num_tokens = view.num_instances, view.block_size, request.num_prompt_tokens
        overlap, overlaps = _spread(view.cached_levels(request, now_s), num_instances)
        shared, shares = _spread(view.active_levels(request), num_instances)
        num_blocks = len(request.block_keys)
        scale, credit = params.prefill_load_scale, params.overlap_score_credit
        if credit > 1 or params.overlap_score_credit_decay:
            floor = min(view.prefill_tokens)
            costs = [
                self._cost(tokens, floor, num_tokens, block_size, overlaps.get(instance, overlap))
                + (active + num_blocks - shares.get(instance, shared))
                for instance, (tokens, active) in enumerate(zip(view.prefill_tokens, view.active_blocks, strict=True))
            ]
        else:
            # What most instances have in common is computed in one go (a shared first block would otherwise make
            # every instance special). Credit up to 1 cannot reach the floor: a cached block is part of the prompt.
            common, added = credit * overlap, num_blocks - shared
            costs = [
                scale * ((tokens + num_tokens) / block_size - common) + (active + added)
                for tokens, active in zip(view.prefill_tokens, view.active_blocks, strict=True)
            ]
            for instance in overlaps.keys() | shares.keys():
                held, added = overlaps.get(instance, overlap), num_blocks - shares.get(instance, shared)
                tokens, active = view.prefill_tokens[instance], view.active_blocks[instance]
                costs[instance] = scale * ((tokens + num_tokens) / block_size - credit * held) + (active + added)
        weight = params.decode_active_request_weight
        if weight:
            costs = [cost + weight * active for cost, active in zip(costs, view.num_in_flight, strict=True)]
        return costs

    def _cost(self, tokens: int, floor: int, num_tokens: int, block_size: int, overlap: int) -> float:
        """The prefill part of one instance's cost, in blocks."""
        params = self.params
        credit = params.overlap_score_credit
        if params.overlap_score_credit_decay:
            num_requests = (tokens - floor) / block_size / -(-num_tokens // block_size)
            credit /= 1 + params.overlap_score_credit_decay * num_requests
        return params.prefill_load_scale * max(0.0, (tokens + num_tokens) / block_size - credit * overlap)

    def _draw(self, costs: list[float]) -> int:
        least, most = min(costs), max(costs)
        if least == most:
            return self.rng.randrange(len(costs))
        width = (most - least) * self.params.temperature
        weights = [math.exp((least - cost) / width) for cost in costs]
        return self.rng.choices(range(len(costs)), weights)[0]


def _spread(levels: list[tuple[int, int]], num_instances: int) -> tuple[int, dict[int, int]]:
    """The depth that most instances have, and the depth of each other one."""
    rest = (1 << num_instances) - 1
    for mask, _ in levels:
        rest ^= mask
    common, most = 0, rest.bit_count()
    for mask, depth in levels:
        if mask.bit_count() > most:
            common, most = depth, mask.bit_count()
    others = dict.fromkeys(instances(rest), 0) if common else {}
    for mask, depth in levels:
        if depth != common:
            for instance in instances(mask):
                others[instance] = depth
    return common, others
