"""Token runs -> chained block keys.

A block key stands for *all* tokens from the start of the prompt to the end of the block, as vLLM's chained hash does,
but exactly: equal keys mean equal tokens. The identity of a position in a text is the run it lies in (a *chain* number,
given once for each "this segment after exactly those tokens") and its offset there, so that the keys of a run are an
arithmetic progression and cost next to nothing each.
"""

from __future__ import annotations

from bisect import bisect_left

from simulator.request import Prompt, Run

# A key is chain * _STRIDE + tokens of the run up to the block's end; runs are shorter than that. Dictionaries go by the
# low bits of a number: an odd stride spreads the keys, while with a power of two all short runs would collide.
_STRIDE = (1 << 28) + 641
PRIVATE = 1 << 62  # keys from here on follow tokens that occur nowhere else: no other request can ever look them up


def num_shareable(keys: list[int]) -> int:
    """How many of a request's keys others can look up: all before the first private token."""
    return bisect_left(keys, PRIVATE)  # what follows private tokens is private: the rest is one run of such keys


def beginning(prompt: Prompt, num_tokens: int) -> Prompt:
    """The runs of the first ``num_tokens`` tokens. However a text was cut into runs, equal beginnings are equal."""
    runs: list[Run] = []
    for segment, start, length in prompt:
        if num_tokens <= 0:
            break
        if not length:
            continue
        taken = min(length, num_tokens)
        num_tokens -= taken
        if runs and segment is not None and runs[-1][0] == segment and runs[-1][1] + runs[-1][2] == start:
            start, taken = runs[-1][1], runs[-1][2] + taken
            runs.pop()
        runs.append((segment, start, taken))
    return tuple(runs)


class Prefixes:
    """Gives block keys; one table serves all instances and routers of a run, so that equal prefixes meet everywhere.

    The table grows by one entry a distinct named run. Runs whose segment is ``None`` leave nothing behind, nor does
    what follows them.
    """

    __slots__ = ("_chains", "_num_private", "block_size")

    def __init__(self, block_size: int, shared: Prefixes | None = None) -> None:
        """``shared``: a table of another block size to give the same identities as."""
        self.block_size = block_size
        self._chains: dict[tuple, int] = {} if shared is None else shared._chains
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
        if segment is None or position >= PRIVATE:
            self._num_private += 1
            return PRIVATE + self._num_private * _STRIDE
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
            if segment is None or position >= PRIVATE:
                position = self.after(position, None)
            elif segment != previous or start != expected:
                # `after`, written out: this line runs once a run of every prompt.
                position = chains.setdefault((position, segment, start), (len(chains) + 1) * _STRIDE)
            if filled + length >= size:
                keys.extend(range(position + size - filled, position + length + 1, size))
            filled = (filled + length) % size
            position += length
            previous, expected = segment, start + length
        return keys, position

    def chains(self, prompt: Prompt, root: int = 0) -> list[tuple[int, int]]:
        """The prompt as (chain, tokens of it), for who compares token by token: a chain is the identity of everything
        before it and of the segment that begins there, so that two prompts agree up to the first chain in which they
        differ and, in that one, up to the shorter of the two.
        """
        chains: list[tuple[int, int]] = []
        position = root
        previous, expected = None, -1
        for segment, start, length in prompt:
            if not length:
                continue
            if chains and segment is not None and segment == previous and start == expected:
                chain, before = chains[-1]
                chains[-1] = (chain, before + length)
            else:
                position = self.after(position, segment, start)
                chains.append((position, length))
            position += length
            previous, expected = segment, start + length
        return chains

    def _chain(self, name: tuple) -> int:
        return self._chains.setdefault(name, (len(self._chains) + 1) * _STRIDE)
