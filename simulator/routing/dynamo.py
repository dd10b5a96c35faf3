"""NVIDIA Dynamo's KV router: uncached blocks plus active blocks, the cheapest instance wins."""

from __future__ import annotations

import math
import random
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from simulator.request import Request
from simulator.routing.decision import Hold, Send
from simulator.routing.prefix_index import apart, instances, spread
from simulator.routing.router import Router, StatefulParams
from simulator.routing.ties import any_least, any_of
from simulator.routing.view import View
from simulator.units import Number, PositiveNumber, PositiveSeconds, Seconds

_Weight = Annotated[Number, Field(ge=0)]


class DynamoParams(StatefulParams):
    """Upstream's names and 2026 defaults. ``event_delay`` is ours: seconds until a block event reaches the router; so
    is ``zero_floor``: whether more credit than there is to compute is lost, as before PR #11714.
    """

    overlap_score_credit: _Weight = 1.0
    overlap_score_credit_decay: _Weight = 0.0
    prefill_load_scale: _Weight = 1.0
    decode_active_request_weight: _Weight = 0.0
    temperature: _Weight = 0.0
    use_kv_events: bool = True
    event_delay: Seconds = 0.0
    router_ttl_secs: PositiveSeconds = 120.0
    router_predicted_ttl_secs: PositiveSeconds | None = None
    router_queue_threshold: PositiveNumber | None = None
    router_queue_policy: Literal["fcfs", "lcfs", "wspt"] = "fcfs"
    zero_floor: bool = False

    @model_validator(mode="after")
    def _one_kind_of_index(self) -> DynamoParams:
        if "event_delay" in self.model_fields_set and not self.use_kv_events:
            raise ValueError("event_delay has a meaning with use_kv_events: true only")
        if "router_ttl_secs" in self.model_fields_set and self.use_kv_events:
            raise ValueError("router_ttl_secs has a meaning with use_kv_events: false only")
        if self.router_predicted_ttl_secs is not None and not self.use_kv_events:
            raise ValueError("router_predicted_ttl_secs has a meaning with use_kv_events: true only")
        return self

    @model_validator(mode="after")
    def _what_changes_something(self) -> DynamoParams:
        if "router_queue_policy" in self.model_fields_set and self.router_queue_threshold is None:
            raise ValueError("router_queue_policy has a meaning with router_queue_threshold only")
        if "zero_floor" in self.model_fields_set and self.overlap_score_credit <= 1:
            raise ValueError("zero_floor has a meaning with overlap_score_credit above 1 only: a cached block is part "
                             "of the prompt")  # fmt: skip
        return self


