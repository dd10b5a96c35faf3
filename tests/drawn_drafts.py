"""Drawn clusters with drafts, noise and adapters: what the plain drawn cases leave out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cluster_cases import Case
from drawn_clusters import cases
from hypothesis import strategies as st

from simulator.engine_args.config import SpeculativeConfig
from simulator.noise import StepNoise
from simulator.request import Request
from simulator.workload.acceptance import Acceptance


@dataclass(frozen=True)
class DraftingCase(Case):
    """A case whose requests accept drafts at ``rate``, each on its own stream."""

    rate: float = 0.0

    def workload(self) -> list[Request]:
        acceptance = Acceptance(self.rate, self.engine["speculative"].num_speculative_tokens)
        found = super().workload()
        for request in found:
            request.acceptance = acceptance.draws(0, request.request_id)
        return found


def fields(case: Case) -> dict[str, Any]:
    return {name: getattr(case, name) for name in case.__dataclass_fields__}


@st.composite
def drafting(draw: st.DrawFn, pressed: bool = False) -> DraftingCase:
    """A drawn case with drafts, as far as vLLM would start with them."""
    case = draw(cases(pressed=pressed))
    engine = dict(case.engine)
    method = draw(st.sampled_from(["eagle", "mtp", "draft_model", "ngram"]))
    drafts = SpeculativeConfig(method, draw(st.integers(1, 4)))
    size = 1 + drafts.num_speculative_tokens
    least = max(size + 1, 1 + engine["max_num_seqs"])
    engine |= {
        "speculative": drafts,
        "async_scheduling": engine["async_scheduling"] and method != "ngram",
        "max_num_batched_tokens": max(engine["max_num_batched_tokens"], least),
        "long_prefill_token_threshold": 5 if engine["long_prefill_token_threshold"] else 0,
    }
    if not engine["enable_chunked_prefill"]:
        engine["max_num_batched_tokens"] += engine["max_num_seqs"]  # 0.23 sets them apart for a draft model
    rate = draw(st.sampled_from([0.0, 0.3, 0.8, 1.0]))
    return DraftingCase(**(fields(case) | {"engine": engine, "rate": rate}))


@st.composite
def noises(draw: st.DrawFn, shortest_s: float, num_instances: int) -> list[StepNoise]:
    """Few draws, so that they wrap around, up to half of the shortest step."""
    values = st.floats(-shortest_s / 2, shortest_s / 2)
    return [StepNoise(draw(st.lists(values, min_size=1, max_size=7))) for _ in range(num_instances)]
