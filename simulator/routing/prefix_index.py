"""Which instance holds which block: block key -> holders, as one int whose bit i stands for instance i.

An instance may store one key several times (vLLM keeps duplicate blocks and announces the removal of each), so that a
key is gone only when it was removed as often as it was stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat


class PrefixIndex:
    """Block keys and their holders. Exact, unbounded, and one dictionary operation a block in the common case."""

    __slots__ = ("_extra", "_holders")

    def __init__(self) -> None:
        self._holders: dict[int, int] = {}
        # Copies beyond the first, an instance and a key each. Nearly always empty, so that nothing else is counted.
        self._extra: dict[int, dict[int, int]] = {}

    def __len__(self) -> int:
        """Number of distinct keys that anyone holds."""
        return len(self._holders)

    def holders(self, key: int) -> int:
        """The bitmask of the instances that hold ``key``."""
        return self._holders.get(key, 0)

    def store(self, instance: int, keys: Sequence[int]) -> int:
        """``instance`` got one more copy of each key. Returns how many of them it did not hold before."""
        bit = 1 << instance
        holders = self._holders
        num_repeated = 0
        for key, mask in zip(keys, map(holders.get, keys), strict=True):  # looked up one by one: a key may come twice
            if mask is None:
                holders[key] = bit
            elif mask & bit:
                extra = self._extra.setdefault(instance, {})
                extra[key] = extra.get(key, 0) + 1
                num_repeated += 1
            else:
                holders[key] = mask | bit
        return len(keys) - num_repeated

    def remove(self, instance: int, keys: Sequence[int]) -> int:
        """``instance`` lost one copy of each key. Returns how many of them it no longer holds.

        Raises KeyError if it held no copy: an announcement was lost or made twice, and later answers would be wrong.
        """
        bit = 1 << instance
        holders = self._holders
        extra = self._extra.get(instance, {})
        num_kept = 0
        for key, mask in zip(keys, map(holders.get, keys), strict=True):
            if extra and key in extra:
                extra[key] -= 1
                if not extra[key]:
                    del extra[key]
                num_kept += 1
            elif mask == bit:
                del holders[key]
            elif mask is not None and mask & bit:
                holders[key] = mask ^ bit
            else:
                raise KeyError(f"instance {instance} removed block {key}, which it does not hold")
        return len(keys) - num_kept

    def clear(self, instance: int) -> None:
        """``instance`` lost everything. Visits all keys: for resets and failures, which are rare."""
        bit = 1 << instance
        self._extra.pop(instance, None)
        kept = {key: mask & ~bit for key, mask in self._holders.items()}
        self._holders = {key: mask for key, mask in kept.items() if mask}

    def levels(self, keys: Sequence[int]) -> list[tuple[int, int]]:
        """Who holds how much: (mask, number of consecutive leading blocks held), masks disjoint, shallowest first.

        Only holders of the first block appear. Costs one lookup for each block up to the longest match, whatever the
        number of holders.
        """
        levels: list[tuple[int, int]] = []
        alive = self._holders.get(keys[0], 0) if keys else 0
        depth = 0
        for mask in map(self._holders.get, keys, repeat(0)):
            still = alive & mask
            if still != alive:
                levels.append((alive ^ still, depth))
                alive = still
            if not alive:
                return levels
            depth += 1
        if alive:
            levels.append((alive, depth))
        return levels

    def overlaps(self, keys: Sequence[int]) -> dict[int, int]:
        """Instance -> number of consecutive leading blocks it holds; only holders of the first block appear."""
        return {instance: depth for mask, depth in self.levels(keys) for instance in instances(mask)}

    def overlap(self, instance: int, keys: Sequence[int]) -> int:
        """Number of consecutive leading blocks that ``instance`` holds."""
        bit = 1 << instance
        depth = 0
        for mask in map(self._holders.get, keys, repeat(0)):
            if not mask & bit:
                break
            depth += 1
        return depth


def instances(mask: int) -> Iterator[int]:
    """The instances whose bits are set in ``mask``, lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