class Dynamo(Router):
    """The KV router of ai-dynamo, config ``0243c51``, selector ``07a6c9c``. Lower cost wins, in blocks of B tokens:

        raw      = (active prefill tokens + prompt tokens) / B
        decay    = 1 / (1 + d * (active prefill tokens - least of any instance) / B / blocks of the request)
        adjusted = raw - c * decay * leading blocks cached, with ``zero_floor`` at least 0
        cost     = s * adjusted + active blocks after admission + w * active requests

    with c = overlap_score_credit, d = overlap_score_credit_decay, s = prefill_load_scale and
    w = decode_active_request_weight. *Active blocks after admission* are the distinct full prompt blocks of requests in
    flight, this one included, so that a block which a running request shares is counted once (upstream ``assume
    reuse``, ``prompt_registry.rs``: active blocks plus the prompt's blocks less its leading ones in use there). Output
    growth and partial blocks are not counted, as upstream.

    Temperature 0: the least cost, exact ties uniformly at random. Above: drawn by exp(-cost / ((max - min) * T)).
    Blocks are known from events, or with ``use_kv_events: false`` from own dispatches of the last ``router_ttl_secs``.
    With ``router_predicted_ttl_secs`` (5 s recommended) own dispatches of that time count beside events, of each
    instance the more; without, a pair of requests with the same new prefix is scattered.

    While every instance has more than ``router_queue_threshold`` * max_num_batched_tokens active prefill tokens,
    requests queue at the router: first come first served, last come first served, or wspt, the greatest
    (1 + priority) / prompt tokens first, where upstream's priority is that of vLLM with its sign turned, and at least
    0. Each is asked with the caches of that moment (upstream: refreshed after 10 s in the queue).
    Not modelled: lower tiers, shared cache, synchronised replicas, strict tiers and fair classes of the queue, pruning
    of a predicted index beyond 2**20 blocks.
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
        self.speculative_ttl_s = params.router_predicted_ttl_secs
        self._is_special = bool(params.overlap_score_credit_decay or params.zero_floor)
        self._loads: list[float] = [0.0] * num_instances  # of each instance, in tokens, but for the request's own part

    def choose(self, request: Request, view: View, now_s: float) -> Send | Hold:
        threshold = self.params.router_queue_threshold
        if threshold is not None and min(view.prefill_tokens) > threshold * view.fleet.max_num_batched_tokens:
            return Hold()
        if self._is_special and not self.params.temperature:
            return Send(self._least_special(request, view, now_s))
        costs = self._relative_costs(request, view, now_s)
        return Send(self._draw(costs) if self.params.temperature else any_least(costs, self.rng))

    def rank(self, request: Request) -> float:
        """See `Router.rank`."""
        policy = self.params.router_queue_policy
        if policy == "lcfs":
            return -request.arrival_time
        if policy == "wspt":
            return -(1 + max(0, -request.priority)) / request.num_prompt_tokens
        return 0.0

    def costs(self, request: Request, view: View, now_s: float) -> list[float]:
        """The cost of each instance, in blocks."""
        overlap, _ = spread(view.cached_levels(request, now_s), view.num_instances)
        shared, _ = spread(view.active_levels(request), view.num_instances)
        uncached = request.num_prompt_tokens / view.block_size - self.params.overlap_score_credit * overlap
        same = 0.0 if self._is_special else self.params.prefill_load_scale * uncached + len(request.block_keys) - shared
        return [cost / view.block_size + same for cost in self._relative_costs(request, view, now_s)]

    def _relative_costs(self, request: Request, view: View, now_s: float) -> list[float]:
        """The costs in tokens, less what is the same for all instances."""
        if self._is_special:
            return self._special_costs(request, view, now_s)
        overlap, overlaps = apart(view.cached_levels(request, now_s), view.num_instances)
        shared, shares = apart(view.active_levels(request), view.num_instances)
        return self._plain_costs(view, overlap, overlaps, shared, shares)

    def _plain_costs(
        self, view: View, overlap: int, overlaps: list[tuple[int, int]], shared: int, shares: list[tuple[int, int]]
    ) -> list[float]:
        """With a credit that does not decay and without a floor: what does not depend on the request is kept."""
        self._look_at(view)
        costs = self._loads.copy()
        block = view.block_size
        held_block = self.params.prefill_load_scale * self.params.overlap_score_credit * block
        for mask, depth in overlaps:
            more = held_block * (depth - overlap)
            for instance in instances(mask):
                costs[instance] -= more
        for mask, depth in shares:
            more = block * (depth - shared)
            for instance in instances(mask):
                costs[instance] -= more
        return costs

    def _look_at(self, view: View) -> None:
        """Bring the loads up to date where they have changed."""
        params, size = self.params, view.block_size
        for instance in view.changed:
            self._loads[instance] = (
                params.prefill_load_scale * view.prefill_tokens[instance] + size * view.active_blocks[instance]
                + params.decode_active_request_weight * size * view.num_in_flight[instance]
            )  # fmt: skip
        view.changed.clear()

    def _least_special(self, request: Request, view: View, now_s: float) -> int:
        """Any instance of the least cost, where a credit decays or there is a floor. Neither makes anything cheaper, so
        that nobody whose plain cost is above the least cost need be looked at closely.
        """
        overlap, overlaps = apart(view.cached_levels(request, now_s), view.num_instances)
        shared, shares = apart(view.active_levels(request), view.num_instances)
        plain = self._plain_costs(view, overlap, overlaps, shared, shares)
        params, size, num_tokens = self.params, view.block_size, request.num_prompt_tokens
        scale, credit = params.prefill_load_scale, params.overlap_score_credit * size
        rate = params.overlap_score_credit_decay / size / -(-num_tokens // size)
        fewest = min(view.prefill_tokens)

        def excess(instance: int) -> float:
            """By how much the cost is above the plain one."""
            depth = next((depth for mask, depth in overlaps if mask >> instance & 1), overlap)
            tokens, held = view.prefill_tokens[instance], credit * depth
            adjusted = tokens + num_tokens - held / (1 + rate * (tokens - fewest))
            if params.zero_floor and adjusted < 0:
                adjusted = 0.0
            return scale * (adjusted - (tokens + num_tokens - held))

        first = plain.index(min(plain))
        most = plain[first] + excess(first) + 1e-6  # tokens: more than rounding makes of a tie
        costs = {instance: cost + excess(instance) for instance, cost in enumerate(plain) if cost <= most}
        least = min(costs.values())
        return any_of([instance for instance, cost in costs.items() if cost == least], self.rng)

    def _special_costs(self, request: Request, view: View, now_s: float) -> list[float]:
        """The costs in tokens, with a credit that decays, or a floor."""
        overlap, overlaps = spread(view.cached_levels(request, now_s), view.num_instances)
        shared, shares = spread(view.active_levels(request), view.num_instances)
        params = self.params
        size, num_tokens = view.block_size, request.num_prompt_tokens
        scale, credit = params.prefill_load_scale, params.overlap_score_credit * size
        least, in_use = min(view.prefill_tokens), size * len(request.block_keys)
        rate = params.overlap_score_credit_decay / size / -(-num_tokens // size)
        held, used = [overlap] * view.num_instances, [shared] * view.num_instances
        for instance, depth in overlaps.items():
            held[instance] = depth
        for instance, depth in shares.items():
            used[instance] = depth
        adjusted = [
            tokens + num_tokens - credit / (1 + rate * (tokens - least)) * depth
            for tokens, depth in zip(view.prefill_tokens, held, strict=True)
        ]
        if params.zero_floor:
            adjusted = [tokens if tokens > 0 else 0.0 for tokens in adjusted]
        weight = params.decode_active_request_weight * size
        return [
            scale * tokens + size * (active - depth) + in_use + weight * count
            for tokens, active, depth, count in zip(adjusted, view.active_blocks, used, view.num_in_flight, strict=True)
        ]

    def _draw(self, costs: list[float]) -> int:
        least, most = min(costs), max(costs)
        if least == most:
            return self.rng.randrange(len(costs))
        width = (most - least) * self.params.temperature
        # By rejection: the greatest weight is 1, and few tries are cheaper than all weights.
        while True:
            instance = int(self.rng.random() * len(costs))
            if self.rng.random() < math.exp((least - costs[instance]) / width):
                return instance
