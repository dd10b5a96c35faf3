"""What is recorded during a run, and the headline numbers read from it."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.metrics import LogHistogram, Metrics
from simulator.plan import Plan
from simulator.request import Request
from simulator.result import RunResult
from simulator.streams import stream
from tests.drawn_results import draw_run, ended


def refused(request_id: int, arrival_s: float, reason: str) -> Request:
    request = ended(request_id, arrival_s, arrival_s, arrival_s)
    request.state, request.refusal, request.num_output_tokens = "refused", reason, 0
    request.queued_s = request.first_scheduled_s = request.first_token_s = request.finish_s = None
    return request


def result(metrics: Metrics) -> RunResult:
    return RunResult.of(metrics, policy="any", replication=0)


# --- The histogram of inter-token times -----------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [0.05, 0.5, 2.0])
def test_histogram_percentiles_are_within_one_percent_of_the_sample(sigma: float) -> None:
    values = stream(1, "gaps", sigma).lognormal(-3.5, sigma, 20_000)
    histogram = LogHistogram()
    for value in values:
        histogram.add(float(value), 1)
    for percent in (1, 50, 90, 95, 99):
        exact = np.percentile(values, percent, method="inverted_cdf")
        assert histogram.quantile(percent / 100) == pytest.approx(exact, rel=0.01)
    assert histogram.mean() == pytest.approx(values.mean())


def test_weights_count_like_repeated_values() -> None:
    weighted, repeated = LogHistogram(), LogHistogram()
    for value, weight in ((0.02, 7), (0.5, 3)):
        weighted.add(value, weight)
        for _ in range(weight):
            repeated.add(value, 1)
    assert weighted.counts == repeated.counts
    assert weighted.quantile(0.7) == pytest.approx(0.02, rel=0.01)
    assert weighted.quantile(0.71) == pytest.approx(0.5, rel=0.01)


def test_merged_histograms_are_the_histogram_of_all_values() -> None:
    first, second, both = LogHistogram(), LogHistogram(), LogHistogram()
    for index, value in enumerate(stream(2, "merge").exponential(0.1, 100)):
        (first if index % 2 else second).add(float(value), 1 + index % 3)
        both.add(float(value), 1 + index % 3)
    first.merge(second)
    assert first.counts == both.counts
    assert first.weight == both.weight
    assert first.mean() == pytest.approx(both.mean())


def test_durations_beyond_the_range_are_counted_at_its_ends() -> None:
    histogram = LogHistogram()
    for value in (0.0, 1e-9, 1e9):
        histogram.add(value, 1)
    assert (histogram.counts[0], histogram.counts[-1], histogram.weight) == (2, 1, 3)


def test_an_empty_histogram_knows_nothing() -> None:
    assert LogHistogram().mean() is None
    assert LogHistogram().quantile(0.5) is None


# --- Requests -------------------------------------------------------------------------------------------------------


def test_a_row_holds_what_became_of_the_request() -> None:
    metrics = Metrics(2, ("chat", "batch"))
    metrics.request(ended(7, 1.0, 1.5, 5.5, tenant=1, instance=1, session=3, num_output_tokens=5, num_preemptions=2))
    row = metrics.table().iloc[0]
    assert (row.request_id, row.tenant, row.state, row.instance, row.session) == (7, "batch", "finished", 1, 3)
    assert (row.ttft_s, row.queue_s, row.e2e_s, row.tpot_s) == pytest.approx((0.5, 0.25, 4.5, 1.0))
    assert row.num_preemptions == 2
    assert pd.isna(row.refusal)


def test_one_token_has_no_time_per_output_token() -> None:
    metrics = Metrics(1)
    metrics.request(ended(0, 0.0, 1.0, 1.0, num_output_tokens=1))
    assert pd.isna(metrics.table()["tpot_s"][0])
    assert result(metrics).summary()["tpot_p90_s"] is None


def test_missing_times_and_places_are_null_not_zero() -> None:
    metrics = Metrics(1)
    metrics.request(refused(0, 2.0, "too long"))
    row = metrics.table().iloc[0]
    nulls = ["queued_s", "first_token_s", "finish_s", "ttft_s", "e2e_s", "instance", "session"]
    assert row[nulls].isna().all()
    assert (row.state, row.refusal) == ("refused", "too long")


def test_a_request_that_has_not_ended_is_refused() -> None:
    request = ended(0, 0.0, 1.0, 2.0)
    request.state = "running"
    with pytest.raises(KeyError):
        Metrics(1).request(request)


def test_every_request_is_counted_in_exactly_one_state() -> None:
    metrics = Metrics(1, ("a", "b"))
    for index in range(30):
        request = refused(index, 0.0, "full" if index % 2 else "long") if index % 3 == 0 else ended(index, 0, 1, 2)
        request.tenant = index % 2
        if index % 7 == 1 and request.state == "finished":
            request.state = "aborted"
        metrics.request(request)
    run = result(metrics)
    summary = run.summary()
    states = ("num_finished", "num_refused", "num_aborted")
    assert sum(summary[state] or 0 for state in states) == summary["num_requests"] == metrics.num_requests == 30
    assert sum(run.refusals().values()) == summary["num_refused"]
    for key in ("num_requests", *states):
        assert sum(tenant[key] for tenant in run.by_tenant()) == summary[key]


# --- Busy time and the timeline -------------------------------------------------------------------------------------

ADVANCES = st.lists(
    st.tuples(
        st.floats(0, 2000), st.floats(1e-6, 40), st.integers(1, 50), st.integers(0, 2), st.integers(0, 9),
        st.integers(0, 1), st.integers(0, 4),
    ),
    min_size=1, max_size=25,
)  # fmt: skip


@given(ADVANCES)
@settings(max_examples=60, deadline=None)
def test_the_timeline_adds_up_to_what_was_recorded(advances: list[tuple]) -> None:
    metrics = Metrics(2, num_blocks=100)
    for start_s, elapsed_s, num_steps, support, num_decodes, instance, waiting in advances:
        plan = Plan(num_decodes=num_decodes, num_prefill_tokens=3)
        metrics.advance(instance, start_s, start_s + elapsed_s, num_steps, plan, support, waiting, 5, 50)
        metrics.prefix(instance, start_s, 10, waiting)
    line = metrics.timeline()
    elapsed = [(start_s + elapsed_s) - start_s for start_s, elapsed_s, *_ in advances]
    assert line["busy_s"].sum() == pytest.approx(sum(elapsed))
    assert sum(metrics.busy_s) == pytest.approx(sum(elapsed))
    assert line["num_decode_tokens"].sum() == pytest.approx(sum(row[2] * row[4] for row in advances))
    assert line["num_prefill_tokens"].sum() == pytest.approx(sum(row[2] * 3 for row in advances))
    waited = sum(row[6] * seconds for row, seconds in zip(advances, elapsed, strict=True))
    assert (line["mean_waiting"] * line["width_s"]).sum() == pytest.approx(waited)
    assert (line["mean_running"] * line["width_s"]).sum() == pytest.approx(5 * sum(elapsed))
    assert (line["kv_usage"] * line["width_s"]).sum() == pytest.approx(0.5 * sum(elapsed))
    assert line["prefix_queries"].sum() == 10 * len(advances)


def test_an_advance_is_shared_out_over_the_bins_it_touches() -> None:
    metrics = Metrics(1)
    metrics.advance(0, 0.75, 2.25, 3, Plan(num_decodes=2), 0, 0, 2, 10)
    line = metrics.timeline()
    assert list(line["busy_s"]) == pytest.approx([0.25, 1.0, 0.25])
    assert list(line["num_decode_tokens"]) == pytest.approx([1, 4, 1])
    assert list(line["mean_used_blocks"]) == pytest.approx([2.5, 10, 10])


def test_a_long_run_keeps_a_short_timeline() -> None:
    metrics = Metrics(1)
    for hour in range(48):
        metrics.advance(0, 3600.0 * hour, 3600.0 * hour + 1, 1, Plan(num_prefill_tokens=5), 1, 0, 1, 1)
    line = metrics.timeline()
    assert len(line) <= 360
    assert line["busy_s"].sum() == pytest.approx(48)
    assert (line["start_s"] + line["width_s"]).max() == pytest.approx(47 * 3600 + 1)


def test_busy_time_is_kept_by_where_the_step_time_comes_from() -> None:
    metrics = Metrics(2)
    for support, seconds in ((0, 6.0), (1, 3.0), (2, 1.0)):
        metrics.advance(1, 0.0, seconds, 1, Plan(num_decodes=1), support, 0, 1, 1)
    assert result(metrics).support_s() == pytest.approx({"measured": 6.0, "prior": 3.0, "outside": 1.0})


def test_inter_token_times_are_weighted_by_how_many_they_stand_for() -> None:
    metrics = Metrics(1)
    metrics.token_gaps(0.03, 120)
    metrics.token_gaps(5.0)
    assert metrics.gaps.weight == 121
    assert metrics.gaps.quantile(0.5) == pytest.approx(0.03, rel=0.01)
    assert metrics.gaps.quantile(1.0) == pytest.approx(5.0, rel=0.01)


# --- Headline numbers -----------------------------------------------------------------------------------------------


def test_rates_are_over_the_time_from_first_arrival_to_last_finish() -> None:
    metrics = Metrics(2)
    metrics.request(ended(0, 10.0, 11.0, 14.0, instance=0, num_output_tokens=30))
    metrics.request(ended(1, 12.0, 13.0, 20.0, instance=0, num_output_tokens=70))
    metrics.advance(0, 10.0, 20.0, 1, Plan(num_decodes=1), 0, 0, 1, 1)
    summary = result(metrics).summary()
    assert summary["span_s"] == 10
    assert summary["output_tokens_per_s"] == 10
    assert summary["total_tokens_per_s"] == 110
    assert summary["requests_per_s"] == 0.2
    assert summary["ttft_p50_s"] == 1
    assert summary["e2e_mean_s"] == 6
    assert summary["busy_share"] == 0.5
    assert summary["busy_max_over_mean"] == summary["requests_max_over_mean"] == 2


def test_hits_of_resumed_requests_do_not_raise_the_hit_rate() -> None:
    metrics = Metrics(2)
    metrics.prefix(0, 0.0, 100, 25)
    metrics.prefix(1, 0.0, 100, 75)
    metrics.prefix(1, 1.0, 100, 96, preempted=True)
    metrics.request(ended(0, 0.0, 1.0, 2.0, num_cached_tokens=200))
    summary = result(metrics).summary()
    assert summary["hit_rate"] == 0.5
    assert summary["preempted_hit_rate"] == 0.96
    assert summary["cached_share"] == 0.4


def test_kv_use_is_over_time_and_its_peak_over_instances() -> None:
    metrics = Metrics(2, num_blocks=100)
    metrics.request(ended(0, 0.0, 5.0, 10.0))
    metrics.advance(0, 0.0, 5.0, 1, Plan(num_decodes=1), 0, 0, 1, 80)
    summary = result(metrics).summary()
    assert summary["kv_usage_mean"] == pytest.approx(0.8 * 5 / 20)
    assert summary["kv_usage_max"] == 0.8


def test_a_run_in_which_nothing_finished_has_counts_and_no_rates() -> None:
    metrics = Metrics(1)
    metrics.request(refused(0, 0.0, "too long"))
    summary = result(metrics).summary()
    assert summary["num_refused"] == 1
    for key in ("ttft_p90_s", "e2e_mean_s", "output_tokens_per_s", "busy_share", "hit_rate", "requests_max_over_mean"):
        assert summary[key] is None


def test_instances_add_up_to_the_whole() -> None:
    run = draw_run("dynamo", 0, 1.0, 300)
    instances = run.by_instance()
    assert sum(row["num_finished"] for row in instances) == run.summary()["num_finished"]
    assert sum(row["busy_s"] for row in instances) == pytest.approx(sum(run.support_s().values()))
    of_one = run.requests[run.requests["instance"] == 3]["ttft_s"]
    assert instances[3]["ttft_p90_s"] == pytest.approx(np.percentile(of_one, 90))


def test_a_result_survives_the_way_between_processes() -> None:
    run = draw_run("dynamo", 0, 1.0, 50)
    copy = pickle.loads(pickle.dumps(run))
    assert copy.summary() == run.summary()
    pd.testing.assert_frame_equal(copy.requests, run.requests)
    assert not any(isinstance(value, float) and math.isnan(value) for value in run.summary().values())
