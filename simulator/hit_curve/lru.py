"""The hits of an LRU cache of every size, from one reading of the requests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from simulator.errors import InputError
from simulator.hit_curve.asked import Asked, Counting
from simulator.trace_tools.reuse import Curve, Reuse
from simulator.trace_tools.tree import PrefixTree


@dataclass(frozen=True)
class Lru:
    """One cache that serves the requests one at a time, in order of arrival (stack distances, see `trace_tools.reuse`).

    The same as an engine's pool that serves so, but for the place of a prompt's partial last block: the pool lends it
    one, which comes back without content, so that it hits up to a few blocks in 100,000 fewer. A cache smaller than a
    request keeps its first blocks, where an engine would refuse the request.

    ``ceiling`` are the blocks that a boundless cache hits; ``num_distinct`` blocks fill it. ``num_longest`` are those
    of the longest request.
    """

    counting: Counting
    curve: Curve
    tree: PrefixTree
    num_requests: int
    num_tokens: int
    num_blocks: int
    num_longest: int
    ceiling: int

    @property
    def num_distinct(self) -> int:
        """Blocks that ever were in use."""
        return self.curve.num_distinct

    def share(self, num_hits: float) -> float:
        """The hit rate: of prompt tokens, as vLLM counts, or of blocks where a file's own are counted."""
        if self.counting.as_file:
            return self.of_blocks(num_hits)
        return num_hits * self.counting.block_size / self.num_tokens if self.num_tokens else 0.0

    def of_blocks(self, num_hits: float) -> float:
        """The share of all prompts' blocks, partial last ones included."""
        return num_hits / self.num_blocks if self.num_blocks else 0.0

    def num_for(self, share_of_ceiling: float) -> int | None:
        """The smallest capacity that hits so much of the ceiling; None where nothing is ever hit."""
        return self.curve.distance(share_of_ceiling)


def lru(requests: Iterable[Asked], counting: Counting, name: str) -> Lru:
    """Read the requests once. Memory grows with the distinct runs of tokens, not with tokens. Raises InputError where
    there is no request; errors call the requests ``name``.
    """
    tree, reuse = PrefixTree(), Reuse(counting.block_size)
    num_tokens = num_blocks = 0
    for asked in requests:
        num_tokens += asked.num_prompt_tokens
        num_blocks += asked.num_blocks
        reuse.add(tree.visit(asked.prompt).spans, asked.num_tokens, asked.num_wanted)
    if not tree.num_visits:
        raise InputError(f"{name}: no request, expected at least one")
    return Lru(
        counting, reuse.curve(), tree, tree.num_visits, num_tokens, num_blocks, reuse.num_longest, reuse.num_reused
    )
