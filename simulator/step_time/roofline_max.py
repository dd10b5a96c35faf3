"""The larger of reading the weights and computing with them, beside host work and attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from simulator.step_time.formula import StepTime, Work, context_read

_CORNER = 4.0  # that of ``host_device``, a convention


class RooflineMax(StepTime):
    """step = host + matrices + attention, where matrices = (weights^p + arithmetic^p)^(1/p).

    host       = host_step_s + host_request_s * (decodes + prefills)
    weights    = weights_s                       read once a step, however many tokens use them
               + experts_s * (1 - (1 - expert_share)^tokens)
    arithmetic = token_s * tokens (decodes padded)
    attention  = chunks + context_s * KV entries read (by chunks too, as in ``additive``)
               + mixed_context_s * KV entries that decodes read in a step with a chunk
    chunks     = ((prefill_pair_s * query-key pairs)^4 + (chunk_context_s * KV entries read by chunks)^4)^(1/4)

    The roofline's larger of two, with a smooth corner: few tokens are free while the weights are read. Attention has
    another bound (keys and values, not weights) and adds. ``corner`` is the exponent p, 4 where it is not given: the
    lower, the less of the shorter one is hidden behind the longer.

    In a mixture of experts ``experts_s`` reads all routed ones. Of E experts a token uses k, ``expert_share`` = k / E:
    if each token chose by itself, this would be the expected share that a step reads.

    Two coefficients are for kernels that do one thing worse than another, as measured on an RTX PRO 6000 (vLLM 0.19,
    FlashAttention 2): a chunk's few tokens walk a long context one key block after the other, 8 times as long as a
    decode, whose context is cut up (``chunk_context_s``); and beside a chunk decodes lose their own kernel and take 1.7
    to 2.7 times as long (``mixed_context_s``).
    """

    __slots__ = (
        "_chunk_context_s",
        "_context_s",
        "_corner",
        "_experts_s",
        "_mixed_context_s",
        "_prefill_pair_s",
        "_request_s",
        "_root",
        "_spared",
        "_step_s",
        "_token_s",
        "_weights_raised",
        "_weights_s",
    )

    name = "roofline_max"
    coefficients: ClassVar[Mapping[str, str]] = {
        "host_step_s": "s per step",
        "token_s": "s per token",
        "weights_s": "s per step",
        "host_request_s": "s per request in a step",
        "prefill_pair_s": "s per query-key pair of a prefill",
        "context_s": "s per KV entry read",
        "experts_s": "s per step that reads all routed experts",
        "expert_share": "active experts per routed expert",
        "mixed_context_s": "s more per KV entry that a decode reads beside a chunk",
        "chunk_context_s": "s per KV entry read by a chunk of few tokens",
        "corner": "exponent at which reading weights and arithmetic join",
    }
    optional = frozenset({"experts_s", "expert_share", "mixed_context_s", "chunk_context_s", "corner"})
    shape = frozenset({"expert_share", "corner"})

    def _bind(self, values: Mapping[str, float]) -> None:
        self._step_s = values["host_step_s"]
        self._request_s = values["host_request_s"]
        self._corner = values.get("corner", 0.0) or _CORNER
        self._root = 1.0 / self._corner
        self._weights_s = values["weights_s"]
        self._weights_raised = self._weights_s**self._corner
        self._experts_s = values.get("experts_s", 0.0)
        self._spared = 1.0 - values.get("expert_share", 0.0)  # experts that one token does not read
        self._token_s = values["token_s"]
        self._prefill_pair_s = values["prefill_pair_s"]
        self._context_s = values["context_s"]
        self._mixed_context_s = values.get("mixed_context_s", 0.0)
        self._chunk_context_s = values.get("chunk_context_s", 0.0)

    def elapsed(self, plan: Work, num_steps: int = 1) -> float:
        """See ``StepTime.elapsed``."""
        decodes = plan.num_decodes
        tokens = plan.num_prefill_tokens
        num_tokens = tokens + (decodes if self._padding is None else self._padding(decodes))
        weights_raised = self._weights_raised
        if self._experts_s:
            weights_raised = (self._weights_s + self._experts_s * (1.0 - self._spared**num_tokens)) ** self._corner
        chunks = self._prefill_pair_s * plan.prefill_pairs
        if self._chunk_context_s:
            read = self._chunk_context_s * plan.num_prefills * plan.prefill_pairs / (tokens + (tokens == 0))
            chunks = (chunks**4 + read**4) ** 0.25
        context_s = self._context_s * context_read(plan, num_steps)
        if self._mixed_context_s:
            context_s = context_s + self._mixed_context_s * plan.decode_context * (tokens > 0)
        seconds: float = num_steps * (
            self._step_s
            + self._request_s * (decodes + plan.num_prefills)
            + (weights_raised + (self._token_s * num_tokens) ** self._corner) ** self._root
            + chunks
            + context_s
        )
        return seconds
