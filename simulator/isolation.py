"""The price of isolation: what tenants could find in a cache that never evicts, with their salts and without."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.prefix import Prefixes, num_shareable
from simulator.request import FINISHED, Request
from simulator.workload import open_workload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulator.workload import Workload, WorkloadSpec

_MOST_BLOCKS = 1_000_000  # looked at: about half a second


@dataclass(frozen=True)
class Isolation:
    """Hit rates of one endless cache for all (tokens found / prompt tokens), over the first ``num_requests``."""

    salted: float
    shared: float
    num_requests: int

    @property
    def price(self) -> float:
        """The share of all prompt tokens that is computed because of the salts."""
        return self.shared - self.salted


def price_of_isolation(spec: WorkloadSpec, seed: int, base_dir: Path, block_size: int) -> Isolation | None:
    """The price for the first replication of a workload, or what comes first of it; None where no tenant has a salt, or
    users come back endlessly.

    Every answer takes no time here: turns follow each other as they do, and nobody gives up. ``block_size`` is the
    engine's, in tokens; a hit leaves one token to compute.
    """
    if not any(tenant.cache_salt for tenant in spec.tenants):
        return None
    if any(tenant.conversations is not None and tenant.conversations.users is not None for tenant in spec.tenants):
        return None
    salted, shared = _EndlessCache(block_size), _EndlessCache(block_size)
    num_requests = num_tokens = 0
    for request in _answered_at_once(open_workload(spec, seed, 0, base_dir)):
        if num_tokens > _MOST_BLOCKS * block_size:
            break
        num_requests += 1
        num_tokens += request.num_prompt_tokens
        salted.serve(request, request.cache_salt)
        shared.serve(request, None)
    if not num_tokens:
        return None
    return Isolation(salted.num_hit_tokens / num_tokens, shared.num_hit_tokens / num_tokens, num_requests)


class _EndlessCache:
    def __init__(self, block_size: int) -> None:
        self._prefixes = Prefixes(block_size)
        self._cached: set[int] = set()
        self.num_hit_tokens = 0

    def serve(self, request: Request, salt: str | None) -> None:
        """Look the prompt up, then keep it with its answer (whose last token never has KV)."""
        size, cached = self._prefixes.block_size, self._cached
        answer = (request.output_segment, 0, request.num_output_tokens - 1)
        keys, _ = self._prefixes.keys((*request.prompt, answer), self._prefixes.root(salt, request.lora))
        keys = keys[: num_shareable(keys)]
        if not request.skip_reading_prefix_cache:
            for key in keys[: (request.num_prompt_tokens - 1) // size]:
                if key not in cached:
                    break
                self.num_hit_tokens += size
        cached.update(keys)


def _answered_at_once(workload: Workload) -> Iterator[Request]:
    """The workload's requests in order, each ended before the next comes."""
    arriving = iter(workload)
    ahead = next(arriving, None)
    following: list[tuple[float, int, Request]] = []
    order = count()
    while ahead is not None or following:
        if ahead is None or (following and following[0][0] < ahead.arrival_s):
            request = heappop(following)[2]
        else:
            request, ahead = ahead, next(arriving, None)
        request.state, request.num_output_tokens = FINISHED, min(request.oracle_num_output_tokens, request.max_tokens)
        yield request
        for follower in workload.ended(request, request.arrival_s):
            heappush(following, (follower.arrival_s, next(order), follower))
