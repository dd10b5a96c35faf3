"""The index of block holders against a model that counts every copy of every block, one by one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.routing.fleet import Fleet
from simulator.routing.prefix_index import PrefixIndex
from simulator.routing.view import View

INSTANCES = (0, 1, 5, 64, 300)  # beyond a machine word too
KEYS = list(range(8))

instances = st.sampled_from(INSTANCES)
key_lists = st.lists(st.sampled_from(KEYS), max_size=10)
stores = st.tuples(st.just("store"), instances, key_lists)
removals = st.tuples(st.just("remove"), instances, key_lists)
clears = st.tuples(st.just("clear"), instances, st.just([]))


class Model:
    """Copies of each key on each instance, counted in the plainest way."""

    def __init__(self) -> None:
        self.copies: dict[int, Counter[int]] = {instance: Counter() for instance in INSTANCES}

    def removable(self, instance: int, keys: list[int]) -> list[int]:
        """The part of ``keys`` of which that many copies exist."""
        left = self.copies[instance].copy()
        return [key for key in keys if (left.subtract([key]), left[key] >= 0)[1]]

    def holders(self, key: int) -> set[int]:
        return {instance for instance in INSTANCES if self.copies[instance][key] > 0}

    def overlaps(self, keys: list[int]) -> dict[int, int]:
        found = {}
        for instance in INSTANCES:
            depth = 0
            while depth < len(keys) and self.copies[instance][keys[depth]] > 0:
                depth += 1
            if depth:
                found[instance] = depth
        return found


def bits(mask: int) -> set[int]:
    return {i for i in range(mask.bit_length()) if mask >> i & 1}


@given(st.lists(st.one_of(stores, removals, clears), max_size=30), st.lists(key_lists, max_size=5))
def test_index_equals_counting(acts, queries):
    index, model = PrefixIndex(), Model()
    for act, instance, keys in acts:
        copies = model.copies[instance]
        before = {key for key in KEYS if copies[key] > 0}
        if act == "store":
            num_new = index.store(instance, keys)
            copies.update(keys)
            assert num_new == len(set(keys) - before)
        elif act == "remove":
            keys = model.removable(instance, keys)
            num_gone = index.remove(instance, keys)
            copies.subtract(keys)
            assert num_gone == len(before) - sum(copies[key] > 0 for key in KEYS)
        else:
            index.clear(instance)
            copies.clear()
    for key in KEYS:
        assert bits(index.holders(key)) == model.holders(key)
    assert len(index) == sum(bool(model.holders(key)) for key in KEYS)
    for keys in [*queries, KEYS]:
        expected = model.overlaps(keys)
        assert index.overlaps(keys) == expected
        for instance in INSTANCES:
            assert index.overlap(instance, keys) == expected.get(instance, 0)
        levels = index.levels(keys)
        assert [depth for _, depth in levels] == sorted(set(expected.values()))
        assert {i: depth for mask, depth in levels for i in bits(mask)} == expected


@given(st.lists(st.one_of(stores, removals, clears), max_size=30))
def test_kv_events_equal_calls(acts):
    view, index = View(Fleet(301, 16)), PrefixIndex()
    model = Model()
    events: dict[int, list[int | None]] = {instance: [] for instance in INSTANCES}
    for act, instance, keys in acts:
        if act == "store":
            index.store(instance, keys)
            model.copies[instance].update(keys)
            events[instance] += keys
        elif act == "remove":
            keys = model.removable(instance, keys)
            index.remove(instance, keys)
            model.copies[instance].subtract(keys)
            events[instance] += [~key for key in keys]
        else:
            index.clear(instance)
            model.copies[instance].clear()
            events[instance].append(None)
    for instance in INSTANCES:
        view.kv_events(instance, events[instance])
    for key in KEYS:
        assert view.index.holders(key) == index.holders(key)


def test_a_duplicate_block_survives_the_removal_of_its_twin():
    index = PrefixIndex()
    index.store(3, [7, 8])
    index.store(3, [7])
    index.remove(3, [7])
    assert index.overlaps([7, 8]) == {3: 2}
    index.remove(3, [7])
    assert index.overlaps([7, 8]) == {}


def test_a_hole_ends_the_match():
    index = PrefixIndex()
    index.store(0, [1, 2, 3, 4])
    index.remove(0, [2])
    index.store(1, [2, 3, 4])
    assert index.overlaps([1, 2, 3, 4]) == {0: 1}


def test_an_unknown_removal_is_refused():
    index = PrefixIndex()
    index.store(1, [7])
    with pytest.raises(KeyError, match="instance 0 removed block 7"):
        index.remove(0, [7])
