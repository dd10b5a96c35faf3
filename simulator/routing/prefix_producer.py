"""What llm-d's router knows of prefixes: a guess from its own dispatches, or the engines' block events."""

from __future__ import annotations

import random
from typing import Any

from pydantic import model_validator

from simulator.request import Request
from simulator.routing.block_lru import BlockLru
from simulator.routing.fleet import Fleet
from simulator.routing.router import Router, StatefulParams
from simulator.routing.view import OwnIndex, View
from simulator.units import PositiveCount, PositiveSeconds, Seconds

_APPROXIMATE = ("block_size_tokens", "max_prefix_blocks_to_match", "lru_capacity_per_server", "auto_tune")
_PRECISE = ("event_delay", "speculative_ttl")


class PrefixParams(StatefulParams):
    """Upstream's names and defaults. Approximate unless ``precise``: blocks of ``block_size_tokens``, of which the
    first ``max_prefix_blocks_to_match`` of a prompt are looked at and the last ``lru_capacity_per_server`` an instance
    remembered; with ``auto_tune`` block size and capacity are the engine's. Precise: the engine's blocks, by events
    that arrive ``event_delay`` (ours) late; what was dispatched counts for ``speculative_ttl`` (upstream off, or 2 s).
    """

    precise: bool = False
    event_delay: Seconds = 0.0
    speculative_ttl: PositiveSeconds | None = None
    block_size_tokens: PositiveCount = 16
    max_prefix_blocks_to_match: PositiveCount = 256
    lru_capacity_per_server: PositiveCount = 31_250
    auto_tune: bool = False

    @model_validator(mode="after")
    def _one_kind_of_index(self) -> PrefixParams:
        idle, needed = (_APPROXIMATE, "false") if self.precise else (_PRECISE, "true")
        for name in idle:
            if name in self.model_fields_set:
                raise ValueError(f"{name} has a meaning with precise: {needed} only")
        if self.auto_tune:
            for name in ("block_size_tokens", "lru_capacity_per_server"):
                if name in self.model_fields_set:
                    raise ValueError(f"{name} has no meaning with auto_tune: true")
        return self


class PrefixProducer(Router):
    """A policy with `PrefixParams`. GIE ``84436a9``, llm-d-router ``ebab687``: the prefix-cache scorer, approximate,
    and the precise one, which counts leading blocks only.
    """

    def __init__(self, params: Any, num_instances: int, rng: random.Random) -> None:
        super().__init__(params, num_instances, rng)
        if params.precise:
            self.index = "events"
            self.event_delay_s = params.event_delay
            self.speculative_ttl_s = params.speculative_ttl

    def make_own_index(self, fleet: Fleet) -> OwnIndex | None:
        params = self.params
        if params.precise:
            return None
        size, capacity = params.block_size_tokens, params.lru_capacity_per_server
        if params.auto_tune:
            size, capacity = fleet.block_size, fleet.num_gpu_blocks or capacity
        return BlockLru(fleet, block_size=size, capacity=capacity, max_blocks=params.max_prefix_blocks_to_match)

    @staticmethod
    def known_prefixes(request: Request, view: View, now_s: float) -> tuple[list[tuple[int, int]], int, int]:
        """Who is believed to cache how many leading blocks (`PrefixIndex.levels`), of how many that are looked at, and
        the tokens of a block.
        """
        own = view.own
        if isinstance(own, BlockLru):
            return own.levels(request), len(own.keys(request)), own.block_size
        return view.cached_levels(request, now_s), len(request.block_keys), view.block_size
