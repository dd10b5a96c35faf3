"""What may be said from the runs of an experiment: significant differences, and nothing else."""

from __future__ import annotations

import json

import pytest

from simulator.comparison import show
from simulator.statistics import Difference, Estimate
from simulator.steady import SteadyState
from simulator.wording import notes
from tests.drawn_results import draw_comparison

TWO = {"slow": 1.5, "fast": 1.0}
EQUAL = {"one": 1.0, "other": 1.0}


def test_the_verdict_names_the_winner_of_what_differs_and_says_what_does_not() -> None:
    verdict = draw_comparison(5, TWO, 400).verdict()
    assert verdict.startswith("fast has the lowest p90 TTFT (")
    assert "no policy is shown to differ in" in verdict
    assert "p90 TPOT" in verdict.split("no policy is shown to differ in")[1]


def test_policies_that_draw_from_one_distribution_get_no_winner_in_latency() -> None:
    verdict = draw_comparison(4, EQUAL, 200).verdict()
    assert "lowest p90 TTFT" not in verdict
    assert "no policy is shown to differ in p90 TTFT" in verdict


def test_the_best_of_three_is_told_apart_only_from_those_it_beats() -> None:
    comparison = draw_comparison(5, {"slow": 2.0, "one": 1.0, "other": 1.0}, 300)
    assert "TTFT" in comparison.verdict()
    first_claim = next(part for part in comparison.verdict().split(";") if "TTFT" in part)
    best, other = ("one", "other") if first_claim.strip().startswith("one") else ("other", "one")
    assert f"{best} leads, but is not shown to beat every other policy, in p90 TTFT (" in first_claim
    assert "; shown against slow)" in comparison.verdict()
    assert f"shown against slow and {other}" not in comparison.verdict()


def test_one_replication_describes_this_trace_only() -> None:
    comparison = draw_comparison(1, TWO, 100)
    assert comparison.verdict().startswith("this trace only (one replication")
    assert "fast has the lowest p90 TTFT" in comparison.verdict()
    assert not any(pair.significant for pair in comparison.pairs())
    assert "±" not in comparison.verdict()
    assert set(comparison.table()["scope"]) == {"this trace only"}


def test_replications_that_do_not_vary_describe_this_trace_only() -> None:
    comparison = draw_comparison(1, TWO, 100)
    comparison.results = [run for run in comparison.results for _ in range(3)]
    assert comparison.num_replications == 3
    assert comparison.verdict().startswith("this trace only (the replications do not vary")


def test_one_policy_cannot_be_compared() -> None:
    assert "nothing to compare" in draw_comparison(2, {"alone": 1.0}, 50).verdict()


def test_only_a_policy_better_than_all_others_wins() -> None:
    comparison = draw_comparison(5, {"slow": 2.0, "middle": 1.4, "fast": 1.0}, 400)
    from simulator.comparison import COMPARED

    first_token = next(shown for shown in COMPARED if shown.key == "ttft_p90_s")
    assert [comparison.wins(policy, first_token) for policy in comparison.policies] == [False, False, True]


def test_the_table_holds_the_mean_over_replications() -> None:
    comparison = draw_comparison(3, TWO, 100)
    table = comparison.table().set_index(["policy", "metric"])
    values = [run.summary()["ttft_p90_s"] for run in comparison.results if run.policy == "fast"]
    assert table.loc[("fast", "ttft_p90_s"), "mean"] == pytest.approx(sum(values) / 3)  # type: ignore[arg-type]
    assert table.loc[("fast", "ttft_p90_s"), "num_replications"] == 3


def test_a_metric_that_one_replication_lacks_is_not_estimated() -> None:
    comparison = draw_comparison(3, TWO, 100)
    comparison.summaries["fast"][1]["ttft_p90_s"] = None
    assert comparison.estimate("fast", "ttft_p90_s") is None
    assert all(pair.metric != "ttft_p90_s" for pair in comparison.pairs())


