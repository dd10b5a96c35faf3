"""The tree of prompts and reuse distances: by brute force on drawn prompts, Mooncake's files through the block pool."""

from __future__ import annotations

from collections import Counter, OrderedDict
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_trace_goldens import BLOCK_SIZE, CAPACITIES, UNIQUE_BLOCKS, hits_by_id, records
from test_trace_info import PROMPT_LISTS, length_of

from simulator.prefix import Prefixes
from simulator.request import Prompt
from simulator.trace_tools.reuse import Curve, Reuse
from simulator.trace_tools.tree import PrefixTree
from simulator.workload import mooncake


def texts_of(prompts: list[Prompt]) -> list[list[object]]:
    """Each prompt as the list of its tokens; those of no name are equal to nothing."""
    return [
        [object() if segment is None else (segment, start + place) for segment, start, length in prompt
         for place in range(length)]
        for prompt in prompts
    ]  # fmt: skip


def num_common(first: list[object], second: list[object]) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(first), len(second)))


@given(PROMPT_LISTS)
def test_a_prompt_has_seen_what_it_has_in_common_with_an_earlier_one(prompts):
    texts = texts_of(prompts)
    tree = PrefixTree()
    for number, prompt in enumerate(prompts):
        common = sorted((num_common(texts[number], text) for text in texts[:number]), reverse=True)
        visit = tree.visit(prompt)
        assert visit.seen == (common[0] if common else 0)
        assert visit.seen_twice == (common[1] if len(common) > 1 else 0)
        # Each token's last reader is the latest request that has it in common.
        readers = [who for who, start, end in visit.spans for _ in range(start, end)]
        assert readers == [
            max(who for who in range(number) if num_common(texts[number], texts[who]) > place)
            for place in range(visit.seen)
        ]


@given(PROMPT_LISTS)
def test_prefixes_are_the_texts_that_requests_share(prompts):
    """Every shared text is found once, as long as its readers go together; what all of them save is what was seen."""
    texts = texts_of(prompts)
    tree = PrefixTree()
    seen = [tree.visit(prompt).seen for prompt in prompts]
    starts = Counter(tuple(text[:end]) for text in texts for end in range(1, len(text) + 1))
    ends = [
        (len(start), num) for start, num in starts.items()
        if num > 1 and all(longer[:-1] != start or many != num for longer, many in starts.items())
    ]  # fmt: skip
    found = tree.prefixes()
    assert Counter((one.num_tokens, one.num_requests) for one in found) == Counter(ends)
    assert sum(one.num_saved for one in found) == sum(seen)


def lru_hits(keys_of: list[list[int]], wanted: list[int], capacity: int) -> int:
    """Hits of a cache that is told everything one block at a time: own blocks pinned, released deepest first."""
    cached: OrderedDict[int, None] = OrderedDict()  # the one released last at the end
    num_hits = 0
    for keys, most in zip(keys_of, wanted, strict=True):
        hit = next((place for place, key in enumerate(keys) if key not in cached), len(keys))
        num_hits += min(hit, most)
        for key in keys[:hit]:
            del cached[key]
        while len(cached) + len(keys) > capacity:
            cached.popitem(last=False)
        for key in reversed(keys):
            cached.pop(key, None)
            cached[key] = None
    return num_hits


@given(PROMPT_LISTS, st.integers(1, 4), st.integers(0, 40))
def test_reuse_distances_give_the_hits_of_an_lru_cache(prompts, block_size, spare):
    prefixes, tree, reuse = Prefixes(block_size), PrefixTree(), Reuse(block_size)
    keys_of, wanted = [], []
    for prompt in prompts:
        keys_of.append(prefixes.keys(prompt)[0])
        wanted.append((length_of(prompt) - 1) // block_size)
        reuse.add(tree.visit(prompt).spans, length_of(prompt), length_of(prompt) - 1)
    curve = reuse.curve()
    capacity = max(map(len, keys_of)) + spare
    assert curve.hits(capacity) == lru_hits(keys_of, wanted, capacity)
    assert reuse.num_distinct == len({key for keys in keys_of for key in keys})
    assert curve.hits(reuse.num_distinct) == reuse.num_reused


@given(PROMPT_LISTS, st.integers(1, 4))
def test_a_percentile_of_distances_is_the_smallest_cache_that_hits_as_much(prompts, block_size):
    tree, reuse = PrefixTree(), Reuse(block_size)
    for prompt in prompts:
        reuse.add(tree.visit(prompt).spans, length_of(prompt), length_of(prompt))
    curve = reuse.curve()
    for share in (0.5, 0.9, 1.0):
        distance = curve.distance(share)
        if not reuse.num_reused:
            assert distance is None
        else:
            assert curve.hits(distance) >= share * reuse.num_reused > curve.hits(distance - 1)


def test_a_curve_of_nothing_hits_nothing():
    curve = Curve({}, 0)
    assert (curve.hits(10), curve.distance(0.5)) == (0, None)


@cache
def mooncake_curve(trace: str, as_file: bool) -> Curve:
    tree, reuse = PrefixTree(), Reuse(BLOCK_SIZE)
    for record in records(trace):
        prompt, length, wanted = mooncake.prompt(record, 0), record.input_length, record.input_length - 1
        if as_file:  # each id is a whole block, the partial last one too, and all of them may hit
            prompt = (*prompt[:-1], (prompt[-1][0], 0, BLOCK_SIZE))
            length = wanted = BLOCK_SIZE * len(prompt)
        reuse.add(tree.visit(prompt).spans, length, wanted)
    return reuse.curve()


@pytest.mark.parametrize("trace", ["conversation", "synthetic"])
@pytest.mark.parametrize("capacity", [*CAPACITIES, 3_333, 20_000])
def test_reuse_distances_of_mooncake_give_the_hits_of_the_block_pool(trace, capacity):
    assert mooncake_curve(trace, as_file=True).hits(capacity) == sum(hits_by_id(trace, capacity))


@pytest.mark.parametrize(
    ("trace", "expected"),
    [("conversation", (12_990, 62_005, 102_724, 105_592)), ("synthetic", (10_370, 52_952, 77_740, 77_740))],
)
def test_reuse_distances_of_mooncake_by_vllms_convention(trace, expected):
    """The expected integers come from an independent program: whole blocks only, one token always computed."""
    curve = mooncake_curve(trace, as_file=False)
    assert tuple(curve.hits(capacity) for capacity in (*CAPACITIES, UNIQUE_BLOCKS[trace])) == expected
