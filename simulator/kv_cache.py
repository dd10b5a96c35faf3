"""Which blocks a request holds: its longest hit, its growth, its return.

Every allocation checks first and changes afterwards: a refusal leaves no trace (vLLM's
``KVCacheManager.allocate_slots``).
"""

from __future__ import annotations

from simulator.block_pool import BlockPool
from simulator.prefix import Prefixes
from simulator.request import Request

_KEYS_AHEAD = 4  # keys of an answer's next blocks are computed so many at a time: few calls, and few in vain


class KVCache:
    """The block tables of one instance's requests, over one :class:`BlockPool`.

    ``drop_last_hit_block`` is vLLM's rule for drafters that need the last hidden state (EAGLE, MTP): a hit loses its
    last block.
    """

    __slots__ = (
        "_drop",
        "block_size",
        "caching",
        "max_model_len",
        "pool",
        "prefixes",
        "reserve_full",
        "watermark_blocks",
    )

    def __init__(
        self,
        pool: BlockPool,
        prefixes: Prefixes,
        max_model_len: int,
        *,
        caching: bool,
        reserve_full: bool,
        watermark_blocks: int = 0,
        drop_last_hit_block: bool = False,
    ) -> None:
        self.pool = pool
        self.prefixes = prefixes
        self.block_size = prefixes.block_size
        self.max_model_len = max_model_len
        self.caching = caching
        self.reserve_full = reserve_full
        self.watermark_blocks = watermark_blocks
        self._drop = drop_last_hit_block

    def longest_hit(self, request: Request, num_tokens: int) -> list[int]:
        """The cached blocks which hold the start of the request's ``num_tokens`` known tokens, always leaving one to
        compute.

        A look-up changes nothing: neither order nor counts.
        """
        if not self.caching or request.skip_reading_prefix_cache:
            return []
        limit = (num_tokens - 1) // self.block_size
        keys = self.keys(request, limit)
        blocks = []
        find = self.pool.cached.get
        for key in keys if len(keys) == limit else keys[:limit]:
            block = find(key)
            if block is None:
                break
            blocks.append(block)
        if self._drop and blocks:
            blocks.pop()
        return blocks

    def admit(self, request: Request, hit: list[int], num_tokens: int, num_slots: int, running: bool) -> bool:
        """Take blocks for ``num_slots`` tokens of which ``hit`` holds the first, if all ``num_tokens`` known ones would
        fit now.

        The gate reserves nothing: it only asks (``scheduler_reserve_full_isl``). Idle hit blocks count as space that is
        used, for they leave the free list. The watermark applies where something runs already.
        """
        pool, size = self.pool, self.block_size
        ref_cnt = pool.ref_cnt
        num_idle = 0
        for block in hit:
            if not ref_cnt[block]:
                num_idle += 1
        available = pool.num_free - num_idle - (self.watermark_blocks if running else 0)
        num_held = len(hit)
        num_needed = max(-(-min(num_slots, self.max_model_len) // size) - num_held, 0)
        if num_needed > available:
            return False
        if self.reserve_full and -(-min(num_tokens, self.max_model_len) // size) - num_held > available:
            return False
        if hit:
            pool.touch(hit, request)
        request.blocks = hit + pool.take(num_needed, request)
        request.num_published = num_held
        return True

    def grow(self, request: Request, num_slots: int) -> bool:
        """Make the running request's table hold ``num_slots`` tokens, if there is space."""
        num_needed = -(-min(num_slots, self.max_model_len) // self.block_size) - len(request.blocks)
        if num_needed > 0:
            if num_needed > self.pool.num_free:
                return False
            request.blocks += self.pool.take(num_needed, request)
        return True

    def publish_last(self, request: Request) -> None:
        """Make the last block of the request's table findable, once it is full: `publish` for a request that
        decodes.
        """
        number = len(request.blocks)
        if request.num_published < number and self.caching:
            keys = request.block_keys
            if len(keys) < number:
                keys = self.keys(request, number)
            self.pool.publish_one(request.blocks[-1], keys[number - 1], request)
            request.num_published = number

    def publish(self, request: Request, num_tokens: int) -> None:
        """Make the request's full blocks below ``num_tokens`` findable, once each."""
        if not self.caching:
            return
        first, last = request.num_published, num_tokens // self.block_size
        if last > first:
            keys = request.block_keys
            if len(keys) < last:
                keys = self.keys(request, last)
            self.pool.publish(request.blocks[first:last], keys[first:last], request)
            request.num_published = last

    def release(self, request: Request, returns: bool = False) -> None:
        """Give back all blocks. Their content stays findable until they are reused; that which only the request itself
        could look up, if it ``returns``.
        """
        if returns:
            number = request.num_published
            self.pool.remember(request.blocks[:number], request.block_keys[:number])
        self.pool.release(request.blocks, request)
        request.blocks = []
        request.num_published = 0

    def receive(self, request: Request, keys: list[int]) -> None:
        """Content computed elsewhere comes in under ``keys``, the prompt's leading blocks: as far as free blocks last,
        cached and held by nobody.
        """
        if not self.caching:
            return
        pool = self.pool
        missing = [key for key in keys if key not in pool.cached]
        blocks = pool.take(min(len(missing), pool.num_free), request)
        pool.publish(blocks, missing[: len(blocks)], request)
        pool.release(blocks, request)

    def keys(self, request: Request, num_blocks: int) -> list[int]:
        """The request's block keys, at least ``num_blocks`` of them: the prompt's, and those of its answer as it
        grows.
        """
        keys = request.block_keys
        if len(keys) < num_blocks:
            size = self.block_size
            if request.output_base is None:
                # Keys go on from the prompt's last position; the answer's first token is its segment's position 0.
                origin = self.prefixes.after(request.prompt_end, request.output_segment)
                request.output_base = origin - request.num_prompt_tokens
            first = request.output_base + (len(keys) + 1) * size
            missing = max(num_blocks - len(keys), _KEYS_AHEAD)
            keys.extend(range(first, first + missing * size, size))
        return keys
