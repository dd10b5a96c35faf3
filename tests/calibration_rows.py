"""Rows of a device that keeps to a formula: the grid that `calibrate measure` plans, with known noise."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibration.probes import Case, Limits, plan
from simulator.plan import Plan
from simulator.step_time import FORMULAS, StepTime

LIMITS = Limits(
    block_size=16, max_model_len=4096, max_num_batched_tokens=2048, max_num_seqs=32, num_gpu_blocks=20_000
)
TRUTH: dict[str, dict[str, float]] = {
    "host_device": {
        "host_prefill_s": 0.012,
        "host_decode_s": 0.008,
        "prefill_token_s": 40e-6,
        "prefill_pair_s": 20e-9,
        "device_step_s": 5e-3,
        "decode_token_s": 4e-4,
        "decode_context_s": 4e-7,
        "host_request_s": 4e-4,
    },
    "linear": {
        "step_s": 0.009,
        "prefill_token_s": 40e-6,
        "prefill_pair_s": 20e-9,
        "decode_token_s": 3e-4,
        "decode_context_s": 4e-7,
    },
    "additive": {
        "step_s": 0.008,
        "token_s": 40e-6,
        "request_s": 3e-4,
        "prefill_pair_s": 20e-9,
        "context_s": 4e-7,
        "prefill_step_s": 0.004,
    },
    "roofline_max": {
        "host_step_s": 0.004,
        "token_s": 40e-6,
        "weights_s": 0.007,
        "host_request_s": 3e-4,
        "prefill_pair_s": 20e-9,
        "context_s": 4e-7,
    },
}
OVERHEADS = (0.003, 1e-6)
IDENTITY = {
    "device": "a formula", "vllm": "0.32.0", "model": "Qwen/Qwen3-0.6B", "dtype": "bfloat16", "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1, "graph_mode": "none", "async_scheduling": False, "block_size": 16,
}  # fmt: skip
COVARIATES = {"max_num_batched_tokens": 2048, "max_model_len": 4096, "max_num_seqs": 32}


def model_of(formula: str, **changes: float) -> StepTime:
    return FORMULAS[formula](TRUTH[formula] | changes, *OVERHEADS)


@dataclass
class Device:
    """Answers cases with the formula's times, each off by a share that launches and repeats draw."""

    model: StepTime
    launch_noise: float = 0.005
    noise: float = 0.01
    num_launches: int = 3
    num_repeats: int = 3
    seed: int = 0
    num_decode_steps: int = 3

    def lines(self, cases: Sequence[Case] | None = None) -> list[dict[str, Any]]:
        """A header and the rows of every launch."""
        draw = np.random.default_rng(self.seed)
        header = {
            "kind": "header", "schema_version": 1, "identity": IDENTITY, "measured": "2026-01-01", "source": "drawn",
            "license": "none", "capacity": {"num_gpu_blocks": LIMITS.num_gpu_blocks, "block_size": LIMITS.block_size},
        }  # fmt: skip
        lines: list[dict[str, Any]] = []
        for launch in range(self.num_launches):
            lines.append(header | {"launch": launch})
            for case in plan(LIMITS) if cases is None else cases:
                shift = 1 + self.launch_noise * draw.standard_normal()
                for repeat in range(self.num_repeats):
                    for row in self._take(case):
                        for key in ("duration_s", "ttft_s", "tpot_s", "overhead_s"):
                            if key in row:
                                row[key] *= shift * (1 + self.noise * draw.standard_normal())
                        lines.append(row | {"case": case.key, "launch": launch, "repeat": repeat})
        return lines

    def write(self, path: Path, cases: Sequence[Case] | None = None) -> Path:
        path.write_text("".join(json.dumps(line) + "\n" for line in self.lines(cases)), encoding="utf-8")
        return path

    def _take(self, case: Case) -> Iterator[dict[str, Any]]:
        length, number = case.num_prompt_tokens, case.num_requests
        if case.probe == "chunk":
            pairs = number * length * (length + 1) // 2
            yield self._step("cold_prefill", Plan(0, 0, number, number * length, pairs, length))
        elif case.probe == "decode":
            for step in range(self.num_decode_steps):
                yield self._step("decode", Plan(number, number * (length + step + 2), max_context=length + step + 2))
        elif case.probe == "mixed":
            new = case.num_new_tokens
            decodes = number * (length + 2)
            yield self._step("mixed", Plan(number, decodes, 1, new, new * (new + 1) // 2, max(length + 2, new)))
        else:
            for cached in {0, case.expected_hit(LIMITS.block_size)}:
                yield from self._request(length, cached)

    def _request(self, prompt: int, cached: int) -> Iterator[dict[str, Any]]:
        regime = "warm_prefill" if cached else "cold_prefill"
        ttft_s, computed = self.model.overhead_s(prompt), cached
        while computed < prompt:
            new = min(COVARIATES["max_num_batched_tokens"], prompt - computed)
            pairs = new * computed + new * (new + 1) // 2
            computed += new
            piece = Plan(0, 0, 1, new, pairs, computed) if new > 1 else Plan(1, computed, max_context=computed)
            ttft_s += self.model.elapsed(piece)
            yield self._step(regime, piece)
        decode = Plan(1, prompt + 1, max_context=prompt + 1)
        yield {
            "kind": "request", "regime": regime, "covariates": COVARIATES, "num_prompt_tokens": prompt,
            "num_cached_tokens": cached, "num_output_tokens": 17, "ttft_s": ttft_s,
            "tpot_s": self.model.elapsed(decode, 16) / 16, "overhead_s": self.model.overhead_s(prompt),
        }  # fmt: skip

    def _step(self, regime: str, plan: Plan) -> dict[str, Any]:
        return {
            "kind": "step", "regime": regime, "covariates": COVARIATES, "num_decodes": plan.num_decodes,
            "decode_context": plan.decode_context, "num_prefills": plan.num_prefills,
            "num_prefill_tokens": plan.num_prefill_tokens, "prefill_pairs": plan.prefill_pairs,
            "max_context": plan.max_context, "duration_s": self.model.elapsed(plan),
        }  # fmt: skip
