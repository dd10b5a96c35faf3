"""Step time: closed forms, stretches, arrays, overhead, what a prediction rests on."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.plan import Plan
from simulator.profile import MeasuredRange
from simulator.step_time import (
    FORMULAS,
    MEASURED,
    OUTSIDE,
    PRIOR,
    Additive,
    HostDevice,
    Linear,
    Padding,
    RooflineMax,
)

HOST_DEVICE = {
    "host_prefill_s": 0.037,
    "host_decode_s": 0.033,
    "prefill_token_s": 7e-6,
    "prefill_pair_s": 1.4e-9,
    "device_step_s": 1e-3,
    "decode_token_s": 6e-6,
    "decode_context_s": 1.1e-7,
    "host_request_s": 2e-6,
}
LINEAR = {
    "step_s": 0.008,
    "prefill_token_s": 50e-6,
    "prefill_pair_s": 1e-9,
    "decode_token_s": 2e-5,
    "decode_context_s": 1e-7,
}
ADDITIVE = {
    "step_s": 0.005,
    "token_s": 50e-6,
    "request_s": 2e-5,
    "prefill_pair_s": 1e-9,
    "context_s": 1e-7,
    "prefill_step_s": 1e-3,
}
ROOFLINE_MAX = {
    "host_step_s": 0.004,
    "token_s": 50e-6,
    "weights_s": 0.006,
    "host_request_s": 2e-5,
    "prefill_pair_s": 1e-9,
    "context_s": 1e-7,
}
MIXTURE = ROOFLINE_MAX | {
    "experts_s": 0.02,
    "expert_share": 1 / 16,
    "mixed_context_s": 5e-8,
    "chunk_context_s": 4e-6,
    "corner": 3.0,
}
VALUES = {"host_device": HOST_DEVICE, "linear": LINEAR, "additive": ADDITIVE, "roofline_max": MIXTURE}
RANGE = MeasuredRange(max_prefill_tokens=16398, max_context=16461, max_decodes=1, max_prefills=1, mixed_steps=False)


MIXED = Plan(16, 16 * 4000, 1, 2000, 2_001_000, 4000)


def decode(num_decodes: int, context: int) -> Plan:
    return Plan(num_decodes=num_decodes, decode_context=num_decodes * context, max_context=context)


def later(plan: Plan, step: int) -> Plan:
    """The plan of the stretch's step number ``step``, counted from 0, as a plan of its own."""
    return Plan(
        num_decodes=plan.num_decodes,
        decode_context=plan.decode_context + step * plan.num_decodes,
        max_context=plan.max_context + step,
    )


def test_linear_is_its_sum() -> None:
    plan = Plan(num_decodes=3, decode_context=3000, num_prefills=1, num_prefill_tokens=100, prefill_pairs=5050)
    assert Linear(LINEAR).elapsed(plan) == pytest.approx(0.008 + 100 * 50e-6 + 5050e-9 + 3 * 2e-5 + 3000e-7, rel=1e-12)


def test_host_and_device_overlap() -> None:
    """Closed form at equal times (2^(1/4) of either); tends to the longer one at both ends; never below it."""
    # 1 ms of weights, 4,000 tokens at 7 us, 8 ms of pairs at 1.4 ns: 37 ms of device time beside 37 ms of host time.
    model = HostDevice(HOST_DEVICE | {"host_request_s": 0.0})
    equal = Plan(num_prefills=1, num_prefill_tokens=4000, prefill_pairs=0.008 / 1.4e-9)
    assert model.elapsed(equal) == pytest.approx(0.037 * 2**0.25, rel=1e-12)
    assert model.elapsed(Plan(num_prefills=1, num_prefill_tokens=1)) == pytest.approx(0.037, rel=1e-6)
    assert model.elapsed(Plan(num_prefills=1, num_prefill_tokens=10**6)) == pytest.approx(7.001, rel=1e-6)
    assert model.elapsed(decode(1, 10)) == pytest.approx(0.033, rel=1e-6)


def test_chunk_beside_decodes_costs_more_than_either() -> None:
    for name, formula in FORMULAS.items():
        model = formula(VALUES[name])
        chunk = Plan(num_prefills=1, num_prefill_tokens=2000, prefill_pairs=2_001_000)
        both = Plan(64, 64 * 4000, 1, 2000, 2_001_000)
        assert model.elapsed(both) > max(model.elapsed(chunk), model.elapsed(decode(64, 4000)))


