"""``kvcast trace``: files in, files out, what is printed, and what is refused."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from simulator import cli
from simulator.errors import InputError
from simulator.trace_cli import trace
from simulator.trace_tools.new_file import new_file
from simulator.workload import mooncake
from simulator.workload.readers import open_trace
from simulator.workload.records import Record

TRACES = Path(__file__).parents[1] / "scenarios" / "traces"
CONVERSATION = TRACES / "mooncake_conversation.jsonl.gz"
SYNTHETIC = TRACES / "mooncake_synthetic.jsonl.gz"


def kvcast(*arguments: str | Path) -> str:
    """What `kvcast trace` prints."""
    runner = CliRunner(env={"COLUMNS": "120"})
    done = runner.invoke(trace, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def complaint(*arguments: str | Path) -> str:
    """The one line with which it refuses."""
    with pytest.raises(InputError) as found:
        kvcast(*arguments)
    assert "\n" not in str(found.value)
    return str(found.value)


def records_of(path: Path) -> list[Record]:
    return [record for _, record in open_trace(path).records()]


def file_of(path: Path, *rows: dict[str, Any] | str) -> Path:
    """JSON lines; a row that is a text is written as it is."""
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def row(timestamp: int, length: int, *ids: int, out: int = 5) -> dict[str, Any]:
    return {"timestamp": timestamp, "input_length": length, "output_length": out, "hash_ids": list(ids)}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Three requests in Mooncake's format; the third shares a block with the first two."""
    return file_of(
        tmp_path / "small.jsonl", row(0, 1000, 7, 8), row(500, 1100, 7, 8, 9), row(2500, 600, 7, 3)
    )  # fmt: skip


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    """Two sessions of our own format, with everything that a record can hold."""
    rows = [
        {"t": 0.0, "in": 10, "out": 4, "runs": [[5, 0, 10]], "session": "ann", "tenant": "bank", "out_segment": 6},
        {"t": 1.0, "in": 7, "out": 2, "runs": [[5, 0, 4], [None, 0, 3]], "session": "bob", "tenant": "shop"},
        {
            "t": 9.0, "in": 20, "out": 3, "runs": [[5, 0, 10], [6, 0, 4], [9, 3, 6]], "session": "ann",
            "tenant": "bank", "after": 2.0, "parent": 0,
        },
    ]  # fmt: skip
    header = {"kvcast_trace": 1, "block_tokens": 1, "source": "by hand", "sessions_start_together": False}
    return file_of(tmp_path / "sessions.jsonl", header, *rows)


@pytest.mark.parametrize("path", [CONVERSATION, SYNTHETIC])
def test_mooncake_to_ours_and_back_is_the_identity(tmp_path, path):
    ours, back = tmp_path / "ours.jsonl.gz", tmp_path / "back.jsonl"
    kvcast("convert", path, "-o", ours)
    kvcast("convert", ours, "-o", back, "--to", "mooncake")
    before = gzip.decompress(path.read_bytes()).splitlines()
    assert [json.loads(line) for line in back.read_bytes().splitlines()] == [json.loads(line) for line in before]
    # And to the reader of replays.
    assert list(mooncake.read(back)) == list(mooncake.read(path))


def test_ours_holds_everything(tmp_path, sessions):
    again = tmp_path / "again.jsonl"
    assert kvcast("convert", sessions, "-o", again) == f"{again}: 3 requests, format kvcast\n"
    assert records_of(again) == records_of(sessions)
    assert again.read_text().splitlines()[0] == sessions.read_text().splitlines()[0]
    assert records_of(again)[2] == Record(
        9.0, 20, 3, ((5, 0, 10), (6, 0, 4), (9, 3, 6)), session="ann", after_s=2.0, tenant="bank", parent=0
    )


def test_what_mooncakes_format_loses_is_said(tmp_path, sessions):
    out = tmp_path / "out.jsonl"
    said = kvcast("convert", sessions, "-o", out, "--to", "mooncake")
    assert "no place for it: sessions, delays after the turn before, tenants, texts of answers\n" in said
    assert said.endswith(f"{out}: 3 requests, format mooncake\n")


