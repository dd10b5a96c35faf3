"""Fitting: recovery of known coefficients, the published figures, the shipped profile, bad rows."""

from __future__ import annotations

import csv
import importlib.resources
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from calibration.cli import calibrate
from calibration.fit import fit
from calibration.geometry import load_geometry
from calibration.measurement import SummaryRow, read_measurements, read_together
from calibration.observations import Design, Observation, observe
from calibration.roofline import Prior, load_device, roofline
from simulator.errors import InputError
from simulator.plan import Plan
from simulator.profile import Profile, load_profile
from simulator.step_time import FORMULAS

DEVICE = "Atlas 800 A3 560T one die"
ARTICLE = Path(str(importlib.resources.files("calibration"))) / "data" / "ascend_article"
TRUTH = {
    "host_device": {
        "host_prefill_s": 0.030,
        "host_decode_s": 0.020,
        "prefill_token_s": 9e-6,
        "prefill_pair_s": 2e-9,
        "device_step_s": 4e-3,
        "decode_token_s": 5e-5,
        "decode_context_s": 2e-7,
        "host_request_s": 4e-5,
    },
    "linear": {
        "step_s": 0.012,
        "prefill_token_s": 9e-6,
        "prefill_pair_s": 2e-9,
        "decode_token_s": 5e-5,
        "decode_context_s": 2e-7,
    },
    "additive": {
        "step_s": 0.008,
        "token_s": 9e-6,
        "request_s": 6e-5,
        "prefill_pair_s": 2e-9,
        "context_s": 2e-7,
        "prefill_step_s": 0.004,
    },
    "roofline_max": {
        "host_step_s": 0.004,
        "token_s": 9e-6,
        "weights_s": 0.012,
        "host_request_s": 6e-5,
        "prefill_pair_s": 2e-9,
        "context_s": 2e-7,
    },
}


def priors() -> dict[str, Prior]:
    return roofline(load_geometry("Qwen/Qwen3-0.6B"), load_device(DEVICE))


def synthetic(formula: str, count: int, noise: float, seed: int) -> list[Observation]:
    """Steps whose times are the formula's own, off by a relative normal error of ``noise``."""
    draw = np.random.default_rng(seed)
    model = FORMULAS[formula](TRUTH[formula])
    observations = []
    for index in range(count):
        num_decodes, context = int(draw.integers(1, 257)), int(draw.integers(100, 8000))
        new, computed = int(draw.integers(16, 8192)), int(draw.integers(0, 8192))
        decode = Plan(num_decodes=num_decodes, decode_context=num_decodes * context, max_context=context)
        pairs = new * computed + new * (new + 1) // 2
        chunk = Plan(num_prefills=1, num_prefill_tokens=new, prefill_pairs=pairs, max_context=new + computed)
        plan = decode if index % 2 else chunk
        measured_s = model.elapsed(plan) * (1 + noise * draw.standard_normal())
        observations.append(Observation(f"step {index}", plan.max_context, measured_s, None, ((plan, 1),)))
    return observations


def shipped_step_time() -> Any:
    return load_profile("qwen3-0.6b-ascend910-a3").step_time()


@pytest.mark.parametrize("formula", FORMULAS)
def test_exact_rows_give_the_coefficients_back(formula: str) -> None:
    result = fit(synthetic(formula, 200, 0.0, seed=1), formula, priors())
    for name, true in TRUTH[formula].items():
        assert result.coefficients[name].value == pytest.approx(true, rel=1e-5), name
    assert max(abs(residual.relative_error) for residual in result.errors.held_out) < 1e-4


@pytest.mark.parametrize("formula", FORMULAS)
def test_standard_errors_cover_the_truth_and_shrink_with_the_square_root(formula: str) -> None:
    """Quadrupling the rows halves every standard error; the truth lies within four of them."""
    few = fit(synthetic(formula, 400, 0.02, seed=2), formula, priors())
    many = fit(synthetic(formula, 1600, 0.02, seed=3), formula, priors())
    for name, true in TRUTH[formula].items():
        few_error, many_error = few.coefficients[name].standard_error, many.coefficients[name].standard_error
        assert few_error is not None
        assert many_error is not None
        assert many_error / few_error == pytest.approx(0.5, rel=0.3), name
        assert abs(many.coefficients[name].value - true) < 4 * many_error, name


def test_held_out_error_of_noisy_rows_is_their_noise() -> None:
    result = fit(synthetic("linear", 1600, 0.02, seed=4), "linear", priors())
    errors = [residual.relative_error for residual in result.errors.held_out]
    assert len(errors) == 1600
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(0.02, rel=0.15)


