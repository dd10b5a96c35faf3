"""Recovery: rows drawn from known coefficients give them back, without bias, and as well as the errors say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from calibration_rows import LIMITS, OVERHEADS, TRUTH, Device, model_of

from calibration.estimate import OVERHEAD_SLOPE, Estimate
from calibration.fit import fit, fit_best
from calibration.measurement import read_measurements
from calibration.observations import Design, Observation, averaged, observe
from calibration.probes import plan
from simulator.errors import InputError
from simulator.step_time import FORMULAS
from simulator.uncertainty import OVERHEAD

NUM_DRAWS = 200
LAUNCH_NOISE, NOISE = 0.005, 0.01


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Observation, ...]:
    """Every case that the probes plan, once; the times are replaced in each draw."""
    path = tmp_path_factory.mktemp("grid") / "rows.jsonl"
    device = Device(model_of("linear"), launch_noise=0.0, noise=0.0, num_launches=1, num_repeats=1)
    return averaged(observe([read_measurements(device.write(path))]))


def draws(grid: tuple[Observation, ...], formula: str, num_launches: int) -> Iterator[list[Observation]]:
    """Launch means: all times of a launch are off by one share, and each by another of its own."""
    random = np.random.default_rng(1)
    exact = Design(grid).predict(model_of(formula))
    for _ in range(NUM_DRAWS):
        common = 1 + LAUNCH_NOISE * random.standard_normal((num_launches, 1))
        means = exact * common * (1 + NOISE * random.standard_normal((num_launches, len(grid))))
        yield [
            replace(observation, measured_s=float(column.mean()), launches=dict(enumerate(column.tolist())))
            for observation, column in zip(grid, means.T, strict=True)
        ]


@pytest.mark.parametrize(
    ("formula", "num_launches"), [*((formula, 5) for formula in FORMULAS), ("additive", 3), ("linear", 12)]
)
def test_bias_is_small_and_intervals_cover(grid: tuple[Observation, ...], formula: str, num_launches: int) -> None:
    """The bias is below a third of the standard error, and 95 % intervals cover 90 to 99 %: by Student's t up to nine
    launches, by bootstrap from ten on.
    """
    truth = TRUTH[formula] | dict(zip((OVERHEAD, OVERHEAD_SLOPE), OVERHEADS, strict=True))
    estimates = [Estimate(observations, formula) for observations in draws(grid, formula, num_launches)]
    for name, true in truth.items():
        found = [estimate.coefficients[name] for estimate in estimates]
        errors = [coefficient.standard_error for coefficient in found]
        assert None not in errors, name
        bias = np.mean([coefficient.value for coefficient in found]) - true
        assert abs(bias) < np.mean([error for error in errors if error is not None]) / 3, name
        intervals = [coefficient.interval for coefficient in found if coefficient.interval is not None]
        covered = np.mean([low <= true <= high for low, high in intervals])
        assert 0.90 <= covered <= 0.99, f"{name}: {covered}"


@pytest.mark.parametrize("formula", FORMULAS)
def test_rows_without_noise_choose_the_formula_that_made_them(grid: tuple[Observation, ...], formula: str) -> None:
    exact = Design(grid).predict(model_of(formula))
    observations = [replace(one, measured_s=time_s) for one, time_s in zip(grid, exact.tolist(), strict=True)]
    best = fit_best(observations)
    # Where additive has no prefill_step_s or the like, two formulas may be one; here none is.
    assert best.formula == formula, best.scores
    for name, true in TRUTH[formula].items():
        assert best.coefficients[name].value == pytest.approx(true, rel=1e-4), name


def test_a_coefficient_on_its_bound_is_one_sided(grid: tuple[Observation, ...]) -> None:
    """Decodes that cost nothing: 0 with an upper bound and no standard error in about half of the draws."""
    free = [
        replace(one, measured_s=time_s)
        for one, time_s in zip(grid, Design(grid).predict(model_of("linear", decode_token_s=0.0)).tolist(), strict=True)
    ]
    on_bound = []
    random = np.random.default_rng(2)
    for _ in range(60):
        shares = 1 + NOISE * random.standard_normal((5, len(free)))
        noisy = [
            replace(one, measured_s=one.measured_s * share.mean(), launches=dict(enumerate(one.measured_s * share)))
            for one, share in zip(free, shares.T, strict=True)
        ]
        coefficient = Estimate(noisy, "linear").coefficients["decode_token_s"]
        if coefficient.value == 0:
            assert coefficient.standard_error is None
            assert coefficient.upper is not None
            assert coefficient.interval == (0.0, coefficient.upper)
            on_bound.append(coefficient.upper)
    assert 15 <= len(on_bound) <= 45
    assert all(0 <= upper < TRUTH["linear"]["decode_token_s"] / 10 for upper in on_bound)


@pytest.mark.parametrize(
    ("formula", "without", "name", "probe"),
    [
        ("linear", ("decode", "ttft", "mixed"), "decode_token_s", "probe decode"),
        ("linear", ("ttft", "chunk", "mixed"), "prefill_token_s", "probe chunk"),
        ("roofline_max", ("ttft", "chunk", "mixed"), "prefill_pair_s", "probe ttft"),
        ("host_device", ("decode", "ttft", "mixed"), "host_decode_s", "decode: one request"),
    ],
)
def test_refusal_names_coefficient_and_probe(
    tmp_path: Path, formula: str, without: tuple[str, ...], name: str, probe: str
) -> None:
    cases = [case for case in plan(LIMITS) if case.probe not in without]
    path = Device(model_of(formula), num_launches=2, num_repeats=1).write(tmp_path / "rows.jsonl", cases)
    with pytest.raises(InputError, match=f"do not determine.*{name}.*of formula {formula}.*{probe}"):
        fit(averaged(observe([read_measurements(path)])), formula)


def test_padding_is_seen_in_fitting_and_prediction_alike(grid: tuple[Observation, ...]) -> None:
    sizes = (1, 8, 32)
    model = FORMULAS["additive"](TRUTH["additive"], *OVERHEADS, graph_sizes=sizes)
    exact = Design(grid).predict(model)
    observations = [replace(one, measured_s=time_s) for one, time_s in zip(grid, exact.tolist(), strict=True)]
    found = fit(observations, "additive", graph_sizes=sizes)
    assert found.coefficients["token_s"].value == pytest.approx(TRUTH["additive"]["token_s"], rel=1e-4)
    assert found.step_time().elapsed(grid[-1].stretches[0][0]) == pytest.approx(
        model.elapsed(grid[-1].stretches[0][0]), rel=1e-4
    )
