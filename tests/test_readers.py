"""Traces of all formats: the figures that their publishers and collectors state, and what every reader has in common.

Outside truths: request counts, means, percentiles (nearest rank) and hits of an infinite cache as listed with the
collected data, and exact sums over those files, all taken without kvcast.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from simulator.errors import InputError
from simulator.workload.readers import FORMATS, READERS, open_trace, recognise
from simulator.workload.records import Trace
from simulator.workload.spec import TraceSpec
from tests.trace_samples import DATA, OPTIONS, SAMPLES, SHIPPED, lines


def written(tmp_path, content, name="trace"):
    path = tmp_path / name
    path.write_bytes(content)
    return path


def read(path, format=None, **options):  # noqa: A002
    return [record for _, record in open_trace(path, format, strict=True, **options).records()]


def percentile(values, share):
    return sorted(values)[int(share * len(values))]


def ideal_hits(trace, by_time=False):
    """Blocks (with an id in the file), and those that an infinite cache holds when the request comes."""
    records = [record for _, record in trace.records()]
    seen, num_blocks, num_hits = set(), 0, 0
    for record in sorted(records, key=lambda record: record.arrival_s) if by_time else records:
        blocks = [
            (segment, start // trace.block_tokens + place)
            for segment, start, length in record.prompt
            if segment is not None
            for place in range(-(-length // trace.block_tokens))
        ]
        num_blocks += len(blocks)
        num_hits += next((place for place, block in enumerate(blocks) if block not in seen), len(blocks))
        seen.update(blocks)
    return num_blocks, num_hits


@pytest.mark.parametrize(
    ("path", "name", "num_requests", "prompt_sum", "prompt_p50", "prompt_p95", "output_sum", "output_p50"),
    [
        (SHIPPED / "mooncake_conversation.jsonl.gz", "mooncake", 12_031, 144_793_823, 6_909, 39_552, 4_122_048, 350),
        (SHIPPED / "mooncake_synthetic.jsonl.gz", "mooncake", 3_993, 61_194_628, 11_587, 49_009, 595_432, 69),
        # One of its answers is empty, and takes a token here.
        (SHIPPED / "weka_sample.jsonl.gz", "weka", 4_670, 546_949_697, 102_571, 291_648, 1_890_056 + 1, 210),
        (DATA / "aiperf_agentic.jsonl.gz", "aiperf", 3_629, 378_106_505, 96_536, 183_310, 3_582_198, 787),
        (DATA / "azure_code.csv.gz", "azure", 8_819, 18_059_974, 1_469, 7_315, 245_896, 13),
    ],
)
def test_lengths_are_those_stated(
    path, name, num_requests, prompt_sum, prompt_p50, prompt_p95, output_sum, output_p50
):
    assert recognise(path) == name
    records = read(path)
    prompts = [record.num_prompt_tokens for record in records]
    outputs = [record.num_output_tokens for record in records]
    assert (len(records), sum(prompts), sum(outputs)) == (num_requests, prompt_sum, output_sum)
    assert (percentile(prompts, 0.5), percentile(prompts, 0.95)) == (prompt_p50, prompt_p95)
    assert percentile(outputs, 0.5) == output_p50


@pytest.mark.parametrize(
    ("path", "num_blocks", "num_hits", "stated"),
    [
        (SHIPPED / "mooncake_conversation.jsonl.gz", 288_500, 105_710, "36.6 %"),
        (SHIPPED / "mooncake_synthetic.jsonl.gz", 121_877, 77_953, "64.0 %"),
        (SHIPPED / "weka_sample.jsonl.gz", 8_543_804, 8_207_993, "96.1 %"),
        (DATA / "aiperf_agentic.jsonl.gz", 740_308, 689_533, "93.1 %"),
    ],
)
def test_what_prompts_share_is_what_is_stated(path, num_blocks, num_hits, stated):
    """Of the WEKA sessions inside each, of the drawn ones when all start together."""
    trace = open_trace(path, strict=True)
    assert ideal_hits(trace, by_time=trace.sessions_start_together) == (num_blocks, num_hits)
    assert f"{num_hits / num_blocks:.1%}".replace("%", " %") == stated


def test_sessions_are_those_stated():
    weka = read(SHIPPED / "weka_sample.jsonl.gz")
    sizes = Counter(record.session for record in weka)
    assert (len(sizes), percentile(sizes.values(), 0.5)) == (73, 46)
    aiperf = read(DATA / "aiperf_agentic.jsonl.gz")
    sizes = Counter(record.session for record in aiperf)
    assert (len(sizes), percentile(sizes.values(), 0.5), len({record.tenant for record in aiperf})) == (318, 10, 91)


def test_consecutive_ids_are_one_run():
    """8.5 million blocks of the WEKA sessions in 18,333 runs, the private rest of each prompt included."""
    assert sum(len(record.prompt) for record in read(SHIPPED / "weka_sample.jsonl.gz")) == 18_333


def test_azure_spans_what_is_stated():
    """2023-11-16 18:17:03.9799600 to 19:14:19.9280160."""
    assert read(DATA / "azure_code.csv.gz")[-1].arrival_s == pytest.approx(3435.948056, abs=1e-9)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_format_is_recognised_plain_and_gzipped_by_its_content(tmp_path, name):
    for number, content in enumerate((SAMPLES[name], gzip.compress(SAMPLES[name]))):
        path = written(tmp_path, content, f"trace{number}")
        assert recognise(path) == name
        trace: Trace = open_trace(path, **OPTIONS.get(name, {}))
        found = list(trace.records())
        assert found
        assert found == list(trace.records())  # as often as asked
        assert trace.format == name
        assert (trace.num_skipped, trace.skipped()) == (0, [])
        for line, record in found:
            assert line >= 1
            assert record.num_output_tokens >= 1
            if record.prompt is not None:
                assert trace.block_tokens is not None
                assert sum(length for _, _, length in record.prompt) == record.num_prompt_tokens


def test_the_formats_of_a_scenario_are_those_of_the_readers():
    assert set(TraceSpec.model_fields["format"].annotation.__args__) == set(READERS) == set(FORMATS) == set(SAMPLES)


def test_what_is_no_trace_is_refused_in_one_line_that_names_the_formats(tmp_path):
    with pytest.raises(InputError, match=r"of no known format \(found 'a', 'b'\), expected one of aiperf, azure, "):
        open_trace(written(tmp_path, b'{"a": 1, "b": 2}\n'))
    with pytest.raises(InputError, match="found 'x', 'y'"):
        open_trace(written(tmp_path, b"x,y\n1,2\n"))
    with pytest.raises(InputError, match="the trace is empty"):
        open_trace(written(tmp_path, b"\n \n"))
    with pytest.raises(InputError, match="nowhere: cannot read the trace: No such file"):
        open_trace(tmp_path / "nowhere", "azure")
    with pytest.raises(InputError, match=r"format 'azur' is unknown \(did you mean 'azure'\?\)"):
        open_trace(tmp_path, "azur")
    with pytest.raises(InputError, match=r"format azure has no option 'tokenizer' \(it takes none\)"):
        open_trace(written(tmp_path, SAMPLES["azure"]), tokenizer="x")
    with pytest.raises(InputError, match=r"format openai has no option 'tokeniser' \(did you mean 'tokenizer'\?\)"):
        open_trace(written(tmp_path, SAMPLES["openai"]), tokeniser="x")


def in_zip():
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("trace", SAMPLES["mooncake"])
    return target.getvalue()


def in_tar():
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("trace"))
    return target.getvalue()


def in_parquet():
    target = io.BytesIO()
    pq.write_table(pa.table({"timestamp": [0, 1], "hash_ids": [[1], [2]]}), target)
    return target.getvalue()


# What other programs write -> what it is called.
NO_TEXTS = {
    "a Parquet file": in_parquet(),
    "a ZIP archive": in_zip(),
    "a tar archive": in_tar(),
    "compressed with zstd": pa.compress(SAMPLES["mooncake"], codec="zstd", asbytes=True),
    "compressed with bzip2": bz2.compress(SAMPLES["mooncake"]),
    "compressed with xz": lzma.compress(SAMPLES["mooncake"]),
    "a text in UTF-16": SAMPLES["azure"].decode().encode("utf-16"),
    "a binary file": bytes(range(256)),
}


@pytest.mark.parametrize("kind", NO_TEXTS)
@pytest.mark.parametrize("name", ["trace", "trace.jsonl", "trace.jsonl.gz"])
def test_a_file_that_is_no_text_is_called_what_it_is_and_never_shown(tmp_path, kind, name):
    """Whatever its name, within gzip as without, and whether or not somebody says a format."""
    for content, what in ((NO_TEXTS[kind], kind), (gzip.compress(NO_TEXTS[kind]), f"{kind} within gzip")):
        path = written(tmp_path, content, name)
        for open_it in (lambda path: open_trace(path), lambda path: list(open_trace(path, "azure").records())):
            with pytest.raises(InputError) as error:
                open_it(path)
            assert str(error.value) == f"{path}: is {what}, expected lines of JSON or CSV, plain or gzipped"


def test_gzip_is_told_by_its_content_and_not_by_its_name(tmp_path):
    plain = read(written(tmp_path, SAMPLES["mooncake"]))
    assert read(written(tmp_path, gzip.compress(SAMPLES["mooncake"]), "trace.jsonl")) == plain


def test_a_folder_is_called_so(tmp_path):
    for name in (None, "azure"):
        with pytest.raises(InputError, match=f"^{tmp_path}: is a folder, expected lines of JSON or CSV"):
            open_trace(tmp_path, name)


@pytest.mark.parametrize("name", sorted(set(SAMPLES) - {"vllm_bench"}))
def test_an_unusable_line_is_counted_and_named_and_strict_refuses_it(tmp_path, name):
    """Behind nine good copies or more, so that it is no more than a tenth."""
    head, _, rest = SAMPLES[name].partition(b"\n")
    has_header = name in ("azure", "burstgpt", "servegen", "kvcast")
    body = rest * 12 if has_header else (head + b"\n" + rest) * 12
    content = (head + b"\n" if has_header else b"") + body
    num_lines = content.count(b"\n")
    path = written(tmp_path, content + b"no such line\n")
    # KV events go back in time where the copies meet, and copies of ServeGen's rates add up: both are other matters.
    if name == "kv_events":
        body = SAMPLES[name] + (SAMPLES[name].splitlines()[-1] + b"\n") * 12
        path, num_lines = written(tmp_path, body + b"no such line\n"), body.count(b"\n")
    trace = open_trace(path, name, **OPTIONS.get(name, {}))
    assert list(trace.records())
    assert trace.num_skipped == 1
    (line, reason), = trace.skipped()
    assert line == num_lines + 1
    assert reason.startswith("not JSON" if head.startswith(b"{") else "1 value, expected")
    with pytest.raises(InputError, match=f":{num_lines + 1}: {reason[:8]}") as error:
        list(open_trace(path, name, strict=True, **OPTIONS.get(name, {})).records())
    assert "\n" not in str(error.value)


def test_a_trace_of_which_more_than_a_tenth_is_unusable_is_refused(tmp_path):
    header, first, *_ = SAMPLES["azure"].split(b"\r\n")
    good, bad = first + b"\n", b"2023-11-16 18:17:04.0,0,8\n"
    path = written(tmp_path, header + b"\n" + good * 9 + bad)
    trace = open_trace(path)
    assert (len(list(trace.records())), trace.num_skipped) == (9, 1)
    path = written(tmp_path, header + b"\n" + good * 8 + bad)
    message = r":10: ContextTokens is '0', .* \(unusable: 1 of 9 lines, expected no more than 10%\)"
    with pytest.raises(InputError, match=message):
        list(open_trace(path).records())


def test_no_more_than_twenty_skipped_lines_are_named(tmp_path):
    good = SAMPLES["mooncake"].split(b"\n")[0] + b"\n"
    trace = open_trace(written(tmp_path, good * 1000 + b"?\n" * 50))
    list(trace.records())
    assert (trace.num_skipped, len(trace.skipped())) == (50, 20)


def test_reading_is_lazy(tmp_path):
    """A file that breaks off gives what stands before."""
    content = gzip.compress(SAMPLES["mooncake"] * 20_000)
    records = open_trace(written(tmp_path, content[: len(content) // 2]), "mooncake").records()
    assert next(records)[0] == 1
    with pytest.raises(InputError, match="corrupt gzip after line"):
        list(records)


def test_a_header_without_the_columns_is_refused(tmp_path):
    with pytest.raises(InputError, match=r":1: no column 'GeneratedTokens', expected TIMESTAMP, ContextTokens, Gen"):
        list(open_trace(written(tmp_path, b"TIMESTAMP,ContextTokens\n"), "azure").records())


def test_an_own_trace_begins_with_its_header(tmp_path):
    for header, message in (
        ({"kvcast_trace": 2}, "kvcast_trace is 2, expected 1"),
        ({"kvcast_trace": 1, "sessions_start_together": 1}, "sessions_start_together is 1, expected true or false"),
        ({"kvcast_trace": 1, "block_tokens": 0}, "block_tokens is 0, expected a whole number of tokens >= 1"),
    ):
        with pytest.raises(InputError, match=f":1: {message}"):
            open_trace(written(tmp_path, lines(header, json.dumps({"t": 0, "in": 1, "out": 1}))))
