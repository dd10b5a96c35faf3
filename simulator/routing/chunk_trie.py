"""A router's own trie over the prompts that it dispatched, in chunks of so many characters, never evicted."""

from __future__ import annotations

from simulator.prefix import Prefixes, num_shareable
from simulator.request import Request
from simulator.routing.dispatch_index import DispatchIndex
from simulator.routing.fleet import Fleet


class ChunkTrie:
    """Who was sent which beginning, in chunks of ``chunk_tokens``. The end of a prompt that is no full chunk counts as
    one, as in vLLM production-stack's ``HashTrie``; salts and adapters are not told apart, as it reads the text only.
    """

    __slots__ = ("_asked", "_index", "_keys", "_prefixes", "chunk_tokens")

    def __init__(self, fleet: Fleet, chunk_tokens: int) -> None:
        self.chunk_tokens = chunk_tokens
        self._prefixes = Prefixes(chunk_tokens, fleet.prefixes)
        self._index = DispatchIndex()
        self._asked: Request | None = None
        self._keys: list[int] = []

    def levels(self, request: Request) -> list[tuple[int, int]]:
        """Who was sent how many leading chunks: `PrefixIndex.levels`."""
        return self._index.levels(self._chunks(request))

    def matched_tokens(self, request: Request, instance: int, now_s: float) -> int:  # noqa: ARG002
        """See `view.OwnIndex`."""
        return min(self._index.overlap(instance, self._chunks(request)) * self.chunk_tokens, request.num_prompt_tokens)

    def insert(self, request: Request, instance: int, now_s: float) -> None:
        """See `view.OwnIndex`."""
        self._index.remember(instance, self._chunks(request), now_s)

    def _chunks(self, request: Request) -> list[int]:
        """The keys of the chunks that others could share."""
        if request is not self._asked:
            keys, end = self._prefixes.keys(request.prompt)
            if request.num_prompt_tokens % self.chunk_tokens:
                keys.append(end)
            self._asked, self._keys = request, keys[: num_shareable(keys)]
        return self._keys
