"""Result files of load-testing tools: every figure arrives in seconds and tokens, as the file says it.

Expected values were read off the files by eye; the files are what the tools wrote (tests/data/bench_formats).
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from calibration.benchmarks.benchmark import Lengths
from calibration.benchmarks.readers import read_benchmarks, read_unchecked, selected
from simulator.engine_args import refusal
from simulator.errors import InputError

DATA = Path(__file__).parent / "data" / "bench_formats"


def text_of(name: str) -> str:
    content = (DATA / name).read_bytes()
    return (gzip.decompress(content) if name.endswith(".gz") else content).decode()


def written(folder: Path, document: Any, name: str = "result.json") -> Path:
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


@pytest.fixture
def vllm() -> dict[str, Any]:
    return json.loads(text_of("vllm_serve_detailed.json"))


@pytest.fixture
def aiperf() -> dict[str, Any]:
    """The export, as if its eleven cancelled requests had not been sent."""
    export = json.loads(text_of("profile_export_aiperf.json.gz"))
    del export["records"]["error_request_count"]
    return export


@pytest.fixture
def stage() -> dict[str, Any]:
    return json.loads(text_of("stage_3_lifecycle_metrics.json"))


@pytest.fixture
def guidellm() -> dict[str, Any]:
    return json.loads(text_of("guidellm_report_v2.json.gz"))


@pytest.fixture
def llmd() -> dict[str, Any]:
    return yaml.safe_load(text_of("llmd_br_v0_2_1.yaml.gz"))


# --- vLLM ----------------------------------------------------------------------------------------------------------


def test_vllm_detailed_result():
    (one,) = read_benchmarks(DATA / "vllm_serve_detailed.json")
    assert (one.tool, one.model, one.file) == ("vllm bench serve", "mock", "vllm_serve_detailed.json")
    assert (one.num_prompts, one.max_concurrency, one.requests_per_s, one.num_failed) == (12, 8, 20.0, 0)
    assert one.inputs.each == (132, 127, 133, 135, 126, 134, 130, 137, 134, 144, 124, 138)
    assert one.outputs == Lengths(mean=12, each=(12,) * 12)
    assert one.duration_s == 0.6894941250000102
    measured = one.measured
    assert measured.ttft_mean_s == pytest.approx(0.028758387166665973)
    assert measured.ttft_p99_s == pytest.approx(0.03344933945001003)
    assert measured.tpot_p90_s == pytest.approx(0.006309963372746097)
    assert measured.e2e_mean_s == pytest.approx(0.0934894710833305)
    assert (measured.requests_per_s, measured.output_tokens_per_s) == (17.404064175310882, 208.84877010373057)
    assert measured.total_tokens_per_s == 2520.688628057526


def test_lists_of_requests_tell_what_the_summary_leaves_out(vllm, tmp_path):
    # vLLM's own statistics of the very same requests are the outside truth.
    summary = {key: value for key, value in vllm.items() if not key.endswith(("ttft_ms", "tpot_ms", "e2el_ms"))}
    (one,) = read_benchmarks(written(tmp_path, summary))
    for metric, key in (("ttft", "ttft"), ("tpot", "tpot")):
        for statistic in ("mean", "p50", "p90", "p99"):
            assert getattr(one.measured, f"{metric}_{statistic}_s") * 1000 == pytest.approx(
                vllm[f"{statistic}_{key}_ms"], rel=1e-9
            )
    assert one.measured.e2e_mean_s * 1000 == pytest.approx(vllm["mean_e2el_ms"], rel=1e-9)
    (older,) = read_benchmarks(written(tmp_path, {key: value for key, value in summary.items() if key != "latencies"}))
    assert older.measured.e2e_mean_s * 1000 == pytest.approx(vllm["mean_e2el_ms"], rel=1e-3)


def test_vllm_plain_result_has_mean_lengths_and_says_so(vllm, tmp_path):
    for key in ("input_lens", "output_lens", "ttfts", "itls", "errors", "start_times", "generated_texts"):
        del vllm[key]
    (one,) = read_benchmarks(written(tmp_path, vllm))
    assert one.inputs == Lengths(mean=pytest.approx(1594 / 12))
    assert one.outputs == Lengths(mean=12)
    assert any("mean length" in words for words in one.assumed)


def test_engine_arguments_among_the_metadata(vllm, tmp_path):
    # --metadata writes texts
    vllm |= {"max_num_seqs": "64", "max_num_batched_tokens": "8k", "enable_prefix_caching": "false", "tp": "none"}
    vllm |= {"gpu_memory_utilization": "0.9", "engine_version": "0.23.0", "prefix_share": "75 %", "num_prefixes": "3"}
    (one,) = read_benchmarks(written(tmp_path, vllm))
    assert one.engine == {
        "max_num_seqs": 64,
        "max_num_batched_tokens": 8000,
        "enable_prefix_caching": False,
        "gpu_memory_utilization": 0.9,
    }
    assert (one.engine_version, one.prefix_share, one.num_prefixes) == ("0.23.0", 0.75, 3)


@pytest.mark.parametrize("rate", ["inf", float("inf"), None])
def test_a_rate_without_end_is_none(vllm, tmp_path, rate):
    (one,) = read_benchmarks(written(tmp_path, vllm | {"request_rate": rate, "max_concurrency": None}))
    assert (one.requests_per_s, one.max_concurrency) == (None, None)


def test_results_appended_to_one_file(vllm, tmp_path):
    lines = [json.dumps(vllm | {"max_concurrency": limit}) for limit in (8, 12)]
    first, second = read_benchmarks(written(tmp_path, "\n".join(lines)))
    assert (first.max_concurrency, second.max_concurrency) == (8, 12)
    assert first.name != second.name
    assert first.group != second.group
    assert second.file == "result.json, line 2"
    pretty = "\n".join(json.dumps(vllm, indent=1) for _ in range(2))
    assert read_benchmarks(written(tmp_path, pretty))[1].file == f"result.json, line {pretty.count(chr(10)) // 2 + 2}"


def test_failed_requests_are_counted_where_the_others_are_known(vllm, tmp_path):
    vllm["errors"][3], vllm["output_lens"][3], vllm["ttfts"][3], vllm["itls"][3] = "boom", 0, 0.0, []
    vllm |= {"completed": 11, "failed": 1, "request_throughput": 11 / vllm["duration"], "total_input_tokens": 1459}
    vllm |= {"output_throughput": 132 / vllm["duration"], "total_token_throughput": 1591 / vllm["duration"]}
    (one,) = read_benchmarks(written(tmp_path, vllm))
    assert (one.num_prompts, one.num_failed) == (11, 1)
    assert one.inputs.each == (132, 127, 133, 126, 134, 130, 137, 134, 144, 124, 138)
    plain = {key: value for key, value in vllm.items() if not isinstance(value, list)}
    with pytest.raises(InputError, match="1 of 12 requests failed, expected none"):
        read_benchmarks(written(tmp_path, plain))


# --- the others ----------------------------------------------------------------------------------------------------


def test_guidellm_report():
    first, second = read_benchmarks(DATA / "guidellm_report_v2.json.gz")
    assert (first.requests_per_s, second.requests_per_s) == (2.0, 4.0)
    assert first.file.endswith("benchmarks[0]")
    assert first.model == "e2e-mock-model"
    assert (first.num_prompts, first.max_concurrency) == (2, None)
    assert first.inputs == Lengths(mean=71.5, deviation=20.5)
    assert first.outputs == Lengths(mean=8.0)
    assert (first.prefix_share, first.num_prefixes) == (pytest.approx(16 / 71.5), 4)
    assert first.measured.ttft_mean_s == pytest.approx(0.011481165885925293)
    # Not its time per output token (2.44 ms), which counts the first token.
    assert first.measured.tpot_mean_s == pytest.approx(0.0011508464813232422)
    assert first.measured.tpot_p90_s == pytest.approx(0.0012557165963309151)
    assert first.measured.e2e_mean_s == 0.01978909969329834
    assert first.measured.requests_per_s == 0.39843430656414264
    assert any("turns" in words for words in first.assumed)
    assert any("evenly" in words for words in first.assumed)


@pytest.mark.parametrize(
    ("strategy", "load"),
    [
        ({"type_": "concurrent", "streams": 7}, (7, None)),
        ({"type_": "synchronous"}, (1, None)),
        ({"type_": "throughput", "max_concurrency": 10240}, (None, None)),
        ({"type_": "poisson", "rate": 3.5, "max_concurrency": None}, (None, 3.5)),
    ],
)
def test_guidellm_strategies(guidellm, tmp_path, strategy, load):
    guidellm["benchmarks"] = guidellm["benchmarks"][:1]
    guidellm["benchmarks"][0]["config"]["strategy"] = strategy
    (one,) = read_unchecked(written(tmp_path, guidellm))
    assert (one.max_concurrency, one.requests_per_s) == load


def test_guidellm_requests_one_by_one_in_order_of_sending(guidellm, tmp_path):
    guidellm["benchmarks"] = guidellm["benchmarks"][:1]
    guidellm["benchmarks"][0]["requests"]["successful"] = [
        {"request_start_time": 8.0, "prompt_tokens": 92, "output_tokens": 8},
        {"request_start_time": 7.0, "prompt_tokens": 51, "output_tokens": 8},
    ]
    (one,) = read_benchmarks(written(tmp_path, guidellm))
    assert one.inputs.each == (51, 92)


def test_aiperf_export(aiperf, tmp_path):
    (one,) = read_benchmarks(written(tmp_path, aiperf))
    assert (one.tool, one.model) == ("aiperf", "openai/gpt-oss-20b")
    assert (one.num_prompts, one.max_concurrency, one.requests_per_s) == (89, 100, None)
    assert one.inputs == Lengths(mean=550.0)
    assert one.outputs == Lengths(mean=242.96629213483146, deviation=9.422003220053695)
    assert one.duration_s == 9.317788951
    assert one.measured.ttft_mean_s == pytest.approx(2.343219436988764)
    assert one.measured.tpot_p90_s == pytest.approx(0.03287232279340302)
    assert one.measured.e2e_mean_s == pytest.approx(9.059654633033708)
    assert one.measured.output_tokens_per_s == 2320.7222350404572


def test_aiperf_export_of_later_releases(aiperf, tmp_path):
    """Schema 1.x: metrics at the top, TTFT spelled out, other units, the load in named phases."""
    records = aiperf.pop("records")
    records["time_to_first_token"] = records.pop("ttft")
    for statistic, value in records["request_latency"].items():
        if isinstance(value, float):
            records["request_latency"][statistic] = value / 1000
    records["request_latency"]["unit"] = "sec"
    phases = {"warmup": {"concurrency": 3}, "main": {"concurrency": 100}}
    config = {"endpoint": {"model_names": ["m"]}, "phases": phases}
    (one,) = read_benchmarks(written(tmp_path, {"schema_version": "1.5", **records, "input_config": config}))
    assert (one.max_concurrency, one.model) == (100, "m")
    assert one.measured.e2e_mean_s == pytest.approx(9.059654633033708)
    assert one.measured.ttft_p50_s == pytest.approx(2.369317693)


def test_aiperf_load_from_the_command_line(aiperf, tmp_path):
    command = "aiperf profile -m 'some/model' --request-rate 12.5 --concurrency 100 --arrival-pattern poisson "
    command += "--prefix-prompt-length 110 --num-prefix-prompts 5"
    aiperf["input_config"] = {"cli_command": command}
    (one,) = read_benchmarks(written(tmp_path, aiperf))
    assert (one.model, one.max_concurrency, one.requests_per_s) == ("some/model", 100, 12.5)
    assert (one.prefix_share, one.num_prefixes) == (pytest.approx(0.2), 5)
    assert not any("Poisson" in words for words in one.assumed)


def test_aiperf_failed_requests_are_refused():
    with pytest.raises(InputError, match=r"profile_export_aiperf.*11 of 100 requests failed, expected none"):
        read_benchmarks(DATA / "profile_export_aiperf.json.gz")


def test_inference_perf_stage():
    (one,) = read_benchmarks(DATA / "stage_3_lifecycle_metrics.json")
    assert (one.num_prompts, one.max_concurrency, one.requests_per_s, one.num_failed) == (5531, None, 92.19, 0)
    assert one.inputs == Lengths(mean=204.10178991140842)
    assert one.outputs == Lengths(mean=62.3254384378955)
    measured = one.measured
    assert (measured.ttft_mean_s, measured.ttft_p50_s) == (0.050548625055568695, 0.04451845702715218)
    assert (measured.e2e_mean_s, measured.requests_per_s) == (1.0212724370473967, 91.35730480202015)
    # The file's own 7.5 ms cannot be: 62 tokens would then take half of the time that the requests took.
    assert measured.tpot_mean_s == pytest.approx((1.0212724370473967 - 0.050548625055568695) / 61.3254384378955)
    assert (measured.tpot_p99_s, measured.itl_mean_s) == (None, None)
    assert any("issue 564" in words for words in one.assumed)


def test_inference_perf_stage_that_counts_right_keeps_its_tpot(stage, tmp_path):
    for metric in ("time_per_output_token", "inter_token_latency"):
        metrics = stage["successes"]["latency"][metric]
        stage["successes"]["latency"][metric] = {key: 2.1 * value for key, value in metrics.items()}
    (one,) = read_benchmarks(written(tmp_path, stage))
    assert one.measured.tpot_mean_s == pytest.approx(2.1 * 0.007516017549608276)
    assert one.measured.tpot_p99_s == pytest.approx(2.1 * 0.009620544096444148)


def test_inference_perf_of_later_releases_at_a_concurrency(stage, tmp_path):
    stage["successes"]["prompt_tokens"] = {"total": 1.0, "mean": stage["successes"].pop("prompt_len")["mean"]}
    stage["load_summary"] |= {"concurrency": 96}
    stage["benchmark_time_seconds"] = 60.54
    (one,) = read_benchmarks(written(tmp_path, stage))
    assert (one.inputs.mean, one.max_concurrency, one.requests_per_s) == (204.10178991140842, 96, None)
    assert one.duration_s == 60.54


def test_llmd_report(llmd, tmp_path):
    """The format's example, with figures that can be true: its own are the same made-up ones everywhere."""
    llmd["scenario"]["stack"][0]["standardized"]["replicas"] = 1
    latency = llmd["results"]["request_performance"]["aggregate"]["latency"]
    latency["request_latency"] = {"mean": 36_000.0, "units": "ms"}
    latency["time_per_output_token"] = {"mean": 15.9, "p90": 17.0, "units": "ms/token"}
    llmd["results"]["request_performance"]["aggregate"]["throughput"] = {
        "request_rate": {"mean": 9.9, "units": "queries/s"},
        "output_token_rate": {"mean": 22_400.0, "units": "tokens/s"},
    }
    llmd["run"]["time"]["duration"] = "PT50.5S"
    (one,) = read_benchmarks(written(tmp_path, yaml.safe_dump(llmd), "report.yaml"))
    assert (one.tool, one.model) == ("llm-d", "Qwen/Qwen3-0.6B")
    assert one.engine_version == "ghcr.io/llm-d/llm-d-cuda:0.3.1"
    assert one.engine == {"tensor_parallel_size": 8, "block_size": 1024, "max_model_len": 1024}
    assert (one.num_prompts, one.max_concurrency, one.requests_per_s) == (500, None, 10.0)
    assert one.inputs == Lengths(mean=2262.448)
    assert one.outputs == Lengths(mean=2262.448, deviation=100.0)
    assert (one.prefix_share, one.num_prefixes) == (pytest.approx(1000 / 2262.448), 32 * 8)
    assert one.measured.ttft_p99_s == 0.05029489721637218
    assert (one.measured.e2e_mean_s, one.measured.tpot_mean_s) == (36.0, pytest.approx(0.0159))
    assert (one.measured.requests_per_s, one.duration_s) == (9.9, 50.5)


