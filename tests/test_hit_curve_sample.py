"""Samples of a trace: which requests, how near to all of them, and what is said of the error."""

from __future__ import annotations

import statistics

import pytest
from test_hit_curve import FIFO, curve_of, mooncake_source, source_of

from simulator.hit_curve.policies import BOUND, carried_over, parse_policies, with_bound
from simulator.hit_curve.sample import sample
from simulator.hit_curve.study import study
from simulator.hit_curve.words import answers
from simulator.request import Prompt
from simulator.trace_tools.tree import PrefixTree


def test_a_sample_of_a_recorded_trace_is_near_the_whole():
    """A third of the synthetic trace, where hit rates are between 14 and 64 %: all within 6 points, on average 3. (That
    is what 1,300 requests can tell; a cache that did not shrink with the requests would be off by 10 and more.)
    """
    source = mooncake_source("synthetic", as_file=True)
    sizes, specs = (2_000, 10_000), with_bound(parse_policies(["fifo"]))
    whole = study(source, capacities=sizes, policies=specs)
    found = study(source, capacities=sizes, policies=specs, most_blocks=45_000)
    assert found.is_sampled
    errors = [point.lru_error for point in found.points]
    for exact, point in zip(whole.points, found.points, strict=True):
        assert point.num_hits == exact.num_hits  # the curve itself is never sampled
        assert point.num_hits <= point.policies["belady"] <= whole.lru.ceiling
        errors += [whole.lru.share(num_hits - exact.policies[policy]) for policy, num_hits in point.policies.items()]
    assert max(map(abs, errors)) < 0.06
    assert statistics.fmean(map(abs, errors)) < 0.03


@pytest.mark.parametrize(
    ("num_hits", "expected"),
    [(0, 0), (10, 100), (20, 200), (35, 500), (50, 800)],  # none, half of LRU, LRU, half of what is left, the ceiling
)
def test_hits_of_a_sample_are_set_in_relation_to_lru(num_hits, expected):
    """LRU hits 20 in the sample and 200 in all; the ceilings are 50 and 800."""
    assert carried_over(num_hits, (20, 50), (200, 800)) == expected


def test_the_error_said_is_that_of_the_sample():
    source = mooncake_source("synthetic", as_file=True)
    found = study(source, capacities=[10_000], policies=[BOUND], most_blocks=45_000)
    part, point = found.sample, found.points[0]
    by_hand = part.lru.curve.hits(part.capacity(10_000)) / part.lru.num_blocks - point.num_hits / found.lru.num_blocks
    assert point.lru_error == pytest.approx(by_hand)
    (said,) = [text for text in answers(found) if "Policies but LRU" in text]
    assert f"off by {100 * abs(by_hand):.1f} points at most" in said


def popular_texts(num_requests: int) -> list[Prompt]:
    """Eight texts of 20 blocks in an uneven order, each time with another question of 2 blocks."""
    return [((place * place % 11 % 8, 0, 80), (100 + place, 0, 8)) for place in range(num_requests)]


def test_few_texts_that_everybody_asks_for_are_sampled_in_time():
    """One in ten branches would be one text, or none; the first tenth of the requests shows what all of them do."""
    source = source_of(popular_texts(2_000), 4)
    found = study(source, capacities=[60, 100, 150, 400], policies=[FIFO], most_blocks=4_500)
    assert found.sample.words == "the first 1/10 of the requests"
    assert found.largest_lru_error < 0.04


def separate_texts(num_texts: int, num_uses: int) -> list[Prompt]:
    """Texts of 8 blocks, used again after all the others."""
    return [((number, 0, 33),) for _ in range(num_uses) for number in range(num_texts)]


def test_many_texts_of_long_distance_are_sampled_in_space():
    """What comes again after all others have come is not seen in the first requests, but in every tenth text."""
    source = source_of(separate_texts(500, 4), 4)
    found = study(source, capacities=[2_000, 3_900, 4_200], policies=[FIFO], most_blocks=1_900)
    assert found.sample.words == "1 in 10 branches of the tree of prompts"
    least, below, above = found.points
    assert (least.policies["fifo"], below.policies["fifo"]) == (0, 0)
    assert above.policies["fifo"] == found.lru.ceiling == 3 * 500 * 8


def test_blocks_are_made_coarser_before_requests_are_left_out():
    prompts = [((number % 5, 0, 4_000), (100 + number, 0, 96)) for number in range(40)]
    source, whole = source_of(prompts, 4), curve_of(prompts, 4)
    part = sample(source, whole, 3_000, [2_000, 5_000])
    assert (part.words, part.coarse, len(part.requests)) == ("all requests", 16, 40)
    assert not part.is_whole
    assert part.capacity(1_600) == 100
    # 62 whole blocks of 64 tokens each of the five texts, and two more of each request.
    assert part.lru.num_distinct == 5 * 62 + 40 * 2


def test_the_first_rare_part_is_of_those_that_have_it():
    """Text 0 begins all three, texts 1 and 2 are of two and of one."""
    prompts = [((0, 0, 8), (1, 0, 8)), ((0, 0, 8), (1, 0, 8)), ((0, 0, 8), (2, 0, 8))]
    tree = PrefixTree()
    for prompt in prompts:
        tree.visit(prompt)
    found = [tree.rare_parts(prompt, [2, 1]) for prompt in prompts]
    assert found[0] == found[1]
    assert [rare for _, rare in found] == [None, None, found[2][0]]
    assert len({rare for rare, _ in found}) == 2
    assert [tree.num_common_tokens(most) for most in (3, 2, 1, 0)] == [0, 8, 16, 24]
