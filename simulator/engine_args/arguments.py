"""The engine arguments of a scenario, by vLLM's names: modelled, harmless, or refused with the reason."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictStr, model_validator
from pydantic_core import PydanticCustomError

from simulator.dialect import DIALECTS, find_dialect
from simulator.engine_args.names import DEFAULTS, HARMLESS, NOT_MODELLED, SECRET
from simulator.engine_args.speculative import SpeculativeArgs
from simulator.errors import InputError
from simulator.units import Bytes, Count, PositiveCount, Share

_HIDDEN = "(hidden)"
_OF_WATERMARK_DIALECTS = ("watermark", "max_num_active_seqs", "long_prefill_token_threshold_adaptive")


def _known_dialect(value: str) -> str:
    if value not in DIALECTS:
        raise InputError(f"got {value!r}, expected {' or '.join(map(repr, DIALECTS))}")
    return value


def _above_zero(value: float) -> float:
    if not value > 0:
        raise InputError(f"got {value!r}, expected more than 0")
    return value


def _below_one(value: float) -> float:
    if not value < 1:
        raise InputError(f"got {value!r}, expected less than 1")
    return value


class EngineArgs(BaseModel):
    """What the scenario says; ``resolve`` fills in vLLM's default for ``None``. Harmless arguments are extras."""

    model_config = ConfigDict(frozen=True, extra="allow")

    dialect: Annotated[StrictStr, AfterValidator(_known_dialect)] = Field(
        description="the vLLM release whose decisions are simulated (" + ", ".join(DIALECTS) + ")"
    )
    model: StrictStr | None = Field(default=None, description="must be the profile's model")
    dtype: StrictStr | None = Field(default=None, description="must be the profile's number format")
    tensor_parallel_size: PositiveCount | None = Field(default=None, description="must be the profile's")
    pipeline_parallel_size: PositiveCount | None = Field(default=None, description="must be the profile's")
    async_scheduling: StrictBool | None = Field(
        default=None, description="compose a step while the one before it runs (default: true where vLLM can)"
    )
    max_model_len: PositiveCount = Field(description="longest prompt plus answer, in tokens")
    allow_long_max_model_len: StrictBool = Field(
        default=False,
        description="the engine takes more than the model's own length, by VLLM_ALLOW_LONG_MAX_MODEL_LEN or by scaled "
        "positions (kvcast's own key, not vLLM's)",
    )
    block_size: PositiveCount | None = Field(default=None, description="tokens per KV block")
    max_num_batched_tokens: PositiveCount | None = Field(default=None, description="token budget of a step")
    max_num_seqs: PositiveCount | None = Field(default=None, description="most running requests")
    max_num_active_seqs: PositiveCount | None = Field(default=None, description="admission limit (0.32)")
    enable_prefix_caching: StrictBool = True
    enable_chunked_prefill: StrictBool = True
    long_prefill_token_threshold: Count = 0
    long_prefill_token_threshold_adaptive: StrictBool | None = Field(
        default=None, description="raise the threshold to a fair share of the token budget (0.32)"
    )
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    scheduler_reserve_full_isl: StrictBool = True
    watermark: Annotated[Share, AfterValidator(_below_one)] | None = Field(
        default=None, description="share of the pool kept free at admission (0.32)"
    )
    gpu_memory_utilization: Annotated[Share, AfterValidator(_above_zero)] | None = Field(
        default=None, description="share of device memory that the engine takes"
    )
    kv_cache_memory_bytes: Bytes | None = Field(default=None, description="KV memory of one device, verbatim")
    num_gpu_blocks_override: PositiveCount | None = Field(default=None, description="blocks in the pool, verbatim")
    enable_lora: StrictBool = Field(default=False, description="serve the adapters that tenants name")
    max_loras: PositiveCount | None = Field(default=None, description="most adapters in one step (vLLM's default: 1)")
    speculative_config: SpeculativeArgs | None = Field(default=None, description="a mapping with 'method' and more")
    acceptance_rate: Share | None = Field(
        default=None,
        description="the probability that a draft is accepted if those before it were (kvcast's own key, not vLLM's)",
    )

    @model_validator(mode="before")
    @classmethod
    def _sort(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        problems = {name: problem for name, value in data.items() if (problem := refusal(name, value)) is not None}
        if problems:
            raise PydanticCustomError("several", "engine arguments", {"problems": problems})
        return {name: _HIDDEN if name in SECRET else value for name, value in data.items()}

    @property
    def harmless(self) -> dict[str, Any]:
        """The accepted arguments that change nothing, for the report; secrets are masked."""
        return dict(self.model_extra or {})

    def problem(self) -> tuple[str, str] | None:
        """Key and message of the first argument which this dialect does not have."""
        if not find_dialect(self.dialect).has_watermark:
            for name in _OF_WATERMARK_DIALECTS:
                if getattr(self, name) is not None:
                    able = [dialect.name for dialect in DIALECTS.values() if dialect.has_watermark]
                    return name, f"does not exist in {self.dialect}, expected dialect {' or '.join(able)}"
        return None


def refusal(name: str, value: object) -> str | None:
    """Why an argument of this name and value cannot be taken; None where it can (types of modelled ones aside)."""
    if name in EngineArgs.model_fields or name in HARMLESS:
        return None
    if name in NOT_MODELLED:
        if value in (None, "auto", [], {}) or value is False or _is_default(name, value):
            return None
        return f"not modelled: {NOT_MODELLED[name]}, so that {value!r} would change results"
    close = difflib.get_close_matches(name, [*EngineArgs.model_fields, *sorted(HARMLESS), *NOT_MODELLED], n=1)
    return "unknown key" + (f" (did you mean {close[0]!r}?)" if close else "")


def _is_default(name: str, value: object) -> bool:
    # The command line hands over text where YAML has numbers.
    return name in DEFAULTS and str(value).lower() == str(DEFAULTS[name]).lower()
