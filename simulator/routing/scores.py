"""Weighted sums of scores: llm-d and the Gateway API Inference Extension."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from simulator.request import Request
from simulator.routing.decision import Refuse, Send
from simulator.routing.fleet import Fleet
from simulator.routing.polled import PolledMetrics
from simulator.routing.prefix_index import spread
from simulator.routing.prefix_producer import PrefixParams, PrefixProducer
from simulator.routing.ties import any_most
from simulator.routing.view import OwnIndex, View
from simulator.units import PositiveNumber, PositiveSeconds, Seconds

_Weight = PositiveNumber | None
_CHART: Mapping[str, float] = {"queue": 2.0, "kv_cache_utilization": 2.0, "prefix": 3.0}
_POLLED = ("queue", "kv_cache_utilization", "running_requests", "load_aware")
_BY_PREFIX = ("prefix", "token_load", "no_hit_lru")
_BY_DISPATCH = ("token_load", "no_hit_lru", "active_request", "session_affinity")
_SCORERS = (*_POLLED, "prefix", *_BY_DISPATCH)
_MOST_TOKENS = 4_194_304  # in flight: where the token-load score ends
_QUEUE_THRESHOLD = 128  # requests waiting: where the load-aware score ends
_FULL_QUEUE, _FULL_CACHE = 5, 0.8  # saturation 1: requests waiting, share of the KV cache


class WeightedScoresParams(PrefixParams):
    """A weight for each scorer that counts; where none is stated, those of the chart since GIE PR #1827: queue 2,
    kv_cache_utilization 2, prefix 3. (Upstream a scorer that is listed without a weight has weight 1.)

    ``poll``, ``poll_delay``: seconds between two looks at the engines' metrics and until one has arrived. ``picker``:
    the greatest sum, or drawn in proportion to the sums. ``shed_from_priority``: requests of this priority and less
    urgent ones (vLLM counts upwards, llm-d calls priorities below 0 sheddable) are turned away when engines are
    saturated.
    """

    queue: _Weight = None
    kv_cache_utilization: _Weight = None
    prefix: _Weight = None
    running_requests: _Weight = None
    load_aware: _Weight = None
    active_request: _Weight = None
    token_load: _Weight = None
    no_hit_lru: _Weight = None
    session_affinity: _Weight = None
    poll: PositiveSeconds = 0.05
    poll_delay: Seconds = 0.0
    picker: Literal["max", "weighted_random"] = "max"
    shed_from_priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None

    @model_validator(mode="after")
    def _has_what_it_uses(self) -> WeightedScoresParams:
        for name in sorted(self.model_fields_set):
            if name in ("poll", "poll_delay") and not self.polls:
                raise ValueError(f"{name} has no meaning without a scorer that polls: {', '.join(_POLLED)}")
            if name in PrefixParams.model_fields and name != "replicas" and not self.knows_prefixes:
                raise ValueError(f"{name} has no meaning without a scorer of prefixes: {', '.join(_BY_PREFIX)}")
        if "replicas" in self.model_fields_set and not self._remembers:
            raise ValueError("replicas has no meaning where no scorer goes by the router's own dispatches")
        return self

    @property
    def _remembers(self) -> bool:
        """Whether one router knows what another does not: polled metrics and block events are the same for all."""
        guesses = "prefix" in self.weights and (not self.precise or self.speculative_ttl is not None)
        return guesses or any(name in _BY_DISPATCH for name in self.weights)

    @property
    def weights(self) -> dict[str, float]:
        """Of the scorers that count."""
        stated = {name: getattr(self, name) for name in _SCORERS if getattr(self, name) is not None}
        return stated or dict(_CHART)

    @property
    def polls(self) -> bool:
        """Whether anything looks at the engines' metrics."""
        return self.shed_from_priority is not None or any(name in _POLLED for name in self.weights)

    @property
    def knows_prefixes(self) -> bool:
        """Whether anything looks at prefixes."""
        return any(name in _BY_PREFIX for name in self.weights)

    @property
    def needs_sessions(self) -> bool:
        """See `Params.needs_sessions`."""
        return self.session_affinity is not None

    @property
    def sheds_from(self) -> int | None:
        """See `Params.sheds_from`."""
        return self.shed_from_priority


