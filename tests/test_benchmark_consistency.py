"""Figures that contradict each other are refused, odd ones are put into words, good ones pass in silence.

Outside truths: Little's law and the products that tie rates, lengths and times together, on hand-computed cases.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.benchmarks.benchmark import Benchmark, Lengths, Measured
from calibration.benchmarks.consistency import doubts
from simulator.errors import InputError

# 8 requests at once, each 0.2 s + 99 x 20 ms = 2.18 s: 8 / 2.18 = 3.670 requests/s, 367 output tokens/s.
GOOD = Benchmark(
    name="good",
    group="",
    file="good.json",
    tool="csv",
    source="",
    model=None,
    engine_version=None,
    engine={},
    num_prompts=80,
    inputs=Lengths(1000),
    outputs=Lengths(100),
    max_concurrency=8,
    requests_per_s=None,
    measured=Measured(
        ttft_mean_s=0.2, tpot_mean_s=0.02, requests_per_s=3.67, output_tokens_per_s=367.0, total_tokens_per_s=4037.0
    ),
    duration_s=21.8,
)


def changed(**figures: float | None) -> Benchmark:
    return replace(GOOD, measured=replace(GOOD.measured, **figures))


def test_figures_that_fit_are_silent():
    assert doubts(GOOD) == []


@pytest.mark.parametrize("name", ["output_tokens_per_s", "total_tokens_per_s", "requests_per_s"])
def test_a_rate_off_by_a_little_is_doubted_and_by_much_refused(name):
    value = getattr(GOOD.measured, name)
    assert doubts(changed(**{name: value * 1.02})) == []
    assert any("off" in words for words in doubts(changed(**{name: value * 1.07})))
    with pytest.raises(InputError, match=r"good.json: .* expected .* off"):
        doubts(changed(**{name: value * 1.2}))


def test_rounding_explains_what_few_digits_leave():
    # 0.14 requests/s may be 0.145: 6.9 tokens/s of 48 then fit.
    rough = replace(
        GOOD,
        outputs=Lengths(48),
        max_concurrency=1,
        num_prompts=20,
        duration_s=None,
        measured=Measured(requests_per_s=0.14, output_tokens_per_s=6.95),
    )
    assert doubts(replace(rough, rounding={"requests_per_s": 0.005}, columns={"id": "a"})) == []
    assert any("off" in words for words in doubts(rough))


def test_littles_law_limits_requests_under_way():
    # 3.67/s x (0.2 + 99 x 30 ms = 3.17 s) = 11.6 under way, where 8 are allowed
    with pytest.raises(InputError, match=r"= 11.63 requests under way, expected at most 8, the limit \(Little's law\)"):
        doubts(changed(tpot_mean_s=0.03))
    with pytest.raises(InputError, match="Little's law"):
        doubts(changed(tpot_mean_s=None, e2e_mean_s=3.2))
    assert doubts(replace(changed(tpot_mean_s=0.03), max_concurrency=12)) == []


def test_littles_law_with_answers_of_other_lengths_only_warns():
    # The mean of TPOTs is not that of tokens: a few short answers weigh as much as long ones.
    uneven = replace(changed(tpot_mean_s=0.03), outputs=Lengths(100, deviation=90))
    assert any("misleads" in words for words in doubts(uneven))
    # Gaps between tokens are the tokens' own mean.
    assert doubts(replace(uneven, measured=replace(uneven.measured, itl_mean_s=0.02))) == []
    with pytest.raises(InputError, match="Little's law"):
        doubts(replace(uneven, measured=replace(uneven.measured, itl_mean_s=0.03)))


def test_no_limit_but_the_number_of_requests():
    assert doubts(replace(GOOD, max_concurrency=None)) == []
    with pytest.raises(InputError, match="expected at most 80"):
        doubts(replace(changed(ttft_mean_s=22.0), max_concurrency=None))


def test_far_fewer_under_way_than_the_client_keeps_going():
    assert any("kept fewer going" in words for words in doubts(replace(GOOD, max_concurrency=16)))
    with pytest.raises(InputError, match="expected about 81, as many as were sent at once"):
        doubts(replace(GOOD, max_concurrency=81, num_prompts=162, duration_s=None))
    # At a rate, or with hardly more requests than places, it is not the limit that counts.
    assert doubts(replace(GOOD, max_concurrency=64, requests_per_s=3.6)) == []
    assert doubts(replace(GOOD, max_concurrency=64)) == []


def test_no_more_is_answered_than_arrives():
    assert doubts(replace(GOOD, requests_per_s=3.6)) == []
    with pytest.raises(InputError, match=r"3.67 requests/s were answered, expected at most the 2/s that arrive"):
        doubts(replace(GOOD, requests_per_s=2.0))


def test_rate_times_duration_is_the_number_of_requests():
    assert any("requests answered" in words for words in doubts(replace(GOOD, duration_s=23.0)))
    with pytest.raises(InputError, match=r"3.67 requests/s in 60 s, expected 80 \(80 requests answered\)"):
        doubts(replace(GOOD, duration_s=60.0))


def test_total_time_is_first_token_and_the_others():
    assert doubts(changed(e2e_mean_s=2.18)) == []
    with pytest.raises(InputError, match=r"a mean total time of 1.5 s, expected 2.18"):
        doubts(changed(e2e_mean_s=1.5))


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"tpot_mean_s": 0.00002}, "tpot_mean is 0.02 ms, expected 1 ms to 10 s between tokens: seconds for"),
        ({"tpot_p99_s": 20.0}, "tpot_p99 is 20 s, expected 0.1 ms to 10 s between tokens: milliseconds for seconds"),
        ({"ttft_mean_s": 0.0002}, "ttft_mean is 0.2 ms, expected at least 1 ms: seconds for milliseconds"),
        ({"ttft_mean_s": 0.0012, "tpot_mean_s": 0.15}, "a first token takes 1.2 ms and each further one 150 ms"),
        ({"ttft_p50_s": 0.3, "ttft_p90_s": 0.2}, r"ttft p50 \(300 ms\) is above p90 \(200 ms\)"),
        ({"e2e_mean_s": 0.1, "tpot_mean_s": None}, r"mean TTFT \(200 ms\) is above the mean total time \(100 ms\)"),
    ],
)
def test_units_and_orders_that_cannot_be(figures, words):
    with pytest.raises(InputError, match=words):
        doubts(changed(**figures))


ONE_WAVE = replace(GOOD, num_prompts=32, max_concurrency=None, outputs=Lengths(1), duration_s=None)


@pytest.mark.parametrize("num_prompts", [8, 32, 80])
@pytest.mark.parametrize(
    "figures",
    [
        {"ttft_mean_s": 0.0002, "tpot_mean_s": None},  # 0.2 s written as 0.2 ms
        {"ttft_mean_s": 0.4, "tpot_mean_s": 0.0005},
        {"ttft_mean_s": None, "tpot_mean_s": None, "tpot_p50_s": 0.0008},
    ],
)
def test_seconds_for_milliseconds_are_refused_without_throughput_and_in_one_wave(num_prompts, figures):
    bare = replace(GOOD, num_prompts=num_prompts, max_concurrency=None, duration_s=None, measured=Measured(**figures))
    with pytest.raises(InputError, match=r"good.json: .* expected .*: seconds for milliseconds\?"):
        doubts(bare)


def test_one_wave_of_which_hardly_any_was_under_way_is_refused():
    # 32 at once of one token, 6 s in the mean, 12 s in all: 16 under way. Written as 6 ms: 0.016.
    good = Measured(ttft_mean_s=6.0, requests_per_s=32 / 12)
    assert doubts(replace(ONE_WAVE, measured=good)) == []
    bad = replace(good, ttft_mean_s=0.006)
    for stated in (
        replace(ONE_WAVE, measured=bad),
        replace(ONE_WAVE, measured=replace(bad, requests_per_s=None), duration_s=12.0),
        replace(ONE_WAVE, measured=replace(bad, requests_per_s=None, total_tokens_per_s=32 / 12 * 1001)),
        replace(ONE_WAVE, measured=replace(bad, ttft_mean_s=None, e2e_mean_s=0.006)),
    ):
        with pytest.raises(InputError, match=r"= 0.016 requests under way, expected about 32.*seconds for millisecond"):
            doubts(stated)
    # At a rate, few may be under way.
    assert doubts(replace(ONE_WAVE, measured=bad, requests_per_s=3.0)) == []
    # Without TTFT the wait for a place is not known.
    waiting = Measured(tpot_mean_s=0.02, requests_per_s=0.5)
    assert doubts(replace(ONE_WAVE, outputs=Lengths(2), measured=waiting)) == []


def test_a_first_token_faster_than_any_engine_is_doubted():
    fast = replace(changed(ttft_mean_s=0.01, requests_per_s=None, output_tokens_per_s=None, total_tokens_per_s=None),
                   inputs=Lengths(32_000))  # fmt: skip
    assert any("more than 1e+06 a second" in words for words in doubts(fast))
    assert doubts(replace(fast, prefix_share=0.9)) == []
    slow = changed(ttft_mean_s=0.003)
    assert any("another unit" in words for words in doubts(slow))


def test_failed_requests_and_several_engines():
    with pytest.raises(InputError, match="7 of 87 requests failed, expected none: without the lengths"):
        doubts(replace(GOOD, num_failed=7))
    known = replace(GOOD, num_failed=7, inputs=Lengths.of([1000] * 80), outputs=Lengths.of([100] * 80))
    assert any("7 of 87 requests failed; the 80 others" in words for words in doubts(known))
    with pytest.raises(InputError, match="no request was answered"):
        doubts(replace(GOOD, num_failed=87, num_prompts=0))
    with pytest.raises(InputError, match="2 engines answered"):
        doubts(replace(GOOD, num_engines=2))


@given(
    limit=st.integers(1, 300),
    waves=st.integers(3, 40),
    prompt=st.integers(1, 8000),
    answer=st.integers(1, 3000),
    tpot_s=st.floats(1e-3, 0.5),
    ttft_s=st.floats(0.1, 30),
    busy=st.floats(0.8, 1.0),
)
def test_a_closed_loop_that_keeps_its_limit_busy_is_always_silent(limit, waves, prompt, answer, tpot_s, ttft_s, busy):
    """Figures made by the laws themselves raise neither doubt nor refusal."""
    total_s = ttft_s + (answer - 1) * tpot_s
    requests_per_s = busy * limit / total_s
    measured = Measured(
        ttft_mean_s=ttft_s,
        tpot_mean_s=tpot_s if answer > 1 else None,
        e2e_mean_s=total_s,
        requests_per_s=requests_per_s,
        output_tokens_per_s=requests_per_s * answer,
        total_tokens_per_s=requests_per_s * (prompt + answer),
    )
    test = replace(
        GOOD, num_prompts=limit * waves, inputs=Lengths(prompt), outputs=Lengths(answer), max_concurrency=limit,
        duration_s=limit * waves / requests_per_s, measured=measured,
    )  # fmt: skip
    assert doubts(test) == []
