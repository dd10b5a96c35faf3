"""Profiles from load tests: what a known engine's results say of it, simulated back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from engine import engine_config

from calibration.benchmarks.belief import FORMULA, POOL, believe
from calibration.benchmarks.benchmark import Benchmark, Lengths, Measured
from calibration.benchmarks.invert import Inversion, Solution, figures
from calibration.benchmarks.play import play
from calibration.estimate import OVERHEAD_SLOPE, bind
from calibration.roofline import Prior
from simulator.uncertainty import OVERHEAD

# A model of 8 billion parameters on a device of 280 TFLOP/s and 1.2 TB/s, as its data sheet has it.
SHEET = {
    name: Prior(value, "data sheet")
    for name, value in {
        "token_s": 5.6e-5,
        "prefill_pair_s": 2.1e-9,
        "weights_s": 1.3e-2,
        "context_s": 1.2e-7,
    }.items()
}
# The engine itself: its arithmetic at 60 % of that, its memory at 80 %, attention slower still, and a busy host.
TRUE = {
    "host_step_s": 7e-3,
    "host_request_s": 5e-5,
    "token_s": 9.3e-5,
    "weights_s": 1.6e-2,
    "prefill_pair_s": 5e-9,
    "context_s": 2e-7,
    OVERHEAD: 8e-3,
    OVERHEAD_SLOPE: 0.0,
}
ENGINE = engine_config(
    block_size=128, num_gpu_blocks=2000, max_model_len=16384, max_num_batched_tokens=2048, max_num_seqs=256,
)  # fmt: skip
STEP_TIME = bind(FORMULA, TRUE)


def load_test(inputs, outputs, concurrency, num_prompts=None, **more):
    return Benchmark(
        name=f"{inputs}/{outputs} x {concurrency}",
        group=f"{inputs}/{outputs} x {concurrency}",
        file="drawn",
        tool="csv",
        source="drawn",
        model=None,
        engine_version=None,
        engine={},
        num_prompts=num_prompts or max(8, 4 * concurrency),
        inputs=Lengths(mean=inputs),
        outputs=Lengths(mean=outputs),
        max_concurrency=concurrency,
        requests_per_s=None,
        **more,
    )


TESTS = [
    load_test(inputs, outputs, concurrency)
    for inputs, outputs in ((512, 128), (3000, 100), (12000, 50))
    for concurrency in (1, 8, 48)
]
UNSEEN = [load_test(1024, 200, 4), load_test(1024, 200, 24), load_test(6000, 150, 16), load_test(256, 64, 96)]


def measured(benchmark, rng=None, noise=0.0):
    """The benchmark with the results that the true engine gives, each off by its own relative noise."""
    played = play(benchmark, ENGINE, STEP_TIME)
    factors = np.ones(3) if rng is None else 1 + noise * rng.standard_normal(3)
    return replace(
        benchmark,
        measured=Measured(
            ttft_mean_s=played.ttft_mean_s * factors[0],
            tpot_mean_s=played.tpot_mean_s * factors[1],
            output_tokens_per_s=played.output_tokens_per_s * factors[2],
        ),
    )


def inverted(tests, *, hold_out=False) -> tuple[Inversion, Solution]:
    inversion = Inversion(tests, [ENGINE] * len(tests), believe(SHEET), jobs=1)
    return inversion, inversion.solve(hold_out=hold_out)


def worst_error(inversion, solution) -> float:
    """The largest relative error of TTFT and TPOT over loads and lengths that no result was of."""
    found = bind(FORMULA, inversion.belief.values(solution.logarithms))
    errors = []
    for benchmark in UNSEEN:
        truth, guess = play(benchmark, ENGINE, STEP_TIME), play(benchmark, ENGINE, found)
        errors += [guess.ttft_mean_s / truth.ttft_mean_s - 1, guess.tpot_mean_s / truth.tpot_mean_s - 1]
    return float(np.abs(errors).max())


def test_results_of_a_known_engine_give_its_predictions_back():
    inversion, solution = inverted([measured(test) for test in TESTS])
    assert worst_error(inversion, solution) < 0.03
    assert solution.misfit < 0.5


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_noisy_results_still_give_its_predictions_back(seed):
    rng = np.random.default_rng(seed)
    inversion, solution = inverted([measured(test, rng, 0.02) for test in TESTS])
    assert worst_error(inversion, solution) < 0.06


def test_what_few_results_do_not_tell_stays_a_prior():
    """Decoding one request says nothing of arithmetic or attention to a prompt; it does say what a step takes."""
    test = measured(load_test(16, 200, 1))
    only_tpot = replace(test, measured=Measured(tpot_mean_s=test.measured.tpot_mean_s))
    inversion, solution = inverted([only_tpot])
    determined = dict(zip(inversion.belief.names, solution.determined, strict=True))
    assert not determined["token_s"]
    assert not determined["prefill_pair_s"]
    assert not determined["context_s"]
    assert solution.predicted_s[0] == pytest.approx(only_tpot.measured.tpot_mean_s, rel=0.02)


def test_one_efficiency_moves_all_that_rests_on_it():
    """Slow prefills of short prompts slow the data sheet's attention too, which they do not show by themselves."""
    tests = [measured(load_test(inputs, 2, 1)) for inputs in (1024, 2048)]
    inversion, solution = inverted(tests)
    moved = dict(zip(inversion.belief.names, solution.logarithms - inversion.belief.mean, strict=True))
    assert moved["token_s"] > 0.2
    assert moved["prefill_pair_s"] > 0.05


