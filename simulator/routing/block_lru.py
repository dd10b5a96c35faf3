"""A router's own guess at each instance's cache: hashes of blocks that it was sent, least recently used out first."""

from __future__ import annotations

from collections import OrderedDict

from simulator.prefix import PRIVATE, Prefixes, beginning
from simulator.request import Request
from simulator.routing.fleet import Fleet
from simulator.routing.prefix_index import PrefixIndex


class BlockLru:
    """``capacity`` block hashes an instance, of blocks of ``block_size`` tokens, of which only the first ``max_blocks``
    of a prompt are ever looked at. Of a prompt its first blocks go first, as they were noted first.
    """

    __slots__ = ("_asked", "_held", "_index", "_keys", "_max_blocks", "_prefixes", "block_size", "capacity")

    def __init__(self, fleet: Fleet, *, block_size: int, capacity: int, max_blocks: int) -> None:
        self.block_size = block_size
        self.capacity = capacity
        self._max_blocks = max_blocks
        self._prefixes = Prefixes(block_size, fleet.prefixes)
        self._index = PrefixIndex()
        self._held: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(fleet.num_instances)]
        self._asked: Request | None = None
        self._keys: list[int] = []

    def keys(self, request: Request) -> list[int]:
        """The blocks of the prompt that are looked at."""
        if request is not self._asked:
            root = self._prefixes.root(request.cache_salt, request.lora)
            looked_at = beginning(request.prompt, self._max_blocks * self.block_size)
            self._asked, self._keys = request, self._prefixes.keys(looked_at, root)[0]
        return self._keys

    def levels(self, request: Request) -> list[tuple[int, int]]:
        """Who is believed to cache how many leading blocks: `PrefixIndex.levels`."""
        return self._index.levels(self.keys(request))

    def matched_tokens(self, request: Request, instance: int, now_s: float) -> int:  # noqa: ARG002
        """See `view.OwnIndex`."""
        return self._index.overlap(instance, self.keys(request)) * self.block_size

    def insert(self, request: Request, instance: int, now_s: float) -> None:  # noqa: ARG002
        """See `view.OwnIndex`."""
        keys = self.keys(request)
        held = self._held[instance]
        # Private blocks take space as others do, but nobody can look them up.
        self._index.store(instance, [key for key in keys if key < PRIVATE and key not in held])
        for key in keys:
            held[key] = None
            held.move_to_end(key)
        if len(held) > self.capacity:
            gone = [held.popitem(last=False)[0] for _ in range(len(held) - self.capacity)]
            self._index.remove(instance, [key for key in gone if key < PRIVATE])

