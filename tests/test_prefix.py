"""Block keys: equal keys and equal prefixes are the same thing, however a prompt was written down."""

from __future__ import annotations

import itertools

import pytest
from engine import ask, text
from hypothesis import given
from hypothesis import strategies as st

from simulator.block_pool import BlockPool
from simulator.kv_cache import KVCache
from simulator.prefix import Prefixes

BLOCK_SIZES = st.integers(1, 7)
# Few texts and short runs, so that drawn prompts often share prefixes and often part in the middle of a block.
RUNS = st.tuples(st.one_of(st.none(), st.integers(0, 2)), st.integers(0, 6), st.integers(0, 9))
PROMPTS = st.lists(RUNS, max_size=5).map(tuple)


def tokens(prompt, fresh):
    """The prompt token by token: text and position; tokens without a text are like no other."""
    return tuple(
        next(fresh) if segment is None else (segment, position)
        for segment, start, length in prompt
        for position in range(start, start + length)
    )


@st.composite
def cuttings(draw):
    """A prompt of named texts, and the same one with its runs cut into pieces at random."""
    prompt = draw(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(0, 30)), max_size=4))
    pieces = []
    for segment, start, length in prompt:
        cuts = sorted(draw(st.lists(st.integers(0, length), max_size=4)))
        pieces += [(segment, start + a, b - a) for a, b in itertools.pairwise([0, *cuts, length])]
    return tuple(prompt), tuple(pieces)


@given(cuttings(), BLOCK_SIZES, st.booleans())
def test_how_a_text_is_cut_never_matters(cutting, block_size, whole_first):
    """Empty runs and cuts inside a text leave keys and end position as they are, whichever is seen first."""
    prefixes = Prefixes(block_size)
    one, other = cutting if whole_first else reversed(cutting)
    assert prefixes.keys(one) == prefixes.keys(other)


@given(st.lists(PROMPTS, min_size=2, max_size=6), BLOCK_SIZES)
def test_equal_keys_are_equal_prefixes(prompts, block_size):
    """Against token tuples: each full block has a key, and two keys are equal exactly if all tokens up to there are."""
    prefixes = Prefixes(block_size)
    fresh = itertools.count()
    of_key, of_prefix = {}, {}
    for prompt in prompts:
        content = tokens(prompt, fresh)
        keys, _ = prefixes.keys(prompt)
        assert len(keys) == len(content) // block_size
        for number, key in enumerate(keys, start=1):
            prefix = content[: number * block_size]
            assert of_key.setdefault(key, prefix) == prefix
            assert of_prefix.setdefault(prefix, key) == key


@given(st.lists(PROMPTS, min_size=2, max_size=6))
def test_equal_end_positions_are_equal_prompts(prompts):
    """What follows a prompt starts at its end, so ends must meet exactly where whole prompts do, partial blocks too."""
    prefixes = Prefixes(4)
    fresh = itertools.count()
    of_end, of_content = {}, {}
    for prompt in prompts:
        content = tokens(prompt, fresh)
        _, end = prefixes.keys(prompt)
        assert of_end.setdefault(end, content) == content
        assert of_content.setdefault(content, end) == end


@given(st.lists(PROMPTS, min_size=1, max_size=4), BLOCK_SIZES)
def test_keys_are_never_negative(prompts, block_size):
    """A removed block is reported as the complement of its key, so keys and complements must be apart."""
    prefixes = Prefixes(block_size)
    assert all(key >= 0 for prompt in prompts for key in prefixes.keys(prompt)[0])


@pytest.mark.parametrize("block_size", [1, 2, 16, 128, 512, 1000])
def test_any_block_size_cuts_the_same_text(block_size):
    """A prompt of 1,500 tokens has as many keys as full blocks, and shares those of its first 1,030 tokens."""
    prefixes = Prefixes(block_size)
    first, _ = prefixes.keys((text(1, 700), text(2, 800)))
    other, _ = prefixes.keys((text(1, 700), text(2, 330), text(3, 470)))
    assert len(first) == len(other) == 1500 // block_size
    same = [key == twin for key, twin in zip(first, other, strict=True)]
    assert same == [number * block_size <= 1030 for number in range(1, len(same) + 1)]


def test_order_and_start_are_part_of_the_content():
    prefixes = Prefixes(4)
    prompts = [
        (text(1, 8), text(2, 8)),
        (text(2, 8), text(1, 8)),
        (text(1, 8, start=4), text(2, 8)),
        (text(1, 8), text(2, 8, start=1)),
    ]
    last = [prefixes.keys(prompt)[0][-1] for prompt in prompts]
    assert len(set(last)) == len(prompts)


def test_salts_and_adapters_separate_everything_after_them():
    """No block is shared between salts or adapters, nor between a salt and an adapter of the same name."""
    prefixes = Prefixes(4)
    prompt = (text(1, 12),)
    roots = [("a", None), ("b", None), (None, "a"), (None, "b"), ("a", "a"), ("a", "b"), (None, None)]
    keys = [prefixes.keys(prompt, prefixes.root(salt, lora))[0] for salt, lora in roots]
    assert len(set(itertools.chain.from_iterable(keys))) == 3 * len(roots)
    again = [prefixes.keys(prompt, prefixes.root(salt, lora))[0] for salt, lora in roots]
    assert again == keys


@pytest.mark.parametrize("lora", [None, "adapter"])
def test_empty_salt_is_none(lora):
    prefixes = Prefixes(4)
    assert prefixes.root("", lora) == prefixes.root(None, lora)
    assert prefixes.root("salt", lora) != prefixes.root(None, lora)


def test_nameless_tokens_never_meet():
    """Neither those of another prompt, nor of the same prompt given again, nor whatever follows them."""
    prefixes = Prefixes(4)
    prompt = (text(1, 4), (None, 0, 6), text(2, 6))
    once, end = prefixes.keys(prompt)
    again, other_end = prefixes.keys(prompt)
    assert once[0] == again[0]
    assert not set(once[1:]) & set(again[1:])
    assert end != other_end


@given(PROMPTS, st.integers(0, 25), BLOCK_SIZES, st.integers(1, 3))
def test_answers_continue_the_prompt(prompt, num_answered, block_size, stride):
    """The keys under which an answer's blocks are kept, a few at a time, are those of a follow-up that quotes it."""
    prefixes = Prefixes(block_size)
    prompt = tuple(run for run in prompt if run[0] is not None)
    kv = KVCache(BlockPool(2), prefixes, 10**6, caching=True, reserve_full=True)
    request = ask(0, *prompt, output_segment=9)
    request.block_keys, request.prompt_end = prefixes.keys(request.prompt)
    total = (request.num_prompt_tokens + num_answered) // block_size
    for number in range(len(request.block_keys), total + 1, stride):
        kv.keys(request, number)
    follow_up, _ = prefixes.keys((*prompt, text(9, num_answered), text(8, block_size)))
    assert kv.keys(request, total)[:total] == follow_up[:total]


def test_answer_without_a_name_is_never_found():
    prefixes = Prefixes(4)
    kv = KVCache(BlockPool(2), prefixes, 100, caching=True, reserve_full=True)
    asked = [ask(number, text(1, 6)) for number in range(2)]
    for request in asked:
        request.block_keys, request.prompt_end = prefixes.keys(request.prompt)
    first, second = (kv.keys(request, 3) for request in asked)
    assert first[0] == second[0]
    assert not set(first[1:]) & set(second[1:])
