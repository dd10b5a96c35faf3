"""Statistics against published examples, hand calculation, and their own promises under simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from simulator.statistics import (
    THIS_TRACE_ONLY,
    compare_all,
    holm,
    paired_difference,
    percentiles,
    t_interval,
)  # fmt: skip
from simulator.streams import stream

# Student (1908), "The probable error of a mean", Biometrika 6(1): hours of sleep gained by ten patients on two drugs.
SLEEP_1 = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
SLEEP_2 = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]


def test_percentiles_interpolate_between_order_statistics() -> None:
    # Definition 7: the p-quantile of n sorted values lies at position 1 + (n - 1) p.
    assert percentiles([10, 20, 30, 40, 50], (0, 25, 50, 90, 100)) == pytest.approx([10, 20, 30, 46, 50])
    assert percentiles([3.0], (50, 99)) == [3.0, 3.0]
    assert percentiles([]) is None


def test_paired_difference_of_students_sleep_data() -> None:
    # R's manual (help page of `sleep`, t.test(..., paired = TRUE)): t = -4.0621, df = 9, p = 0.002833,
    # 95 % interval -2.4598858 to -0.7001142, mean difference -1.58.
    found = paired_difference("sleep", "1", "2", SLEEP_1, SLEEP_2)
    assert found.estimate.mean == pytest.approx(-1.58)
    assert found.estimate.half_width is not None
    assert found.estimate.mean - found.estimate.half_width == pytest.approx(-2.4598858, abs=1e-7)
    assert found.estimate.mean + found.estimate.half_width == pytest.approx(-0.7001142, abs=1e-7)
    assert found.p_value == pytest.approx(0.002833, abs=5e-7)


def test_t_interval_by_hand() -> None:
    # 1, 2, 3: mean 2, s = 1, t(2, 0.975) = 4.303 (any table of Student's t).
    found = t_interval([1, 2, 3])
    assert found.mean == 2
    assert found.half_width == pytest.approx(4.303 / np.sqrt(3), rel=1e-4)
    assert found.num_replications == 3


@pytest.mark.parametrize("num_replications", [3, 10])
def test_t_intervals_cover_the_mean_as_often_as_they_say(num_replications: int) -> None:
    rng = stream(3, "coverage", num_replications)
    num_trials = 2000
    covered = 0
    for sample in rng.normal(5, 2, (num_trials, num_replications)):
        found = t_interval(sample)
        assert found.half_width is not None
        covered += abs(found.mean - 5) <= found.half_width
    # 99.9 % of correct implementations fall between these two quantiles of the binomial distribution.
    low, high = stats.binom.ppf([0.0005, 0.9995], num_trials, 0.95)
    assert low <= covered <= high


@pytest.mark.parametrize("values", [[4.2], [4.2, 4.2, 4.2], [0.1 + 0.2, 0.3, 0.3], [0.0, 0.0]])
def test_without_spread_there_is_no_interval(values: list[float]) -> None:
    found = t_interval(values)
    assert found.half_width is None
    assert found.scope == THIS_TRACE_ONLY
    assert found.mean == pytest.approx(values[0])


def test_an_empty_sample_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        t_interval([])


def test_policies_that_agree_exactly_are_not_told_apart() -> None:
    found = paired_difference("m", "a", "b", [1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    assert (found.estimate.mean, found.estimate.half_width, found.p_value) == (0, 0, 1)


def test_rounding_is_not_a_difference() -> None:
    a = np.array([0.1, 0.7, 1.3, 2.9])
    found = paired_difference("m", "a", "b", list(a * 3), list(a + a + a))
    assert found.p_value == 1


def test_a_difference_without_spread_has_no_p_value() -> None:
    found = paired_difference("m", "a", "b", [2.0, 2.0], [1.0, 1.0])
    assert (found.estimate.mean, found.estimate.half_width, found.p_value) == (1, None, None)
    assert not found.significant
    assert paired_difference("m", "a", "b", [2.0], [1.0]).p_value is None


def test_replications_must_pair_up() -> None:
    with pytest.raises(ValueError, match="pair up"):
        paired_difference("m", "a", "b", [1.0, 2.0], [1.0])


def test_holm_on_a_published_example() -> None:
    # Wikipedia, "Holm–Bonferroni method" (also GeeksforGeeks): p = 0.01, 0.04, 0.03, 0.005 at 5 %: H4 and H1 are
    # rejected, H3 and H2 are not. Adjusted: 4 * 0.005, 3 * 0.01, 2 * 0.03, and H2 no less than H3.
    adjusted = holm([0.01, 0.04, 0.03, 0.005])
    assert adjusted == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert [p <= 0.05 for p in adjusted] == [True, False, False, True]


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_lies_between_raw_and_bonferroni_and_keeps_the_order(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    for p, corrected in zip(p_values, adjusted, strict=True):
        assert p <= corrected <= min(1.0, p * len(p_values))
    for i, j in ((i, j) for i in range(len(p_values)) for j in range(len(p_values)) if p_values[i] < p_values[j]):
        assert adjusted[i] <= adjusted[j]


def test_among_equal_policies_hardly_ever_any_is_called_different() -> None:
    """The promise of the whole procedure: one false claim or more in at most 5 % of comparisons."""
    rng = stream(4, "family")
    num_trials = 300
    false_claims = 0
    for _ in range(num_trials):
        samples = {policy: {m: list(rng.normal(1, 0.1, 5)) for m in ("x", "y")} for policy in ("a", "b", "c", "d")}
        false_claims += any(pair.significant for pair in compare_all(samples, ("x", "y")))
    assert false_claims <= stats.binom.ppf(0.999, num_trials, 0.05)


def test_a_clear_difference_is_found_and_an_absent_one_is_not() -> None:
    rng = stream(5, "power")
    shared = rng.normal(10, 3, 6)
    samples = {
        policy: {"x": list(shared + shift + rng.normal(0, 0.1, 6)), "y": list(shared)}
        for policy, shift in (("slow", 2.0), ("fast", 0.0))
    }
    by_metric = {pair.metric: pair for pair in compare_all(samples, ("x", "y"))}
    assert by_metric["x"].significant
    assert by_metric["x"].estimate.mean == pytest.approx(2, abs=0.3)
    assert not by_metric["y"].significant


def test_all_pairs_and_metrics_are_one_family() -> None:
    samples = {name: {"x": list(stream(6, name).normal(0, 1, 4)), "y": [1.0, None, 2.0, 3.0]} for name in "abcd"}
    pairs = compare_all(samples, ("x", "y"))
    assert {(pair.first, pair.second) for pair in pairs} == {(a, b) for a in "abcd" for b in "abcd" if a < b}
    assert {pair.metric for pair in pairs} == {"x"}
    assert [pair.adjusted_p for pair in pairs] == pytest.approx(holm([pair.p_value or 0.0 for pair in pairs]))


def waiting_times(arrivals: np.random.Generator, services: np.random.Generator, mean_service_s: float) -> float:
    """Mean wait of 200 customers at one server, by Lindley's recursion."""
    wait_s, total_s = 0.0, 0.0
    gaps_s, services_s = arrivals.exponential(1, 200), services.exponential(mean_service_s, 200)
    for gap_s, service_s in zip(gaps_s, services_s, strict=True):
        wait_s = max(0.0, wait_s + service_s - gap_s)
        total_s += wait_s
    return total_s / 200