def test_linear_stretch_is_the_sum_of_its_steps() -> None:
    model = Linear(LINEAR)
    plan = decode(17, 1234)
    for num_steps in (1, 2, 3, 128, 1000):
        steps = math.fsum(model.elapsed(later(plan, step)) for step in range(num_steps))
        assert model.elapsed(plan, num_steps) == pytest.approx(steps, rel=1e-13)


@pytest.mark.parametrize("num_decodes", [1, 16, 256])
@pytest.mark.parametrize("context", [100, 2000, 16000])
@pytest.mark.parametrize("num_steps", [1, 2, 128, 1000])
def test_mean_context_rule_stays_within_its_stated_bound(num_decodes: int, context: int, num_steps: int) -> None:
    """Below the step-by-step sum, by a share of at most 0.044 (a / host)^2 (docstring of ``elapsed``)."""
    model = HostDevice(HOST_DEVICE)
    plan = decode(num_decodes, context)
    steps = math.fsum(model.elapsed(later(plan, step)) for step in range(num_steps))
    growth = num_steps * num_decodes * HOST_DEVICE["decode_context_s"]
    bound = 0.044 * (growth / HOST_DEVICE["host_decode_s"]) ** 2
    share = 1 - model.elapsed(plan, num_steps) / steps
    assert -1e-13 < share < bound + 1e-13


def test_mean_context_rule_is_tiny_up_to_a_block_of_full_batches() -> None:
    """A stretch ends where a request crosses a block border: 128 steps of 256 decodes are off by less than 0.06 %."""
    growth = 128 * 256 * HOST_DEVICE["decode_context_s"]
    assert 0.044 * (growth / HOST_DEVICE["host_decode_s"]) ** 2 < 6e-4


@pytest.mark.parametrize("name", FORMULAS)
def test_time_grows_along_a_stretch(name: str) -> None:
    model = FORMULAS[name](VALUES[name])
    ends = [model.elapsed(decode(32, 3000), num_steps) for num_steps in range(1, 300)]
    assert all(end > before for before, end in pairwise(ends))


@pytest.mark.parametrize("name", FORMULAS)
def test_arrays_and_floats_agree(name: str) -> None:
    """Fitting calls the function that prediction calls."""
    model = FORMULAS[name](VALUES[name])
    draw = random.Random(5)
    plans = [
        Plan(draw.randrange(300), draw.randrange(10**6), draw.randrange(2), draw.choice([0, 14, 2048]), draw.random())
        for _ in range(50)
    ]
    arrays = Plan()
    for attribute in ("num_decodes", "decode_context", "num_prefills", "num_prefill_tokens", "prefill_pairs"):
        setattr(arrays, attribute, np.array([getattr(plan, attribute) for plan in plans]))
    steps = np.arange(1, 51)
    one_by_one = [model.elapsed(plan, int(num_steps)) for plan, num_steps in zip(plans, steps, strict=True)]
    np.testing.assert_allclose(model.elapsed(arrays, steps), one_by_one, rtol=1e-14)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FORMULAS)
def test_missing_coefficient_is_refused(name: str) -> None:
    formula = FORMULAS[name]
    assert set(VALUES[name]) == set(formula.coefficients)
    for missing in formula.coefficients:
        given = {key: value for key, value in VALUES[name].items() if key != missing}
        if missing in formula.optional:
            assert formula(given).elapsed(MIXED) == formula(given | {missing: 0.0}).elapsed(MIXED)
        else:
            with pytest.raises(KeyError, match=missing):
                formula(given)


@pytest.mark.parametrize("name", FORMULAS)
def test_every_coefficient_takes_time_and_twice_all_is_twice_the_time(name: str) -> None:
    """Homogeneous of degree one and growing in each coefficient but the model's own numbers: a fit starts from both."""
    formula, values = FORMULAS[name], VALUES[name]
    plans = (MIXED, decode(8, 1000))
    for plan in plans:
        twice = {key: (1 if key in formula.shape else 2) * value for key, value in values.items()}
        doubled = formula(twice).elapsed(plan)
        assert doubled == pytest.approx(2 * formula(values).elapsed(plan), rel=1e-12)
    for key in values.keys() - formula.shape:
        more = formula(values | {key: 2 * values[key]})
        assert any(more.elapsed(plan) > formula(values).elapsed(plan) for plan in plans), key


