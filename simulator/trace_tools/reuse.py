"""Reuse distances: how many distinct blocks were used since a block was used last, and what a cache of a size hits.

A request reads the blocks of its prompt and releases them in reverse order, so that in the order of last use its first
block comes first. Hits are prefixes, and whoever reads a block reads all before it: an LRU cache of C blocks then holds
exactly the C that were used last (Mattson et al. (1970), "Evaluation techniques for storage hierarchies", IBM Systems
Journal 9(2)), and a block is hit if at most C distinct blocks, itself included, were used since its last use began.
Blocks last used by one request lie together in that order, so a sum over requests (Fenwick (1994), "A new data
structure for cumulative frequency tables", Software: Practice and Experience 24(3)) finds the distances of many blocks
at once: an arithmetic progression a span of `simulator.trace_tools.tree`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from simulator.trace_tools.tree import Span


class Reuse:
    """Distances between the uses of blocks of ``block_size`` tokens, over a sequence of requests."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.num_distinct = 0
        self.num_reused = 0
        self.num_longest = 0  # blocks of the longest request
        self._weights = _Sums()  # by request: the blocks that it was the last to use
        self._steps: dict[int, int] = {}  # distance -> change in the number of reuses at it

    def add(self, spans: Sequence[Span], num_tokens: int, num_wanted: int) -> None:
        """One request's prompt (with an answer that others quote) of ``num_tokens`` tokens.

        ``num_wanted``: only the whole blocks within so many tokens are looked up; those after it take their place in
        the order all the same.
        """
        size, steps, weights = self.block_size, self._steps, self._weights
        moved = 0
        limit = num_wanted // size
        for visit, start, end in spans:
            first, past = start // size, end // size
            if first == past:
                continue
            newer = self.num_distinct - weights.up_to(visit)
            weights.add(visit, first - past)
            moved += past - first
            if (num := min(past, limit) - first) > 0:
                steps[newer + 1] = steps.get(newer + 1, 0) + 1
                steps[newer + num + 1] = steps.get(newer + num + 1, 0) - 1
                self.num_reused += num
        num_blocks = num_tokens // size
        self.num_distinct += num_blocks - moved
        self.num_longest = max(self.num_longest, num_blocks)
        weights.append(num_blocks)

    def num_within(self, spans: Sequence[Span], capacity: int, num_wanted: int) -> int:
        """How many leading blocks of ``spans`` a cache of ``capacity`` blocks holds now, within ``num_wanted`` tokens;
        nothing changes.
        """
        size, limit, num_hits = self.block_size, num_wanted // self.block_size, 0
        before, since = -1, 0  # blocks of the same visit that come before
        for visit, start, end in spans:
            first, past = start // size, min(end // size, limit)
            if visit != before:
                before, since = visit, first
            if first < past:
                newer = self.num_distinct - self._weights.up_to(visit) + first - since
                if newer + past - first > capacity:
                    return num_hits + max(0, capacity - newer)
                num_hits += past - first
        return num_hits

    def curve(self) -> Curve:
        """The hit curve of all requests so far."""
        return Curve(self._steps, self.num_distinct)


class Curve:
    """How many blocks an LRU cache of some capacity hits."""

    def __init__(self, steps: dict[int, int], num_distinct: int) -> None:
        self.num_distinct = num_distinct
        edges = np.array(sorted(steps), dtype=np.int64)
        heights = np.cumsum([steps[edge] for edge in edges.tolist()], dtype=np.int64)
        # From edge to edge each distance has the same number of reuses, so hits grow in a straight line between.
        self._capacities = edges - 1
        self._hits = np.concatenate(([0], np.cumsum(heights[:-1] * np.diff(edges)))) if edges.size else edges

    def hits(self, capacity: int) -> int:
        """Blocks hit in a cache of ``capacity`` blocks; every request is taken to fit into it."""
        if not self._hits.size:
            return 0
        at = int(np.searchsorted(self._capacities, capacity, side="right")) - 1
        if at < 0:
            return 0
        hits, more = int(self._hits[at]), int(self._hits[min(at + 1, self._hits.size - 1)])
        if hits == more:
            return hits
        low, high = int(self._capacities[at]), int(self._capacities[at + 1])
        return hits + (more - hits) * (capacity - low) // (high - low)

    def distance(self, share: float) -> int | None:
        """The least distance that ``share`` of the reuses keep; None where nothing is used again."""
        total = int(self._hits[-1]) if self._hits.size else 0
        if not total:
            return None
        wanted = max(1, int(np.ceil(share * total)))
        at = int(np.searchsorted(self._hits, wanted, side="left"))
        low, high = int(self._capacities[at - 1]), int(self._capacities[at])
        hits, more = int(self._hits[at - 1]), int(self._hits[at])
        return low + -(-(wanted - hits) * (high - low) // (more - hits))


class _Sums:
    """A growing list of numbers with sums of its front, each in logarithmic time."""

    def __init__(self) -> None:
        self._tree = array("q", [0])

    def append(self, value: int) -> None:
        tree = self._tree
        index = len(tree)
        below, least = index - 1, index & index - 1
        while below > least:
            value += tree[below]
            below &= below - 1
        tree.append(value)

    def add(self, index: int, value: int) -> None:
        tree = self._tree
        index += 1
        while index < len(tree):
            tree[index] += value
            index += index & -index

    def up_to(self, index: int) -> int:
        """The sum of the numbers at 0..index."""
        tree, total = self._tree, 0
        index += 1
        while index:
            total += tree[index]
            index &= index - 1
        return total
