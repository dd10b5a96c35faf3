"""Token runs -> chained block keys.

A block key stands for *all* tokens from the start of the prompt to the end of the block, as vLLM's chained hash does,
but exactly: equal keys mean equal tokens. The identity of a position in a text is the run it lies in (a *chain* number,
given once for each "this segment after exactly those tokens") and its offset there, so that the keys of a run are an
arithmetic progression and cost next to nothing each.
"""

from __future__ import annotations

from simulator.request import Prompt

_OFFSET_BITS = 28  # tokens in one run; a key is (chain << _OFFSET_BITS) + tokens of the run up to the block's end
PRIVATE = 1 << 62  # keys from here on lie in tokens that occur nowhere else: no other request can ever look them up


class Prefixes:
    """Gives block keys; one table serves all instances and routers of a run, so that equal prefixes meet everywhere.

    The table grows by one entry a distinct named run. Runs whose segment is ``None`` leave nothing behind.
    """

    __slots__ = ("_chains", "_num_private", "block_size")

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._chains: dict[tuple, int] = {}
        self._num_private = 0

    def root(self, cache_salt: str | None = None, lora: str | None = None) -> int:
        """The position before the first token. A salt or an adapter keeps everything after it apart; an empty salt is
        none.
        """
        if not cache_salt and lora is None:
            return 0
        return self._chain((cache_salt or None, lora))

    def after(self, position: int, segment: int | None, start: int = 0) -> int:
        """The position (identity of all tokens so far) at which ``segment`` begins at ``start`` after ``position``."""
        if segment is None:
            self._num_private += 1
            return PRIVATE + (self._num_private << _OFFSET_BITS)
        return self._chain((position, segment, start))

    def keys(self, prompt: Prompt, root: int = 0) -> tuple[list[int], int]:
        """The keys of the prompt's full blocks, and the position after its last token.

        A run that goes on exactly where the one before stopped is the same run: how a text is cut never matters.
        """
        size, chains = self.block_size, self._chains
        keys: list[int] = []
        position, filled = root, 0
        previous, expected = None, -1
        for segment, start, length in prompt:
            if not length:
                continue
            if segment is None:
                position = self.after(position, None)
            elif segment != previous or start != expected:
                # `after`, written out: this line runs once a run of every prompt.
                chain = chains.get((position, segment, start))
                position = self.after(position, segment, start) if chain is None else chain
            if filled + length >= size:
                keys.extend(range(position + size - filled, position + length + 1, size))
            filled = (filled + length) % size
            position += length
            previous, expected = segment, start + length
        return keys, position

    def _chain(self, name: tuple) -> int:
        chains = self._chains
        chain = chains.get(name)
        if chain is None:
            chain = chains[name] = (len(chains) + 1) << _OFFSET_BITS
        return chain
