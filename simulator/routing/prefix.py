"""Policies that follow the longest cached prefix: plainly, and the three of vLLM production-stack."""

from __future__ import annotations

import random
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from simulator.request import Request
from simulator.routing.chunk_trie import ChunkTrie
from simulator.routing.decision import Send
from simulator.routing.dispatch_rate import WINDOW_S, DispatchRate
from simulator.routing.fleet import Fleet
from simulator.routing.hashing import home_of
from simulator.routing.prefix_index import instances, spread
from simulator.routing.router import Router, StatefulParams
from simulator.routing.ties import any_of
from simulator.routing.token_tree import CHARACTERS_A_TOKEN
from simulator.routing.view import OwnIndex, View
from simulator.units import Count, Number, PositiveSeconds, Seconds

_CHUNK_TOKENS = 128 // CHARACTERS_A_TOKEN  # vLLM production-stack's chunks have 128 characters


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

    Nobody's product but the plainest form of `PrefixAware` (production-stack ``a6c01db``): engine blocks in place of
    chunks of characters, and no draw. It sends everything to one instance where every prompt begins alike.
    """

    summary = "most leading blocks cached, whatever the load"
    source = "after vLLM production-stack prefixaware (a6c01db), with engine blocks"
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


class PrefixAwareParams(StatefulParams):
    """Upstream's name, in characters: a match shorter than ``prefix_min_match_length`` is none. ``qps_window``: over
    how many seconds dispatches are counted, where a miss goes by them.
    """

    prefix_min_match_length: Count = 0
    qps_window: PositiveSeconds = WINDOW_S

    @model_validator(mode="after")
    def _window_is_looked_at(self) -> PrefixAwareParams:
        if "qps_window" in self.model_fields_set and not self.prefix_min_match_length:
            raise ValueError("qps_window has a meaning with a prefix_min_match_length above 0 only")
        return self


class PrefixAware(Router):
    """vLLM production-stack ``a6c01db``, ``prefixaware``: any of those that were sent the longest beginning, in chunks
    of 128 characters (32 tokens); the trie assumes that nothing is ever evicted, and load is not looked at.

    A match shorter than ``prefix_min_match_length`` goes to the fewest dispatches of the last ``qps_window`` seconds.
    Upstream's default is 0, which even no match at all reaches: then all instances tie.
    """

    summary = "any of those that were sent the longest beginning, whatever the load"
    source = "vLLM production-stack prefixaware (a6c01db)"
    Params = PrefixAwareParams

    def __init__(self, params: Any, num_instances: int, rng: random.Random) -> None:
        super().__init__(params, num_instances, rng)
        self._rate = DispatchRate(num_instances, params.qps_window)

    def make_own_index(self, fleet: Fleet) -> OwnIndex:
        return ChunkTrie(fleet, _CHUNK_TOKENS)

    def choose(self, request: Request, view: View, now_s: float) -> Send:
        trie = view.own
        assert isinstance(trie, ChunkTrie)
        levels = trie.levels(request)
        least = self.params.prefix_min_match_length
        num_chunks = levels[-1][1] if levels else 0
        if num_chunks * _CHUNK_TOKENS * CHARACTERS_A_TOKEN < least:
            instance = self._rate.lowest(now_s)
        elif levels:
            instance = any_of(list(instances(levels[-1][0])), self.rng)
        else:
            instance = self.rng.randrange(self.num_instances)
        if least:
            self._rate.sent(instance, now_s)
        return Send(instance)


class KvAwareParams(StatefulParams):
    """``threshold``: upstream's ``kv_aware_threshold``, in tokens. ``fallback``: where a request goes of which nobody
    has enough: to its session's instance, or to the fewest dispatches of the last ``qps_window`` seconds.
    """

    threshold: Count = 2000
    fallback: Literal["qps", "session"] = "qps"
    qps_window: PositiveSeconds = WINDOW_S

    @property
    def needs_sessions(self) -> bool:
        """See `Params.needs_sessions`."""
        return self.fallback == "session"

    @model_validator(mode="after")
    def _window_is_looked_at(self) -> KvAwareParams:
        if "qps_window" in self.model_fields_set and self.fallback != "qps":
            raise ValueError("qps_window has a meaning with fallback: qps only")
        return self


class KvAware(Router):
    """vLLM production-stack ``a6c01db``, ``kvaware``: asks who caches how much, and takes the first of those with the
    most (here the lowest index), unless they have less than the prompt's tokens - threshold.

    Upstream the answer is the LMCache controller's, of chunks of 256 tokens in every tier; here it is of the engines'
    blocks, from events without delay. A session's instance is found by the hash of ``session_hash``.
    """

    summary = "who caches all but 2,000 tokens, else fewest dispatches lately, whatever the load"
    source = "vLLM production-stack kvaware (a6c01db)"
    Params = KvAwareParams
    index = "events"

    def __init__(self, params: Any, num_instances: int, rng: random.Random) -> None:
        super().__init__(params, num_instances, rng)
        self._rate = DispatchRate(num_instances, params.qps_window)

    def choose(self, request: Request, view: View, now_s: float) -> Send:
        levels = view.cached_levels(request, now_s)
        if levels and levels[-1][1] * view.block_size >= request.num_prompt_tokens - self.params.threshold:
            instance = next(instances(levels[-1][0]))
        elif self.params.fallback == "session" and request.session is not None:
            instance = home_of(request.session, self.num_instances)
        else:
            instance = self._rate.lowest(now_s)
        self._rate.sent(instance, now_s)
        return Send(instance)


class LoadAwareParams(StatefulParams):
    """``beta``: how much of a match a load above the mean outweighs."""

    beta: Annotated[Number, Field(ge=0)] = 1.0


class LoadAware(Router):
    """vLLM production-stack PR #1035, ``loadaware``: the greatest of

        share of the prompt that was sent there - beta * (load - mean load) / max(1, mean load)

    with the trie of ``prefixaware`` and own requests in flight as load; ties to the lowest index.
    """

    summary = "greatest share of the prompt sent there, less its load above the mean"
    source = "vLLM production-stack loadaware (PR #1035)"
    Params = LoadAwareParams

    def make_own_index(self, fleet: Fleet) -> OwnIndex:
        return ChunkTrie(fleet, _CHUNK_TOKENS)

    def choose(self, request: Request, view: View, now_s: float) -> Send:  # noqa: ARG002
        trie, loads = view.own, view.num_in_flight
        assert isinstance(trie, ChunkTrie)
        mean = sum(loads) / len(loads)
        slope = self.params.beta / max(1.0, mean)
        common, others = spread(trie.levels(request), len(loads))
        scores = [(mean - load) * slope for load in loads]
        for instance, num_chunks in others.items():
            # What most of them have counts for all alike, and is left out.
            share = (num_chunks - common) * _CHUNK_TOKENS / request.num_prompt_tokens
            scores[instance] += share
        return Send(scores.index(max(scores)))
