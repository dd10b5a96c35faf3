"""A request as a cache sees it, and how hits are counted."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from simulator.request import Prompt

_NAMESPACE_BITS = 160  # more than any segment has, also of layers that tenants share


class Asked(NamedTuple):
    """What a request looks up and leaves behind.

    ``prompt`` with the answer where later prompts quote it, ``num_tokens`` in all; blocks that end within the first
    ``num_wanted`` tokens may be found. Rates are of ``num_prompt_tokens``, or of ``num_blocks``, a partial last one
    included. ``session`` and ``tenant`` are numbered from 0.
    """

    prompt: Prompt
    num_tokens: int
    num_prompt_tokens: int
    num_wanted: int
    num_blocks: int
    session: int | None
    tenant: int
    priority: int
    arrival_s: float


class Counting(NamedTuple):
    """Blocks of ``block_size`` tokens, counted as vLLM does: only whole ones are cached, and one token of a prompt is
    always computed.

    ``as_file``: as a file of block ids does: each id is a block, a partial last one too, and all may be found.
    """

    block_size: int
    as_file: bool = False

    def asked(
        self, prompt: Prompt, num_prompt_tokens: int, num_output_tokens: int, output_segment: int | None,
        first_segment: int = 0, *, reads: bool = True, session: int | None = None, tenant: int = 0, priority: int = 0,
        arrival_s: float = 0.0,
    ) -> Asked:  # fmt: skip
        """A request whose segments count from ``first_segment``; not ``reads``: it looks nothing up, and others may
        find what it leaves.
        """
        size, num_tokens, wanted = self.block_size, num_prompt_tokens, num_prompt_tokens - 1
        num_blocks = -(-num_prompt_tokens // size)
        if self.as_file:
            segment, start, length = prompt[-1] if prompt else (None, 0, 0)
            if segment is None:  # the file has no id for it
                num_blocks = num_prompt_tokens // size
            else:
                prompt = (*prompt[:-1], (segment, start, length + num_blocks * size - num_prompt_tokens))
            num_tokens = wanted = num_blocks * size
        elif output_segment is not None and num_output_tokens > 1:
            # vLLM never computes the KV of an answer's last token.
            prompt = (*prompt, (output_segment, 0, num_output_tokens - 1))
            num_tokens += num_output_tokens - 1
        if first_segment:
            prompt = tuple(
                (None if segment is None else first_segment + segment, start, length)
                for segment, start, length in prompt
            )
        return Asked(
            prompt, num_tokens, num_prompt_tokens, max(0, wanted) if reads else 0, num_blocks, session, tenant,
            priority, arrival_s,
        )  # fmt: skip


class Namespaces:
    """Keeps texts of different cache salts and adapters apart by other names of their segments."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {(None, None): 0}

    def first_segment(self, cache_salt: str | None, lora: str | None) -> int:
        """What to add to the segments of this namespace; an empty salt is none."""
        return self._numbers.setdefault((cache_salt or None, lora), len(self._numbers)) << _NAMESPACE_BITS
