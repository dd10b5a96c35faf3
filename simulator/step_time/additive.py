"""Host work, then device work: an engine that waits for its device in every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from simulator.step_time.formula import StepTime, Work, context_read


class Additive(StepTime):
    """step = host + device: an engine that waits for the device in every step, as vLLM's CPU engine does.

    host   = step_s + prefill_step_s in a step with a prefill + request_s * (decodes + prefills)
    device = token_s * tokens (decodes padded) + prefill_pair_s * query-key pairs + context_s * KV entries read

    A decode reads its context once, and so does a chunk, beside the arithmetic of its pairs: counted as its pairs over
    its tokens, the context of its middle token. On vLLM's CPU engine 14 tokens after 4,096 cost 6 ms more than pairs
    and tokens explain, which is what one decode at that context costs more than one at none.

    A token passes the same layers in a chunk and in a decode, so one coefficient serves both. What else a request costs
    in a step (scheduling, input preparation, output head, sampling) is ``request_s``; reading the weights is in
    ``step_s``, since two constants cannot be told apart.
    """

    __slots__ = ("_context_s", "_prefill_pair_s", "_prefill_step_s", "_request_s", "_step_s", "_token_s")

    name = "additive"
    coefficients: ClassVar[Mapping[str, str]] = {
        "step_s": "s per step",
        "token_s": "s per token",
        "request_s": "s per request in a step",
        "prefill_pair_s": "s per query-key pair of a prefill",
        "context_s": "s per KV entry read",
        "prefill_step_s": "s per step with a prefill",
    }
    optional = frozenset({"prefill_step_s"})

    def _bind(self, values: Mapping[str, float]) -> None:
        self._step_s = values["step_s"]
        self._prefill_step_s = values.get("prefill_step_s", 0.0)
        self._request_s = values["request_s"]
        self._token_s = values["token_s"]
        self._prefill_pair_s = values["prefill_pair_s"]
        self._context_s = values["context_s"]

    def elapsed(self, plan: Work, num_steps: int = 1) -> float:
        """See ``StepTime.elapsed``."""
        decodes = plan.num_decodes
        tokens = plan.num_prefill_tokens
        seconds: float = num_steps * (
            self._step_s
            + self._prefill_step_s * (tokens > 0)
            + self._request_s * (decodes + plan.num_prefills)
            + self._token_s * (tokens + (decodes if self._padding is None else self._padding(decodes)))
            + self._prefill_pair_s * plan.prefill_pairs
            + self._context_s * context_read(plan, num_steps)
        )
        return seconds
