"""Policies that ignore the cache: chance, turns, and the number of requests in flight."""

from __future__ import annotations

import random
from typing import Any, Literal

from simulator.request import Request
from simulator.routing.decision import Send
from simulator.routing.router import Router, StatefulParams
from simulator.routing.view import View


class Random(Router):
    """Uniform over the instances, one draw a request. Dynamo's frontend (config ``0243c51``) defaults to this mode."""

    summary = "uniformly random"
    source = "Dynamo random mode (0243c51)"

    def choose(self, request: Request, view: View, now_s: float) -> Send:  # noqa: ARG002
        return Send(self.rng.randrange(self.num_instances))


class RoundRobin(Router):
    """In turn, from the first instance. vLLM production-stack ``a6c01db``, ``roundrobin`` (URLs in order of name)."""

    summary = "each instance in turn"
    Params = StatefulParams
    source = "vLLM production-stack roundrobin (a6c01db)"

    def __init__(self, params: Any, num_instances: int, rng: random.Random) -> None:
        super().__init__(params, num_instances, rng)
        self._turn = 0

    def choose(self, request: Request, view: View, now_s: float) -> Send:  # noqa: ARG002
        instance = self._turn
        self._turn = (instance + 1) % self.num_instances
        return Send(instance)


class LeastRequests(Router):
    """Fewest requests in flight by the router's own count. AIBrix ``e3e10f9``, ``least-request``.

    AIBrix shuffles ties; here they go to the lowest index, as in every policy that mirrors no random tie.
    """

    summary = "fewest own requests in flight, ties to the lowest index"
    Params = StatefulParams
    source = "AIBrix least-request (e3e10f9)"

    def choose(self, request: Request, view: View, now_s: float) -> Send:  # noqa: ARG002
        loads = view.num_in_flight
        return Send(loads.index(min(loads)))


class PowerOfTwo(Router):
    """Two distinct random instances, the one with fewer requests in flight, a tie to the first drawn.

    vllm-router ``fa999f9``, ``power_of_two``. Theory: Azar, Broder, Karlin, Upfal, "Balanced allocations" (1999).
    """

    summary = "fewer in flight of two random instances"
    Params = StatefulParams
    source = "vllm-router power_of_two (fa999f9)"

    def choose(self, request: Request, view: View, now_s: float) -> Send:  # noqa: ARG002
        if self.num_instances == 1:
            return Send(0)
        first = self.rng.randrange(self.num_instances)
        second = self.rng.randrange(self.num_instances - 1)
        if second >= first:
            second += 1
        loads = view.num_in_flight
        return Send(second if loads[second] < loads[first] else first)


class LeastTokensParams(StatefulParams):
    """``until``: whether a request counts to its last token or to its first."""

    until: Literal["last_token", "first_token"] = "last_token"


class LeastTokens(Router):
    """Fewest prompt tokens of own requests, ties to the fewest requests, then to the lowest index.

    The default router between attention data-parallel ranks of TensorRT-LLM (``DefaultADPRouter``), request by request
    instead of batch by batch, and without its cap on requests.
    """

    summary = "fewest prompt tokens of own requests in flight"
    source = "TensorRT-LLM DefaultADPRouter (PR #12315)"
    Params = LeastTokensParams

    def choose(self, request: Request, view: View, now_s: float) -> Send:  # noqa: ARG002
        if self.params.until == "last_token":
            tokens, counts = view.prompt_tokens, view.num_in_flight
        else:
            tokens, counts = view.prompt_tokens_prefilling, view.num_prefilling
        loads = list(zip(tokens, counts, strict=True))
        return Send(loads.index(min(loads)))


class AscendProxyParams(StatefulParams):
    """``role``: which of the proxy's two choices is made."""

    role: Literal["prefill", "decode"] = "prefill"


class AscendProxy(Router):
    """The load-balance proxy of vllm-ascend ``182b75e``; it does not know of caches. With L the bytes of a request's
    body, 4 a token, the least sum over own requests wins, ties to the lowest index:

        prefill: 0.0345 * L / 4 + 120.0745 of those without a first token yet
        decode:  L of those in flight

    Upstream picks a prefill and a decode instance for each request. Here one instance does both, and ``role`` says by
    which rule it is picked. Upstream's prefill priority has 0.3 times the KV held for the decoder besides: on one
    instance that is given back with the first token too, so the order is the same. The repository's proxy for
    instances that do both (``external_online_dp``) is ``role: decode``, less its 0.5 * max_tokens.
    """

    summary = "least estimated prefill work, whatever is cached (vllm-ascend's proxy)"
    source = "vllm-ascend load-balance proxy (182b75e)"
    Params = AscendProxyParams

    def choose(self, request: Request, view: View, now_s: float) -> Send:  # noqa: ARG002
        if self.params.role == "decode":
            loads: list[float] = [4 * tokens for tokens in view.prompt_tokens]
        else:
            loads = [
                0.0345 * tokens + 120.0745 * count
                for tokens, count in zip(view.prompt_tokens_prefilling, view.num_prefilling, strict=True)
            ]
        return Send(loads.index(min(loads)))
