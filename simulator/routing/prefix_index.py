"""Which instance holds which block: block key -> holders, as one int whose bit i stands for instance i.

An instance may store one key several times (vLLM keeps duplicate blocks and announces the removal of each), so that a
key is gone only when it was removed as often as it was stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, count, repeat


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
        num_new = 0
        if holders.keys().isdisjoint(keys):
            num_before = len(holders)
            holders.update(zip(keys, repeat(bit)))
            num_new = len(holders) - num_before
            if num_new == len(keys):
                return num_new
            keys = [key for key, count in Counter(keys).items() for _ in range(count - 1)]  # those that come again
        for key in keys:
            mask = holders.get(key, 0)
            if mask & bit:
                extra = self._extra.setdefault(instance, {})
                extra[key] = extra.get(key, 0) + 1
            else:
                holders[key] = mask | bit
                num_new += 1
        return num_new

    def remove(self, instance: int, keys: Sequence[int]) -> int:
        """``instance`` lost one copy of each key. Returns how many of them it no longer holds.

        Raises KeyError if it held no copy: an announcement was lost or made twice, and later answers would be wrong.
        """
        extra = self._extra.get(instance)
        if extra and not extra.keys().isdisjoint(keys):
            keys = self._remove_copies(keys, extra)
        bit = 1 << instance
        holders = self._holders
        masks = list(map(holders.pop, keys, repeat(0)))
        if masks.count(bit) < len(masks):
            for key, mask in zip(keys, masks, strict=True):
                if not mask & bit:
                    raise KeyError(f"instance {instance} removed block {key}, which it does not hold")
                if mask != bit:  # others hold it too
                    holders[key] = mask ^ bit
        return len(keys)

    @staticmethod
    def _remove_copies(keys: Sequence[int], extra: dict[int, int]) -> list[int]:
        """Remove one copy of each key of which there are several; the others are returned."""
        single = []
        for key in keys:
            if key not in extra:
                single.append(key)
            elif extra[key] == 1:
                del extra[key]
            else:
                extra[key] -= 1
        return single

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
        if not alive:
            return levels
        for depth, mask in enumerate(map(self._holders.get, keys, repeat(0))):
            still = alive & mask
            if still != alive:
                levels.append((alive ^ still, depth))
                if not still:
                    return levels
                alive = still
        levels.append((alive, len(keys)))
        return levels

    def overlaps(self, keys: Sequence[int]) -> dict[int, int]:
        """Instance -> number of consecutive leading blocks it holds; only holders of the first block appear."""
        return {instance: depth for mask, depth in self.levels(keys) for instance in instances(mask)}

    def overlap(self, instance: int, keys: Sequence[int]) -> int:
        """Number of consecutive leading blocks that ``instance`` holds."""
        bit = 1 << instance
        for depth, mask in enumerate(map(self._holders.get, keys, repeat(0))):
            if not mask & bit:
                return depth
        return len(keys)


class PathIndex(PrefixIndex):
    """Where keys are stored and removed as whole paths from a prompt's first block on, as requests in flight hold them.

    Who holds a block holds all before it. So what several hold comes first in a path, and behind it nothing needs
    looking up.
    """

    __slots__ = ()

    def store(self, instance: int, keys: Sequence[int]) -> int:
        """See `PrefixIndex.store`."""
        bit = 1 << instance
        holders, extra = self._holders, self._extra.setdefault(instance, {})
        num_known = num_held = 0
        for key, mask in zip(keys, map(holders.get, keys, repeat(0)), strict=True):
            if not mask:
                break
            num_known += 1
            if mask & bit:
                num_held += 1
                extra[key] = extra.get(key, 0) + 1
            else:
                holders[key] = mask | bit
        holders.update(zip(keys[num_known:], repeat(bit)))
        return len(keys) - num_held

    def remove(self, instance: int, keys: Sequence[int]) -> int:
        """See `PrefixIndex.remove`."""
        bit = 1 << instance
        holders, extra = self._holders, self._extra[instance]
        num_shared = num_kept = 0
        for key in keys:
            if key in extra:
                num_kept += 1
                if extra[key] == 1:
                    del extra[key]
                else:
                    extra[key] -= 1
            elif holders[key] != bit:
                holders[key] ^= bit
            else:
                break
            num_shared += 1
        for key in keys[num_shared:]:
            del holders[key]
        return len(keys) - num_kept


def deepest(*indexes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The `PrefixIndex.levels` of several indexes as one: of each instance the most that any of them knows."""
    merged: list[tuple[int, int]] = []
    seen = 0
    for mask, depth in sorted((level for levels in indexes for level in levels), key=lambda level: -level[1]):
        if new := mask & ~seen:
            if merged and merged[-1][1] == depth:
                merged[-1] = (merged[-1][0] | new, depth)
            else:
                merged.append((new, depth))
            seen |= new
    merged.reverse()
    return merged


def apart(levels: list[tuple[int, int]], num_instances: int) -> tuple[int, list[tuple[int, int]]]:
    """Levels as the depth that most instances have, and (mask, depth) of the others: a beginning that everybody holds
    would otherwise make every instance special.
    """
    rest = (1 << num_instances) - 1
    for mask, _ in levels:
        rest ^= mask
    common, most = 0, rest.bit_count()
    for mask, depth in levels:
        if mask.bit_count() > most:
            common, most = depth, mask.bit_count()
    others = [level for level in levels if level[1] != common]
    return common, [(rest, 0), *others] if common and rest else others


def spread(levels: list[tuple[int, int]], num_instances: int) -> tuple[int, dict[int, int]]:
    """As `apart`, with the depth of each other instance by its number."""
    common, groups = apart(levels, num_instances)
    others: dict[int, int] = {}
    for mask, depth in groups:
        others.update(zip(instances(mask), repeat(depth)))
    return common, others


def instances(mask: int) -> Iterator[int]:
    """The instances whose bits are set in ``mask``, lowest first."""
    if mask.bit_count() < _MANY:
        return _one_by_one(mask)
    return compress(count(), format(mask, "b")[::-1].encode().translate(_TRUTH))


def mask_of(chosen: Iterable[bool]) -> int:
    """The mask of the instances for which ``chosen``, one answer for each, is true."""
    return int(bytes(chosen)[::-1].translate(_DIGITS), 2)


_MANY = 24  # from here on looking at every bit is faster than looking for the next that is set
_TRUTH = bytes.maketrans(b"01", b"\0\1")
_DIGITS = bytes.maketrans(b"\0\1", b"01")


def _one_by_one(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
