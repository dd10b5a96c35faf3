"""Preble's E2: exploit a cached prefix where it is most of the prompt, else explore by predicted work."""

from __future__ import annotations

import math
import random
from collections import deque
from typing import Any

from simulator.request import Request
from simulator.routing.decision import Send
from simulator.routing.fleet import Fleet
from simulator.routing.router import Router, StatefulParams
from simulator.routing.token_tree import TokenTree
from simulator.routing.view import View
from simulator.units import PositiveCount, PositiveNumber, PositiveSeconds, TargetSeconds


class PrebleParams(StatefulParams):
    """``window``: for how long work counts; ``output_tokens`` and ``tpot``: the decode work expected of a request;
    ``rebalance_ratio``: how many times the least loaded instance's work the most loaded one may have, looked after each
    ``rebalance_interval``; ``tokens_per_instance``: what an instance is taken to cache, by default its own pool.
    """

    window: PositiveSeconds = 180.0
    output_tokens: PositiveCount = 45
    tpot: TargetSeconds = 0.15
    rebalance_ratio: PositiveNumber = 1.5
    rebalance_interval: PositiveSeconds = 10.0
    tokens_per_instance: PositiveCount | None = None


class Preble(Router):
    """E2 of Preble (arXiv 2407.00023), with the constants of AIBrix ``prefix-cache-preble`` (``e3e10f9``).

    The router's own radix tree tells the longest prefix that it sent anywhere. If that is more than the rest of the
    prompt, *exploit*: of the instances that have it the one with the least load. Else *explore*: of all instances the
    least load + predicted prefill of what it lacks. Ties go to the lowest index.

        load = predicted prefill of what was not cached, of the requests of the last ``window``
               + requests in flight * output_tokens * tpot

    Every ``rebalance_interval``, once a window has 50 requests an instance, the most loaded instance with more than
    ``rebalance_ratio`` times the load of the least loaded one passes what it would be sent for its cache to that one.

    Differences: a miss is charged to the instance that computes it, which is what upstream's sum over tree nodes of
    misses * prefill / holders comes to; the cost of what would be evicted is left out; answer length and TPOT are
    constants (upstream: TPOT is the median of the last 200 after starting at 0.15 s); prefill times are the fitted
    profile's; and a prefix whose load has grown is not copied to more instances ahead of its requests.
    """

    summary = "the cached prefix if it is most of the prompt, else the least predicted work"
    source = "Preble E2 (arXiv 2407.00023; AIBrix e3e10f9)"
    Params = PrebleParams

    def __init__(self, params: Any, num_instances: int, rng: random.Random) -> None:
        super().__init__(params, num_instances, rng)
        self._work: deque[tuple[float, int, float]] = deque()  # when, where, seconds of prefill
        self._work_s = [0.0] * num_instances
        self._counts = [0] * num_instances
        self._relieved: tuple[int, int] | None = None  # whose requests go to whom
        self._next_look_s = params.rebalance_interval

    def make_own_index(self, fleet: Fleet) -> TokenTree:
        """See `Router.make_own_index`."""
        num_tokens = self.params.tokens_per_instance or fleet.num_gpu_blocks * fleet.block_size
        return TokenTree(fleet, max_tokens=num_tokens or math.inf, sweep_s=1.0)

    def choose(self, request: Request, view: View, now_s: float) -> Send:
        assert isinstance(view.own, TokenTree)
        self._forget(now_s - self.params.window)
        if now_s >= self._next_look_s:
            self._rebalance(self.loads(view), now_s)
        num_tokens = request.num_prompt_tokens
        matches = view.own.matches(request, now_s)
        longest = max(matches.values(), default=0)
        if 2 * longest > num_tokens:
            instance = self._least_loaded(view, [holder for holder, tokens in matches.items() if tokens == longest])
            if self._relieved is not None and instance == self._relieved[0]:
                instance = self._relieved[1]
            prefill_s = view.fleet.prefill_s(num_tokens, matches.get(instance, 0))
        else:
            instance, prefill_s = self._explore(request, view, matches)
        self._work.append((now_s, instance, prefill_s))
        self._work_s[instance] += prefill_s
        self._counts[instance] += 1
        return Send(instance, prefill_s=prefill_s)

    def loads(self, view: View) -> list[float]:
        """Predicted work of each instance, seconds."""
        decode_s = self.params.output_tokens * self.params.tpot
        return [work_s + decode_s * count for work_s, count in zip(self._work_s, view.num_in_flight, strict=True)]

    def _least_loaded(self, view: View, holders: list[int]) -> int:
        work_s, counts = self._work_s, view.num_in_flight
        decode_s = self.params.output_tokens * self.params.tpot
        loads = [work_s[holder] + decode_s * counts[holder] for holder in holders]
        least = min(loads)
        return min(holder for holder, load in zip(holders, loads, strict=True) if load == least)

    def _explore(self, request: Request, view: View, matches: dict[int, int]) -> tuple[int, float]:
        """Where load and prefill together are least, and the latter's seconds."""
        num_tokens, loads = request.num_prompt_tokens, self.loads(view)
        spent = {tokens: view.fleet.prefill_s(num_tokens, tokens) for tokens in {0, *matches.values()}}
        costs = [load + spent[0] for load in loads]
        for instance, tokens in matches.items():
            costs[instance] = loads[instance] + spent[tokens]
        instance = costs.index(min(costs))
        return instance, spent[matches.get(instance, 0)]

    def _forget(self, before_s: float) -> None:
        while self._work and self._work[0][0] <= before_s:
            _, instance, prefill_s = self._work.popleft()
            self._counts[instance] -= 1
            self._work_s[instance] = self._work_s[instance] - prefill_s if self._counts[instance] else 0.0

    def _rebalance(self, loads: list[float], now_s: float) -> None:
        self._next_look_s = now_s + self.params.rebalance_interval
        most, least = max(loads), min(loads)
        unequal = most > self.params.rebalance_ratio * least and len(self._work) >= 50 * len(loads)
        self._relieved = (loads.index(most), loads.index(least)) if unequal else None