def test_slices_put_together_are_the_whole(tmp_path):
    halves = [tmp_path / "first.jsonl.gz", tmp_path / "second.jsonl"]
    kvcast("slice", SYNTHETIC, "--to", "10 min", "-o", halves[0])
    kvcast("slice", SYNTHETIC, "--from", "600", "-o", halves[1])
    kvcast("merge", *halves, "--parts", "-o", tmp_path / "whole.jsonl.gz")
    kvcast("convert", SYNTHETIC, "-o", tmp_path / "same.jsonl.gz")
    assert (tmp_path / "whole.jsonl.gz").read_bytes() == (tmp_path / "same.jsonl.gz").read_bytes()
    assert all(record.arrival_s < 600 for record in records_of(halves[0]))
    assert min(record.arrival_s for record in records_of(halves[1])) >= 600


def test_slices_by_number_and_by_session(tmp_path, small, sessions):
    kvcast("slice", small, "--first", "2", "-o", tmp_path / "two.jsonl")
    assert records_of(tmp_path / "two.jsonl") == records_of(small)[:2]
    kvcast("slice", sessions, "--sessions", "1", "--seed", "4", "-o", tmp_path / "one.jsonl")
    assert len({record.session for record in records_of(tmp_path / "one.jsonl")}) == 1


def test_scale(tmp_path, small):
    out = tmp_path / "out.jsonl"
    kvcast("scale", small, "--rate", "2", "--lengths", "0.5", "-o", out)
    found = records_of(out)
    assert [record.arrival_s for record in found] == [0, 0.25, 1.25]
    assert [record.num_prompt_tokens for record in found] == [500, 550, 300]
    assert [record.num_output_tokens for record in found] == [3, 3, 3]
    assert found[0].prompt == ((7, 0, 256), (8, 0, 244))
    assert open_trace(out).block_tokens == 256


def test_merge_makes_a_tenant_of_each_file(tmp_path, small, sessions):
    out = tmp_path / "out.jsonl"
    kvcast("merge", small, sessions, "-o", out)
    found = records_of(out)
    assert [(record.arrival_s, record.tenant) for record in found] == [
        (0, "small"), (0, "sessions/bank"), (0.5, "small"), (1.0, "sessions/shop"), (2.5, "small"),
        (9.0, "sessions/bank"),
    ]  # fmt: skip
    texts = [
        {name for record in found if record.tenant.startswith(tenant) for name, _, _ in record.prompt} - {None}
        for tenant in ("small", "sessions")
    ]
    assert not texts[0] & texts[1]
    assert found[5].parent == 1


def test_anonymise_keeps_hits_and_nothing_of_names(tmp_path, sessions):
    out = tmp_path / "out.jsonl"
    kvcast("slice", sessions, "--from", "1", "-o", tmp_path / "late.jsonl")
    kvcast("anonymise", tmp_path / "late.jsonl", "-o", out)
    text = out.read_text()
    assert not [name for name in ("ann", "bob", "bank", "shop", "hand", "late", "sessions.jsonl") if name in text]
    assert [(record.arrival_s, record.session, record.tenant) for record in records_of(out)] == [
        (0.0, 0, "tenant-0"), (8.0, 1, "tenant-1")
    ]  # fmt: skip
    kvcast("anonymise", SYNTHETIC, "-o", out)
    found = [json.loads(kvcast("info", path, "--json"))["prompts"] for path in (SYNTHETIC, out)]
    assert found[0] == found[1]


