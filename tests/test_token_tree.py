"""Routers' memories of texts, against models that keep every text token by token."""

from __future__ import annotations

from math import inf

import pytest
from drawn_texts import asks, common, prompts, tokens, whole
from hypothesis import given
from hypothesis import strategies as st

from simulator.routing.fleet import Fleet
from simulator.routing.token_table import TokenTable
from simulator.routing.token_tree import TokenTree

NUM_INSTANCES = 3
instances = st.integers(0, NUM_INSTANCES - 1)
sendings = st.lists(st.tuples(prompts, instances), max_size=12)


def fleet() -> Fleet:
    return Fleet(NUM_INSTANCES, block_size=4)


def by_level(texts, asked, now_s: float) -> dict[int, int]:
    """What `levels` says, in the form of `matches`; depths fall, and nobody is named twice."""
    levels = texts.levels(asked, now_s)
    depths = [depth for depth, _ in levels]
    assert depths == sorted(depths, reverse=True)
    found = [(instance, depth) for depth, those in levels for instance in those]
    assert len(dict(found)) == len(found)
    return dict(found)


@given(sendings, prompts, st.booleans())
def test_matches_are_those_of_all_texts_that_were_sent(sent, prompt, as_table):
    """The longest beginning that any text sent to an instance shares with the prompt, to the token."""
    texts = (
        TokenTable(fleet(), max_tokens=10**6, ttl_s=inf)
        if as_table
        else TokenTree(fleet(), max_tokens=None, sweep_s=1.0)
    )
    known: dict[int, list] = {}
    for text, instance in sent:
        one = asks(text)
        texts.insert(one, instance, 0.0)
        known.setdefault(instance, []).append(tokens(one))
    asked = asks(prompt)
    expected = {
        instance: max(common(tokens(asked), text) for text in mine) for instance, mine in known.items()
    }
    assert texts.matches(asked, 0.0) == {instance: matched for instance, matched in expected.items() if matched}
    assert by_level(texts, asked, 0.0) == texts.matches(asked, 0.0)
    for instance in range(NUM_INSTANCES):
        assert texts.matched_tokens(asked, instance, 0.0) == expected.get(instance, 0)
    if isinstance(texts, TokenTree):
        assert texts.longest(asked, 0.0)[0] == max(expected.values(), default=0)


class LeafLru:
    """Nodes are beginnings that end with a run; of each instance the leaf goes that was not sent for longest."""

    def __init__(self, max_tokens: float, sweep_s: float) -> None:
        self.max_tokens, self.sweep_s, self.swept_s = max_tokens, sweep_s, 0.0
        self.nodes: list[dict[tuple, int]] = [{} for _ in range(NUM_INSTANCES)]  # node -> number of its last visit
        self.num_visits = 0

    def num_tokens(self, instance: int) -> int:
        return sum(node[-1][2] for node in self.nodes[instance])

    def sweep(self, now_s: float) -> None:
        if now_s // self.sweep_s <= self.swept_s // self.sweep_s:
            return
        self.swept_s = now_s
        for instance, nodes in enumerate(self.nodes):
            while self.num_tokens(instance) > self.max_tokens:
                leaves = [node for node in nodes if not any(other[:-1] == node for other in nodes)]
                del nodes[min(leaves, key=nodes.__getitem__)]

    def insert(self, prompt, instance: int, now_s: float) -> None:
        self.sweep(now_s)
        self.num_visits += 1
        for depth in range(1, len(prompt) + 1):
            self.nodes[instance][prompt[:depth]] = self.num_visits

    def longest(self, prompt, now_s: float) -> tuple[int, int | None]:
        self.sweep(now_s)
        for depth in range(len(prompt), 0, -1):
            holders = [instance for instance in range(NUM_INSTANCES) if prompt[:depth] in self.nodes[instance]]
            if holders:
                owner = max(holders, key=lambda instance: self.nodes[instance][prompt[:depth]])
                return sum(length for _, _, length in prompt[:depth]), owner
        return 0, None


