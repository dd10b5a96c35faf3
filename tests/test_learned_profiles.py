"""Profiles that ship on the evidence of published load tests, and the command that makes them."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

import pytest
from click.testing import CliRunner

from calibration.benchmarks.cli import from_benchmarks_command
from calibration.benchmarks.play import engine_of, play
from calibration.benchmarks.readers import read_benchmarks
from simulator.errors import InputError
from simulator.evidence import indicative, median_error
from simulator.plan import Plan
from simulator.profile import load_profile
from simulator.step_time import PRIOR

LOADS = Path(str(importlib.resources.files("calibration") / "data" / "ascend_benchmarks"))
W8A8 = "qwen3-32b-w8a8-ascend-a3-tp4"
HEADER = "id,input_len,output_len,num_prompts,max_concurrency,tpot_mean_ms,out_tok_s\n"


def learn(*arguments: str | Path, output: Path):
    return CliRunner().invoke(from_benchmarks_command, [*map(str, arguments), "-o", str(output)])


def test_the_published_prefix_pair_is_reproduced() -> None:
    """Qwen3-32B W8A8 on four NPUs: 3.5855 requests/s without, 12.8682 with 75 % of 3,500 tokens shared (3.59 times)."""
    profile = load_profile(W8A8)
    rates = {}
    for benchmark in read_benchmarks(LOADS / "qwen3-32b-w8a8.csv"):
        if benchmark.outputs.mean == 1:
            played = play(benchmark, engine_of(benchmark, profile), profile.step_time())
            rates[benchmark.prefix_share] = played.requests_per_s
    assert rates[0.0] == pytest.approx(3.5855, rel=0.10)
    assert rates[0.75] == pytest.approx(12.8682, rel=0.10)
    assert rates[0.75] / rates[0.0] == pytest.approx(12.8682 / 3.5855, rel=0.05)


@pytest.mark.parametrize(
    "name", ["qwen3-30b-a3b-ascend-910b3-tp2", "qwen3-32b-ascend-a2-tp4", "kimi-k2-thinking-ascend-a3-tp16"]
)
def test_a_load_is_predicted_from_the_other_loads(name: str) -> None:
    """Left out group by group: throughput within 10 % and TPOT within 12 % in the median. Times to first token are not
    that good, where there are any, and the profile then says so.
    """
    profile = load_profile(name)
    held_out = profile.errors.held_out
    rates = [abs(one.relative_error) for one in held_out if "/s" in one.quantity]
    paces = [abs(one.relative_error) for one in held_out if one.quantity == "TPOT mean"]
    assert len(rates) >= 4
    assert sorted(rates)[len(rates) // 2] <= 0.10
    assert sorted(paces)[len(paces) // 2] <= 0.12
    reason = indicative(profile)
    assert reason is None if name == "qwen3-32b-ascend-a2-tp4" else reason is not None and "on TTFT" in reason


@pytest.mark.parametrize("name", ["qwen2.5-7b-ascend-a2", "qwen3-8b-ascend-910b", W8A8])
def test_a_profile_that_cannot_show_this_says_so(name: str) -> None:
    assert indicative(load_profile(name)) is not None


def test_the_command_reproduces_a_shipped_profile(tmp_path: Path) -> None:
    output = tmp_path / f"{W8A8}.json"
    result = learn(
        LOADS / "qwen3-32b-w8a8.csv", "--model", "Qwen3-32B", "--dtype", "w8a8", "--device",
        "Atlas 800 A3 560T one die", "--tested-on", "Ascend A3", "--tensor-parallel-size", "4", "--vllm", "0.27.1",
        "--vllm-ascend", "0.27.1", "--graph-mode", "FULL_DECODE_ONLY", "--jobs", "1", output=output,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found, shipped = load_profile(output), load_profile(W8A8)
    assert found.identity == shipped.identity
    for name, coefficient in shipped.coefficients.items():
        assert found.coefficients[name].value == pytest.approx(coefficient.value, rel=0.01), name
        assert found.coefficients[name].origin == coefficient.origin
    assert found.provenance.rows == shipped.provenance.rows


def test_a_learned_pool_explains_what_step_times_cannot() -> None:
    """Kimi-K2 served slower to 16 at once than to 8: their contexts did not fit, so its pool is below 16 x 2,048."""
    profile = load_profile("kimi-k2-thinking-ascend-a3-tp16")
    num_tokens = profile.kv_cache_bytes() / profile.kv_bytes_per_token
    assert 8 * 1024 < num_tokens < 12 * 2048
    residuals = {one.case: one for one in profile.errors.in_sample}
    eight, sixteen = (residuals[f"output tokens/s: kimi-k2-thinking/doc-kimi-c{number}"] for number in (8, 16))
    assert sixteen.measured_s > eight.measured_s  # seconds a token
    assert sixteen.predicted_s > 0.9 * eight.predicted_s


def test_median_errors_are_those_of_what_was_left_out() -> None:
    profile = load_profile("qwen3-32b-ascend-a2-tp4")
    errors = sorted(abs(one.relative_error) for one in profile.errors.held_out)
    assert median_error(profile.errors.held_out) == pytest.approx(errors[len(errors) // 2], rel=0.2)


class TestBadInput:
    def results(self, tmp_path: Path, rows: str = "a,512,128,32,4,30,120\n", header: str = HEADER) -> Path:
        path = tmp_path / "results.csv"
        path.write_text(header + rows, encoding="utf-8")
        return path

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (("--model", "Qwen3-9B", "--device", "910B3"), "Qwen3-8B"),
            (("--model", "Qwen3-8B", "--device", "910B33"), "910B3"),
            (("--model", "Qwen3-8B", "--device", "910B3", "--where", "id"), "COLUMN=VALUE"),
            (("--model", "Qwen3-8B", "--device", "910B3", "--where", "id=b"), "results.csv"),
            (("--model", "Qwen3-8B", "--device", "910B3", "--engine-arg", "max_num_seq=4"), "max_num_seqs"),
            (("--model", "Qwen3-8B", "--device", "910B3", "--engine-arg", "block_size=x"), "block_size"),
            (("--model", "Qwen3-8B", "--device", "910B3", "--dtype", "w3a8"), "w3a8"),
            (("--model", "Qwen3-32B", "--device", "910B3"), "results.csv"),  # does not fit on one device
        ],
    )
    def test_one_line_says_what_is_wrong(self, tmp_path: Path, options: tuple[str, ...], words: str) -> None:
        result = learn(self.results(tmp_path), *options, output=tmp_path / "out.json")
        assert isinstance(result.exception, InputError), result.output
        assert words in str(result.exception)
        assert "\n" not in str(result.exception)
        assert not (tmp_path / "out.json").exists()

    def test_a_row_without_a_figure(self, tmp_path: Path) -> None:
        path = self.results(tmp_path, "a,512,128,32,4,,\n")
        result = learn(path, "--model", "Qwen3-8B", "--device", "910B3", output=tmp_path / "out.json")
        assert isinstance(result.exception, InputError)
        assert "results.csv, line 2" in str(result.exception)

    def test_a_result_is_never_overwritten(self, tmp_path: Path) -> None:
        path = self.results(tmp_path)
        before = path.read_bytes()
        result = learn(path, "--model", "Qwen3-8B", "--device", "910B3", output=path)
        assert isinstance(result.exception, InputError)
        assert path.read_bytes() == before

    def test_the_same_results_twice_are_no_more_evidence(self, tmp_path: Path) -> None:
        path = self.results(tmp_path)
        result = learn(path, path, "--model", "Qwen3-8B", "--device", "910B3", output=tmp_path / "out.json")
        assert isinstance(result.exception, InputError)
        assert "count its results twice" in str(result.exception)

    def test_an_argument_does_not_contradict_the_results(self, tmp_path: Path) -> None:
        header = HEADER.replace("tpot", "max_num_seqs,tpot")
        path = self.results(tmp_path, "a,512,128,32,4,16,30,120\n", header)
        told = ("--model", "Qwen3-8B", "--device", "910B3", "--engine-arg", "max_num_seqs=4")
        result = learn(path, *told, output=tmp_path / "out.json")
        assert isinstance(result.exception, InputError)
        assert "max_num_seqs is 16, --engine-arg says 4" in str(result.exception)

    def test_the_platform_is_that_of_the_device(self, tmp_path: Path) -> None:
        told = ("--model", "Qwen3-8B", "--device", "H100 SXM", "--vllm-ascend", "0.23")
        result = learn(self.results(tmp_path), *told, output=tmp_path / "out.json")
        assert isinstance(result.exception, InputError)
        assert "no Ascend device" in str(result.exception)

    def test_a_result_too_long_for_the_engine(self, tmp_path: Path) -> None:
        told = ("--model", "Qwen3-8B", "--device", "910B3", "--engine-arg", "max_model_len=100")
        result = learn(self.results(tmp_path), *told, output=tmp_path / "out.json")
        assert isinstance(result.exception, InputError)
        assert "results.csv, line 2: max_model_len: got 100, expected at least 640" in str(result.exception)


def test_what_nobody_states_is_said(tmp_path: Path) -> None:
    """Block size, budget and the others are vLLM's defaults on the device's platform, and stand in the output."""
    path = tmp_path / "results.csv"
    path.write_text(HEADER + "a,512,128,32,4,30,120\n", encoding="utf-8")
    result = learn(path, "--model", "Qwen3-8B", "--device", "910B3", "--jobs", "1", output=tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    assert "vLLM's defaults: block_size=128, max_num_batched_tokens=2048, max_num_seqs=256" in result.output
    profile = load_profile(tmp_path / "out.json")
    assert (profile.identity.vllm_ascend, profile.identity.async_scheduling) == ("not stated", True)
    assert "indicative" in result.output


def test_few_determined_coefficients_are_no_measurement() -> None:
    """Of the Qwen3-32B profile weights and most of a step are a data sheet's: no step counts as measured."""
    plan = Plan(num_decodes=4, decode_context=4000, max_context=1000)
    assert load_profile("qwen3-32b-ascend-a2-tp4").step_time().support(plan) == PRIOR
