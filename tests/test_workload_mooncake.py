"""Mooncake's traces: every line becomes the request it describes, or an error that names it.

Outside truths: sums and counts over the published files (kvcache-ai/Mooncake), taken without kvcast.
"""

import gzip
import hashlib
import json
import re
from itertools import islice
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.workload import WorkloadSpec, mooncake, open_workload

TRACES = Path(__file__).parents[1] / "scenarios" / "traces"
GOOD = {"timestamp": 5, "input_length": 513, "output_length": 7, "hash_ids": [3, 4]}


def replayed(path, **trace):
    tenant = {"name": "a", "trace": {"format": "mooncake", "path": str(path), **trace}}
    return open_workload(WorkloadSpec.model_validate({"tenants": [tenant]}), 0, 0)


def written(path, *lines):
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


@pytest.mark.parametrize("name", ["mooncake_conversation.jsonl.gz", "mooncake_synthetic.jsonl.gz"])
def test_shipped_traces_are_the_published_ones(name):
    row = next(line for line in (TRACES / "README.md").read_text().splitlines() if line.startswith(f"| `{name}`"))
    of_file, of_original = re.findall(r"`([0-9a-f]{64})`", row)
    assert hashlib.sha256((TRACES / name).read_bytes()).hexdigest() == of_file
    assert hashlib.sha256(gzip.decompress((TRACES / name).read_bytes())).hexdigest() == of_original


@pytest.mark.parametrize(
    ("name", "num_requests", "num_blocks", "num_hits", "num_prompt_tokens", "num_output_tokens", "num_timestamps"),
    [
        ("mooncake_conversation.jsonl.gz", 12_031, 288_500, 105_710, 144_793_823, 4_122_048, 1_180),
        ("mooncake_synthetic.jsonl.gz", 3_993, 121_877, 77_953, None, None, 3_982),
    ],
)
def test_ideal_reuse_and_totals_of_the_published_traces(
    name, num_requests, num_blocks, num_hits, num_prompt_tokens, num_output_tokens, num_timestamps
):
    requests = list(replayed(TRACES / name))
    segments = [segment for request in requests for segment, _, _ in request.prompt]
    assert len(requests) == num_requests
    assert (len(segments), len(segments) - len(set(segments))) == (num_blocks, num_hits)
    assert len({request.arrival_s for request in requests}) == num_timestamps
    if num_prompt_tokens:
        assert sum(request.num_prompt_tokens for request in requests) == num_prompt_tokens
        assert sum(request.oracle_num_output_tokens for request in requests) == num_output_tokens
    for request in requests:
        assert sum(length for _, _, length in request.prompt) == request.num_prompt_tokens
        assert all(start == 0 and 0 < length <= 512 for _, start, length in request.prompt)


def test_a_line_becomes_the_request_it_describes(tmp_path):
    path = written(tmp_path / "t.jsonl", GOOD, "", {**GOOD, "timestamp": 1505, "extra": None})
    first, second = replayed(path)
    assert first.prompt == ((3, 0, 512), (4, 0, 1))
    assert (first.num_prompt_tokens, first.max_tokens, first.oracle_num_output_tokens) == (513, 7, 7)
    assert (first.request_id, first.arrival_s, first.output_segment, first.session) == (0, 0.0, None, None)
    assert (second.request_id, second.arrival_s) == (1, 1.5)