def test_info_prints_the_numbers(small):
    said = kvcast("info", small, "--block-size", "512", "--block-size", "256")
    assert "3 requests, format mooncake, which tells prompts in blocks of 512 tokens" in said
    assert "! Every request starts with the same 512 tokens" in said
    found = json.loads(kvcast("info", small, "--json", "--block-size", "512", "--block-size", "256"))
    assert (found["file"], found["num_requests"], found["arrivals"]["span_s"]) == ("small.jsonl", 3, 2.5)
    ideal = {one["block_size"]: one for one in found["prompts"]["ideal"]}
    # Request 2 finds block 7 and, in blocks of 256, the whole one of the 488 tokens of block 8; request 3 block 7.
    assert (ideal[512]["num_hits"], ideal[256]["num_hits"]) == (2, 3 + 2)
    assert ideal[512]["share_of_tokens"] == 1024 / 2700
    # As the file counts: 7 and 8, then 7.
    assert (found["prompts"]["as_file"]["num_blocks"], found["prompts"]["as_file"]["num_hits"]) == (7, 3)


def test_info_of_published_files(tmp_path):
    found = json.loads(kvcast("info", CONVERSATION, "--json", "-o", tmp_path / "new" / "folder"))
    assert found["num_requests"] == 12_031
    assert [found["input_tokens"][key] for key in ("p50", "p95", "most")] == [6_909, 39_552, 126_195]
    assert round(found["prompts"]["as_file"]["share_of_blocks"], 3) == 0.366
    folder = tmp_path / "new" / "folder"
    assert sorted(path.name for path in folder.iterdir()) == ["trace.json", "trace.png", "trace.svg"]
    assert json.loads((folder / "trace.json").read_text()) == found
    svg = (folder / "trace.svg").read_text()
    assert svg.startswith("<?xml")
    assert "nothing is known" not in svg


def test_the_figure_of_a_file_that_knows_lengths_only(tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
        "2023-11-16 18:17:04.0319600,3180,8\n"
    )
    said = kvcast("info", path, "-o", tmp_path / "out")
    assert "! The file says nothing of what prompts share" in said
    assert f"Figure: {tmp_path / 'out' / 'trace.svg'}" in said
    kvcast("convert", path, "-o", tmp_path / "out.jsonl", "--to", "mooncake")
    assert sum(len(record.prompt) for record in records_of(tmp_path / "out.jsonl")) == 10 + 7


def test_skipped_lines_are_counted_and_named(tmp_path):
    lines = [row(1000 * number, 600, 0, number + 1) for number in range(30)]
    path = file_of(tmp_path / "holes.jsonl", *lines[:4], "{broken", *lines[4:], row(40_000, 600, 1))
    said = kvcast("info", path)
    assert "skipped 2 lines:\n  line 5: not JSON" in said
    assert "line 32: hash_ids has 1 for 600 tokens" in said
    found = json.loads(kvcast("info", path, "--json"))
    assert (found["num_requests"], found["num_skipped"]) == (30, 2)
    assert [line for line, _ in found["skipped"]] == [5, 32]
    said = kvcast("convert", path, "-o", tmp_path / "out.jsonl")
    assert "holes.jsonl: skipped 2 lines:\nholes.jsonl:   line 5: not JSON" in said
    assert said.endswith("30 requests, format kvcast\n")
    # Two readings (Mooncake's format needs a first look) count them once.
    said = kvcast("convert", path, "-o", tmp_path / "out.jsonl", "--to", "mooncake")
    assert said.count("skipped 2 lines") == 1
    for command in (("info",), ("convert", "-o", str(tmp_path / "new.jsonl"))):
        assert f"{path}:5: not JSON" in complaint(*command, path, "--strict")
    assert not (tmp_path / "new.jsonl").exists()


@pytest.mark.parametrize("command", ["info", "convert", "slice", "scale", "merge", "anonymise"])
def test_a_file_that_is_missing_or_no_trace(tmp_path, small, command):
    out = tmp_path / "out.jsonl"
    options = {
        "info": [], "slice": ["--first", "1", "-o", out], "scale": ["--rate", "2", "-o", out],
        "merge": [small, "-o", out],
    }.get(command, ["-o", out])  # fmt: skip
    missing = tmp_path / "missing.jsonl"
    assert str(missing) in complaint(command, missing, *options)
    for content in ("", "hello\n", '{"a": 1}\n', "\x1f\x8b half"):
        path = tmp_path / "what.jsonl"
        path.write_text(content, encoding="latin-1")
        assert str(path) in complaint(command, path, *options)
    assert not out.exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_an_output_that_cannot_be_written(tmp_path, small):
    for out in (tmp_path / "no" / "folder.jsonl", tmp_path, small / "below.jsonl"):
        assert complaint("convert", small, "-o", out).startswith(f"{out}: ")
    assert "is not a folder" in complaint("info", small, "-o", small)
    assert [path.name for path in tmp_path.iterdir()] == ["small.jsonl"]


