"""Profiles as they may as well be: drawn as stated, one draw for all that is compared, and apart from the workload."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pydantic import ValidationError

from simulator.experiment import compare, run
from simulator.profile import load_profile
from simulator.scenario import Scenario, load
from simulator.streams import stream
from simulator.uncertainty import Uncertainty, drawn, not_drawn, profile_share, uncertainty_of

PROFILE = "qwen3-0.6b-ascend910-a3"
SCENARIO = """
name: drawn
engine: {dialect: vllm-0.23, async_scheduling: false, max_model_len: 4096, max_num_seqs: 8}
profile: qwen3-8b-ascend-910b
cluster: {instances: 1}
workload:
  tenants:
    - name: chat
      synthetic:
        num_requests: 40
        arrivals: ARRIVALS
        suffix_tokens: 500
        output_tokens: 20
routing: [round_robin, random]
replications: 6
"""


def scenario(
    tmp_path, arrivals: str = "{process: poisson, rate_per_s: 2}", profile: str = "qwen3-8b-ascend-910b"
) -> Scenario:
    path = tmp_path / "drawn.yaml"
    path.write_text(SCENARIO.replace("ARRIVALS", arrivals).replace("qwen3-8b-ascend-910b", profile))
    return load(path)


def test_draws_have_the_stated_deviations_and_correlations():
    profile = load_profile(PROFILE)
    known = profile.uncertainty
    rng = stream(0, "uncertainty")
    draws = [drawn(profile, rng).coefficients for _ in range(3_000)]
    values = np.array([[one[name].value for name in known.names] for one in draws])
    errors = np.log(values / [profile.coefficients[name].value for name in known.names])
    # Standard errors of a deviation and of a correlation from 3,000 draws: 1.3 % and at most 0.018.
    assert errors.std(axis=0) == pytest.approx(known.deviations, rel=0.06)
    assert np.corrcoef(errors.T) == pytest.approx(np.array(known.correlations), abs=0.08)
    assert errors.mean(axis=0) == pytest.approx(0, abs=4 * max(known.deviations) / np.sqrt(3_000))


def test_the_article_says_how_well_it_knows_its_coefficients():
    """Device time a token and a pair make up the same measured times, so that an error in one is made good by the
    other's: their sum is known better than either."""
    known = load_profile(PROFILE).uncertainty
    token, pair = known.names.index("prefill_token_s"), known.names.index("prefill_pair_s")
    assert known.correlations[token][pair] < -0.5


def test_a_profile_without_a_statement_has_its_standard_errors_each_for_itself():
    profile = load_profile("llama-3.1-8b-h100-sxm")
    known = uncertainty_of(profile)
    assert profile.uncertainty is None
    assert set(known.names) == {name for name, one in profile.coefficients.items() if one.standard_error}
    assert np.array_equal(known.correlations, np.eye(len(known.names)))
    assert uncertainty_of(load_profile("linear-8ms-50us")) is None
    assert drawn(load_profile("linear-8ms-50us"), stream(0, "none")) == load_profile("linear-8ms-50us")


def test_priors_that_nobody_doubts_are_named():
    assert not_drawn(load_profile(PROFILE)) == ["device_step_s", "decode_token_s", "decode_context_s"]


def test_one_draw_serves_all_policies_and_one_replication_has_the_profile_as_fitted(tmp_path):
    """On one instance all policies are the same: they stay the same under any draw."""
    described = scenario(tmp_path)
    comparison = compare(described, jobs=1)
    assert comparison.provenance.draws_profile
    first, second = (comparison.samples(policy, "ttft_mean_s") for policy in comparison.policies)
    assert first == second
    as_fitted = compare(described, jobs=1, draws_profile=False).samples("round_robin", "ttft_mean_s")
    assert not set(first) & set(as_fitted)
    assert [one.summary()["ttft_mean_s"] for one in comparison.as_fitted] == as_fitted
    mirrored = [one.summary()["ttft_mean_s"] for one in comparison.mirrored]
    assert not set(mirrored) & {*first, *as_fitted}
    alone = compare(described.changed(replications=1), jobs=1)
    assert not alone.provenance.draws_profile
    assert alone.samples("round_robin", "ttft_mean_s") == as_fitted[:1]


def test_arrivals_are_the_same_whatever_the_profile(tmp_path):
    described = scenario(tmp_path)
    spec = described.routing[0]
    first, second = (run(described, router=spec, replication=1, draws_profile=draws) for draws in (True, False))
    assert first.requests["arrival_s"].sort_values().tolist() == second.requests["arrival_s"].sort_values().tolist()


def test_where_only_the_profile_varies_all_of_the_variance_is_its(tmp_path):
    """Equal prompts at equal gaps, far apart: every replication is the same but for the profile. With Poisson arrivals
    output throughput is the arrivals' alone. What is not linear in the errors is not told from chance, and is much only
    where they are large (here up to a factor of e)."""
    equal = "{process: fixed, rate_per_s: 0.5}"
    assert compare(scenario(tmp_path, equal, PROFILE), jobs=1).profile_share("ttft_p90_s") == pytest.approx(1, abs=0.01)
    assert compare(scenario(tmp_path, equal), jobs=1).profile_share("ttft_p90_s") > 0.75
    mixed = compare(scenario(tmp_path), jobs=1)
    assert (mixed.profile_share("output_tokens_per_s") or 0) < 0.2
    assert mixed.profile_share("ttft_p90_s") > 0.2


@pytest.mark.parametrize(
    ("workload", "profile", "chance"), [(0.0, 1.0, 0.0), (1.0, 1.0, 0.0), (2.0, 1.0, 1.0), (0.1, 1.0, 3.0)]
)
def test_what_chance_moves_is_not_laid_to_the_profile(workload, profile, chance):
    """Of sums of independent parts with known variances; the standard error of 4,000 is at most 2 points."""
    found = profile_share(*made_of_parts(stream(0, "parts"), 4_000, workload, profile, chance))
    assert found == pytest.approx(profile / (workload + profile + chance), abs=0.06)


def test_chance_alone_is_taken_for_the_profile_one_time_in_twenty():
    rng = stream(0, "chance")
    found = [profile_share(*made_of_parts(rng, 10, 0.5, 0.0, 1.0)) for _ in range(1_000)]
    assert sum(share is not None for share in found) == pytest.approx(50, abs=3 * math.sqrt(1_000 * 0.05 * 0.95))


def made_of_parts(rng, number, workload, profile, chance):
    """Of so many replications: with the profile as drawn, mirrored, and as fitted."""
    common, errors = (math.sqrt(part) * rng.standard_normal(number) for part in (workload, profile))
    return [common + sign * errors + math.sqrt(chance) * rng.standard_normal(number) for sign in (1, -1, 0)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"deviations": (0.1,)}, "2 different names and as many deviations"),
        ({"names": ("a", "a")}, "2 different names"),
        ({"correlations": ((1.0, 0.5), (0.4, 1.0))}, "symmetric"),
        ({"correlations": ((1.0,), (1.0,))}, "symmetric"),
    ],
)
def test_a_bad_statement_is_refused(changes, message):
    good = {"names": ("a", "b"), "deviations": (0.1, 0.2), "correlations": ((1.0, 0.5), (0.5, 1.0)), "source": "a test"}
    Uncertainty(**good)
    with pytest.raises(ValidationError, match=message):
        Uncertainty(**(good | changes))
