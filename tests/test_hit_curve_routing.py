"""Static routing: an instance's cache against block-by-block replays, published figures of the conversation trace."""

from __future__ import annotations

import random
from collections import OrderedDict
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_hit_curve import curve_of, mooncake_source, source_of
from test_trace_info import PROMPT_LISTS, length_of
from test_trace_reuse import texts_of

from simulator.errors import InputError
from simulator.hit_curve.asked import Asked, Counting
from simulator.hit_curve.instance_cache import InstanceCache
from simulator.hit_curve.static_routing import RULES, Fleet, RuleSpec, parse_rules, route
from simulator.prefix import Prefixes
from simulator.routing.hashing import SessionHash
from simulator.trace_tools.tree import PrefixTree


@cache
def conversation() -> tuple[Asked, ...]:
    return tuple(mooncake_source("conversation", as_file=True).asked())


@pytest.mark.parametrize(
    ("router", "hit_rate", "imbalance"),
    [
        ("round_robin", ".1041", "1.04"),
        ("random", ".1007", "1.09"),
        ("longest_prefix", ".1361", "10.00"),
        ("match:0.3", ".3531", "1.01"),
        ("match:0.5", ".3393", "1.01"),
        ("cost:0.02", ".3583", "1.01"),
        ("cost:0.1", ".3536", "1.01"),
    ],
)
def test_ten_instances_of_the_conversation_trace(router, hit_rate, imbalance):
    """policies.md 4.1, static routing: ten caches of 5,859 blocks, every figure to the digits printed there."""
    (spec,) = parse_rules([router])
    found = route(conversation(), spec, 10, 5_859, 512)
    assert f"{found.num_hits / 288_500:.4f}".removeprefix("0") == hit_rate
    assert f"{found.imbalance:.2f}" == imbalance


@settings(deadline=None)
@given(PROMPT_LISTS, st.integers(1, 3), st.integers(1, 20))
def test_an_instance_holds_the_blocks_used_last(prompts, block_size, capacity):
    """Told block by block: what a request finds, without asking and by being served."""
    prefixes, counting = Prefixes(block_size), Counting(block_size)
    cache, model = InstanceCache(capacity, block_size), OrderedDict()
    for prompt in prompts:
        asked = counting.asked(prompt, length_of(prompt), 1, None)
        keys = prefixes.keys(prompt)[0]
        found = next((place for place, key in enumerate(keys) if key not in model), len(keys))
        expected = min(found, asked.num_wanted // block_size)
        assert cache.num_hits(asked) == cache.num_hits(asked) == expected
        assert cache.serve(asked) == expected
        for key in reversed(keys):
            model.pop(key, None)
            model[key] = None
        while len(model) > capacity:
            model.popitem(last=False)


@given(PROMPT_LISTS)
def test_a_look_at_the_tree_tells_what_a_visit_tells(prompts):
    tree = PrefixTree()
    for prompt, text in zip(prompts, texts_of(prompts), strict=True):
        looked = [(who, place) for who, start, end in tree.spans(prompt) for place in range(start, end)]
        visit = tree.visit(prompt)
        assert looked == [(who, place) for who, start, end in visit.spans for place in range(start, end)]
        assert len(looked) == visit.seen <= len(text)


@settings(max_examples=30, deadline=None)
@given(PROMPT_LISTS, st.integers(1, 3), st.integers(1, 20))
def test_one_instance_is_one_cache_whatever_the_rule(prompts, block_size, capacity):
    requests = list(source_of(prompts, block_size, session=7).asked())
    expected = curve_of(prompts, block_size).curve.hits(capacity)
    for spec in parse_rules(RULES):
        found = route(requests, spec, 1, capacity, block_size)
        assert (found.num_hits, found.imbalance) == (expected, 1.0)


@settings(max_examples=30, deadline=None)
@given(PROMPT_LISTS, st.integers(2, 4))
def test_instances_without_limit_find_no_more_than_one_cache_of_all(prompts, num_instances):
    requests = list(source_of(prompts, 2, session=7).asked())
    ceiling = curve_of(prompts, 2).ceiling
    for spec in parse_rules(RULES):
        assert route(requests, spec, num_instances, 10**6, 2).num_hits <= ceiling
    assert route(requests, RuleSpec("longest_prefix"), num_instances, 10**6, 2).num_hits == ceiling


def fleet_of(held: list[int], assigned: list[int]) -> Fleet:
    """Instances that hold so many blocks of 4 tokens of the text 1."""
    counting, caches = Counting(4), []
    for num_blocks in held:
        caches.append(InstanceCache(100, 4))
        caches[-1].serve(counting.asked(((1, 0, 4 * num_blocks),), 4 * num_blocks, 1, None))
    return Fleet(caches, assigned)


ASKED = Counting(4).asked(((1, 0, 40), (None, 0, 1)), 41, 1, None)  # ten whole blocks of text 1, and one more token


@pytest.mark.parametrize(
    ("router", "held", "assigned", "chosen"),
    [
        ("longest_prefix", [2, 5, 5], [0, 9, 0], 1),  # the lower number, whatever the load
        ("match:0.3", [2, 5, 5], [0, 9, 1], 2),  # the longest match, the less loaded of two
        ("match:0.3", [2, 3, 3], [9, 9, 1], 2),  # 3 of 11 blocks are no match
        ("match:0.5", [2, 5, 5], [0, 9, 1], 0),  # 5 of 11 neither: the least load
        ("cost:0.1", [0, 5], [10, 100], 1),  # 10 + 0 against 5 + 0.1 * 45
        ("cost:0.2", [0, 5], [10, 100], 0),  # 10 + 0 against 5 + 0.2 * 45
        ("cost:0", [5, 5], [9, 0], 0),  # a tie
    ],
)
def test_rules_by_hand(router, held, assigned, chosen):
    (spec,) = parse_rules([router])
    rule = RULES[spec.name](len(held), spec.value)
    assert rule.choose(0, ASKED, fleet_of(held, assigned)) == chosen


def test_a_session_goes_where_session_hash_sends_it_and_other_requests_too():
    """All within one moment, in which the fewest dispatches of the last minute are the fewest of all."""
    policy, rule = SessionHash(SessionHash.Params(), 8, random.Random(0)), RULES["session"](8, 0.0)
    for session in [None, None, *range(50), *[None] * 60]:
        asked = ASKED._replace(session=session)
        assert rule.choose(0, asked, fleet_of([], [])) == policy.choose(asked, None, 0.0).instance
    rule.check()


def test_a_router_by_sessions_needs_some():
    rule = RULES["session"](8, 0.0)
    rule.check()
    rule.choose(0, ASKED, fleet_of([], []))
    with pytest.raises(InputError, match="^--router session: no request has a session, expected some"):
        rule.check()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("cots", "unknown 'cots' .did you mean 'cost'"),
        ("random:3", "--router random: got '3', expected no number"),
        ("match:1.5", "--router match: got 1.5, expected 0 to 1"),
        ("cost:-1", "--router cost: got -1, expected 0 or more"),
        ("cost:x", "--router cost: got 'x', expected a number"),
    ],
)
def test_what_is_no_rule_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        parse_rules([given])
