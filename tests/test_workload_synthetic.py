"""Drawn requests follow the distributions that were asked for, each from a stream of its own.

Thresholds: 4.5 standard errors for moments and p > 0.001 for Kolmogorov-Smirnov tests, at seeds chosen beforehand.
"""

import math
from itertools import islice, pairwise

import numpy as np
import pytest
from scipy import stats

from simulator.streams import stream
from simulator.workload import WorkloadSpec, open_workload
from simulator.workload.arrivals import arrival_times_s, draw_gaps_s
from simulator.workload.distributions import ArrivalSpec, LengthSpec
from simulator.workload.lengths import draw_lengths

BASE = {
    "num_requests": 3000,
    "arrivals": {"process": "poisson", "rate_per_s": 6},
    "num_prefixes": 20,
    "prefix_tokens": 500,
    "suffix_tokens": {"distribution": "lognormal", "mean": 400, "cv": 1},
    "output_tokens": {"distribution": "geometric", "mean": 200},
}


def drawn(seed=0, replication=0, **changes):
    synthetic = {key: value for key, value in {**BASE, **changes}.items() if value is not None}
    spec = WorkloadSpec.model_validate({"tenants": [{"name": "chat", "synthetic": synthetic}]})
    return open_workload(spec, seed, replication)


def column(requests, name):
    return [getattr(request, name) for request in requests]


