"""Block ids -> runs of tokens.

Two ways, alike for every cache: an id is a segment of its own (what ``workload.mooncake`` does, and what a file of
hashes means), or ids count along one long text, the segment, in which id k begins at token ``k * block_tokens``: then
consecutive ids are one run, however many they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat

from simulator.counts import counted
from simulator.request import Prompt, Run
from simulator.workload.readers.fields import Fields, shown
from simulator.workload.readers.reading import Unusable
from simulator.workload.segments import SEGMENTS_PER_TENANT

Stretch = tuple[int, int]  # ids that follow one another: the first, and how many


def ids_of(fields: Fields, key: str = "hash_ids") -> list[int]:
    """The list of ids, whole numbers >= 0 that fit a segment. Raises Unusable."""
    ids = fields.get(key)
    if type(ids) is not list:
        raise Unusable(f"{key} is {shown(ids)}, expected a list of block ids")
    if ids and (set(map(type, ids)) != {int} or min(ids) < 0 or max(ids) >= SEGMENTS_PER_TENANT):
        wrong = next(k for k in ids if type(k) is not int or not 0 <= k < SEGMENTS_PER_TENANT)
        raise Unusable(f"hash id {shown(wrong)}, expected a whole number >= 0 and < {SEGMENTS_PER_TENANT}")
    return ids


def check_count(num_ids: int, num_tokens: int, block_tokens: int, *, whole_only: bool = False) -> None:
    """Raise Unusable unless there is an id for each block: the last, partial one may have none.

    ``whole_only``: it must have none.
    """
    floor, ceiling = num_tokens // block_tokens, -(-num_tokens // block_tokens)
    if num_ids == floor or (num_ids == ceiling and not whole_only):
        return
    expected = str(floor) if whole_only or floor == ceiling else f"{ceiling} (or {floor}: whole blocks only)"
    raise Unusable(
        f"{counted(num_ids, 'hash id')} for {counted(num_tokens, 'token')}, expected {expected}: one each "
        f"{counted(block_tokens, 'token')}"
    )


def segments(ids: list[int], num_tokens: int, block_tokens: int) -> Prompt:
    """Each id a segment; tokens after the last id occur nowhere else. ``ids`` must have passed ``check_count``."""
    runs: list[Run] = list(zip(ids, repeat(0), repeat(block_tokens), strict=False))
    rest = num_tokens - block_tokens * len(ids)
    if rest < 0:
        runs[-1] = (ids[-1], 0, block_tokens + rest)
    elif rest:
        runs.append((None, 0, rest))
    return tuple(runs)


def stretches(ids: list[int]) -> list[Stretch]:
    """Consecutive ids put together."""
    found: list[Stretch] = []
    start = 0
    for place in range(1, len(ids) + 1):
        if place == len(ids) or ids[place] != ids[place - 1] + 1:
            found.append((ids[start], place - start))
            start = place
    return found


def stretches_of(fields: Fields, key: str = "hash_runs") -> list[Stretch]:
    """The same of ids that are written so: ``[[first, count], ...]``. Raises Unusable."""
    pairs = fields.get(key)
    if type(pairs) is not list:
        raise Unusable(f"{key} is {shown(pairs)}, expected a list of [first id, count]")
    for pair in pairs:
        if (
            type(pair) is not list
            or len(pair) != 2
            or not type(pair[0]) is type(pair[1]) is int
            or not 0 <= pair[0] < pair[0] + pair[1] <= SEGMENTS_PER_TENANT
        ):
            raise Unusable(f"{key} has {shown(pair)}, expected [first id >= 0, count >= 1]")
    return [(first, count) for first, count in pairs]


def along(segment: int, found: Iterable[Stretch], num_tokens: int, block_tokens: int) -> Prompt:
    """Ids as places in the text ``segment``; tokens after the last id occur nowhere else."""
    runs: list[Run] = []
    left = num_tokens
    for first, count in found:
        length = min(left, count * block_tokens)
        runs.append((segment, first * block_tokens, length))
        left -= length
    if left:
        runs.append((None, 0, left))
    return tuple(runs)
