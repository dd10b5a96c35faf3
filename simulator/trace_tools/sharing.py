"""What a boundless prefix cache hits, in blocks of any size, told from how many tokens of each prompt were seen."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.trace_tools.tree import Visit


@dataclass(frozen=True)
class Ideal:
    """``num_blocks`` counts the partial last blocks too; ``share_of_tokens`` is of prompt tokens.

    ``num_distinct`` blocks were ever cached (with those of answers that the file names); ``one_off_share`` of them were
    read by one request only. Shares are None of nothing.
    """

    block_size: int
    num_blocks: int
    num_hits: int
    share_of_blocks: float | None
    share_of_tokens: float | None
    num_distinct: int
    one_off_share: float | None


class Sharing:
    """Hits by one of two conventions.

    vLLM's: only whole blocks are cached, and at least one token of a prompt is always computed. The file's own
    (``as_file``): each block that it names counts as one, the partial last block too, and all of a prompt may hit.
    """

    def __init__(self, block_size: int, *, as_file: bool = False) -> None:
        self.block_size = block_size
        self._as_file = as_file
        self._num_tokens = self._num_blocks = self._num_hits = self._num_hit_tokens = 0
        self._num_distinct = self._num_repeated = 0

    def add(self, visit: Visit, num_prompt_tokens: int, num_tokens: int, names_tail: bool) -> None:
        """One request: ``num_tokens`` are those of the prompt and of an answer that the file names.

        ``names_tail``: whether the prompt's last tokens are of a text that the file names.
        """
        size, length = self.block_size, num_prompt_tokens
        self._num_tokens += length
        if self._as_file:
            # A block's name is known as soon as its first token is, since names stand for whole blocks.
            blocks = -(-length // size) if names_tail else length // size
            hits = -(-min(visit.seen, length) // size)
            self._num_blocks += blocks
            self._num_hit_tokens += min(hits * size, length)
            self._num_distinct += blocks - hits
            self._num_repeated += hits + -min(visit.seen_twice, length) // size
        else:
            hits = max(0, min(visit.seen, length - 1)) // size
            seen, twice = min(visit.seen, num_tokens), min(visit.seen_twice, num_tokens)
            self._num_blocks += -(-length // size)
            self._num_hit_tokens += hits * size
            self._num_distinct += num_tokens // size - seen // size
            self._num_repeated += seen // size - twice // size
        self._num_hits += hits

    def ideal(self) -> Ideal:
        """All requests so far."""
        return Ideal(
            block_size=self.block_size,
            num_blocks=self._num_blocks,
            num_hits=self._num_hits,
            share_of_blocks=_share(self._num_hits, self._num_blocks),
            share_of_tokens=_share(self._num_hit_tokens, self._num_tokens),
            num_distinct=self._num_distinct,
            one_off_share=_share(self._num_distinct - self._num_repeated, self._num_distinct),
        )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
