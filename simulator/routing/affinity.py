"""Filter, then load: instances with nearly all of the prompt if waiting there costs little, else all of them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from simulator.request import Request
from simulator.routing.decision import Send
from simulator.routing.prefix_index import instances, spread
from simulator.routing.prefix_producer import PrefixParams, PrefixProducer
from simulator.routing.ties import any_least, any_of
from simulator.routing.view import View
from simulator.units import Rate, Seconds, Share


class LlmdAffinityParams(PrefixParams):
    """Upstream's names; ``max_ttft_penalty`` (0: none is too much) has its unit, ``peak_prefill_throughput`` is in
    tokens a second and a property of device and model: the default is upstream's.
    """

    affinity_threshold: Annotated[Share, Field(gt=0)] = 0.80
    peak_prefill_throughput: Rate = 15_928.0
    max_ttft_penalty: Seconds = 18.0
    exploration_probability: Annotated[Share, Field(lt=1)] = 0.0

    @model_validator(mode="after")
    def _throughput_matters(self) -> LlmdAffinityParams:
        if "peak_prefill_throughput" in self.model_fields_set and not self.max_ttft_penalty:
            raise ValueError("peak_prefill_throughput has no meaning with max_ttft_penalty: 0")
        return self


class LlmdAffinity(PrefixProducer):
    """llm-d-router ``ebab687``, its default since mid-2026: ``prefix-cache-affinity-filter``, then ``token-load``:

        sticky = instances with at least affinity_threshold of the prompt's blocks
        est    = uncached tokens in flight, until their first token passes / peak_prefill_throughput
        among  = sticky, if there are any and least est of them - least est of the others <= max_ttft_penalty; else all
        the least of uncached tokens in flight + this request's uncached tokens; ties at random

    With ``exploration_probability`` a request is not filtered. Tokens of answers are not counted. The score's end at
    4,194,304 tokens, beyond which all instances would tie, is not modelled.
    """

    summary = "among those with 80 % of the prompt, unless far behind, the fewest uncached tokens in flight"
    source = "llm-d-router prefix-cache-affinity-filter + token-load-scorer (ebab687)"
    Params = LlmdAffinityParams

    def choose(self, request: Request, view: View, now_s: float) -> Send:
        levels, num_blocks, block_size = self.known_prefixes(request, view, now_s)
        in_flight, num_tokens = view.prefill_tokens, request.num_prompt_tokens
        if sticky := self._sticky(levels, num_blocks, in_flight):
            those = [(in_flight[who] + max(0, num_tokens - depth * block_size), who) for who, depth in sticky]
            least = min(those)[0]
            return Send(any_of([instance for tokens, instance in those if tokens == least], self.rng))
        common, others = spread(levels, view.num_instances)
        own = max(0, num_tokens - common * block_size)
        all_tokens = [tokens + own for tokens in in_flight]
        for instance, depth in others.items():
            all_tokens[instance] = in_flight[instance] + max(0, num_tokens - depth * block_size)
        return Send(any_least(all_tokens, self.rng))

    def _sticky(self, levels: list[tuple[int, int]], num_blocks: int, in_flight: list[int]) -> list[tuple[int, int]]:
        """Those that the filter leaves, with the blocks that they have; none if it leaves all."""
        params = self.params
        if params.exploration_probability and self.rng.random() < params.exploration_probability:
            return []
        sticky = [
            (instance, depth)
            for mask, depth in levels
            if depth >= params.affinity_threshold * num_blocks
            for instance in instances(mask)
        ]
        if params.max_ttft_penalty and 0 < len(sticky) < len(in_flight):
            mine = {instance for instance, _ in sticky}
            behind = min([in_flight[instance] for instance in mine]) - min(
                [tokens for instance, tokens in enumerate(in_flight) if instance not in mine]
            )
            if behind / params.peak_prefill_throughput > params.max_ttft_penalty:
                return []
        return sticky