def test_llmd_example_is_refused_as_it_is():
    with pytest.raises(InputError, match="2 engines answered, expected 1"):
        read_benchmarks(DATA / "llmd_br_v0_2_1.yaml.gz")
    (one,) = read_unchecked(DATA / "llmd_br_v0_2_1.yaml.gz")
    assert (one.num_engines, one.measured.requests_per_s) == (2, 2262.448)


# --- CSV -----------------------------------------------------------------------------------------------------------

ROW = {
    "id": "a", "model": "M", "input_len": "100", "output_len": "11", "num_prompts": "50", "max_concurrency": "5",
    "request_rate": "inf", "ttft_mean_ms": "200", "tpot_mean_ms": "30", "req_s": "9.8",
}  # fmt: skip


def table(*rows: dict[str, str]) -> str:
    lines = [",".join(rows[0]), *(",".join(row.values()) for row in rows)]
    return "\n".join(lines) + "\n"


def test_csv_row(tmp_path):
    row = ROW | {"tp": "4", "max_num_seqs": "64", "prefix_caching": "off", "note": "kept", "ttft_p90_s": "0.31"}
    (one,) = read_benchmarks(written(tmp_path, table(row), "mine.csv"))
    assert (one.name, one.file, one.model) == ("mine/a", "mine.csv, line 2", "M")
    assert (one.num_prompts, one.max_concurrency, one.requests_per_s) == (50, 5, None)
    assert (one.inputs.mean, one.outputs.mean) == (100, 11)
    assert one.measured.ttft_mean_s == pytest.approx(0.2)
    assert one.measured.ttft_p90_s == 0.31
    assert one.measured.tpot_mean_s == pytest.approx(0.03)
    assert one.rounding["requests_per_s"] == pytest.approx(0.05)
    assert one.rounding["ttft_mean_s"] == pytest.approx(0.0005)
    assert one.engine == {"tensor_parallel_size": 4, "max_num_seqs": 64, "enable_prefix_caching": False}
    assert one.columns == row