class WeightedScores(PrefixProducer):
    """GIE ``84436a9`` and llm-d-inference-scheduler ``520af47``: the sum of weight * score, each score in [0, 1]:

        queue                 (max - q) / (max - min), q requests waiting; 1 if all are equal
        running_requests      the same of requests running
        kv_cache_utilization  1 - share of the KV blocks in use
        load_aware            0.5 * (1 - q / 128), not below 0
        prefix                leading blocks cached / blocks of the prompt that are looked at
        active_request        (max - c) / max, c own requests in flight; 1 if nobody has any
        token_load            1 - tokens / 4,194,304, not below 0: uncached tokens in flight until their first token
                              passes, this request's uncached ones included
        no_hit_lru            0.5 if anybody has a block, else 1 - rank / (n - 1), by who was sent such a request
                              longest ago (never: first)
        session_affinity      1 for the instance that the session was sent to last, else 0

    The first four are polled metrics. The greatest sum wins, ties at random. Saturation is the mean over instances of
    max(q / 5, usage / 0.8); sheddable requests are refused with probability min(1, 300 * saturation ** 5). Not
    modelled: weights of tiers below the GPU, metrics that count as stale, the prediction of latencies, flow control.
    """

    summary = "greatest weighted sum of scores: queue, KV usage, prefix, ..."
    source = "GIE (84436a9), llm-d-inference-scheduler (520af47)"
    Params = WeightedScoresParams

    def __init__(self, params: Any, num_instances: int, rng: random.Random) -> None:
        super().__init__(params, num_instances, rng)
        self._weights = params.weights
        if not params.knows_prefixes:
            self.index = "none"
        if params.polls:
            self.poll_s = params.poll
            self.poll_delay_s = params.poll_delay
        self._poll = -2  # number of the poll that the next is from
        self._polled: list[float] = []
        self._saturation = 0.0
        self._cold: dict[int, None] = dict.fromkeys(range(num_instances))  # sent a request that nobody had, latest last
        self._homes: dict[int, int] = {}  # session -> instance

    def make_own_index(self, fleet: Fleet) -> OwnIndex | None:
        return super().make_own_index(fleet) if self.params.knows_prefixes else None

    def choose(self, request: Request, view: View, now_s: float) -> Send | Refuse:
        params = self.params
        if params.polls and view.polled.num_polls != self._poll:
            self._read(view.polled)
        if params.shed_from_priority is not None and request.priority >= params.shed_from_priority:
            probability = 300 * self._saturation**5
            if probability >= 1 or self.rng.random() < probability:
                return Refuse("shed: the engines are saturated")
        scores, anybody = self.scores(request, view, now_s)
        instance = any_most(scores, self.rng) if params.picker == "max" else self._draw(scores)
        if "no_hit_lru" in self._weights and not anybody:
            del self._cold[instance]
            self._cold[instance] = None
        if "session_affinity" in self._weights and request.session is not None:
            self._homes[request.session] = instance
        return Send(instance)

    def scores(self, request: Request, view: View, now_s: float) -> tuple[list[float], bool]:
        """The weighted sum of each instance, and whether anybody has a block of the prompt."""
        weights = self._weights
        if self.params.polls and view.polled.num_polls != self._poll:
            self._read(view.polled)
        total = self._polled[:] if self._polled else [0.0] * view.num_instances
        anybody = False
        if self.params.knows_prefixes:
            anybody = self._add_prefix_scores(total, request, view, now_s)
        if weight := weights.get("active_request"):
            most = max(view.num_in_flight) or 1
            total = [sum_ + weight * (most - c) / most for sum_, c in zip(total, view.num_in_flight, strict=True)]
        if weight := weights.get("no_hit_lru"):
            if anybody:
                total = [sum_ + 0.5 * weight for sum_ in total]
            else:
                last = max(1, view.num_instances - 1)
                for rank, instance in enumerate(self._cold):
                    total[instance] += weight * (1 - rank / last)
        if weight := weights.get("session_affinity"):
            home = self._homes.get(request.session) if request.session is not None else None
            if home is not None:
                total[home] += weight
        return total, anybody

    def _add_prefix_scores(self, total: list[float], request: Request, view: View, now_s: float) -> bool:
        """Add what depends on the blocks that instances have; returns whether anybody has any."""
        levels, num_blocks, block_size = self.known_prefixes(request, view, now_s)
        common, others = spread(levels, view.num_instances)
        if (weight := self._weights.get("prefix")) and levels:
            share = weight / num_blocks
            if common:
                total[:] = [sum_ + common * share for sum_ in total]
            for instance, depth in others.items():
                total[instance] += (depth - common) * share
        if weight := self._weights.get("token_load"):
            most = _MOST_TOKENS
            own = max(0, request.num_prompt_tokens - common * block_size)
            tokens = [in_flight + own for in_flight in view.prefill_tokens]
            for instance, depth in others.items():
                uncached = max(0, request.num_prompt_tokens - depth * block_size)
                tokens[instance] = view.prefill_tokens[instance] + uncached
            total[:] = [
                sum_ + weight * (1 - some / most) if some < most else sum_
                for sum_, some in zip(total, tokens, strict=True)
            ]
        return bool(levels)

    def _read(self, polled: PolledMetrics) -> None:
        """What the polled metrics add to each sum: the same until the next poll."""
        self._poll = polled.num_polls
        total = [0.0] * self.num_instances
        for name, counts in (("queue", polled.num_waiting), ("running_requests", polled.num_running)):
            if weight := self._weights.get(name):
                least, most = min(counts), max(counts)
                width = most - least
                total = [
                    sum_ + (weight * (most - count) / width if width else weight)
                    for sum_, count in zip(total, counts, strict=True)
                ]
        if weight := self._weights.get("kv_cache_utilization"):
            total = [sum_ + weight * (1 - usage) for sum_, usage in zip(total, polled.usage, strict=True)]
        if weight := self._weights.get("load_aware"):
            total = [
                sum_ + weight * 0.5 * (1 - min(waiting, _QUEUE_THRESHOLD) / _QUEUE_THRESHOLD)
                for sum_, waiting in zip(total, polled.num_waiting, strict=True)
            ]
        self._polled = total
        loads = zip(polled.num_waiting, polled.usage, strict=True)
        self._saturation = sum(max(waiting / _FULL_QUEUE, usage / _FULL_CACHE) for waiting, usage in loads) / len(total)

    def _draw(self, scores: list[float]) -> int:
        if not any(scores):
            return self.rng.randrange(len(scores))
        return self.rng.choices(range(len(scores)), scores)[0]