def what_pairing_bought(too_short: frozenset[str] = frozenset(), **times: float) -> list[str]:
    """The notes of a comparison whose intervals would be so many times as wide without common random numbers."""
    comparison = draw_comparison()
    first, second = comparison.policies[:2]
    comparison.__dict__["_differences"] = [
        Difference(metric, first, second, Estimate(0.0, 1.0, 5), p_value=1.0, unpaired_half_width=wider)
        for metric, wider in times.items()
    ]
    comparison.__dict__["steady_state"] = SteadyState(too_short=too_short)
    return [line for line in notes(comparison) if line.startswith("Serving the same requests")]


def test_wider_is_not_called_narrower() -> None:
    said = "Serving the same requests makes the intervals of differences narrower, by the median "
    assert what_pairing_bought(ttft_p90_s=3.0) == [f"{said}3.0 times (p90 TTFT)."]
    assert what_pairing_bought(ttft_p90_s=0.5, tpot_p90_s=20.0, hit_rate=1.04) == [
        f"{said}20 times (p90 TPOT); not in p90 TTFT or hit rate."
    ]
    assert what_pairing_bought(ttft_p90_s=0.5) == [
        "Serving the same requests does not make the intervals of differences narrower in p90 TTFT."
    ]


def test_without_intervals_nothing_is_said_of_their_width() -> None:
    every = frozenset(draw_comparison().policies)
    assert what_pairing_bought(every, ttft_p90_s=3.0) == []


def test_the_json_is_plain_and_complete() -> None:
    comparison = draw_comparison(2, TWO, 100)
    found = json.loads(json.dumps(comparison.to_json(), allow_nan=False))
    assert found == comparison.to_json()
    assert len(found["runs"]) == 4
    assert found["verdict"] == comparison.verdict()
    assert found["profile"]["held_out_error"] == 0.043
    assert {"versions", "digest", "seed", "scenario", "estimates", "differences", "refusals"} <= found.keys()
    assert sum(found["support_shares"].values()) == pytest.approx(1)
    assert found["runs"][0]["summary"]["num_requests"] == 100


@pytest.mark.parametrize(
    ("mean", "half_width", "scale", "shown"),
    [
        (1.23456, 0.0321, 1, "1.235 ± 0.032"),
        (0.042774, 0.00061, 1000, "42.77 ± 0.61"),
        (12345.6, 789.0, 1, "12,346 ± 789"),
        (0.5, None, 100, "50.0"),
        (2.0, 0.0, 1, "2.00 ± 0.00"),
        (0.0, None, 1, "0"),
        (9.99, 0.0999, 1, "9.99 ± 0.10"),
        (0.1249997, 1.3e-6, 100, "12.500 ± <0.001"),
    ],
)
def test_numbers_show_two_digits_of_their_half_width(
    mean: float, half_width: float | None, scale: float, shown: str
) -> None:
    assert show(Estimate(mean, half_width, 3), scale) == shown


def test_where_runs_are_too_short_nothing_is_shown_of_them() -> None:
    """No interval of a mean, hence none of a difference from it, no p-value, and no share in Holm's correction."""
    comparison = draw_comparison(5, {"slow": 1.5, "fast": 1.0, "short": 1.0}, 400)
    comparison.__dict__["steady_state"] = SteadyState(too_short=frozenset({"short"}))
    pairs = {(pair.metric, pair.first, pair.second): pair for pair in comparison.pairs()}
    assert pairs["ttft_p90_s", "slow", "fast"].significant
    withheld = [pair for pair in pairs.values() if "short" in (pair.first, pair.second)]
    assert withheld
    assert all((pair.p_value, pair.adjusted_p, pair.estimate.half_width) == (None, None, None) for pair in withheld)
    two = draw_comparison(5, {"slow": 1.5, "fast": 1.0}, 400).pairs()
    assert len([pair for pair in pairs.values() if pair.adjusted_p is not None]) == len(two)
    all_short = draw_comparison(5, TWO, 400)
    all_short.__dict__["steady_state"] = SteadyState(too_short=frozenset(TWO))
    assert all_short.verdict().startswith("Nothing is shown, since runs are too short for the load; in these: fast has")
