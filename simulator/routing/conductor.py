"""Mooncake's Conductor: the shortest predicted time to first token, by computing a prefix or by copying it."""

from __future__ import annotations

import random
from typing import Any

from simulator.request import Request
from simulator.routing.decision import Copy, Refuse, Send
from simulator.routing.prefix_index import instances, spread
from simulator.routing.router import Router, StatefulParams
from simulator.routing.view import View
from simulator.units import Bandwidth, PositiveNumber, Seconds, TargetSeconds


class ConductorParams(StatefulParams):
    """``balancing_threshold``: how many times as long the best prefix must be as an instance's own to be copied to it;
    upstream's is set by hand and not published. ``transfer_bandwidth``: bytes per second that one device receives; the
    default is that of the paper's nodes, 800 Gbit/s for eight devices. ``ttft_slo``, ``tbt_slo``: predictions above are
    refused. ``event_delay``: seconds until a block event reaches the router.
    """

    balancing_threshold: PositiveNumber = 2.0
    transfer_bandwidth: Bandwidth = 12.5e9
    ttft_slo: TargetSeconds | None = None
    tbt_slo: TargetSeconds | None = None
    event_delay: Seconds = 0.0


class Conductor(Router):
    """Algorithm 1 of Mooncake (arXiv 2407.00079; the open-source component of that name, ``3b5a594``, is an index and
    schedules nothing). With ``best`` the longest prefix that any instance caches and ``own`` an instance's:

        best / own > balancing_threshold:   prefix = best, transfer = (best - own) * KV bytes a token / bandwidth
        else:                               prefix = own, transfer = 0
        TTFT = transfer + sum of predicted prefill times dispatched and without a first token + prefill(prompt, prefix)

    The least TTFT wins, ties go to the lowest index. Where that took a transfer, the missing blocks are copied from the
    first instance that has them, and the request follows: so hot prefixes spread.

    Prefill times are those of the fitted profile, for one request alone (upstream: a regression fitted offline), the
    queue's are not shortened by what has been computed of them, and a transfer has its whole bandwidth to itself.
    An instance here does prefill and decode; the decode step predicted for ``tbt_slo`` is that of the chosen one with
    this request, at the mean length of its prompts. What is refused is not asked again (HTTP 429).
    """

    summary = "shortest predicted TTFT, by computing the prefix or copying it"
    source = "Mooncake Conductor, Algorithm 1 (arXiv 2407.00079)"
    Params = ConductorParams
    index = "events"

    def __init__(self, params: Any, num_instances: int, rng: random.Random) -> None:
        super().__init__(params, num_instances, rng)
        self.event_delay_s = params.event_delay

    def choose(self, request: Request, view: View, now_s: float) -> Send | Refuse:
        levels = view.cached_levels(request, now_s)
        best = levels[-1][1] if levels else 0
        own, others = spread(levels, view.num_instances)
        spent = {depth: self._spent(request, view, depth, best) for depth in {own, *others.values()}}
        transfer_s, prefill_s = spent[own]
        shared_s = transfer_s + prefill_s
        ttfts = [queued_s + shared_s for queued_s in view.prefill_s]
        for instance, depth in others.items():
            ttfts[instance] = view.prefill_s[instance] + sum(spent[depth])
        ttft_s = min(ttfts)
        instance = ttfts.index(ttft_s)
        if self.params.ttft_slo is not None and ttft_s > self.params.ttft_slo:
            return Refuse("predicted TTFT above ttft_slo")
        if self.params.tbt_slo is not None and self._tbt_s(request, view, instance) > self.params.tbt_slo:
            return Refuse("predicted time between tokens above tbt_slo")
        depth = others.get(instance, own)
        transfer_s, prefill_s = spent[depth]
        copy = None
        if self.num_transferred(depth, best):
            copy = Copy(next(instances(levels[-1][0])), best, transfer_s)
        return Send(instance, copy, prefill_s)

    def num_transferred(self, own: int, best: int) -> int:
        """How many blocks are copied to an instance that has ``own`` leading blocks, where somebody has ``best``."""
        return best - own if best > self.params.balancing_threshold * own else 0

    def _spent(self, request: Request, view: View, own: int, best: int) -> tuple[float, float]:
        """Seconds of transfer and of prefill on an instance that has ``own`` leading blocks."""
        num_copied = self.num_transferred(own, best)
        num_bytes = num_copied * view.block_size * view.fleet.kv_bytes_per_token
        num_cached = (own + num_copied) * view.block_size
        prefill_s = view.fleet.prefill_s(request.num_prompt_tokens, num_cached)
        return num_bytes / self.params.transfer_bandwidth, prefill_s

    @staticmethod
    def _tbt_s(request: Request, view: View, instance: int) -> float:
        num_decodes = view.num_in_flight[instance] + 1
        context = (view.prompt_tokens[instance] + request.num_prompt_tokens) // num_decodes
        return view.fleet.decode_s(num_decodes, context)
