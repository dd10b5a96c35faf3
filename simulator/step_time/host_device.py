"""Host work and device work side by side: an engine that launches ahead of the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from simulator.step_time.formula import StepTime, Work


class HostDevice(StepTime):
    """step = (host^4 + device^4)^(1/4): host work and device work overlap, and the longer one dominates.

    host   = host_prefill_s in a step with a prefill, else host_decode_s
           + host_request_s * (decodes + prefills)
    device = device_step_s                         weights are read once a step
           + prefill_token_s * prefill tokens + prefill_pair_s * query-key pairs
           + decode_token_s * decodes (padded) + decode_context_s * KV entries that the decodes attend

    Device terms add, so a chunk beside decodes pays for both, and weight reading is not hidden behind arithmetic: the
    pessimistic side of a roofline, which takes the larger. The exponent 4 is a convention: of 2, 3, ... 8 it fits the
    published Ascend medians best (0.4 % against 4.5 % for 2 and 4 % for a hard maximum).
    Without ``host_request_s`` host time does not depend on the batch, as in rows of requests served alone.
    """

    __slots__ = (
        "_decode_context_s",
        "_decode_host_s",
        "_decode_token_s",
        "_host_request_s",
        "_prefill_extra_s",
        "_prefill_pair_s",
        "_prefill_token_s",
        "_step_s",
    )

    name = "host_device"
    coefficients: ClassVar[Mapping[str, str]] = {
        "host_prefill_s": "s per step with a prefill",
        "host_decode_s": "s per step without a prefill",
        "prefill_token_s": "s per prefill token",
        "prefill_pair_s": "s per query-key pair of a prefill",
        "device_step_s": "s per step",
        "decode_token_s": "s per decode",
        "decode_context_s": "s per KV entry that a decode attends",
        "host_request_s": "s per request in a step",
    }
    optional = frozenset({"host_request_s"})

    def _bind(self, values: Mapping[str, float]) -> None:
        self._decode_host_s = values["host_decode_s"]
        self._prefill_extra_s = values["host_prefill_s"] - values["host_decode_s"]
        self._host_request_s = values.get("host_request_s", 0.0)
        self._step_s = values["device_step_s"]
        self._prefill_token_s = values["prefill_token_s"]
        self._prefill_pair_s = values["prefill_pair_s"]
        self._decode_token_s = values["decode_token_s"]
        self._decode_context_s = values["decode_context_s"]

    def elapsed(self, plan: Work, num_steps: int = 1) -> float:
        """See ``StepTime.elapsed``."""
        decodes = plan.num_decodes
        tokens = plan.num_prefill_tokens
        host = (
            self._decode_host_s
            + self._prefill_extra_s * (tokens > 0)
            + self._host_request_s * (decodes + plan.num_prefills)
        )
        device = (
            self._step_s
            + self._prefill_token_s * tokens
            + self._prefill_pair_s * plan.prefill_pairs
            + self._decode_token_s * (decodes if self._padding is None else self._padding(decodes))
            + self._decode_context_s * (plan.decode_context + decodes * (num_steps - 1) * 0.5)
        )
        host *= host  # squares instead of powers: three times as fast on floats
        device *= device
        seconds: float = num_steps * (host * host + device * device) ** 0.25
        return seconds
