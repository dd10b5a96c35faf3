"""What an operator tells a router about the instances behind it: how many, and how they were started."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.plan import Plan
from simulator.prefix import Prefixes
from simulator.step_time import StepTime


@dataclass(frozen=True)
class Fleet:
    """Configuration that a router may be given by hand; nothing here changes during a run.

    ``num_gpu_blocks``, ``max_num_batched_tokens`` and ``max_num_seqs`` are an instance's engine arguments, 0 where
    nobody said. ``step_time`` is the fitted profile, for routers that predict latencies offline.
    ``kv_bytes_per_token`` are those of one device. ``prefixes`` tells equal prompts apart from others.
    """

    num_instances: int
    block_size: int
    num_gpu_blocks: int = 0
    max_num_batched_tokens: int = 0
    max_num_seqs: int = 0
    step_time: StepTime | None = None
    kv_bytes_per_token: int = 0
    prefixes: Prefixes = field(default_factory=lambda: Prefixes(1))

    def prefill_s(self, num_tokens: int, num_cached: int) -> float:
        """Predicted seconds to prefill a prompt of ``num_tokens``, the first ``num_cached`` of which are cached, alone:
        the fitted step times of its chunks of ``max_num_batched_tokens``.

        Raises ValueError without a profile.
        """
        if self.step_time is None:
            raise ValueError("a router that predicts prefill times needs a profile")
        chunk = self.max_num_batched_tokens or num_tokens
        elapsed_s, computed = 0.0, min(num_cached, num_tokens - 1)
        while computed < num_tokens:
            num_new = min(chunk, num_tokens - computed)
            plan = Plan(
                num_prefills=1,
                num_prefill_tokens=num_new,
                prefill_pairs=num_new * computed + num_new * (num_new + 1) // 2,
                max_context=computed + num_new,
            )
            elapsed_s += self.step_time.elapsed(plan)
            computed += num_new
        return elapsed_s

    def decode_s(self, num_decodes: int, context: int) -> float:
        """Predicted seconds of a step that decodes ``num_decodes`` requests of ``context`` tokens each.

        Raises ValueError without a profile.
        """
        if self.step_time is None:
            raise ValueError("a router that predicts decode times needs a profile")
        plan = Plan(num_decodes=num_decodes, decode_context=num_decodes * context, max_context=context)
        return self.step_time.elapsed(plan)
