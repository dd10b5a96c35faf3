"""Step noise: exact sums, the law it is drawn from, and law 7 with it."""

from __future__ import annotations

import json
import math
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from cluster_cases import MODES, Case, check, record, serve, step_time
from drawn_clusters import cases
from drawn_drafts import DraftingCase, drafting, noises
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_advancing import asks, small

from simulator import experiment
from simulator.errors import InputError
from simulator.noise import MAX_DEVIATIONS, StepNoise, draw_step_noise
from simulator.profile import Profile, load_profile, parse_profile
from simulator.scenario import Scenario, parse

STEP_S = 0.008  # of the profile linear-8ms-50us, which has no other decode time


def rounded(draw_s: float) -> Fraction:
    return Fraction(round(draw_s * 2**40), 2**40)


@given(st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=9), st.integers(0, 10**6), st.integers(0, 10**4))
@settings(derandomize=True, deadline=None)
def test_what_steps_take_together_is_the_exact_sum_of_their_draws(draws: list[float], first: int, num: int) -> None:
    """Wherever they begin, and however often the draws begin anew: no rounding, so nothing depends on the past."""
    noise = StepNoise(draws)
    laps, rest = divmod(num, len(draws))
    exact = laps * sum(map(rounded, draws)) + sum(rounded(draws[(first + k) % len(draws)]) for k in range(rest))
    if abs(exact) < 2**12:
        assert Fraction(noise.elapsed(first, num)) == exact


def test_draws_are_clipped_normal_ones() -> None:
    """Mean 0 within five standard errors; a clipped normal's variance is 1 - 2 (c phi(c) - (c^2 - 1) Q(c)), c = 3."""
    count, deviation_s = 2**14, 0.01
    noise = draw_step_noise(deviation_s, seed=0, replication=0, instance=0)
    draws = [noise.elapsed(number, 1) for number in range(count)]
    tail = math.erfc(MAX_DEVIATIONS / math.sqrt(2)) / 2
    density = math.exp(-(MAX_DEVIATIONS**2) / 2) / math.sqrt(2 * math.pi)
    variance = 1 - 2 * (MAX_DEVIATIONS * density - (MAX_DEVIATIONS**2 - 1) * tail)
    assert max(map(abs, draws)) == pytest.approx(MAX_DEVIATIONS * deviation_s, abs=1e-12)
    assert abs(math.fsum(draws)) < 5 * deviation_s * math.sqrt(count)
    found = math.fsum((draw / deviation_s) ** 2 for draw in draws) / count
    assert abs(found - variance) < 5 * math.sqrt(2 / count)
    assert noise.elapsed(count + 3, 5) == noise.elapsed(3, 5)  # the first follows the last


def test_each_instance_and_replication_has_its_own_stream() -> None:
    names = [(seed, replication, instance) for seed in (0, 1) for replication in (0, 1) for instance in (0, 1)]
    first = {draw_step_noise(1.0, *name).elapsed(0, 1) for name in names}
    assert len(first) == len(names)
    assert draw_step_noise(1.0, 1, 0, 1).elapsed(7, 9) == draw_step_noise(1.0, 1, 0, 1).elapsed(7, 9)


# --- on the clock


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_nth_step_that_is_launched_has_the_nth_draw(mode: dict[str, bool], asynchronous: bool) -> None:
    """Two answers one after the other, idleness between: steps of 0.25 s and a draw each, in their order."""
    draws = [2**-4, -(2**-5), 0.0, 2**-6, 2**-7]
    case = small(asks(0, 0.0, 1, 9), asks(1, 100.0, 1, 9), async_scheduling=asynchronous)
    seen = serve(case, noise=[StepNoise(draws)], **mode)
    num_steps = sum(one.num_steps for one in seen.advances)
    total = sum(one.end_s - one.start_s for one in seen.advances)
    assert total == 0.25 * num_steps + sum(draws[number % 5] for number in range(num_steps))
    first = seen.requests[0]
    assert first.first_token_s == 0.25 + draws[0]
    assert first.finish_s == 9 * 0.25 + sum(draws[number % 5] for number in range(9))
    second = seen.requests[1]
    before = num_steps // 2  # asynchronous: none is wasted, max_tokens is foreseen
    assert second.first_token_s == 100.0 + 0.25 + draws[before % 5]


