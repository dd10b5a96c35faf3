"""Bad result files: one line that says where, what was found and what was expected; never a traceback."""

from __future__ import annotations

import gzip
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibration.benchmarks.readers import read_benchmarks, read_unchecked
from simulator.errors import InputError

DATA = Path(__file__).parent / "data" / "bench_formats"
FILES = sorted(path for path in DATA.iterdir() if path.suffix != ".md")
CSV = """id,model,input_len,output_len,num_prompts,max_concurrency,request_rate,ttft_mean_ms,tpot_mean_ms,req_s
a,M,100,11,50,5,inf,200,30,9.8
"""


def text_of(path: Path) -> str:
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()


def document(name: str) -> dict[str, Any]:
    return json.loads(text_of(DATA / name))


def complaint(folder: Path, content: Any, name: str = "result.json", **where: str) -> str:
    """What is said about a file of this content, after checking how it is said."""
    path = folder / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(InputError) as caught:
        read_benchmarks(path, where)
    said = str(caught.value)
    assert said.startswith(name)
    assert "\n" not in said
    assert len(said) < 500
    return said.removeprefix(name)


def put(fields: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The fields with one changed, or taken out (``...``); the path's keys stand between dots."""
    *way, last = path.split(".")
    inner: Any = fields
    for key in way:
        inner = inner[int(key) if isinstance(inner, list) else key]
    if value is ...:
        del inner[last]
    else:
        inner[int(last) if isinstance(inner, list) else last] = value
    return fields


# --- what file it is -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["{}", "[1, 2]", '{"a": 1}', "just words", "a: 1\nb: [2]\n", "null", "x,y\n1,2\n"])
def test_the_tools_that_are_known_are_named(tmp_path, content):
    said = complaint(tmp_path, content, "thing.txt")
    for tool in ("vllm bench serve", "guidellm", "aiperf", "inference-perf", "llm-d", "csv"):
        assert tool in said


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "the file is empty"),
        ("  \n ", "the file is empty"),
        ('{"a": 1,\n "b" 2}', r", line 2: not JSON: .* \(column 6\)"),
        ('{"a": ' + "[" * 100_000, "not JSON"),
        ('{"a": ' + "1" * 5000 + "}", "not JSON"),
        ("a: [1\nb: 2\n", ", line 2: not YAML"),
        ("a: 2025-13-45\n", "not YAML"),
        (b"\x1f\x8bnot gzip at all", "corrupt gzip"),
        (gzip.compress(b"{}" * 500, mtime=0)[:20], "corrupt gzip"),
        (b"{\xff}", "not a text: byte 1 is not UTF-8"),
    ],
)
def test_files_that_are_no_results(tmp_path, content, words):
    assert re.search(words, complaint(tmp_path, content))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="nowhere.json: cannot read the results: No such file"):
        read_benchmarks(tmp_path / "nowhere.json")
    with pytest.raises(InputError, match="cannot read the results: Is a directory"):
        read_benchmarks(tmp_path)


# --- fields --------------------------------------------------------------------------------------------------------

VLLM, STAGE, AIPERF = "vllm_serve_detailed.json", "stage_3_lifecycle_metrics.json", "profile_export_aiperf.json.gz"
GUIDELLM = "guidellm_report_v2.json.gz"