def test_a_group_is_predicted_without_its_own_results():
    """A test whose results are of another engine is far off when held out, though the fit bends towards it."""
    tests = [measured(test) for test in TESTS[:6]]
    odd = tests[4]
    spoilt = replace(odd, measured=replace(odd.measured, tpot_mean_s=odd.measured.tpot_mean_s * 1.5))
    _, solution = inverted([*tests[:4], spoilt, tests[5]], hold_out=True)
    index = next(
        number
        for number, figure in enumerate(solution.figures)
        if figure.benchmark == 4 and figure.field == "tpot_mean_s"
    )
    inside = solution.predicted_s[index] / solution.figures[index].measured_s
    outside = solution.held_out_s[index] / solution.figures[index].measured_s
    assert outside < inside
    assert outside == pytest.approx(1 / 1.5, rel=0.1)


def test_rates_that_follow_from_one_another_count_once():
    benchmark = replace(
        load_test(512, 128, 4),
        measured=Measured(requests_per_s=2.0, output_tokens_per_s=256.0, total_tokens_per_s=1280.0, tpot_mean_s=0.03),
    )
    found = figures([benchmark])
    assert [figure.field for figure in found] == ["tpot_mean_s", "output_tokens_per_s"]
    assert found[1].measured_s == 1 / 256


class TestClient:
    """The load generator's side of a test."""

    def test_no_more_than_allowed_are_under_way(self):
        """Little's law: concurrency = rate x total time, exact where every place is always taken."""
        benchmark = load_test(512, 100, 10, num_prompts=400)
        played = play(benchmark, ENGINE, STEP_TIME)
        assert played.requests_per_s * played.e2e_mean_s == pytest.approx(10, rel=0.03)

    def test_without_a_limit_all_are_sent_at_once(self):
        benchmark = replace(load_test(512, 100, 1, num_prompts=64), max_concurrency=None)
        played = play(benchmark, ENGINE, STEP_TIME)
        assert played.requests_per_s * played.e2e_mean_s > 40

    def test_a_rate_is_kept_when_the_engine_keeps_up(self):
        benchmark = replace(load_test(64, 4, 1, num_prompts=2000), max_concurrency=None, requests_per_s=5.0)
        assert play(benchmark, ENGINE, STEP_TIME).requests_per_s == pytest.approx(5.0, rel=0.05)

    def test_shared_prefixes_are_found_in_whole_blocks(self):
        """Of 3,500 tokens 75 % are 2,625, which is 20 blocks of 128: 940 tokens are computed instead of 3,500."""
        alone = replace(load_test(3500, 1, 1, num_prompts=50), prefix_share=0.0)
        shared = replace(alone, prefix_share=0.75)
        free = bind(FORMULA, dict.fromkeys(TRUE, 0.0) | {"token_s": 1e-4})
        cold, warm = play(alone, ENGINE, free), play(shared, ENGINE, free)
        assert cold.ttft_p50_s == pytest.approx(0.35)
        assert warm.ttft_p50_s == pytest.approx(0.094)

    def test_lengths_with_a_fraction_keep_their_mean(self):
        benchmark = replace(load_test(10, 1, 1, num_prompts=100), inputs=Lengths(mean=10.25))
        played = play(benchmark, ENGINE, STEP_TIME)
        assert played.total_tokens_per_s / played.requests_per_s == pytest.approx(11.25)