def gaps_s(seed, **spec):
    return draw_gaps_s(ArrivalSpec.model_validate(spec), stream(seed, "x"), 20_000)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_poisson_gaps_are_exponential_and_independent(seed):
    gaps = gaps_s(seed, process="poisson", rate_per_s=6)
    assert stats.kstest(gaps, stats.expon(scale=1 / 6).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 4.5 / math.sqrt(len(gaps))


@pytest.mark.parametrize("cv", [0.3, 1.0, 3.0])
def test_gamma_gaps_have_the_cv_asked_for(cv):
    gaps = gaps_s(1, process="gamma", rate_per_s=6, cv=cv)
    assert stats.kstest(gaps, stats.gamma(cv**-2, scale=cv**2 / 6).cdf).pvalue > 1e-3
    # Delta method with a gamma's skewness 2 cv and kurtosis 3 + 6 cv²: variance of a sample's cv is cv² (1 + cv²) / 2n.
    assert abs(gaps.std() / gaps.mean() - cv) < 4.5 * cv * math.sqrt((1 + cv**2) / 2 / len(gaps))


def test_fixed_gaps_are_equal():
    assert set(gaps_s(1, process="fixed", rate_per_s=8).tolist()) == {0.125}


@pytest.mark.parametrize("num_per_draw", [1, 10, 50])
def test_arrivals_are_the_running_sums_of_gaps_however_many_are_drawn_at_once(num_per_draw):
    spec = ArrivalSpec(process="gamma", rate_per_s=6, cv=2)
    blocks = islice(arrival_times_s(spec, stream(1, "x"), num_per_draw), 100 // num_per_draw)
    total_s, expected_s = 0.0, []
    for gap_s in draw_gaps_s(spec, stream(1, "x"), 100).tolist():
        total_s += gap_s
        expected_s.append(total_s)
    assert np.concatenate(list(blocks)).tolist() == expected_s


def test_rare_bursts_are_drawn_to_the_end():
    """Few arrivals are then drawn at once, fewer than lengths."""
    rare = {"process": "on_off", "rate_per_s": 1e-3, "on_for": "5 s", "off_for": "5 s"}
    requests = list(drawn(arrivals=rare))
    assert column(requests, "num_prompt_tokens") == column(drawn(), "num_prompt_tokens")
    assert requests[-1].arrival_s / len(requests) == pytest.approx(1e3, rel=4.5 / len(requests) ** 0.5)


@pytest.mark.parametrize(
    ("spec", "mean", "variance"),
    [
        ({"distribution": "uniform", "low": 11, "high": 20}, 15.5, (10**2 - 1) / 12),
        ({"distribution": "geometric", "mean": 200}, 200, 200**2 - 200),
        ({"distribution": "geometric", "mean": 1}, 1, 0),
        # Rounding to whole numbers adds 1/12 to a smooth variance (Sheppard).
        ({"distribution": "exponential", "mean": 500}, 500, 500**2 + 1 / 12),
        ({"distribution": "lognormal", "mean": 300, "cv": 0.5}, 300, (300 * 0.5) ** 2 + 1 / 12),
        ({"distribution": "lognormal", "mean": 3000, "cv": 0.1}, 3000, (3000 * 0.1) ** 2 + 1 / 12),
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", [1, 2])
def test_lengths_have_the_moments_of_their_distribution(spec, mean, variance, seed):
    num = 40_000
    lengths = draw_lengths(LengthSpec.model_validate(spec), stream(seed, "x"), num).astype(float)
    squares = (lengths - mean) ** 2
    assert abs(lengths.mean() - mean) <= 4.5 * math.sqrt(variance / num)
    assert abs(squares.mean() - variance) <= 4.5 * squares.std() / math.sqrt(num)


def test_lengths_are_whole_and_within_their_bounds():
    for spec in (
        {"distribution": "exponential", "mean": 1},
        {"distribution": "lognormal", "mean": 1, "cv": 5},
        {"distribution": "geometric", "mean": 1.01},
    ):
        lengths = draw_lengths(LengthSpec.model_validate(spec), stream(1, "x"), 10_000)
        assert lengths.dtype == np.int64
        assert lengths.min() == 1
    clipped = draw_lengths(
        LengthSpec(distribution="lognormal", mean=100, cv=100, low=20, high=1000), stream(1, "x"), 10_000
    )
    assert (clipped.min(), clipped.max()) == (20, 1000)


def test_both_ends_of_a_uniform_length_occur():
    lengths = draw_lengths(LengthSpec(distribution="uniform", low=2, high=4), stream(1, "x"), 1000)
    assert set(lengths.tolist()) == {2, 3, 4}


def test_a_prompt_is_a_shared_text_and_then_one_of_its_own():
    requests = list(drawn(suffix_tokens=30))
    assert all(r.prompt == ((r.prompt[0][0], 0, 500), (None, 0, 30)) and r.num_prompt_tokens == 530 for r in requests)
    assert {r.prompt[0][0] for r in requests} == set(range(20))
    assert all(r.max_tokens == r.oracle_num_output_tokens >= 1 and r.output_segment is None for r in requests)
    assert column(requests, "request_id") == list(range(3000))


def test_either_part_of_a_prompt_may_be_missing():
    assert all(r.prompt == ((None, 0, 9),) for r in drawn(num_prefixes=None, prefix_tokens=None, suffix_tokens=9))
    assert all(r.prompt == ((None, 0, 9),) for r in drawn(prefix_tokens=0, suffix_tokens=9))
    assert {r.prompt for r in drawn(num_prefixes=1, suffix_tokens=None)} == {((0, 0, 500),)}


def test_a_shared_text_has_one_length():
    requests = list(drawn(prefix_tokens={"distribution": "uniform", "low": 1, "high": 10_000}))
    lengths = {}
    for request in requests:
        segment, _, length = request.prompt[0]
        assert lengths.setdefault(segment, length) == length
        assert sum(run[2] for run in request.prompt) == request.num_prompt_tokens
    assert len(set(lengths.values())) > 10


@pytest.mark.parametrize("exponent", [None, 0.7, 1.5])
def test_prefixes_are_as_popular_as_asked_for(exponent):
    requests = drawn(num_requests=20_000, num_prefixes=10, prefix_zipf_exponent=exponent)
    observed = np.bincount([request.prompt[0][0] for request in requests], minlength=10)
    weights = np.arange(1, 11) ** -(exponent or 0.0)
    assert stats.chisquare(observed, observed.sum() * weights / weights.sum()).pvalue > 1e-3


def test_a_stream_ends_at_its_number_or_before_its_duration():
    assert len(list(drawn(num_requests=1025))) == 1025
    arrivals = column(drawn(num_requests=None, duration="5 min"), "arrival_s")
    longer = column(drawn(num_requests=len(arrivals) + 1), "arrival_s")
    assert arrivals == longer[:-1]
    assert arrivals[-1] < 300 <= longer[-1]
    assert all(earlier <= later for earlier, later in pairwise(arrivals))


def test_a_stream_without_end_is_read_no_further_than_asked():
    assert len(list(islice(drawn(num_requests=10**12), 10))) == 10


def test_each_quantity_has_a_stream_of_its_own():
    base = list(drawn())
    other_outputs = list(drawn(output_tokens={"distribution": "lognormal", "mean": 9, "cv": 2}))
    assert column(base, "arrival_s") == column(other_outputs, "arrival_s")
    assert column(base, "prompt") == column(other_outputs, "prompt")
    other_arrivals = list(drawn(arrivals={"process": "gamma", "rate_per_s": 9, "cv": 2}))
    assert column(base, "prompt") == column(other_arrivals, "prompt")
    assert column(base, "max_tokens") == column(other_arrivals, "max_tokens")
    other_suffixes = list(drawn(suffix_tokens=7))
    assert [r.prompt[0] for r in base] == [r.prompt[0] for r in other_suffixes]
    assert column(base, "arrival_s") == column(other_suffixes, "arrival_s")
    other_prefixes = list(drawn(num_prefixes=None, prefix_tokens=None))
    assert [r.prompt[1:] for r in base] == [r.prompt for r in other_prefixes]


def test_replications_and_seeds_draw_anew():
    columns = [
        [column(drawn(seed, replication), name) for name in ("arrival_s", "prompt", "max_tokens")]
        for seed, replication in [(0, 0), (0, 1), (1, 0)]
    ]
    for first, second in [(0, 1), (0, 2), (1, 2)]:
        assert all(a != b for a, b in zip(columns[first], columns[second], strict=True))
