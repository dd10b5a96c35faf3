"""Threshold gates: where loads differ much the least loaded instance, else the one with enough of the prefix."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import groupby
from operator import mul
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from simulator.request import Request
from simulator.routing.decision import Send
from simulator.routing.fleet import Fleet
from simulator.routing.prefix_index import instances
from simulator.routing.router import Router, StatefulParams
from simulator.routing.ties import any_least, any_of
from simulator.routing.token_table import TokenTable
from simulator.routing.token_tree import CHARACTERS_A_TOKEN, TokenTree
from simulator.routing.view import OwnIndex, View
from simulator.units import Count, Number, PositiveCount, PositiveSeconds, Seconds, Share


class CacheAwareParams(StatefulParams):
    """Upstream's names, with the defaults of its Python command line. ``max_tree_size`` is in characters. ``miss``:
    where a request goes whose beginning nobody has enough of; it was ``smallest_tree`` in 2024.
    """

    cache_threshold: Share = 0.3
    balance_abs_threshold: Count = 64
    balance_rel_threshold: Annotated[Number, Field(ge=0)] = 1.5
    eviction_interval_secs: PositiveSeconds = 120.0
    max_tree_size: PositiveCount = 2**26
    miss: Literal["least_load", "smallest_tree"] = "least_load"


class CacheAware(Router):
    """SGLang gateway ``053b63f`` (tree ``03744db``) and vllm-router ``16917f4``, ``cache_aware``. Loads are the
    router's own requests in flight:

        imbalanced  if  max - min > balance_abs_threshold  and  max > balance_rel_threshold * min
        imbalanced: the least loaded
        else, where the longest match is more than cache_threshold of the prompt: the owner of the deepest node
        else: the least loaded (``miss: smallest_tree``: the one with the least text in the tree)

    The owner is whoever was last sent that node, however loaded; least loads and trees that tie go to the lowest index.
    Whoever gets the request owns its text. One tree of texts, in which a character is a quarter of a token, at most
    ``max_tree_size`` characters an instance, least recently used leaves out first, looked after each
    ``eviction_interval_secs``. Not modelled: the newest version's table of session ids in front of the tree.
    """

    summary = "least loaded if imbalanced, else whoever was last sent enough of the prompt"
    source = "SGLang gateway cache_aware (053b63f), vllm-router (16917f4)"
    Params = CacheAwareParams

    def make_own_index(self, fleet: Fleet) -> OwnIndex:
        return TokenTree(
            fleet,
            max_tokens=self.params.max_tree_size / CHARACTERS_A_TOKEN,
            sweep_s=self.params.eviction_interval_secs,
        )

    def choose(self, request: Request, view: View, now_s: float) -> Send:
        params, tree, loads = self.params, view.own, view.num_in_flight
        assert isinstance(tree, TokenTree)
        least, most = min(loads), max(loads)
        if most - least > params.balance_abs_threshold and most > params.balance_rel_threshold * least:
            return Send(loads.index(least))
        matched, owner = tree.longest(request, now_s)
        if owner is not None and matched / request.num_prompt_tokens > params.cache_threshold:
            return Send(owner)
        if params.miss == "smallest_tree":
            return Send(tree.num_tokens.index(min(tree.num_tokens)))
        return Send(loads.index(least))


class AibrixParams(StatefulParams):
    """Upstream's environment variables without ``AIBRIX_PREFIX_CACHE_``. ``event_delay`` is ours: seconds until a block
    event reaches the router.
    """

    use_kv_events: bool = False
    event_delay: Seconds = 0.0
    block_number: PositiveCount = 200_000
    eviction_duration: PositiveSeconds = 20 * 60.0
    pod_running_request_imbalance_abs_count: Count = 8
    standard_deviation_factor: Count = 1

    @model_validator(mode="after")
    def _one_kind_of_index(self) -> AibrixParams:
        if "event_delay" in self.model_fields_set and not self.use_kv_events:
            raise ValueError("event_delay has a meaning with use_kv_events: true only")
        if "block_number" in self.model_fields_set and self.use_kv_events:
            raise ValueError("block_number has a meaning with use_kv_events: false only")
        return self


class AibrixPrefixCache(Router):
    """AIBrix ``e3e10f9``, ``prefix-cache``. Loads are the gateway's own requests in flight:

        max - min > imbalance count: only the least loaded are looked at
        of those that were sent a beginning of the prompt, by match in whole per cent, then by load, then at random:
            the first whose load is at most mean + factor * standard deviation (of all)
        nobody: any of the least loaded

    A table of its own holds what was sent where: ``block_number`` blocks of 4 characters (a token) for all instances
    together, each for ``eviction_duration`` after its latest dispatch (see `TokenTable`). With ``use_kv_events`` blocks
    are known from the engines and, for ``eviction_duration``, from own dispatches, and ``event_delay`` is how late
    events are. Not modelled: other tokenizers than characters.
    """

    summary = "least loaded if imbalanced by more than 8, else the best match that is not overloaded"
    source = "AIBrix prefix-cache (e3e10f9)"
    Params = AibrixParams

    def __init__(self, params: Any, num_instances: int, rng: random.Random) -> None:
        super().__init__(params, num_instances, rng)
        if params.use_kv_events:
            self.index = "events"
            self.event_delay_s = params.event_delay
            self.speculative_ttl_s = params.eviction_duration

    def make_own_index(self, fleet: Fleet) -> OwnIndex | None:
        if self.params.use_kv_events:
            return None
        return TokenTable(fleet, max_tokens=self.params.block_number, ttl_s=self.params.eviction_duration)

    def choose(self, request: Request, view: View, now_s: float) -> Send:
        loads = view.num_in_flight
        least, num, total = min(loads), len(loads), sum(loads)
        deviation = max(0, num * sum(map(mul, loads, loads)) - total * total) ** 0.5 / num
        most = total / num + self.params.standard_deviation_factor * deviation
        if max(loads) - least > self.params.pod_running_request_imbalance_abs_count:
            most = least
        for group in self._by_match(request, view, now_s):
            allowed = [instance for instance in group if loads[instance] <= most]
            if allowed:
                fewest = min([loads[instance] for instance in allowed])
                return Send(any_of([instance for instance in allowed if loads[instance] == fewest], self.rng))
        return Send(any_least(loads, self.rng))

    def _by_match(self, request: Request, view: View, now_s: float) -> Iterator[list[int]]:
        """Instances that have a beginning of the prompt, those with more of it first, equal ones (in whole per cent)
        together.
        """
        table = view.own
        if not isinstance(table, TokenTable):
            num_blocks = len(request.block_keys)
            levels = reversed(view.cached_levels(request, now_s))
            for _, equal in groupby(levels, lambda level: 100 * level[1] // num_blocks):
                yield [instance for mask, _ in equal for instance in instances(mask)]
            return
        num_tokens = request.num_prompt_tokens
        for _, alike in groupby(table.levels(request, now_s), lambda level: 100 * level[0] // num_tokens):
            yield [instance for _, those in alike for instance in those]
