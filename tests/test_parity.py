"""Every decision equals vLLM's, in cases recorded from vLLM itself (data/parity; simulator/parity/record.py)."""

from __future__ import annotations

import datetime as dt
import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.parity.cases import FAMILIES, generate_case
from simulator.parity.record import Recorded, parse_names, read, write

HOME = Path(__file__).parent / "data" / "parity"
VERSIONS = ("0.32.0", "0.23.0")
RECORDING = pytest.mark.parametrize("recording", VERSIONS, indirect=True)


@pytest.fixture(scope="module")
def recording(request: pytest.FixtureRequest) -> tuple[dict[str, Any], list[Recorded]]:
    """Header and cases of one vLLM version."""
    return read(HOME / f"vllm-{request.param}.jsonl.gz")


@pytest.mark.parametrize("grouping", [True, False], ids=["grouped", "one-by-one"])
@pytest.mark.parametrize("family", FAMILIES)
@RECORDING
def test_every_record_equals_vllm(recording: tuple[dict, list[Recorded]], family: str, grouping: bool) -> None:
    header, recorded = recording
    for one in recorded:
        if one.case["family"] == family:
            found = one.difference(grouping=grouping)
            assert found is None, (
                f"vLLM {header['vllm']} decided otherwise in {one.name} ({len(one.case['requests'])} requests), record "
                f"{found[0]} of {len(one.digests)}. Ours: {json.dumps(found[1])}. To see vLLM's: kvcast verify "
                f"--engine-python PYTHON --family {family} --seed {one.case['seed']} --cases 1"
            )


@RECORDING
def test_a_recording_says_where_it_comes_from(recording: tuple[dict, list[Recorded]], request) -> None:
    header, recorded = recording
    assert header["vllm"] == request.node.callspec.params["recording"]
    assert dt.date.fromisoformat(header["date"]) > dt.date(2025, 1, 1)
    assert header["command"].startswith("python -m simulator.parity.record --engine-python PYTHON -o vllm-")
    assert {one.case["dialect"] for one in recorded} == {header["dialect"]}
    assert header["vllm"].startswith(header["dialect"])


@RECORDING
def test_recorded_cases_are_rich(recording: tuple[dict, list[Recorded]]) -> None:
    """By vLLM's own counts: what is rare in a single case occurs often in all of them."""
    _, recorded = recording
    families = Counter(one.case["family"] for one in recorded)
    assert all(families[family] >= 20 for family in FAMILIES)
    counts: Counter[str] = Counter()
    for one in recorded:
        counts.update(one.summary)
    assert counts["num_preemptions"] > 1_500
    assert counts["num_evictions"] > 20_000
    assert counts["num_resumed_hits"] > 500
    assert counts["num_scheduled_victims"] > 150
    assert sum(len(one.case["requests"]) == 500 for one in recorded) >= 3


def test_a_difference_is_found_where_it_is() -> None:
    _, recorded = read(HOME / "vllm-0.32.0.jsonl.gz")
    one = min(recorded, key=lambda one: len(one.digests))
    changed = Recorded(one.case, [*one.digests[:7], "0" * 16, *one.digests[8:]], one.summary)
    longer = Recorded(one.case, [*one.digests, "0" * 16], one.summary)
    shorter = Recorded(one.case, one.digests[:-1], one.summary)
    assert one.difference() is None
    assert changed.difference()[0] == 7
    assert longer.difference() == (len(one.digests), None)
    assert shorter.difference()[0] == len(one.digests) - 1


def test_names_of_cases() -> None:
    named = list(parse_names(["edge:3-5,9", "basic-large:2"], "0.23"))
    expected = [generate_case("edge", seed, "0.23") for seed in (3, 4, 5, 9)]
    assert named == [*expected, generate_case("basic", 2, "0.23", "large")]


@pytest.mark.parametrize("name", ["edge", "edge:", "edge:-1", "edge:1,", "egde:1", "edge-huge:1", "edge:1-x"])
def test_unknown_names_of_cases(name: str) -> None:
    with pytest.raises(InputError, match="expected"):
        list(parse_names([name], "0.32"))


@pytest.mark.parametrize(
    "content", [b"", b"not gzip", b"\x1f\x8b", b'{"format": "kvcast-decisions-2"}', b"[]", b"\xff\xfe"]
)
def test_a_file_of_another_format(tmp_path: Path, content: bytes) -> None:
    for number, bytes_of_file in enumerate((content, gzip.compress(content))):
        path = tmp_path / f"{number}.jsonl.gz"
        path.write_bytes(bytes_of_file)
        with pytest.raises(InputError, match="kvcast-decisions-1"):
            read(path)


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    header, recorded = read(HOME / "vllm-0.23.0.jsonl.gz")
    rows = [header] + [{"case": one.case, "digests": one.digests, "summary": one.summary} for one in recorded[:3]]
    for name in ("first", "second"):
        write(tmp_path / name, iter(rows))
    assert read(tmp_path / "first") == (header, recorded[:3])
    assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