def test_common_random_numbers_narrow_the_difference() -> None:
    """Law (2015), 11.2: two queues fed with the same numbers are compared more sharply than with different ones."""
    slow = [waiting_times(stream(7, "gaps", r), stream(7, "work", r), 0.8) for r in range(30)]
    common = [waiting_times(stream(7, "gaps", r), stream(7, "work", r), 0.7) for r in range(30)]
    independent = [waiting_times(stream(8, "gaps", r), stream(8, "work", r), 0.7) for r in range(30)]
    paired = paired_difference("wait", "slow", "fast", slow, common).estimate
    unpaired = paired_difference("wait", "slow", "fast", slow, independent).estimate
    assert paired.half_width is not None
    assert unpaired.half_width is not None
    assert paired.half_width < 0.6 * unpaired.half_width


def test_a_factor_common_to_all_policies_takes_no_part_in_a_ratio() -> None:
    """Replications that differ sixfold in load, one policy twice as slow in each: the ratio is 2 beyond doubt."""
    load = np.array([1.0, 3.0, 6.0])
    noise = np.array([0.01, -0.01, 0.0])
    samples = {"slow": {"x": list(2 * load * np.exp(noise))}, "fast": {"x": list(load)}}
    (ratio,) = compare_all(samples, ("x",), ratios=("x",))
    (difference,) = compare_all(samples, ("x",))
    assert ratio.as_ratio
    assert math.exp(ratio.estimate.mean) == pytest.approx(2)
    assert ratio.significant
    assert not difference.significant
