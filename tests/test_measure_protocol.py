"""The rules of measuring: the grid, warm-up, when to stop, what a budget leaves out, what stands out."""

from __future__ import annotations

import random
import statistics
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.budget import Costs, within
from calibration.outliers import outlying
from calibration.play import Texts
from calibration.probes import NUM_SUFFIX_TOKENS, Case, Limits, plan
from calibration.protocol import Rules, known_well, order, relative_interval, settling

NPU = Limits(128, 18432, 18432, 256, 4000, (1, 2, 4, 8, 16, 24, 32, 40))


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    block = draw(st.sampled_from([16, 32, 64, 128]))
    length = draw(st.integers(2 * block + 40, 40_000))
    blocks = length // block + draw(st.integers(4, 5000))
    return Limits(block, length, draw(st.integers(block, 20_000)), draw(st.integers(1, 300)), blocks)


@given(limits())
def test_every_case_fits_the_engine(engine: Limits) -> None:
    cases = plan(engine)
    assert len({case.key for case in cases}) == len(cases)
    for case in cases:
        assert case.num_prompt_tokens <= engine.max_model_len - 2
        assert case.num_shared_tokens <= case.num_prompt_tokens
        assert case.num_requests + (case.probe == "mixed") <= engine.max_num_seqs
        assert case.num_prompt_tokens * case.num_requests <= engine.num_kv_tokens
        assert case.num_new_tokens + case.num_requests <= max(engine.max_num_batched_tokens, case.num_requests)


def test_grid_asks_the_questions_of_the_article() -> None:
    cases = plan(NPU)
    keys = {case.key for case in cases}
    for length in (1024, 4096, 8192, 16384):
        assert f"ttft p{length + NUM_SUFFIX_TOKENS} shared{length}" in keys
    assert Case("ttft", 1038, 1024).expected_hit(128) == 1024
    assert Case("ttft", 1024, 1024).expected_hit(128) == 896, "the last token is always computed"
    assert Case("ttft", 1038, 1000).expected_hit(128) == 896, "full blocks only"
    counts = Counter(case.probe for case in cases)
    assert min(counts[probe] for probe in ("ttft", "chunk", "decode", "mixed")) > 5
    assert max(case.num_prompt_tokens for case in cases if case.probe == "chunk") == NPU.max_num_batched_tokens - 2


def test_batches_around_captured_sizes_are_asked_only_with_graphs() -> None:
    batches = {case.num_requests for case in plan(NPU) if case.probe == "decode"}
    assert {24, 25} <= batches
    eager = Limits(128, 18432, 18432, 256, 4000)
    assert 25 not in {case.num_requests for case in plan(eager) if case.probe == "decode"}


def test_relative_interval_is_students() -> None:
    # t(0.975, 2 degrees of freedom) = 4.302653 (any table)
    values = [9.0, 10.0, 11.0]
    assert relative_interval(values) == pytest.approx(4.302653 * 1.0 / 3**0.5 / 10, rel=1e-6)
    assert relative_interval([1.0]) is None


def test_interval_covers_the_mean_as_often_as_it_says() -> None:
    draw = random.Random(11)
    covered = 0
    for _ in range(1000):
        values = [draw.gauss(10, 1) for _ in range(3)]
        half = relative_interval(values)
        assert half is not None
        covered += abs(statistics.fmean(values) - 10) <= half * statistics.fmean(values)
    assert 0.93 <= covered / 1000 <= 0.97  # 95 % +- three standard errors


def test_repeats_stop_when_known_or_often_enough() -> None:
    rules = Rules()
    assert not known_well([1.0, 1.0], rules)
    assert known_well([1.0, 1.001, 0.999], rules)
    assert not known_well([1.0, 2.0, 0.5], rules)
    assert known_well([1.0, 2.0] * 4, rules)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([9.0, 1.0, 1.01], None),
        ([9.0, 1.0, 1.01, 0.99], "settled after 4 takes"),
        ([9.0, 5.0, 3.0, 2.0, 1.5, 1.2], None),
        ([1.0, 2.0, 1.5, 1.9, 1.0, 1.7], "no longer falling after 6 takes, but 90% apart"),
        ([2.0**-n for n in range(12)], "still falling after 12 takes"),
    ],
)
def test_warm_up_is_judged(times: list[float], words: str | None) -> None:
    assert settling(times, Rules()) == words


def test_cache_clearing_cases_are_a_phase_of_their_own_and_phases_take_turns() -> None:
    cases = plan(NPU)
    firsts = []
    for launch in range(4):
        phases = order(cases, 1, launch)
        assert sorted(case.key for phase in phases for case in phase) == sorted(case.key for case in cases)
        assert all(len({case.resets for case in phase}) == 1 for phase in phases)
        firsts.append(phases[0][0].resets)
    assert firsts == [False, True, False, True]
    assert order(cases, 1, 0) == order(reversed(cases), 1, 0)
    assert order(cases, 1, 0) != order(cases, 2, 0)


def test_costs_of_cases_not_timed_follow_those_timed() -> None:
    costs = Costs()
    cases = plan(NPU)

    def truth(case: Case) -> float:
        pieces = list(case.prefills(128))
        tokens = sum(new for new, _ in pieces)
        pairs = sum(new * computed + new * (new + 1) / 2 for new, computed in pieces)
        return 0.03 * case.num_steps + 7e-6 * tokens + 1.4e-9 * pairs

    for case in cases:
        if case.rank == 0:
            costs.took(case, 3 * truth(case))
            costs.took(case, truth(case))
    costs.settle(128)
    for case in cases:
        assert costs.of(case) == pytest.approx(truth(case), rel=1e-6)


def test_budget_keeps_what_fits_by_rank() -> None:
    costs = Costs()
    cases = [Case("chunk", 10 * rank + 1, rank=rank) for rank in range(4)]
    for case in cases:
        costs.took(case, 1.0)
    launches = {case.key: 3 for case in cases}
    kept, seconds = within(cases, launches, 3, costs, 20.0)
    assert ([case.rank for case in kept], seconds) == ([0, 1], 18.0)
    kept, _ = within(cases, launches, 3, costs, 0.0)
    assert [case.rank for case in kept] == [0]
    assert len(within(cases, launches, 3, costs, float("inf"))[0]) == 4


def test_outliers_stand_out_of_at_least_four() -> None:
    assert list(outlying(list(enumerate([1.0, 1.01, 0.99, 1.0, 3.0])))) == [4]
    assert list(outlying([(0, 1.0), (1, 1.0), (2, 9.0)])) == []
    assert list(outlying(list(enumerate([1.0, 1.0, 1.0, 1.05])))) == [], "a twentieth is no outlier"


@given(st.integers(1, 400), st.integers(0, 400))
def test_pairs_share_exactly_what_they_say(shared: int, rest: int) -> None:
    first, second = Texts(2000).pair(Case("ttft", shared + rest, shared))
    assert len(second) == shared + rest
    assert first[:shared] == second[:shared]
    assert not rest or first[shared] != second[shared]
