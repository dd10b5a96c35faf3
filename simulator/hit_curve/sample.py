"""A part of the requests that hits, in a cache of some other size, about as much as all of them do.

Spatial sampling (Waldspurger et al. (2015), "Efficient MRC Construction with SHARDS", FAST '15): whether a text is in
the sample is decided by a fixed hash, so that all uses of it are, or none; the cache shrinks by the same factor. What
stands for a text here is a branch of the tree of prompts, taken whole, since hits are prefixes. Few branches that
everybody asks for cannot be sampled so: then the first requests, in a cache as large, tell more. Which of the samples
is best is seen where all of them can be checked: by LRU, whose curve is known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from simulator.eviction.replay import Visitor
from simulator.hit_curve.asked import Asked
from simulator.hit_curve.lru import Lru, lru
from simulator.hit_curve.source import Source
from simulator.prefix import Prefixes

# Parts of prompts that more than this share of the requests have are in every sample, and of no branch.
_COMMON = (0.5, 0.05)
_TOO_MANY = 2  # times as many requests as wanted: a branch that is large
_PREFER_SPACE = 4  # times as large an error: what a policy has learned in the whole time is not in the first requests
_FINE = 16  # blocks of a request, on average: so many tell prompts apart


@dataclass(frozen=True)
class Sample:
    """Some of the requests, in blocks of ``coarse`` of the engine's, and their own LRU curve.

    The cache is ``shrunk`` so many times but for the ``num_common`` blocks that prompts of many branches begin with.
    ``words`` say which requests of ``num_of`` these are.
    """

    words: str
    coarse: int
    shrunk: int
    num_common: int
    num_of: int
    requests: list[Asked]
    lru: Lru

    @property
    def is_whole(self) -> bool:
        """Whether these are all requests, block by block."""
        return self.coarse == self.shrunk == 1 and len(self.requests) == self.num_of

    @cached_property
    def names(self) -> list[list[int]]:
        """The blocks of each request."""
        size = self.lru.counting.block_size
        prefixes = Prefixes(size)
        return [prefixes.keys(asked.prompt)[0][: asked.num_tokens // size] for asked in self.requests]

    @cached_property
    def num_wanted(self) -> list[int]:
        """In how many of them hits count."""
        return [asked.num_wanted // self.lru.counting.block_size for asked in self.requests]

    @cached_property
    def visitors(self) -> list[Visitor]:
        """Whose they are."""
        return [
            Visitor(number, asked.tenant, asked.session, asked.priority, asked.arrival_s)
            for number, asked in enumerate(self.requests)
        ]

    def capacity(self, capacity: int) -> int:
        """Blocks that do for the sample what ``capacity`` blocks do for all."""
        blocks = capacity / self.coarse
        common = min(blocks, self.num_common)
        return round(common + (blocks - common) / self.shrunk)

    def lru_error(self, whole: Lru, capacity: int) -> float:
        """How far off the sample is for LRU, whose hits are known: sampled hit rate - exact one."""
        mine = self.lru.share(self.lru.curve.hits(self.capacity(capacity)))
        return mine - whole.share(whole.curve.hits(capacity))


def sample(source: Source, whole: Lru, most_blocks: int, capacities: Sequence[int]) -> Sample | None:
    """All requests where they have no more than ``most_blocks`` blocks; else so many of them, in blocks as coarse as
    tells prompts apart, drawn in the way whose LRU curve is nearest to that of all at the ``capacities``. None where
    no way leaves a request.
    """
    coarse = 1
    if not source.counting.as_file:
        while whole.num_blocks > coarse * most_blocks and whole.num_blocks > 2 * _FINE * coarse * whole.num_requests:
            coarse *= 2
    one_in = max(1, -(-whole.num_blocks // (coarse * most_blocks)))
    samples = [
        _sample(way, source, whole, coarse, requests)
        for way, requests in _drawn(source, whole, one_in).items()
        if 0 < len(requests) * one_in <= _TOO_MANY * whole.num_requests
    ]  # fmt: skip

    def worst(found: Sample) -> float:
        error = max(abs(found.lru_error(whole, capacity)) for capacity in capacities)
        return error if found.shrunk > 1 else _PREFER_SPACE * error

    return min(samples, key=worst, default=None)


@dataclass(frozen=True)
class _Way:
    """One in ``one_in`` branches of what no more than ``most`` requests have, or (None) of the requests the first."""

    one_in: int
    most: int | None

    @property
    def words(self) -> str:
        if self.one_in == 1:
            return "all requests"
        if self.most is None:
            return f"the first 1/{self.one_in} of the requests"
        return f"1 in {self.one_in} branches of the tree of prompts"


def _drawn(source: Source, whole: Lru, one_in: int) -> dict[_Way, list[Asked]]:
    """The requests of each way to sample, in one reading."""
    if one_in == 1:
        return {_Way(1, None): list(source.asked())}
    limits = [int(share * whole.num_requests) for share in _COMMON]
    spatial: list[list[Asked]] = [[] for _ in limits]
    first: list[Asked] = []
    for number, asked in enumerate(source.asked()):
        for requests, branch in zip(spatial, whole.tree.rare_parts(asked.prompt, limits), strict=True):
            # A prompt of common parts alone is a branch of its own.
            if hashed(f"request {number}" if branch is None else branch) % one_in == 0:
                requests.append(asked)
        if number * one_in < whole.num_requests:
            first.append(asked)
    drawn = {_Way(one_in, limit): requests for limit, requests in zip(limits, spatial, strict=True)}
    return {**drawn, _Way(one_in, None): first}


def _sample(way: _Way, source: Source, whole: Lru, coarse: int, requests: list[Asked]) -> Sample:
    counting = source.counting._replace(block_size=source.counting.block_size * coarse)
    return Sample(
        words=way.words,
        coarse=coarse,
        shrunk=1 if way.most is None else way.one_in,
        num_common=0 if way.most is None else whole.tree.num_common_tokens(way.most) // counting.block_size,
        num_of=whole.num_requests,
        requests=requests,
        lru=whole if way.one_in == coarse == 1 else lru(requests, counting, source.name),
    )


def hashed(name: object) -> int:
    """A fixed number of 64 bits for a name, the same everywhere and always."""
    return int.from_bytes(hashlib.blake2b(str(name).encode(), digest_size=8).digest(), "big")
