"""Truncated and corrupted traces: either every line is accounted for, or one line says what is wrong."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.workload.readers import READERS, open_trace, recognise
from simulator.workload.readers.fields import MAX_TOKENS
from simulator.workload.segments import SEGMENTS_PER_TENANT
from tests.trace_samples import OPTIONS, SAMPLES

# One line is one request there; elsewhere a line may be part of one, several, or a rate.
ONE_EACH = sorted(set(SAMPLES) - {"kv_events", "vllm_bench", "servegen"})
HEADERS = {"azure", "burstgpt", "kvcast"}

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from([10**30, 1e308]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def damaged(draw, content: bytes) -> bytes:
    """The content cut, with bytes changed, put in or left out, lines in another order, or another value in a line."""
    kind = draw(st.sampled_from(["cut", "bytes", "lines", "values", "inserted"]))
    if kind == "cut":
        return content[: draw(st.integers(0, len(content)))]
    if kind == "inserted":
        place = draw(st.integers(0, len(content)))
        return content[:place] + draw(st.binary(max_size=8)) + content[place + draw(st.integers(0, 5)) :]
    if kind == "bytes":
        changed = bytearray(content)
        for place in draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
            changed[place] = draw(st.integers(0, 255))
        return bytes(changed)
    lines = content.splitlines(keepends=True)
    if kind == "lines":
        return b"".join(draw(st.lists(st.sampled_from(lines), max_size=8)))
    place = draw(st.integers(0, len(lines) - 1))
    try:
        fields = json.loads(lines[place])
        key = draw(st.sampled_from(sorted(fields)))
    except (ValueError, TypeError):
        values = lines[place].split(b",")
        values[draw(st.integers(0, len(values) - 1))] = draw(st.text(max_size=6)).encode(errors="replace")
        lines[place] = b",".join(values)
    else:
        lines[place] = json.dumps({**fields, key: draw(VALUES)}).encode() + b"\n"
    return b"".join(lines)


def check_error(error: InputError, path: Path) -> None:
    message = str(error)
    assert message.startswith((str(path), str(OPTIONS["servegen"]["lengths"])))
    assert "\n" not in message
    assert len(message) < 1000


def check(path: Path, name: str, strict: bool) -> None:
    """Read it whole; every record is sound, and every line is either one or counted as skipped."""
    try:
        trace = open_trace(path, name, strict=strict, **OPTIONS.get(name, {}))
        records = [record for _, record in trace.records()]
    except InputError as error:
        check_error(error, path)
        return
    for record in records:
        assert math.isfinite(record.arrival_s)
        assert 1 <= record.num_prompt_tokens <= MAX_TOKENS
        assert 1 <= record.num_output_tokens <= MAX_TOKENS
        assert record.after_s is None or 0 <= record.after_s < math.inf
        if record.prompt is not None:
            assert sum(length for _, _, length in record.prompt) == record.num_prompt_tokens
            for segment, start, length in record.prompt:
                assert segment is None or 0 <= segment < SEGMENTS_PER_TENANT
                assert start >= 0 < length
    assert all(record.parent is None or 0 <= record.parent < place for place, record in enumerate(records))
    assert len(trace.skipped()) == min(20, trace.num_skipped)
    assert not (strict and trace.num_skipped)
    if name in ONE_EACH:
        num_lines = sum(not line.isspace() for line in path.read_bytes().split(b"\n") if line) - (name in HEADERS)
        assert len(records) + trace.num_skipped == num_lines


@pytest.mark.parametrize("name", sorted(SAMPLES))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), strict=st.booleans(), is_gzip=st.booleans())
def test_damaged_traces_never_end_in_a_traceback_or_a_silent_skip(tmp_path, name, data, strict, is_gzip):
    # Most lines stay good, so that a damaged one is passed over rather than the file refused.
    head, _, rest = SAMPLES[name].partition(b"\n")
    copies = 1 if name in ("servegen", "vllm_bench") else data.draw(st.integers(1, 6))
    content = head + b"\n" + rest * copies
    path = tmp_path / "trace"
    path.write_bytes(data.draw(damaged(content)))
    if is_gzip:
        packed = gzip.compress(path.read_bytes(), mtime=0)
        end = data.draw(st.integers(0, len(packed)) | st.just(len(packed)))
        (tmp_path / "packed").write_bytes(packed[:end])
        try:
            records = list(open_trace(tmp_path / "packed", name, strict=strict, **OPTIONS.get(name, {})).records())
            assert end == len(packed)
            assert records
        except InputError as error:
            check_error(error, tmp_path / "packed")
    check(path, name, strict)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=60) | st.sampled_from(sorted(SAMPLES.values())).flatmap(damaged))
@example(content=b"[" * 200_000)
@example(content=b'{"timestamp": ' + b"9" * 5000 + b', "input_length": 5, "output_length": 5, "hash_ids": [1]}')
@example(content=b'{"timestamp": ' + b"9" * 4000 + b', "input_length": 5, "output_length": 5, "hash_ids": [1]}')
@example(content=b'{"a": ' + b"[" * 900 + b"]" * 900 + b', "hash_ids": ' + b"[" * 900 + b"]" * 900 + b"}")
@example(content=b"\xef\xbb\xbfTIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,1\n")
def test_any_bytes_are_read_or_refused(tmp_path, content):
    path = tmp_path / "trace"
    path.write_bytes(content)
    try:
        name = recognise(path)
    except InputError as error:
        check_error(error, path)
    else:
        check(path, name, strict=False)
    for other in READERS:  # whatever its content, a file may be said to be of any format
        check(path, other, strict=True)
