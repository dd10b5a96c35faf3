"""Checking: what was fitted is never scored, limits decide, noise is no pass; the article's 4K; the page."""

from __future__ import annotations

import importlib.resources
import json
import re
from pathlib import Path
from typing import Any

import pytest
from calibration_rows import LIMITS, Device, model_of
from click.testing import CliRunner, Result

from calibration.cli import calibrate
from calibration.hold_out import split
from calibration.measurement import read_measurements
from calibration.observations import averaged, measured_range, observe, unit_of
from calibration.probes import plan
from simulator.errors import InputError
from simulator.profile import Profile, load_profile

ARTICLE = Path(str(importlib.resources.files("calibration"))) / "data" / "ascend_article" / "long_input.jsonl"
DEVICE = "Atlas 800 A3 560T one die"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(calibrate, [str(argument) for argument in arguments])


def numbers(*arguments: str | Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(run("check", *arguments, "--json").output)
    return loaded


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    device = Device(model_of("additive"), launch_noise=0.003, noise=0.005)
    return device.write(tmp_path_factory.mktemp("rows") / "rows.jsonl")


@pytest.fixture(scope="module")
def profile(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "mine.json"
    result = run("fit", rows, "--formula", "additive", "-o", path)
    assert result.exit_code == 0, result.output
    return path


def slower(profile: Path, target: Path, share: float) -> Path:
    """The same profile with all times longer by ``share``."""
    tree = json.loads(profile.read_text(encoding="utf-8"))
    coefficients = [*tree["coefficients"].values(), *tree["overhead"].values()]
    for coefficient in coefficients:
        coefficient["value"] *= 1 + share
    target.write_text(json.dumps(tree), encoding="utf-8")
    return target


def test_a_device_that_keeps_to_the_formula_passes(rows: Path, profile: Path, tmp_path: Path) -> None:
    result = run("check", profile, rows, "-o", tmp_path / "check")
    assert result.exit_code == 0, result.output
    assert result.output.startswith("PASS")
    for regime in ("cold prefill", "warm prefill", "decode", "mixed"):
        assert f"{regime}, median" in result.output
    assert "total of all steps" in result.output
    assert (tmp_path / "check" / "predicted_against_measured.svg").read_text(encoding="utf-8").startswith("<?xml")
    written = json.loads((tmp_path / "check" / "check.json").read_text(encoding="utf-8"))
    assert written["verdict"] == "pass"


@pytest.mark.parametrize(
    ("share", "limits", "beyond"),
    [
        (0.12, (), "decode, median"),
        (0.04, (), "total of all steps"),
        (0.04, ("--limit-decode", "1%", "--limit-total", "50%"), "decode, median"),
        (0.30, ("--limit-decode", "50%", "--limit-prefill", "50%", "--limit-mixed", "0.5", "--limit-total", "50%"),
         "TTFT, worst case"),
    ],
)  # fmt: skip
def test_beyond_a_limit_is_exit_1_and_named(
    rows: Path, profile: Path, tmp_path: Path, share: float, limits: tuple[str, ...], beyond: str
) -> None:
    result = run("check", slower(profile, tmp_path / "slower.json", share), rows, *limits)
    assert result.exit_code == 1
    assert result.output.startswith("FAIL")
    assert re.search(rf"{beyond}.*BEYOND", result.output)
    assert re.search(r"furthest off:\n  \S.*predicted", result.output)


def test_fitted_and_scored_cases_never_overlap(rows: Path, profile: Path) -> None:
    loaded = load_profile(profile)
    fitted = {residual.case for residual in loaded.errors.in_sample}
    hold_out = loaded.provenance.hold_out
    assert hold_out is not None
    assert hold_out.cases
    assert not fitted & set(hold_out.cases)
    checked = numbers(profile, rows)
    # An overhead alone is no case: it is part of a time to first token.
    assert {case["case"] for case in checked["cases"]} == {
        case for case in hold_out.cases if not case.startswith("overhead")
    }
    assert checked["num_fitted_cases_not_scored"] == len(fitted)


def test_rows_added_later_make_no_fitted_case_new(rows: Path, profile: Path, tmp_path: Path) -> None:
    """Another launch of the same grid in the same file: still only the held-out cases are scored."""
    another = Device(model_of("additive"), launch_noise=0.003, noise=0.005, num_launches=1, seed=9)
    again = another.write(tmp_path / "again.jsonl")
    longer = tmp_path / "longer.jsonl"
    longer.write_text(rows.read_text(encoding="utf-8") + again.read_text(encoding="utf-8"), encoding="utf-8")
    first, second = numbers(profile, rows), numbers(profile, longer)
    assert [case["case"] for case in first["cases"]] == [case["case"] for case in second["cases"]]


def test_nothing_held_out_is_nothing_to_check(rows: Path, tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    assert run("fit", rows, "--formula", "additive", "--hold-out", "none", "-o", path).exit_code == 0
    result = run("check", path, rows)
    assert isinstance(result.exception, InputError)
    assert "every case of these rows was fitted" in str(result.exception)


def test_rows_of_another_device_are_refused(profile: Path, tmp_path: Path) -> None:
    lines = Device(model_of("additive")).lines(plan(LIMITS)[:3])
    for line in lines:
        if line["kind"] == "header":
            line["identity"] = line["identity"] | {"device": "another"}
    path = tmp_path / "other.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    result = run("check", profile, path)
    assert isinstance(result.exception, InputError)
    assert "identity.device is 'another'" in str(result.exception)


def test_a_noisy_machine_never_passes(profile: Path, tmp_path: Path) -> None:
    """Nine launches that differ by 12 % know a mean within 9 %, which cannot show 5 %, however small the errors are."""
    noisy = Device(model_of("additive"), launch_noise=0.12, num_launches=9, seed=4).write(tmp_path / "noisy.jsonl")
    path = tmp_path / "noisy.json"
    assert run("fit", noisy, "--formula", "additive", "-o", path).exit_code == 0
    result = run("check", path, noisy, "--limit-total", "50%", "--limit-ttft", "50%")
    assert result.output.startswith(("NOISY", "FAIL"))
    assert "spread" in result.output
    checked = numbers(path, noisy, "--limit-total", "50%", "--limit-ttft", "50%")
    assert not checked["resolves_limits"]
    wide = ("--limit-decode", "30%", "--limit-prefill", "30%", "--limit-mixed", "30%")
    assert numbers(path, noisy, "--limit-total", "50%", "--limit-ttft", "50%", *wide)["resolves_limits"]


def test_what_belongs_to_one_prompt_is_held_out_together() -> None:
    """A cold prompt is the same work beside every hit length, as a chunk, and its decode as a batch of one."""
    for case in plan(LIMITS):
        if case.probe in ("ttft", "chunk") or (case.probe == "decode" and case.num_requests == 1):
            assert unit_of(case.key) == f"prompt {case.num_prompt_tokens}"
        else:
            assert unit_of(case.key) == case.key


def test_the_held_out_fifth_has_every_regime_and_leaves_the_range(rows: Path) -> None:
    observations = averaged(observe([read_measurements(rows)]))
    parts = split(observations)
    assert {one.regime for one in parts.held_out} == {"cold_prefill", "warm_prefill", "decode", "mixed"}
    assert measured_range(parts.fitted) == measured_range(observations)
    assert not {one.unit for one in parts.fitted} & {one.unit for one in parts.held_out}
    assert 0.1 < len(parts.held_out) / len(observations) < 0.35
    assert split(tuple(reversed(observations))).rule == parts.rule
    assert {one.case for one in split(tuple(reversed(observations))).held_out} == {one.case for one in parts.held_out}


def test_4k_of_the_article_from_1k_8k_and_16k(tmp_path: Path) -> None:
    """The 18,432-budget table: cold and warm 4K within 5 %, the exponent fixed beforehand, everything counted."""
    path = tmp_path / "without_4k.json"
    result = run("fit", ARTICLE, "--formula", "host_device", "--device", DEVICE, "--hold-out", "4110", "-o", path)
    assert result.exit_code == 0, result.output
    assert "8 measured times, 5 parameters, rank 5" in result.output
    checked = numbers(path, ARTICLE)
    errors = {case["case"]: case["error"] for case in checked["cases"]}
    assert set(errors) == {"TTFT: 4110 prompt tokens, 0 cached", "TTFT: 4110 prompt tokens, 4096 cached"}
    assert max(map(abs, errors.values())) < 0.05
    print(result.output.splitlines()[0], errors)


def test_outliers_are_left_out_and_counted(rows: Path, tmp_path: Path) -> None:
    """One repeat of five that took ten times as long changes no coefficient and is counted."""
    device = Device(model_of("additive"), launch_noise=0.0, noise=0.001, num_repeats=5)
    lines = device.lines()
    chosen = [line for line in lines if line.get("repeat") == 2 and str(line.get("case")).startswith("decode")]
    for line in chosen:
        line["duration_s"] *= 10
    path = tmp_path / "outliers.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    output = tmp_path / "fitted.json"
    result = run("fit", path, "--formula", "additive", "-o", output)
    assert result.exit_code == 0, result.output
    assert f"{len(chosen)} outlying rows" in result.output
    assert load_profile(output).coefficients["request_s"].value == pytest.approx(3e-4, rel=0.02)


def test_the_profile_gives_the_pool_that_the_engine_allotted(profile: Path) -> None:
    loaded: Profile = load_profile(profile)
    assert loaded.num_gpu_blocks(16) == LIMITS.num_gpu_blocks
    assert loaded.provenance.num_launches == 3


def test_step_noise_is_the_spread_of_repeated_decode_steps(tmp_path: Path) -> None:
    """Repeats that differ by 1 % of 8 to 20 ms deviate by 0.1 to 0.2 ms; three deviations stay below half a step."""
    path = Device(model_of("additive"), noise=0.01, num_repeats=6).write(tmp_path / "rows.jsonl")
    assert run("fit", path, "--formula", "additive", "-o", tmp_path / "x.json").exit_code == 0
    noise = load_profile(tmp_path / "x.json").step_noise_s
    assert noise is not None
    assert 0.8e-4 < noise.value < 3e-4


def test_report_holds_both_tables_and_needs_no_network(rows: Path, profile: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    result = run("report", rows, profile, "-o", path)
    assert result.exit_code == 0, result.output
    html = path.read_text(encoding="utf-8")
    for table in ("ttft", "steps", "coefficients", "residuals"):
        assert f'<table id="{table}">' in html
    assert html.count("data:image/svg+xml;base64,") == 3
    assert not re.search(r'(src|href)="(?!data:)', html)
    assert "held out" in html


def test_report_of_the_article_has_its_speed_ups(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    shipped = ARTICLE.parents[2] / "profiles" / "qwen3-0.6b-ascend910-a3.json"
    assert run("report", ARTICLE, shipped, "-o", path).exit_code == 0
    html = path.read_text(encoding="utf-8")
    for speed_up in ("1.00", "1.24", "2.64", "6.74"):  # the article's column
        assert f"<td>{speed_up}</td>" in html


@pytest.mark.parametrize("share", ["-5%", "x", "nan%", ""])
def test_a_limit_that_is_no_share_is_refused(rows: Path, profile: Path, share: str) -> None:
    result = run("check", profile, rows, "--limit-decode", share)
    assert isinstance(result.exception, InputError)
    assert "--limit-decode: expected a share" in str(result.exception)


def test_prior_needs_a_device_and_a_hold_out_needs_a_case(rows: Path, tmp_path: Path) -> None:
    result = run("fit", rows, "--prior", "roofline", "-o", tmp_path / "x.json")
    assert "needs --device" in str(result.exception)
    result = run("fit", rows, "--hold-out", "no such case", "-o", tmp_path / "x.json")
    assert "no case contains" in str(result.exception)