def test_wrong_formula_shows_in_the_held_out_error() -> None:
    """The published medians are no sum of linear terms: ``linear`` is an order of magnitude worse on them."""
    observations = observe([read_measurements(ARTICLE / "long_input.jsonl")])
    worst = {
        formula: max(abs(residual.relative_error) for residual in fit(observations, formula, priors()).errors.held_out)
        for formula in ("host_device", "linear")
    }
    assert worst["linear"] > 10 * worst["host_device"]


def test_roofline_agrees_with_what_was_measured_of_the_device() -> None:
    """Attention within 15 % and matrices within 35 % of the fitted times: a prior of the right size, no more."""
    profile = load_profile("qwen3-0.6b-ascend910-a3")
    prior = priors()
    assert profile.coefficients["prefill_pair_s"].value == pytest.approx(prior["prefill_pair_s"].value, rel=0.15)
    assert profile.coefficients["prefill_token_s"].value == pytest.approx(prior["prefill_token_s"].value, rel=0.35)


def test_published_medians_in_sample() -> None:
    """In sample: the eight TTFT medians of the article to 0.5 %. These rows were fitted."""
    observations = observe([read_measurements(ARTICLE / "long_input.jsonl")])
    predicted = Design(observations).predict(shipped_step_time())
    ttft = [(o.measured_s, p) for o, p in zip(observations, predicted, strict=True) if o.case.startswith("TTFT")]
    assert len(ttft) == 8
    for measured_s, predicted_s in ttft:
        assert predicted_s == pytest.approx(measured_s, rel=0.005)


@pytest.mark.parametrize(("cached", "total_s"), [(0, 2.41080), (16384, 2.14290)])
def test_published_totals_at_16k(cached: int, total_s: float) -> None:
    """Totals of 64 tokens were published beside their parts, so that they were not fitted themselves."""
    model, prompt, new = shipped_step_time(), 16398, 16398 - cached
    pairs = new * cached + new * (new + 1) // 2
    prefill = Plan(num_prefills=1, num_prefill_tokens=new, prefill_pairs=pairs, max_context=prompt)
    decode = Plan(num_decodes=1, decode_context=prompt + 1, max_context=prompt + 1)
    predicted = model.overhead_s(prompt) + model.elapsed(prefill) + model.elapsed(decode, 63)
    assert predicted == pytest.approx(total_s, rel=0.03)


def test_never_fitted_launches_at_another_token_budget() -> None:
    """Held out: the 1K input at a budget of 2,048, three launches. They differ among themselves by 3 %."""
    observations = observe([read_measurements(ARTICLE / "short_input.jsonl")])
    predicted = Design(observations).predict(shipped_step_time())
    assert len(observations) == 12
    errors = [p / o.measured_s - 1 for o, p in zip(observations, predicted, strict=True)]
    assert max(map(abs, errors)) < 0.04
    assert max(errors) < 0  # every one of them was slower than the other setting's rows predict


def test_every_length_was_predicted_from_the_others() -> None:
    profile = load_profile("qwen3-0.6b-ascend910-a3")
    assert len(profile.errors.held_out) == 8
    assert profile.errors.num_not_held_out == 2  # decode was published at one length only
    assert profile.held_out_error is not None
    assert profile.in_sample_error is not None
    assert profile.in_sample_error < profile.held_out_error < 0.03


def test_shipped_rows_are_the_published_table() -> None:
    rows = {
        (row.num_prompt_tokens, row.num_cached_tokens): row
        for row in read_measurements(ARTICLE / "long_input.jsonl").rows
        if isinstance(row, SummaryRow)
    }
    with (ARTICLE / "prefix_cache_ttft.csv").open(encoding="utf-8") as table:
        published = list(csv.DictReader(table))
    assert len(rows) == 2 * len(published) == 8
    for line in published:
        for state, cached in (("cold", 0), ("warm", int(line["prefix_tokens"]))):
            row = rows[int(line["input_tokens"]), cached]
            assert row.ttft_s == pytest.approx(float(line[f"{state}_ttft_ms"]) / 1000, rel=1e-12)
            if line[f"{state}_tpot_ms"]:
                assert row.tpot_s is not None
                assert row.tpot_s == pytest.approx(float(line[f"{state}_tpot_ms"]) / 1000, rel=2e-4)


def run_fit(*arguments: str) -> Any:
    return CliRunner().invoke(calibrate, ["fit", *arguments])


def test_command_reproduces_the_shipped_profile(tmp_path: Path) -> None:
    output = tmp_path / "qwen3-0.6b-ascend910-a3.json"
    result = run_fit(
        str(ARTICLE / "long_input.jsonl"), "--prior", "roofline", "--device", DEVICE, "-o", str(output)
    )
    assert result.exit_code == 0, result.output
    assert "held out" in result.output
    shipped = load_profile("qwen3-0.6b-ascend910-a3").model_dump()
    assert_alike(load_profile(output).model_dump(), shipped)


