"""A sum of linear terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from simulator.step_time.formula import StepTime, Work


class Linear(StepTime):
    """step = step_s + a sum of linear terms: the usual first model, and the one for benchmarks with known times."""

    __slots__ = ("_decode_context_s", "_decode_token_s", "_prefill_pair_s", "_prefill_token_s", "_step_s")

    name = "linear"
    coefficients: ClassVar[Mapping[str, str]] = {
        "step_s": "s per step",
        "prefill_token_s": "s per prefill token",
        "prefill_pair_s": "s per query-key pair of a prefill",
        "decode_token_s": "s per decode",
        "decode_context_s": "s per KV entry that a decode attends",
    }

    def _bind(self, values: Mapping[str, float]) -> None:
        self._step_s = values["step_s"]
        self._prefill_token_s = values["prefill_token_s"]
        self._prefill_pair_s = values["prefill_pair_s"]
        self._decode_token_s = values["decode_token_s"]
        self._decode_context_s = values["decode_context_s"]

    def elapsed(self, plan: Work, num_steps: int = 1) -> float:
        """See ``StepTime.elapsed``."""
        decodes = plan.num_decodes
        seconds: float = num_steps * (
            self._step_s
            + self._prefill_token_s * plan.num_prefill_tokens
            + self._prefill_pair_s * plan.prefill_pairs
            + self._decode_token_s * decodes
            + self._decode_context_s * (plan.decode_context + decodes * (num_steps - 1) * 0.5)
        )
        return seconds
