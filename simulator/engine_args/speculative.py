"""vLLM's `speculative_config`: what of it is modelled, what changes nothing here, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictStr, model_validator
from pydantic_core import PydanticCustomError

from simulator.errors import nearest
from simulator.units import PositiveCount

# vLLM's other keys (of 0.23 and 0.32), which are refused unless they ask for nothing.
_NOT_MODELLED = frozenset(
    """
    enforce_eager draft_tensor_parallel_size tensor_parallel_size quantization moe_backend attention_backend
    kv_cache_dtype max_model_len index_share_for_mtp_iteration disable_padded_drafter_batch disable_eagle_block_drop
    use_local_argmax_reduction use_heterogeneous_vocab parallel_drafting num_speculative_tokens_per_batch_size
    suffix_decoding_max_tree_depth suffix_decoding_max_cached_requests suffix_decoding_max_spec_factor
    suffix_decoding_min_token_prob draft_load_config synthetic_acceptance_rates synthetic_acceptance_length
    enable_adaptive_verification dspark_draft_topk speculative_token_tree
    """.split()
)


class SpeculativeArgs(BaseModel):
    """Drafts of ``num_speculative_tokens`` tokens a step. How many are accepted, ``acceptance_rate`` says.

    Which model drafts, and how it looks up or samples, shows in the acceptance alone: those keys change nothing here.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Literal["eagle", "eagle3", "mtp", "draft_model", "ngram"] = Field(description="how drafts are made")
    num_speculative_tokens: PositiveCount = Field(description="how many drafts a step, a whole number")
    model: StrictStr | None = None
    revision: StrictStr | None = None
    code_revision: StrictStr | None = None
    prompt_lookup_max: PositiveCount | None = None
    prompt_lookup_min: PositiveCount | None = None
    draft_sample_method: StrictStr | None = None
    rejection_sample_method: Literal["standard", "block"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_the_rest(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        asked = {name: value for name, value in data.items() if value is not None and value is not False}
        problems = {name: problem for name, value in asked.items() if (problem := _refusal(name, value)) is not None}
        if problems:
            raise PydanticCustomError("several", "speculative decoding", {"problems": problems})
        return {name: value for name, value in data.items() if name in cls.model_fields or name in asked}


def _refusal(name: str, value: object) -> str | None:
    known = SpeculativeArgs.model_fields
    if name in known:
        return None
    if name in _NOT_MODELLED:
        return f"not modelled: a fixed number of drafts and vLLM's defaults are, so that {value!r} would change results"
    hint = nearest(name, [*known, *_NOT_MODELLED])
    return "unknown key" + (hint if "did you mean" in hint else "")