def test_additive_is_its_sum() -> None:
    context = 16 * 4000 + 2_001_000 / 2000
    expected = 0.005 + 1e-3 + 17 * 2e-5 + (2000 + 16) * 50e-6 + 2_001_000 * 1e-9 + context * 1e-7
    assert Additive(ADDITIVE).elapsed(MIXED) == pytest.approx(expected, rel=1e-12)


def test_tokens_are_free_while_the_weights_are_read() -> None:
    """At the corner arithmetic takes as long as the weights: 2^(1/4) above either. Far from it: the longer one."""
    bare = ROOFLINE_MAX | {"host_step_s": 0.0, "host_request_s": 0.0}
    model = RooflineMax(bare)
    assert model.elapsed(Plan(num_decodes=1)) == pytest.approx(0.006, rel=1e-6)
    assert model.elapsed(Plan(num_prefills=1, num_prefill_tokens=120)) == pytest.approx(0.006 * 2**0.25, rel=1e-12)
    assert model.elapsed(Plan(num_prefills=1, num_prefill_tokens=12_000)) == pytest.approx(0.6, rel=1e-6)


def test_batches_are_padded_to_the_next_captured_size() -> None:
    """Between two captured sizes a step costs what the larger one costs; beyond the last, what it is."""
    padding = Padding((1, 2, 4, 8, 16))
    expected = {0: 0, 1: 1, 2: 2, 3: 4, 4: 4, 5: 8, 8: 8, 9: 16, 16: 16, 17: 17, 100: 100}
    assert {number: padding(number) for number in expected} == expected
    counts = np.arange(101.0)
    np.testing.assert_array_equal(padding(counts), [padding(int(count)) for count in counts])
    padded = Additive(ADDITIVE | {"request_s": 0.0, "context_s": 0.0}, graph_sizes=(1, 2, 4, 8))
    assert padded.elapsed(Plan(num_decodes=5)) == padded.elapsed(Plan(num_decodes=8)) > padded.elapsed(decode(4, 0))


@pytest.mark.parametrize("sizes", [(0, 1), (2, 1), (1, 1)])
def test_captured_sizes_ascend(sizes: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="ascending positive"):
        Padding(sizes)


def test_overhead_delays_in_proportion_to_the_whole_prompt() -> None:
    model = Linear(LINEAR, overhead_constant_s=0.001, overhead_prompt_token_s=0.65e-6)
    assert model.overhead_s(16398) == pytest.approx(0.0116587, rel=1e-9)
    assert Linear(LINEAR).overhead_s(16398) == 0


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (Plan(num_prefills=1, num_prefill_tokens=16398, max_context=16398), MEASURED),
        (Plan(num_prefills=1, num_prefill_tokens=14, max_context=16398), MEASURED),
        (decode(1, 16461), MEASURED),
        (decode(2, 100), PRIOR),
        (Plan(1, 100, 1, 14, 105, 100), PRIOR),
        (Plan(num_prefills=2, num_prefill_tokens=28, max_context=14), PRIOR),
        (decode(1, 16462), OUTSIDE),
        (Plan(num_prefills=2, num_prefill_tokens=16399, max_context=8200), OUTSIDE),
    ],
)
def test_support_says_what_a_prediction_rests_on(plan: Plan, expected: int) -> None:
    assert HostDevice(HOST_DEVICE, measured=RANGE).support(plan) == expected


def test_nothing_measured_means_prior_everywhere() -> None:
    assert Linear(LINEAR).support(decode(1, 10**6)) == PRIOR


def test_experts_are_read_as_tokens_choose_them() -> None:
    """Of 16 experts a token reads one, two tokens 1 + 15/16; with hundreds of tokens all are read."""
    bare = dict.fromkeys(ROOFLINE_MAX, 0.0) | {"experts_s": 0.016, "expert_share": 1 / 16}
    model = RooflineMax(bare)
    assert model.elapsed(Plan(num_decodes=1)) == pytest.approx(0.001, rel=1e-12)
    assert model.elapsed(Plan(num_decodes=2)) == pytest.approx(0.001 * (1 + 15 / 16), rel=1e-12)
    assert model.elapsed(Plan(num_decodes=500)) == pytest.approx(0.016, rel=1e-6)