@pytest.mark.parametrize(
    ("column", "cell", "figure", "value"),
    [
        ("mean_ttft_ms", "200", "ttft_mean_s", 0.2),
        ("ttft_ms", "200", "ttft_mean_s", 0.2),
        ("median_ttft_ms", "180", "ttft_p50_s", 0.18),
        ("tpot_ms", "30", "tpot_mean_s", 0.03),
        ("median_tpot_ms", "30", "tpot_p50_s", 0.03),
        ("p99_tpot_ms", "30", "tpot_p99_s", 0.03),
        ("mean_itl_ms", "30", "itl_mean_s", 0.03),
        ("mean_e2el_ms", "500", "e2e_mean_s", 0.5),
        ("request_throughput", "9.8", "requests_per_s", 9.8),
        ("output_throughput", "107.8", "output_tokens_per_s", 107.8),
        ("total_token_throughput", "1087.8", "total_tokens_per_s", 1087.8),
    ],
)
def test_csv_with_vllms_own_names(tmp_path, column, cell, figure, value):
    load = {key: ROW[key] for key in ("input_len", "output_len", "num_prompts", "max_concurrency")}
    (one,) = read_benchmarks(written(tmp_path, table(load | {column: cell})))
    assert one.measured.stated == {figure: pytest.approx(value)}
    assert set(one.rounding) == {figure}
    assert one.assumed == ()