def test_a_group_left_out_is_predicted_as_by_a_fit_without_it():
    """Held-out figures are those of a search that never saw the group."""
    tests = [measured(test) for test in TESTS[:4]]
    _, solution = inverted(tests, hold_out=True)
    others, without = inverted(tests[:2] + tests[3:])
    again = play(tests[2], ENGINE, bind(FORMULA, others.belief.values(without.logarithms)))
    for figure, held_out_s in zip(solution.figures, solution.held_out_s, strict=True):
        if figure.benchmark == 2:
            assert held_out_s == pytest.approx(figure.of(again), rel=0.05)


def test_a_rate_that_the_engine_keeps_up_with_is_no_evidence():
    """Requests sent at 5 a second and served at 5 a second: any fast enough engine does that."""
    kept = replace(load_test(64, 4, 1), max_concurrency=None, requests_per_s=5.0)
    for rate, fields in ((4.9, ["tpot_mean_s"]), (3.0, ["tpot_mean_s", "requests_per_s"])):
        benchmark = replace(kept, measured=Measured(tpot_mean_s=0.01, requests_per_s=rate))
        assert [figure.field for figure in figures([benchmark])] == fields


def test_what_a_file_is_called_changes_nothing():
    benchmark = replace(load_test(64, 4, 1, num_prompts=200), max_concurrency=None, requests_per_s=5.0)
    assert play(benchmark, ENGINE, STEP_TIME) == play(replace(benchmark, name="another"), ENGINE, STEP_TIME)


def test_a_pool_never_filled_is_told_from_below_only():
    """Tests that leave most of the pool free say that it is not smaller than they need, and no more."""
    pool = Prior(100_000.0, "data sheet")
    tests = [measured(load_test(512, 64, concurrency)) for concurrency in (1, 8)]
    inversion = Inversion(tests, [ENGINE] * 2, believe(SHEET, pool), jobs=1)
    solution = inversion.solve(hold_out=False)
    assert not dict(zip(inversion.belief.names, solution.determined, strict=True))[POOL]


def test_a_pool_that_binds_is_found():
    """A pool of 20,000 tokens, believed to be 100,000: tests of 24 requests of 2,000 tokens tell it within 15 %."""
    small = replace(ENGINE, num_gpu_blocks=1 + 20_000 // 128)
    tests = []
    for benchmark in (load_test(2000, 100, concurrency) for concurrency in (1, 4, 12, 24)):
        played = play(benchmark, small, STEP_TIME)
        stated = {name: getattr(played, name) for name in ("ttft_mean_s", "tpot_mean_s", "output_tokens_per_s")}
        tests.append(replace(benchmark, measured=Measured(**stated)))
    inversion = Inversion(tests, [ENGINE] * 4, believe(SHEET, Prior(100_000.0, "data sheet")), jobs=1)
    solution = inversion.solve(hold_out=False)
    found = float(np.exp(solution.logarithms[inversion.belief.names.index(POOL)]))
    assert found == pytest.approx(20_000, rel=0.15)
