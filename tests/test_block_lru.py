"""The other two of routers' own indexes, against models that keep lists: an LRU of hashes, a trie that never evicts."""

from __future__ import annotations

from drawn_texts import asks, prompts, tokens
from hypothesis import given
from hypothesis import strategies as st

from simulator.routing.block_lru import BlockLru
from simulator.routing.chunk_trie import ChunkTrie
from simulator.routing.fleet import Fleet

NUM_INSTANCES = 3
steps = st.lists(st.tuples(prompts, st.integers(0, NUM_INSTANCES - 1), prompts), max_size=20)


def pieces(request, size: int, most: int | None = None, with_end: bool = False) -> list[tuple]:
    """The beginnings of the prompt that end with a piece: one for each piece, as a chained hash has it."""
    text = tokens(request)
    ends = [*range(size, len(text) + 1, size)][:most]
    if with_end and len(text) % size:
        ends.append(len(text))
    return [tuple(text[:end]) for end in ends]


def leading(keys: list[tuple], held) -> int:
    return next((i for i, key in enumerate(keys) if key not in held), len(keys))


def levels_of(depths: list[int]) -> list[tuple[int, int]]:
    """`PrefixIndex.levels` from each instance's depth."""
    return [
        (sum(1 << number for number, other in enumerate(depths) if other == depth), depth)
        for depth in sorted(set(depths) - {0})
    ]


@given(steps, st.integers(1, 3), st.integers(1, 8), st.integers(1, 6))
def test_a_block_lru_holds_the_blocks_that_were_sent_last(steps, block_size, capacity, max_blocks):
    """The first blocks of a prompt are the first to go, as they were noted first."""
    fleet = Fleet(NUM_INSTANCES, block_size=16)
    index = BlockLru(fleet, block_size=block_size, capacity=capacity, max_blocks=max_blocks)
    held: list[list[tuple]] = [[] for _ in range(NUM_INSTANCES)]
    for text, instance, prompt in steps:
        one, asked = asks(text), asks(prompt)
        index.insert(one, instance, 0.0)
        for key in pieces(one, block_size, max_blocks):
            if key in held[instance]:
                held[instance].remove(key)
            held[instance].append(key)
        del held[instance][: max(0, len(held[instance]) - capacity)]
        keys = pieces(asked, block_size, max_blocks)
        assert len(index.keys(asked)) == len(keys)
        depths = [leading(keys, held[number]) for number in range(NUM_INSTANCES)]
        assert index.levels(asked) == levels_of(depths)
        for number in range(NUM_INSTANCES):
            assert index.matched_tokens(asked, number, 0.0) == depths[number] * block_size


@given(steps, st.integers(1, 4))
def test_a_chunk_trie_never_forgets_and_counts_the_end_of_a_prompt(steps, chunk_tokens):
    fleet = Fleet(NUM_INSTANCES, block_size=16)
    trie = ChunkTrie(fleet, chunk_tokens)
    held: list[set[tuple]] = [set() for _ in range(NUM_INSTANCES)]
    for text, instance, prompt in steps:
        one, asked = asks(text), asks(prompt)
        trie.insert(one, instance, 0.0)
        held[instance].update(pieces(one, chunk_tokens, with_end=True))
        keys = pieces(asked, chunk_tokens, with_end=True)
        depths = [leading(keys, held[number]) for number in range(NUM_INSTANCES)]
        assert trie.levels(asked) == levels_of(depths)
        for number in range(NUM_INSTANCES):
            expected = min(depths[number] * chunk_tokens, asked.num_prompt_tokens)
            assert trie.matched_tokens(asked, number, 0.0) == expected


def test_salted_prompts_share_no_block_of_an_lru():
    """llm-d hashes what the engine hashes: salt and adapter are part of the first block's hash."""
    index = BlockLru(Fleet(1, block_size=16), block_size=4, capacity=100, max_blocks=10)
    one, other = asks(((1, 0, 12),)), asks(((1, 0, 12),))
    one.cache_salt = "red"
    index.insert(one, 0, 0.0)
    assert (index.levels(one), index.levels(other)) == ([(1, 3)], [])