def test_columns_that_nothing_is_taken_from_are_named(tmp_path):
    row = ROW | {"note": "kept", "p99_itl_ms": "80", "ttft_std_ms": "9", "weather": "fine", "config": "A", "mood": ""}
    (one,) = read_benchmarks(written(tmp_path, table(row)))
    assert one.assumed == ("columns not read: p99_itl_ms, ttft_std_ms, weather, config",)
    assert one.columns == row
    assert not one.engine


def test_engine_arguments_that_are_not_modelled_are_kept_for_the_engines_check(tmp_path):
    row = ROW | {"kv_cache_dtype": "fp8", "enforce_eager": "True", "seed": "7", "api_key": "x", "moe_backend": ""}
    (one,) = read_benchmarks(written(tmp_path, table(row)))
    assert one.engine == {"kv_cache_dtype": "fp8", "enforce_eager": True, "seed": "7"}
    refused = {name for name, value in one.engine.items() if refusal(name, value)}
    assert refused == {"kv_cache_dtype", "enforce_eager"}
    (plain,) = read_benchmarks(written(tmp_path, table(row | {"kv_cache_dtype": "auto", "enforce_eager": "false"})))
    assert not [name for name, value in plain.engine.items() if refusal(name, value)]


def test_aisbench_baseline_of_one_token_counts_requests(tmp_path):
    row = {"model": "M", "input_len": "3500", "prefix_pct": "75", "max_out_len": "1", "num_prompts": "210",
           "concurrency": "48", "request_rate": "", "baseline_out_tok_s": "12.8682"}  # fmt: skip
    longer = row | {"prefix_pct": "", "max_out_len": "1500", "baseline_out_tok_s": "812.3394"}
    first, second = read_benchmarks(written(tmp_path, table(row, longer), "base.csv"))
    assert (first.prefix_share, first.max_concurrency) == (0.75, 48)
    assert (first.measured.requests_per_s, first.measured.output_tokens_per_s) == (12.8682, None)
    assert (second.measured.requests_per_s, second.measured.output_tokens_per_s) == (None, 812.3394)