def assert_alike(found: Any, expected: Any, where: str = "profile") -> None:
    """Equal, floats to 0.01 % (a standard error to 1 %: it is a difference of nearly equal numbers)."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key, value in expected.items():
            assert_alike(found[key], value, f"{where}.{key}")
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), where
        for index, value in enumerate(expected):
            assert_alike(found[index], value, f"{where}[{index}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-2 if where.endswith("standard_error") else 1e-4), where
    else:
        assert found == expected, where


def test_fit_without_rows_shows_usage() -> None:
    result = run_fit()
    assert result.exit_code == 2
    assert "Usage:" in result.output
    assert "ROWS" in result.output
    result = run_fit("--device", DEVICE, "-o", "x.json")
    assert result.exit_code == 2
    assert "Missing argument 'ROWS" in result.output


def lines() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ARTICLE / "long_input.jsonl").read_text(encoding="utf-8").splitlines()]


def write(path: Path, records: list[Any]) -> Path:
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in records) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"ttft_s": float("nan")}, "ttft_s: input should be a finite number"),
        ({"ttft_s": -0.1}, "ttft_s: input should be greater than 0"),
        ({"ttft_s": 0}, "ttft_s: input should be greater than 0"),
        ({"ttft_s": "0.1"}, "ttft_s: input should be a valid number"),
        ({"ttft_s": None}, "the row holds no time"),
        ({"ttft_ms": 37.0}, "ttft_ms: unknown key"),
        ({"num_prompt_tokens": 10.5}, "num_prompt_tokens: input should be a valid integer"),
        ({"num_cached_tokens": 1038}, "at most the prompt minus one"),
        ({"covariates": {}}, "covariates.max_num_batched_tokens: missing"),
        ({"kind": "sumary"}, "sumary"),
        ("{", "not JSON"),
        ("[1, 2]", "not a JSON object"),
        ("prefix_tokens,input_tokens", "not JSON"),
    ],
)
def test_bad_row_is_refused_with_file_and_line(tmp_path: Path, record: dict[str, Any] | str, message: str) -> None:
    records: list[Any] = lines()
    records[3] = {**records[1], **record} if isinstance(record, dict) else record
    with pytest.raises(InputError, match=message) as refusal:
        read_measurements(write(tmp_path / "rows.jsonl", records))
    assert "rows.jsonl:4: " in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_missing_column_is_named(tmp_path: Path) -> None:
    records = lines()
    del records[2]["num_cached_tokens"]
    with pytest.raises(InputError, match=r"rows\.jsonl:3: num_cached_tokens: missing"):
        read_measurements(write(tmp_path / "rows.jsonl", records))


def test_identities_are_never_mixed(tmp_path: Path) -> None:
    records = lines()
    other = json.loads(json.dumps(records[0]))
    other["identity"]["cann"] = "8.0.0"
    with pytest.raises(InputError, match=r"rows\.jsonl:10: identity\.cann is '8\.0\.0', earlier rows have '9\.1\.0'"):
        read_measurements(write(tmp_path / "rows.jsonl", [*records, other, records[1]]))
    second = write(tmp_path / "second.jsonl", [other, records[1]])
    with pytest.raises(InputError, match=r"second\.jsonl: identity\.cann"):
        read_together([ARTICLE / "long_input.jsonl", second])


def test_a_launch_may_append_its_header_again(tmp_path: Path) -> None:
    records = lines()
    both = read_measurements(write(tmp_path / "rows.jsonl", [*records, *records]))
    assert len(both.rows) == 16


def test_file_without_rows_or_header_is_refused(tmp_path: Path) -> None:
    records = lines()
    with pytest.raises(InputError, match=r"rows\.jsonl: no rows"):
        read_measurements(write(tmp_path / "rows.jsonl", records[:1]))
    with pytest.raises(InputError, match=r"rows\.jsonl:1: a row before any header"):
        read_measurements(write(tmp_path / "rows.jsonl", records[1:]))


def test_rows_that_determine_nothing_of_decode_are_refused() -> None:
    """Host time has no prior: it must be measured."""
    observations = [o for o in observe([read_measurements(ARTICLE / "long_input.jsonl")]) if o.case.startswith("TTFT")]
    with pytest.raises(InputError, match="do not determine host_decode_s.*probe decode"):
        fit(observations, "host_device", priors())
    everything = observe([read_measurements(ARTICLE / "long_input.jsonl")])
    with pytest.raises(InputError, match="do not determine decode_token_s.*probe decode: at least two batch sizes"):
        fit(everything, "host_device")


def test_fewer_times_than_coefficients_are_refused() -> None:
    observations = observe([read_measurements(ARTICLE / "long_input.jsonl")])
    cold_16k = [o for o in observations if "16398 prompt tokens, 0 cached" in o.case]
    with pytest.raises(InputError, match="2 measured times cannot determine"):
        fit(cold_16k, "host_device", priors())


def test_a_request_in_chunks_is_the_sum_of_its_steps(tmp_path: Path) -> None:
    """A 1,038-token prompt at a budget of 500 is three steps of 500, 500 and 38 tokens."""
    records = lines()[:2]
    records[1]["covariates"]["max_num_batched_tokens"] = 500
    (observation,) = observe([read_measurements(write(tmp_path / "rows.jsonl", records))])
    plans = [plan for plan, _ in observation.stretches]
    assert [plan.num_prefill_tokens for plan in plans] == [500, 500, 38]
    assert [plan.max_context for plan in plans] == [500, 1000, 1038]
    assert sum(plan.prefill_pairs for plan in plans) == 1038 * 1039 / 2
    model = shipped_step_time()
    expected = model.overhead_s(1038) + sum(model.elapsed(plan) for plan in plans)
    assert Design([observation]).predict(model)[0] == pytest.approx(expected, rel=1e-12)


def test_step_rows_fit_too(tmp_path: Path) -> None:
    """A file of single steps, batches included, leaves no coefficient of the formula to the prior."""
    header = lines()[0]
    rows = [
        {
            "kind": "step",
            "covariates": {"max_num_batched_tokens": 8192},
            "num_decodes": plan.num_decodes,
            "decode_context": plan.decode_context,
            "num_prefills": plan.num_prefills,
            "num_prefill_tokens": plan.num_prefill_tokens,
            "prefill_pairs": plan.prefill_pairs,
            "max_context": plan.max_context,
            "duration_s": observation.measured_s,
        }
        for observation in synthetic("host_device", 200, 0.005, seed=6)
        for plan, _ in observation.stretches
    ]
    path = write(tmp_path / "steps.jsonl", [header, *rows])
    result = run_fit(str(path), "--prior", "none", "--device", DEVICE, "-o", str(tmp_path / "fitted.json"))
    assert result.exit_code == 0, result.output
    profile: Profile = load_profile(tmp_path / "fitted.json")
    assert {coefficient.origin for coefficient in profile.coefficients.values()} == {"measured"}
    assert profile.measured is not None
    assert profile.measured.max_decodes > 200
    assert not profile.measured.mixed_steps


def test_geometry_must_be_of_the_measured_model_and_of_one_stage(tmp_path: Path) -> None:
    records = lines()
    records[0]["identity"]["pipeline_parallel_size"] = 2
    two_stages = write(tmp_path / "rows.jsonl", records)
    output = str(tmp_path / "fitted.json")
    result = run_fit(str(two_stages), "--device", DEVICE, "-o", output)
    assert isinstance(result.exception, InputError)
    assert "measured in 2 pipeline stages" in str(result.exception)
    shape = load_geometry("Qwen/Qwen3-0.6B").model_dump()
    other = write(tmp_path / "other.json", [{**shape, "model": "Qwen/Qwen3-8B"}])
    result = run_fit(str(ARTICLE / "long_input.jsonl"), "--device", DEVICE, "--geometry", str(other), "-o", output)
    assert isinstance(result.exception, InputError)
    assert "the rows are of 'Qwen/Qwen3-0.6B'" in str(result.exception)
    assert not Path(output).exists()


def test_profile_of_two_ranks_is_that_of_one(tmp_path: Path) -> None:
    """Rows of a tensor-parallel engine: memory, KV and priors are those of one rank, of the whole model's geometry."""
    records = lines()
    records[0]["identity"]["tensor_parallel_size"] = 2
    profiles = []
    for name, rows in (("one", lines()), ("two", records)):
        file, output = write(tmp_path / f"{name}.jsonl", rows), tmp_path / f"{name}.json"
        result = run_fit(str(file), "--prior", "roofline", "--device", DEVICE, "-o", str(output))
        assert result.exit_code == 0, result.output
        profiles.append(load_profile(output))
    one, two = profiles
    assert two.kv_bytes_per_token == one.kv_bytes_per_token // 2
    assert two.memory.weights.value == one.memory.weights.value // 2
    assert "one of 2 ranks" in two.provenance.description
    halved = two.coefficients["decode_context_s"]
    assert halved.origin == "prior"
    assert halved.value == pytest.approx(one.coefficients["decode_context_s"].value / 2, rel=1e-3)


def test_profile_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    result = run_fit(str(ARTICLE / "long_input.jsonl"), "--device", DEVICE, "-o", str(tmp_path / "no" / "x.json"))
    assert isinstance(result.exception, InputError)
    assert "cannot write the profile" in str(result.exception)
