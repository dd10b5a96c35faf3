"""One instance's LRU cache, told by the tree of the prompts that it served: it costs a run of text, not a block."""

from __future__ import annotations

from simulator.hit_curve.asked import Asked
from simulator.trace_tools.reuse import Reuse
from simulator.trace_tools.tree import PrefixTree


class InstanceCache:
    """Holds the ``capacity`` blocks of ``block_size`` tokens that were used last (see `trace_tools.reuse`)."""

    def __init__(self, capacity: int, block_size: int) -> None:
        self._capacity = capacity
        self._tree = PrefixTree()
        self._reuse = Reuse(block_size)

    def num_hits(self, asked: Asked) -> int:
        """Leading blocks of the request that are there; nothing changes."""
        return self._reuse.num_within(self._tree.spans(asked.prompt), self._capacity, asked.num_wanted)

    def serve(self, asked: Asked) -> int:
        """The request's blocks are used now; how many of them were there."""
        spans = self._tree.visit(asked.prompt).spans
        num_hits = self._reuse.num_within(spans, self._capacity, asked.num_wanted)
        self._reuse.add(spans, asked.num_tokens, asked.num_wanted)
        return num_hits