def test_rows_are_chosen_by_columns_before_they_are_looked_at(tmp_path):
    path = written(tmp_path, table(ROW, ROW | {"id": "b", "model": "N", "output_len": ""}), "mine.csv")
    with pytest.raises(InputError, match=r"mine.csv, line 3: output_len is empty"):
        read_benchmarks(path)
    (one,) = read_benchmarks(path, {"model": "M"})
    assert one.columns["id"] == "a"
    assert selected([one], {"model": "M"}) == [one]
    assert selected([one], {"model": "N"}) == []
    with pytest.raises(InputError, match="no column 'modle' \\(did you mean 'model'\\?\\)"):
        read_benchmarks(path, {"modle": "M"})


def test_missing_number_of_prompts_is_assumed_in_words(tmp_path):
    row = ROW | {"num_prompts": "", "max_concurrency": "64", "req_s": "120"}
    (one,) = read_benchmarks(written(tmp_path, table(row)))
    assert one.num_prompts == 256
    assert any("num_prompts is 256" in words for words in one.assumed)


def test_a_result_has_one_group_with_and_without_details(vllm, tmp_path):
    plain = {key: value for key, value in vllm.items() if not isinstance(value, list)}
    (detailed,), (short,) = (read_benchmarks(written(tmp_path, one)) for one in (vllm, plain))
    assert detailed.inputs != short.inputs
    assert detailed.group == short.group


