"""Intervals from one run by resampling stretches of time: against theory where stretches are independent."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from simulator.bootstrap import BlockBootstrap
from simulator.streams import stream


def rows(rng: np.random.Generator, ttft_s: np.ndarray, span_s: float = 1_000.0) -> pd.DataFrame:
    number = len(ttft_s)
    return pd.DataFrame({
        "arrival_s": np.sort(rng.uniform(0, span_s, number)), "ttft_s": ttft_s, "state": "finished",
        "num_prompt_tokens": 1_000, "num_cached_tokens": rng.integers(0, 2, number) * 1_000, "num_output_tokens": 10,
        "first_scheduled_s": 0.0,
    })  # fmt: skip


def test_intervals_cover_where_requests_are_independent():
    """200 runs of 2,000 requests each: mean and p90 of exponential times, a hit rate of one half, one request a token.

    Twenty blocks are few, so that percentile intervals are a little too narrow: 90 to 97 % of nominal 95 % ones cover.
    """
    rng = stream(1, "bootstrap")
    truths = {"ttft_mean_s": 1.0, "ttft_p90_s": np.log(10), "hit_rate": 0.5}
    covered = dict.fromkeys(truths, 0)
    for _ in range(200):
        table = rows(rng, rng.exponential(1.0, 2_000))
        found = BlockBootstrap(table)
        means = {
            "ttft_mean_s": table["ttft_s"].mean(), "ttft_p90_s": table["ttft_s"].quantile(0.9),
            "hit_rate": table["num_cached_tokens"].mean() / 1_000,
        }  # fmt: skip
        for metric, truth in truths.items():
            estimate = found.interval(metric, means[metric])
            covered[metric] += abs(estimate.mean - truth) <= estimate.half_width
    for metric, count in covered.items():
        assert 0.88 <= count / 200 <= 0.98, metric


def test_a_rate_moves_as_counts_of_stretches_do():
    """Poisson arrivals: the relative standard error of the rate is 1 / sqrt(n); block counts are multinomial here, so
    that their sum over drawn blocks has the variance n (1 - 1/20)."""
    rng = stream(2, "bootstrap")
    widths = [
        BlockBootstrap(rows(rng, np.ones(5_000))).interval("requests_per_s", 5.0).half_width / 5.0 for _ in range(40)
    ]
    assert np.mean(widths) == pytest.approx(norm.ppf(0.975) * np.sqrt(0.95 / 5_000), rel=0.1)


def test_what_moves_slowly_is_known_less_well():
    """The same times in runs of a twentieth: by resampling stretches the interval is that of twenty draws."""
    rng = stream(3, "bootstrap")
    levels = rng.exponential(1.0, 20)
    table = rows(rng, np.repeat(levels, 100))
    table["arrival_s"] = np.linspace(0, 1_000, 2_000)
    shuffled = table.assign(ttft_s=rng.permutation(table["ttft_s"].to_numpy()))
    slow, quick = (BlockBootstrap(one).interval("ttft_mean_s", 1.0).half_width for one in (table, shuffled))
    assert slow == pytest.approx(norm.ppf(0.975) * levels.std() / np.sqrt(20), rel=0.2)
    assert slow > 5 * quick


def test_too_few_requests_or_all_at_once_give_no_interval():
    rng = stream(4, "bootstrap")
    assert BlockBootstrap(rows(rng, np.ones(199))).interval("ttft_mean_s", 1.0) is None
    assert BlockBootstrap(rows(rng, np.ones(2_000), span_s=0.0)).interval("ttft_mean_s", 1.0) is None
    assert BlockBootstrap(rows(rng, np.ones(2_000))).interval("kv_usage_mean", 0.5) is None


def test_the_estimate_says_that_it_is_of_this_trace_only():
    estimate = BlockBootstrap(rows(stream(5, "bootstrap"), np.arange(2_000.0))).interval("ttft_p50_s", 1_000.0)
    assert estimate.scope == "this trace only"