def test_no_noise_is_noise_of_nothing() -> None:
    case = small(asks(0, 0.0, 3, 20), asks(1, 0.4, 5, 8), watch=True)
    assert record(serve(case, noise=[StepNoise([0.0])])) == record(serve(case))


def test_law_7_with_noise_and_drafts() -> None:
    """Advancing equals stepping to the bit, with noise that wraps around every few steps, and with drafts."""
    met: Counter[str] = Counter()

    @settings(
        max_examples=200, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(cases() | cases(pressed=True) | drafting() | drafting(pressed=True), st.data())
    def hold(case: Case, data: st.DataObject) -> None:
        shortest_s = step_time(case.formula, case.overhead, **case.coefficients).shortest_s()
        noise = data.draw(st.none() | noises(shortest_s, case.num_instances))
        seen = check(case, noise=noise)
        for one in seen["plain"].requests:
            assert one.state == "refused" or one.num_output_tokens == min(one.oracle_num_output_tokens, one.max_tokens)
        drafts, advances = isinstance(case, DraftingCase), seen["advancing"].advances
        met["noisy stretches"] += sum(one.num_steps > 1 for one in advances) if noise else 0
        met["noisy asynchronous stretches"] += (
            sum(one.num_steps > 1 for one in advances) if noise and case.engine["async_scheduling"] else 0
        )
        met["steps with drafts"] += len(advances) if drafts else 0
        met["preemptions with drafts"] += seen["plain"].num_preemptions if drafts else 0
        met["noisy preemptions"] += seen["plain"].num_preemptions if noise else 0

    hold()
    assert len(met) == 5
    assert min(met.values()) > 5, met


# --- from a profile to a result


def noisy(deviation_s: float, origin: str = "measured") -> Profile:
    data = load_profile("linear-8ms-50us").model_dump(mode="json")
    data["step_noise_s"] = {
        "value": deviation_s, "standard_error": 1e-5 if origin == "measured" else None, "unit": "s per step",
        "origin": origin, "source": "a test",
    }  # fmt: skip
    return Profile.model_validate_json(json.dumps(data))


def scenario(tmp_path: Any, profile: Profile | None, seed: int = 0) -> Scenario:
    name = "linear-8ms-50us"
    if profile is not None:
        (tmp_path / "noisy.json").write_text(profile.model_dump_json())
        name = "noisy.json"
    return parse(
        f"""
name: noisy
seed: {seed}
engine: {{dialect: vllm-0.32, max_model_len: 4096, num_gpu_blocks_override: 4000}}
profile: {name}
cluster: {{instances: 2}}
workload:
  tenants:
    - name: chat
      synthetic: {{num_requests: 30, arrivals: {{process: fixed, rate_per_s: 4}}, suffix_tokens: 100,
                  output_tokens: 50}}
routing: [round_robin, least_requests]
replications: 2
""",
        base_dir=tmp_path,
    )


def test_the_noise_of_a_profile_reaches_the_results(tmp_path: Any) -> None:
    """Other times than without it, their mean nearly the same; the same again for the same seed."""
    plain, loud = scenario(tmp_path, None), scenario(tmp_path, noisy(0.001))
    still, moved, again = (
        experiment.run(one, router="round_robin", replication=0).summary() for one in (plain, loud, loud)
    )
    assert moved == again
    assert moved["e2e_p50_s"] != still["e2e_p50_s"]
    # 30 answers of 50 steps: five standard errors of a step's mean.
    assert moved["tpot_mean_s"] == pytest.approx(still["tpot_mean_s"], abs=5 * 0.001 / math.sqrt(30 * 50))
    other = experiment.run(loud, router="round_robin", replication=1).summary()
    assert other["e2e_p50_s"] not in (moved["e2e_p50_s"], still["e2e_p50_s"])


def test_absent_and_zero_noise_are_the_same(tmp_path: Any) -> None:
    runs = [experiment.run(scenario(tmp_path, one), router="round_robin", replication=0) for one in (None, noisy(0.0))]
    assert runs[0].requests.equals(runs[1].requests)


def test_noise_that_could_halve_a_step_is_refused() -> None:
    assert noisy(STEP_S / 6, "prior").step_noise_s is not None
    text = noisy(0.001).model_dump_json().replace('"value":0.001,', '"value":0.0014,')
    with pytest.raises(InputError) as error:
        parse_profile(text, "p.json")
    assert str(error.value) == (
        "p.json: step_noise_s: 3 standard deviations are 0.0042 s, expected at most half of the shortest step (0.004 s)"
    )