@pytest.mark.parametrize(
    ("name", "path", "value", "words"),
    [
        (VLLM, "mean_ttft_ms", -1.0, "mean_ttft_ms is -1.0, expected a finite number >= 0"),
        (VLLM, "mean_tpot_ms", math.nan, "mean_tpot_ms is nan, expected a finite number"),
        (VLLM, "request_throughput", math.inf, "request_throughput is inf, expected a finite number"),
        (VLLM, "duration", "long", "duration is 'long', expected a number"),
        (VLLM, "completed", 0, "completed is 0.0, expected more than 0"),
        (VLLM, "completed", ..., "completed is missing, expected the number of requests answered"),
        (VLLM, "completed", 11, "output_lens has 12 answers, expected 11, as completed says"),
        (VLLM, "input_lens", [1, 2], "output_lens has 12 entries, expected 2, as input_lens has"),
        (VLLM, "input_lens.3", 1.5, "input_lens[3] is 1.5, expected a whole number >= 0"),
        (VLLM, "input_lens.3", "7", "input_lens[3] is '7', expected a number"),
        (VLLM, "itls.2", 0.1, "itls[2] is 0.1, expected a list"),
        (VLLM, "itls.2", [0.1, None], "itls[2][1] is None, expected a number"),
        (VLLM, "max_concurrency", 10**400, "max_concurrency is a number beyond all counting"),
        (VLLM, "request_rate", "fast", "request_rate is 'fast', expected a number"),
        (VLLM, "ramp_up_strategy", "linear", "ramp_up_strategy is 'linear', expected a constant request rate"),
        (VLLM, "max_num_seqs", "many", "max_num_seqs: got 'many', expected a whole number"),
        (VLLM, "enable_prefix_caching", "perhaps", "enable_prefix_caching: got 'perhaps', expected true or false"),
        (VLLM, "prefix_share", "200 %", "prefix_share, num_prefixes: got '200 %', expected a share"),
        (VLLM, "mean_ttft_ms", 0.0287, "ttft_mean is 0.0287 ms, expected at least 1 ms: seconds for milli"),
        (VLLM, "output_throughput", 20.0, "20 output tokens/s, expected 208.849 (12 tokens an answer x 17.4 "),
        (STAGE, "successes.prompt_len", ..., "successes.prompt_len.mean is missing, expected the mean length"),
        (STAGE, "successes.output_len.mean", None, "successes.output_len.mean is missing"),
        (STAGE, "successes.latency", [], "successes.latency is a list, expected an object"),
        (STAGE, "successes.throughput.requests_per_sec", 0, "requests_per_sec is 0.0, expected more than 0"),
        (STAGE, "failures.count", 3, "3 of 5534 requests failed, expected none"),
        (AIPERF, "records.input_sequence_length", ..., "records.input_sequence_length.avg is missing"),
        (AIPERF, "records.ttft.unit", "parsec", "records.ttft.unit is 'parsec', expected one of s, sec"),
        (AIPERF, "input_config", {}, "neither a concurrency nor a request rate, expected --concurrency or"),
        (AIPERF, "input_config.loadgen.concurrency", 2.5, "input_config.concurrency is 2.5, expected a whole number"),
        (GUIDELLM, "metadata.version", 1, "metadata.version is 1, expected 2"),
        (GUIDELLM, "benchmarks", [], "benchmarks is empty, expected at least one"),
        (GUIDELLM, "benchmarks.1", 7, "benchmarks[1] is 7, expected an object"),
        (GUIDELLM, "benchmarks.1.config.strategy.type_", "sweep", "benchmarks[1].config.strategy.type_ is 'sweep'"),
        (GUIDELLM, "benchmarks.0.metrics.prompt_token_count", None, "prompt_token_count.successful.mean is missing"),
        (GUIDELLM, "benchmarks.0.metrics.request_totals.errored", 1, "benchmarks[0]: 1 of 3 requests failed"),
    ],
)
def test_fields_that_cannot_be(tmp_path, name, path, value, words):
    assert words in complaint(tmp_path, put(document(name), path, value))


def test_a_plain_vllm_result_needs_lengths(tmp_path):
    plain = {key: value for key, value in document(VLLM).items() if not isinstance(value, list)}
    del plain["total_input_tokens"]
    assert "total_input_tokens is missing, expected the tokens of all prompts; lengths are needed" in complaint(
        tmp_path, plain
    )


def test_the_bad_one_of_appended_results_is_named(tmp_path):
    good = document(VLLM)
    lines = "\n".join(json.dumps(one) for one in (good, good | {"completed": -1}))
    assert complaint(tmp_path, lines).startswith(", line 2: completed is -1")


def test_reports_that_state_no_load():
    for name, words in (
        ("summary_lifecycle_metrics.json", "requested_rate is missing (a summary of several stages?)"),
        ("stage_3_prometheus_metrics.json", "successes.throughput is missing (a report of the server's own metrics?)"),
    ):
        with pytest.raises(InputError) as caught:
            read_benchmarks(DATA / name)
        assert words in str(caught.value)
        assert "stage_N_lifecycle_metrics.json" in str(caught.value)


def test_an_llmd_report_of_another_format_or_unit(tmp_path):
    text = text_of(DATA / "llmd_br_v0_2_1.yaml.gz")
    assert "version is '0.1', expected 0.2.x" in complaint(
        tmp_path, text.replace("\nversion: 0.2.1", "\nversion: '0.1'"), "r.yaml"
    )
    assert "time_to_first_token.units is 'fortnights', expected one of s" in complaint(
        tmp_path, text.replace("p99p9: 0.057014757215045425\n          units: s", "units: fortnights"), "r.yaml"
    )


