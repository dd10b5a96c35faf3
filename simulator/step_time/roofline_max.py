"""The larger of reading the weights and computing with them, beside host work and attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from simulator.step_time.formula import StepTime, Work, context_read


class RooflineMax(StepTime):
    """step = host + matrices + attention, where matrices = (weights^4 + arithmetic^4)^(1/4).

    host       = host_step_s + host_request_s * (decodes + prefills)
    weights    = weights_s                       read once a step, however many tokens use them
    arithmetic = token_s * tokens (decodes padded)
    attention  = prefill_pair_s * query-key pairs + context_s * KV entries read (by chunks too, as in ``additive``)

    The roofline's larger of two, with a smooth corner: few tokens are free while the weights are read. Attention has
    another bound (keys and values, not weights) and adds. The exponent 4 is that of ``host_device``, a convention.
    """

    __slots__ = ("_context_s", "_prefill_pair_s", "_request_s", "_step_s", "_token_s", "_weights_to_4")

    name = "roofline_max"
    coefficients: ClassVar[Mapping[str, str]] = {
        "host_step_s": "s per step",
        "token_s": "s per token",
        "weights_s": "s per step",
        "host_request_s": "s per request in a step",
        "prefill_pair_s": "s per query-key pair of a prefill",
        "context_s": "s per KV entry read",
    }

    def _bind(self, values: Mapping[str, float]) -> None:
        self._step_s = values["host_step_s"]
        self._request_s = values["host_request_s"]
        self._weights_to_4 = values["weights_s"] ** 4
        self._token_s = values["token_s"]
        self._prefill_pair_s = values["prefill_pair_s"]
        self._context_s = values["context_s"]

    def elapsed(self, plan: Work, num_steps: int = 1) -> float:
        """See ``StepTime.elapsed``."""
        decodes = plan.num_decodes
        tokens = plan.num_prefill_tokens
        arithmetic = self._token_s * (tokens + (decodes if self._padding is None else self._padding(decodes)))
        arithmetic *= arithmetic
        seconds: float = num_steps * (
            self._step_s
            + self._request_s * (decodes + plan.num_prefills)
            + (self._weights_to_4 + arithmetic * arithmetic) ** 0.25
            + self._prefill_pair_s * plan.prefill_pairs
            + self._context_s * context_read(plan, num_steps)
        )
        return seconds
