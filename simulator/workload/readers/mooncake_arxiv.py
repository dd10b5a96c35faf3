"""Mooncake's earlier layout (arXiv 2407.00079, ``FAST25-release/arxiv-trace``) and what others write in it.

The keys are those of ``mooncake``. Looser here, as such files are: the last, partial block may be without an id (its
tokens then occur nowhere else), times may have fractions, and ``block_tokens`` says how many tokens an id stands for
(512 when not given; NVIDIA's converters write other sizes).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from simulator.workload.mooncake import BLOCK_TOKENS
from simulator.workload.readers.blocks import check_count, ids_of, segments
from simulator.workload.readers.fields import json_object, number, tokens
from simulator.workload.readers.mooncake import looks_like_mooncake
from simulator.workload.readers.reading import LineTrace
from simulator.workload.readers.recognition import Head
from simulator.workload.records import Record


class MooncakeArxiv(LineTrace):
    """See the module."""

    format = "mooncake_arxiv"
    description = "the same keys, looser: ids of whole blocks only, or of another size (block_tokens)"
    options = frozenset({"block_tokens"})
    in_order = True

    def __init__(self, path: Path, *, strict: bool = False, block_tokens: int = BLOCK_TOKENS) -> None:
        super().__init__(path, strict=strict)
        self.block_tokens: int = block_tokens

    @classmethod
    def recognises(cls, head: Head) -> bool:
        """Mooncake's keys, whatever the number of ids."""
        return looks_like_mooncake(head)

    def _parser(self) -> Callable[[bytes], Record]:
        block_tokens = self.block_tokens
        first: float | None = None

        def parse(line: bytes) -> Record:
            nonlocal first
            fields = json_object(line)
            time_ms = number(fields, "timestamp")
            num_prompt, num_output = tokens(fields, "input_length"), tokens(fields, "output_length")
            ids = ids_of(fields)
            check_count(len(ids), num_prompt, block_tokens)
            if first is None:
                first = time_ms
            return Record((time_ms - first) / 1000, num_prompt, num_output, segments(ids, num_prompt, block_tokens))

        return parse
