"""One engine step in the words of operator tables: at most one prefill chunk beside decodes of equal context."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.plan import Plan


@dataclass(frozen=True)
class Step:
    """``chunk_tokens`` new tokens of one prompt after ``chunk_context`` of its tokens, and ``num_decodes`` requests
    that each attend ``decode_context`` KV entries, their own new one included. All in tokens; 0 where there is none.

    With several ``num_replicas`` (data-parallel ranks that step together) each has so many decodes, and the first has
    the chunk.
    """

    chunk_tokens: int = 0
    chunk_context: int = 0
    num_decodes: int = 0
    decode_context: int = 0
    num_replicas: int = 1

    @property
    def num_tokens(self) -> int:
        """Tokens that pass the layers of the first replica."""
        return self.chunk_tokens + self.num_decodes

    @property
    def num_all_tokens(self) -> int:
        """Tokens of all replicas."""
        return self.chunk_tokens + self.num_decodes * self.num_replicas

    @property
    def num_sequences(self) -> int:
        """Requests of the first replica, each of which has its last token's logits computed."""
        return self.num_decodes + (self.chunk_tokens > 0)

    @property
    def regime(self) -> str:
        """``decode``, ``prefill`` or ``mixed``."""
        if not self.chunk_tokens:
            return "decode"
        return "mixed" if self.num_decodes else "prefill"

    @property
    def name(self) -> str:
        """What is in the step, for residuals."""
        parts = []
        if self.num_decodes:
            each = f"{self.num_replicas} x " if self.num_replicas > 1 else ""
            parts.append(f"{each}{self.num_decodes} decodes at {self.decode_context}")
        if self.chunk_tokens:
            parts.append(f"chunk of {self.chunk_tokens} after {self.chunk_context}")
        return "step: " + ", ".join(parts)

    @property
    def plan(self) -> Plan:
        """The simulator's plan of this step."""
        chunk, before, num_decodes = self.chunk_tokens, self.chunk_context, self.num_decodes * self.num_replicas
        return Plan(
            num_decodes=num_decodes,
            decode_context=num_decodes * self.decode_context,
            num_prefills=int(chunk > 0),
            num_prefill_tokens=chunk,
            prefill_pairs=chunk * before + chunk * (chunk + 1) // 2,
            max_context=max(before + chunk if chunk else 0, self.decode_context if num_decodes else 0),
        )
