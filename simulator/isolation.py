"""The price of isolation: what tenants could find in a cache that never evicts, with their salts and without."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.prefix import Prefixes, num_shareable
from simulator.request import REFUSED, Request
from simulator.workload import open_workload
from simulator.workload.at_once import answered_at_once

if TYPE_CHECKING:
    from simulator.workload import WorkloadSpec

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


def price_of_isolation(
    spec: WorkloadSpec, seed: int, base_dir: Path, block_size: int, max_model_len: int | None = None
) -> Isolation | None:
    """The price for the first replication of a workload, or what comes first of it; None where no tenant has a salt, or
    users come back endlessly.

    Every answer takes no time here: turns follow each other as they do, and nobody gives up. ``block_size`` is the
    engine's, in tokens; a hit leaves one token to compute. Requests beyond ``max_model_len`` are refused, and do not
    count.
    """
    if not any(tenant.cache_salt for tenant in spec.tenants):
        return None
    if any(tenant.conversations is not None and tenant.conversations.users is not None for tenant in spec.tenants):
        return None
    salted, shared = _EndlessCache(block_size), _EndlessCache(block_size)
    num_requests = num_tokens = 0
    for request in answered_at_once(open_workload(spec, seed, 0, base_dir), max_model_len):
        if num_tokens > _MOST_BLOCKS * block_size:
            break
        if request.state == REFUSED:
            continue
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