def test_an_input_is_never_overwritten(tmp_path, small, sessions):
    (tmp_path / "link.jsonl").symlink_to(small)
    os.link(small, tmp_path / "same.jsonl")
    before = small.read_bytes()
    for out in (small, tmp_path / "link.jsonl", tmp_path / "same.jsonl", tmp_path / ".." / tmp_path.name / small.name):
        assert "is the input" in complaint("convert", small, "-o", out)
        assert "is the input" in complaint("merge", sessions, small, "-o", out)
    assert small.read_bytes() == before


def test_a_run_that_fails_leaves_what_was_there(tmp_path):
    path = file_of(tmp_path / "broken.jsonl", *(row(0, 600, 0, 1) for _ in range(3)), *["{"] * 3)
    out = tmp_path / "out.jsonl"
    out.write_text("before")
    assert "unusable: 3 of 6 lines" in complaint("convert", path, "-o", out)
    assert out.read_text() == "before"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["broken.jsonl", "out.jsonl"]


def test_an_interrupted_run_leaves_nothing(tmp_path):
    def stopped() -> None:
        with new_file(tmp_path / "out.jsonl") as target:
            target.write(b"half")
            assert list(tmp_path.iterdir())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert not list(tmp_path.iterdir())


def test_zipped_output_is_the_same_every_time(tmp_path, small):
    outs = [tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl.gz"]
    for out in outs:
        kvcast("convert", small, "-o", out)
    assert outs[0].read_bytes() == outs[1].read_bytes()
    assert outs[0].read_bytes()[:2] == b"\x1f\x8b"
    assert outs[0].read_bytes()[4:8] == bytes(4)  # the time of packing, which would differ the next second


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("slice",), "slice: nothing to cut away, expected --from, --to, --first or --sessions"),
        (("slice", "--from", "10 min", "--to", "5 min"), "--to: got 300 s, which is not after --from (600 s)"),
        (("slice", "--from", "1 h"), "small.jsonl: no request is left to write"),
        (("slice", "--to", "soon"), "--to: got 'soon', expected a duration"),
        (("slice", "--first", "0"), "--first: got '0', expected at least 1"),
        (("slice", "--sessions", "1"), "--sessions: the trace has 0 sessions, expected at least 1"),
        (("scale",), "scale: nothing to change, expected --rate or --lengths"),
        (("scale", "--rate", "0"), "--rate: got '0', expected more than 0"),
        (("scale", "--lengths", "1e9"), "--lengths: a prompt of 1,000,000,000,000 tokens"),
        (("merge",), "merge: got one file"),
        (("convert", "--to", "moncake"), "--to: unknown format 'moncake' (did you mean 'mooncake'?)"),
        (("convert", "--format", "moncake"), "format 'moncake' is unknown (did you mean 'mooncake'?)"),
        (("convert", "--option", "tokenizer"), "--option: got 'tokenizer', expected NAME=VALUE"),
        (("convert", "--option", "seed=x"), "--option seed: got 'x', expected a whole number"),
        (("convert", "--option", "block_tokens=64"), "format mooncake has no option 'block_tokens'"),
        (("convert", "--option", "colour=red"), "format mooncake has no option 'colour'"),
    ],
)
def test_wrong_options(tmp_path, small, arguments, said):
    assert said in complaint(arguments[0], small, *arguments[1:], "-o", tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


def test_the_group_is_found_by_name(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["trace", "--help"])
    assert not ended.value.code
    said = capsys.readouterr().out
    assert said.startswith("Usage: kvcast trace ")
    assert all(f"\n  {name} " in said for name in ("anonymise", "convert", "info", "merge", "scale", "slice"))