def test_the_second_block_tells_conversations_apart(tmp_path):
    single = {**GOOD, "input_length": 512, "hash_ids": [3]}
    follow_up = {**GOOD, "input_length": 1025, "hash_ids": [3, 4, 9]}
    other = {**GOOD, "hash_ids": [3, 8]}
    path = written(tmp_path / "t.jsonl", GOOD, follow_up, other, single)
    sessions = [request.session for request in replayed(path, session_from="second_block")]
    assert sessions[0] == sessions[1] != sessions[2]
    assert sessions[3] not in sessions[:3]  # it has one block only, and is told apart by that


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "named_plain"])
def test_gzip_is_known_by_its_content(tmp_path, name):
    text = json.dumps(GOOD).encode()
    path = tmp_path / name
    path.write_bytes(text if name == "t.jsonl" else gzip.compress(text))
    assert len(list(replayed(path))) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"timestamp": 5, "input_length": 5; 13}', r"not JSON: Expecting ',' delimiter \(character 35\)"),
        ('{"timestamp": 5, "input_length": 513, "hash_ids": [3,', "not JSON: Expecting value"),
        ('{"timestamp": 5, "input_len', "not JSON: "),
        ("5 6", "not JSON"),
        ("[" * 200_000, "not JSON"),
        ("[1]", "not a JSON object"),
        ({"timestamp": 5}, "key 'hash_ids' is missing"),
        ({**GOOD, "timestamp": -1}, "timestamp is -1, expected a whole number >= 0"),
        ({**GOOD, "timestamp": 5.5}, "timestamp is 5.5, expected a whole number >= 0"),
        ({**GOOD, "timestamp": float("nan")}, "timestamp is nan, expected"),
        ({**GOOD, "timestamp": None}, "timestamp is None, expected"),
        ({**GOOD, "input_length": 0, "hash_ids": []}, "input_length is 0, expected a whole number >= 1"),
        ({**GOOD, "input_length": -512, "hash_ids": []}, "input_length is -512, expected"),
        ({**GOOD, "input_length": "513"}, "input_length is '513', expected"),
        ({**GOOD, "output_length": 0}, "output_length is 0, expected a whole number >= 1"),
        ({**GOOD, "output_length": True}, "output_length is True, expected"),
        ({**GOOD, "hash_ids": None}, "hash_ids is None, expected a list"),
        ({**GOOD, "hash_ids": [3]}, "hash_ids has 1 for 513 tokens, expected 2"),
        ({**GOOD, "hash_ids": [3, 4, 5]}, "hash_ids has 3 for 513 tokens, expected 2"),
        ({**GOOD, "hash_ids": [3, -4]}, "hash id -4, expected"),
        ({**GOOD, "hash_ids": [3, True]}, "hash id True, expected"),
        ({**GOOD, "hash_ids": [3, 4.0]}, "hash id 4.0, expected"),
        ({**GOOD, "hash_ids": [3, 2**40]}, f"hash id {2**40}, expected"),
        ({**GOOD, "timestamp": 4}, "timestamp 4 is earlier than 5 in line 1"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
    path = written(tmp_path / "t.jsonl", GOOD, "", line)
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}:3: {message}"):
        list(replayed(path))


def test_bytes_that_are_no_text_are_named(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b'{"timestamp": "\xff\xfe"}\n')
    with pytest.raises(InputError, match=f"^{re.escape(str(path))}:1: not JSON"):
        replayed(path)


def test_files_that_are_no_trace_are_refused_when_opened(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.jsonl: cannot read the trace: No such file"):
        replayed(tmp_path / "nowhere.jsonl")
    with pytest.raises(InputError, match="is a folder, expected lines of JSON or CSV"):
        replayed(tmp_path)
    with pytest.raises(InputError, match="the trace is empty"):
        replayed(written(tmp_path / "empty.jsonl", "", ""))
    with pytest.raises(InputError, match="the trace is empty"):
        mooncake.span_s(written(tmp_path / "empty.jsonl", "", ""))
    with pytest.raises(InputError, match=r"named \.gz, but is not gzip"):
        replayed(written(tmp_path / "t.jsonl.gz", GOOD))


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_corrupt_gzip_is_refused(tmp_path, damage):
    content = bytearray(gzip.compress("".join(f"{json.dumps(GOOD)}\n" for _ in range(20_000)).encode()))
    if damage == "cut":
        del content[len(content) // 2 :]
    else:
        content[len(content) // 2] ^= 0xFF
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"corrupt gzip after line|not JSON"):
        list(replayed(path))


@pytest.mark.parametrize("trace", [{}, {"smooth_s": "3 ms"}, {"limit": 10}])
def test_the_first_requests_do_not_need_the_rest_of_the_file(tmp_path, trace):
    lines = [{**GOOD, "timestamp": k} for k in range(20)]
    path = written(tmp_path / "t.jsonl", *lines, "this is never reached")
    assert len(list(islice(replayed(path, **trace), 10))) == 10


def test_the_span_is_that_of_the_timestamps():
    assert mooncake.span_s(TRACES / "mooncake_conversation.jsonl.gz") == 3536.999
    assert mooncake.span_s(TRACES / "mooncake_synthetic.jsonl.gz") == 1022.025