def test_a_load_has_one_group_whichever_the_tool(vllm, tmp_path):
    plain = {key: value for key, value in vllm.items() if not isinstance(value, list)}
    plain |= {"total_input_tokens": 100 * 12, "request_rate": "inf", "total_token_throughput": None}
    (ours,) = read_benchmarks(written(tmp_path, table(ROW | {"output_len": "12", "max_concurrency": "8", "req_s": ""})))
    (theirs,) = read_benchmarks(written(tmp_path, plain))
    assert ours.group == theirs.group


def test_shipped_ascend_benchmarks_can_be_read():
    folder = Path(__file__).parents[1] / "calibration" / "data" / "ascend_benchmarks"
    readme = (folder / "README.md").read_text()
    for path in sorted(folder.glob("*.csv")):
        found = read_benchmarks(path)
        assert f"| {path.name} | {len(found)} |" in readme
        assert all(one.source and one.columns["hardware"] for one in found)
    pair = {one.name: one for one in read_benchmarks(folder / "qwen3-32b-w8a8.csv")}
    none, most = pair["qwen3-32b-w8a8/prefix0"], pair["qwen3-32b-w8a8/prefix75"]
    assert (none.measured.requests_per_s, most.measured.requests_per_s) == (3.5855, 12.8682)
    assert (none.prefix_share, most.prefix_share) == (0.0, 0.75)
    sweep = read_benchmarks(folder / "qwen3-30b-a3b.csv")
    assert [one.max_concurrency for one in sweep] == [1, 16, 32, 48, 64, 100, 150, 200]
    assert len({one.group for one in sweep}) == 8