@given(
    st.lists(st.tuples(whole, instances, st.sampled_from([0.0, 0.25, 1.0, 3.0]), whole), max_size=25),
    st.integers(0, 12),
    st.sampled_from([0.5, 1.0, 2.0]),
)
def test_a_tree_forgets_its_least_recently_sent_leaves(steps, max_tokens, sweep_s):
    tree = TokenTree(fleet(), max_tokens=max_tokens, sweep_s=sweep_s)
    model = LeafLru(max_tokens, sweep_s)
    now_s = 0.0
    for text, instance, gap_s, prompt in steps:
        now_s += gap_s
        tree.insert(asks(text), instance, now_s)
        model.insert(text, instance, now_s)
        assert tree.num_tokens == [model.num_tokens(number) for number in range(NUM_INSTANCES)]
        assert tree.longest(asks(prompt), now_s) == model.longest(prompt, now_s)


class BlockTable:
    """AIBrix's table as it is: one LRU list of tokens, the first of a prompt noted first; a token's time is that of the
    last prompt with it.
    """

    def __init__(self, max_tokens: int, ttl_s: float) -> None:
        self.max_tokens, self.ttl_s, self.swept_s = max_tokens, ttl_s, 0.0
        self.entries: dict[tuple, tuple[float, set[int]]] = {}  # in order of their last note

    def insert(self, request, instance: int, now_s: float) -> None:
        self.sweep(now_s)
        text = tokens(request)
        for end in range(1, len(text) + 1):
            key = tuple(text[:end])
            _, pods = self.entries.pop(key, (0.0, set()))
            self.entries[key] = now_s, pods | {instance}
            while len(self.entries) > self.max_tokens:
                del self.entries[next(iter(self.entries))]

    def sweep(self, now_s: float) -> None:
        if int(now_s) > int(self.swept_s):
            self.swept_s = now_s
            self.entries = {
                key: (time_s, pods) for key, (time_s, pods) in self.entries.items() if int(now_s) - time_s <= self.ttl_s
            }

    def matches(self, request, now_s: float) -> dict[int, int]:
        self.sweep(now_s)
        text, found, alive = tokens(request), {}, set(range(NUM_INSTANCES))
        for end in range(1, len(text) + 1):
            alive &= self.entries.get(tuple(text[:end]), (0.0, set()))[1]
            found |= dict.fromkeys(alive, end)
        return found


@given(
    st.lists(st.tuples(whole, instances, st.sampled_from([0.0, 0.25, 1.0, 3.0]), whole), max_size=25),
    st.integers(4, 20),
    st.sampled_from([1.0, 2.5, 100.0]),
)
def test_a_table_forgets_what_is_too_old_and_what_is_too_much(steps, max_tokens, ttl_s):
    """Token by token as upstream; a text of which the first token is gone is of no use, however much of it is left.

    Texts longer than the table are left out: upstream they push out their own beginning while they are noted.
    """
    table = TokenTable(fleet(), max_tokens=max_tokens, ttl_s=ttl_s)
    model = BlockTable(max_tokens, ttl_s)
    now_s = 0.0
    for text, instance, gap_s, prompt in steps:
        now_s += gap_s
        one, asked = asks(text), asks(prompt)
        if one.num_prompt_tokens > max_tokens:
            continue
        table.insert(one, instance, now_s)
        model.insert(one, instance, now_s)
        assert table.num_tokens <= max_tokens
        assert table.matches(asked, now_s) == model.matches(asked, now_s)
        assert by_level(table, asked, now_s) == model.matches(asked, now_s)


def test_the_owner_is_whoever_was_last_sent_the_deepest_node():
    tree = TokenTree(fleet(), max_tokens=None, sweep_s=1.0)
    question, deeper = ((1, 0, 10),), ((1, 0, 10), (2, 0, 5))
    tree.insert(asks(deeper), 0, 0.0)
    tree.insert(asks(question), 1, 1.0)
    assert tree.longest(asks(question), 2.0) == (10, 1)
    assert tree.longest(asks(deeper), 2.0) == (15, 0)
    assert tree.longest(asks(((1, 0, 10), (3, 0, 5))), 2.0) == (10, 1)
    assert tree.longest(asks(((9, 0, 10),)), 2.0) == (0, None)


@pytest.mark.parametrize(("salted", "matched"), [(False, 10), (True, 0)])
def test_only_a_salted_tree_tells_salts_apart(salted, matched):
    tree = TokenTree(fleet(), max_tokens=None, salted=salted)
    one, other = asks(((1, 0, 10),)), asks(((1, 0, 10),))
    one.cache_salt, other.cache_salt = "red", "blue"
    tree.insert(one, 0, 0.0)
    assert tree.matched_tokens(other, 0, 0.0) == matched
    assert tree.matched_tokens(one, 0, 0.0) == 10