# --- CSV -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("200,30,9.8", "200,30", ", line 2: 9 columns, expected 10"),
        ("M,100", "M,", ", line 2: input_len is empty, expected a number of tokens; lengths are needed"),
        ("M,100", "M,0", ", line 2: input_len is '0', expected more than 0"),
        ("M,100", "M,many", ", line 2: input_len is 'many', expected a number"),
        ("M,100", "M,-5", ", line 2: input_len is '-5', expected a number >= 0"),
        (",5,inf", ",4.5,inf", ", line 2: max_concurrency is '4.5', expected a whole number >= 1"),
        (",50,5,", ",,,", ", line 2: neither num_prompts nor max_concurrency"),
        (",200,30,9.8", ",,,", ", line 2: nothing measured, expected at least one of req_s"),
        (",200,30,9.8", ",200,nan,9.8", ", line 2: tpot_mean_ms is 'nan', expected a number"),
        (",200,30,9.8", ",0,30,9.8", ", line 2: ttft_mean_ms is '0', expected more than 0 (empty, where"),
        (",200,30,9.8", ",200,0.03,9.8", ", line 2: tpot_mean is 0.03 ms, expected 1 ms to 10 s between tokens"),
        (",200,30,9.8", ",200,60,9.8", ", line 2: 9.8 requests/s x (TTFT 200 ms + 10 x 60 ms) = 7.84 requests"),
        ("output_len", "output_length", ", line 1: unknown column 'output_length' (did you mean 'output_len'?)"),
        ("req_s", "max_num_seq", ", line 1: unknown column 'max_num_seq' (did you mean 'max_num_seqs'?)"),
        ("tpot_mean_ms", "tpot_mean", ", line 1: unknown column 'tpot_mean' (did you mean 'tpot_mean_"),
        ("model,input_len", "model,prompt", ", line 1: column input_len is missing; lengths are needed"),
        ("model,input_len", "input_len,input_len", ", line 1: column 'input_len' is there twice"),
        ("a,M,", '"a"x,M,', ", line 2: not CSV"),
        ("9.8\n", "9.8\na,M,100,11,50,5,inf,200,30,9.8\n", ", line 3: id 'a' is that of line 2 too"),
    ],
)
def test_rows_that_cannot_be(tmp_path, old, new, words):
    assert words in complaint(tmp_path, CSV.replace(old, new, 1), "mine.csv")


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("prefix_pct", "140", "prefix_pct is '140', expected at most 100"),
        ("prefix_pct", "0.75", ", line 2: prefix_pct is '0.75', expected per cent (75, not 0.75)"),
        ("kv_offloading_size", "[1", "kv_offloading_size is not JSON, expected a list or an object"),
        ("enforce_eager", "perhaps", "enforce_eager: got 'perhaps', expected true or false"),
        ("mean_ttft_ms", "190", ", line 2: ttft_mean_ms and mean_ttft_ms state the same figure, expected one of them"),
        ("mean_ttft_m", "190", ", line 1: unknown column 'mean_ttft_m' (did you mean 'mean_ttft_ms'?)"),
        ("prefix_caching", "HBM off", "prefix_caching is 'HBM off', expected on, off or default"),
        ("tp", "four", "tensor_parallel_size: got 'four', expected a whole number"),
        ("pd", "PD", "pd is 'PD', expected empty: prefill and decode on engines of their own"),
        ("failed", "3", "3 of 50 requests failed, expected none"),
        ("out_tok_s", "50", "50 output tokens/s, expected 107.8 (11 tokens an answer x 9.8 requests/s)"),
        ("duration_s", "50", "9.8 requests/s in 50 s, expected 50 (50 requests answered)"),
    ],
)
def test_further_columns_that_cannot_be(tmp_path, column, value, words):
    header, row = CSV.splitlines()
    if column == "failed":
        row = row.replace("9.8", "")
    assert words in complaint(tmp_path, f"{header},{column}\n{row},{value}\n", "mine.csv")


# --- anything ------------------------------------------------------------------------------------------------------


def refused_or_read(folder: Path, content: str | bytes) -> None:
    path = folder / "any.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    for read in (read_benchmarks, read_unchecked):
        try:
            read(path)
        except InputError as error:
            assert "\n" not in str(error)


ANY = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
@ANY
@given(data=st.data())
def test_truncated_and_corrupted_files_are_refused_or_read(tmp_path, path, data):
    text = text_of(path)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 40)))
    cut = data.draw(st.sampled_from(["truncated", "patched"]))
    patch = data.draw(st.text(max_size=5) | st.sampled_from(["-", "null", "[]", "{}", '"x"', "1e999", "NaN", ": "]))
    refused_or_read(tmp_path, text[:start] if cut == "truncated" else text[:start] + patch + text[end:])


def leaves(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value of a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [way, *(one for key, below in inner for one in leaves(below, (*way, key)))]


OTHER = st.sampled_from([None, True, [], {}]) | st.integers(-3, 10**20) | st.floats() | st.text(max_size=3)


@pytest.mark.parametrize("name", [VLLM, STAGE, AIPERF, GUIDELLM])
@ANY
@given(data=st.data())
def test_any_value_of_any_other_kind_is_refused_or_read(tmp_path, name, data):
    whole = document(name)
    for _ in range(data.draw(st.integers(1, 3))):
        way = data.draw(st.sampled_from(leaves(whole)[1:]))
        inner = whole
        for key in way[:-1]:
            inner = inner[key]
        inner[way[-1]] = data.draw(OTHER)
    refused_or_read(tmp_path, json.dumps(whole))


@ANY
@given(cells=st.lists(st.text(alphabet='0123456789.-e,"\n infxa%', max_size=12), min_size=1, max_size=12))
def test_any_cells_are_refused_or_read(tmp_path, cells):
    refused_or_read(tmp_path, CSV + ",".join(cells) + "\n")
