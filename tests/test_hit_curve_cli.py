"""``kvcast hit-curve``: what is printed and written, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_trace_cli import file_of, row
from trace_samples import SAMPLES

from simulator import cli
from simulator.errors import InputError
from simulator.hit_curve_cli import hit_curve
from simulator.profile import load_profile

ROOT = Path(__file__).parents[1]
SYNTHETIC = ROOT / "scenarios" / "traces" / "mooncake_synthetic.jsonl.gz"
PROFILE = "qwen3-0.6b-ascend910-a3"


def kvcast(*arguments: str | Path) -> str:
    """What `kvcast hit-curve` prints."""
    runner = CliRunner(env={"COLUMNS": "120"})
    done = runner.invoke(hit_curve, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def numbers(*arguments: str | Path) -> dict:
    return json.loads(kvcast(*arguments, "--json"))


def complaint(*arguments: str | Path) -> str:
    """The one line with which it refuses."""
    with pytest.raises(InputError) as found:
        kvcast(*arguments)
    assert "\n" not in str(found.value)
    return str(found.value)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Two blocks, another one, the same two again, and one token more that lets both be found."""
    return file_of(
        tmp_path / "small.jsonl", row(0, 1024, 1, 2), row(10, 512, 9), row(20, 1025, 1, 2, 3)
    )


def test_small_file_by_hand(small):
    """The first block is used again after one other, the second after one more: caches of 2 and 3 blocks."""
    found = numbers(small, "--at", "1,2,3", "--policy", "fifo")
    assert (found["block_size"], found["counted_as"], found["num_requests"]) == (512, "vllm", 3)
    assert (found["num_prompt_tokens"], found["num_prompt_blocks"], found["num_distinct_blocks"]) == (2561, 6, 3)
    assert [point["lru"]["num_hits"] for point in found["curve"]] == [0, 1, 2]
    assert [point["belady"]["num_hits"] for point in found["curve"]] == [1, 2, 2]
    assert found["curve"][2]["lru"] == {"num_hits": 2, "hit_rate": 1024 / 2561, "block_hit_rate": 2 / 6}
    assert found["ceiling"] == found["curve"][2]["fifo"] == found["curve"][2]["lru"]
    assert found["sample"] is found["pool"] is None
    assert numbers(small, "--at", "3", "--as-file")["ceiling"]["hit_rate"] == 2 / 6
    assert numbers(small, "--block-size", "256")["ceiling"]["num_hits"] == 4


def test_sizes_go_from_the_longest_request_to_the_first_that_holds_everything(small):
    assert [point["num_blocks"] for point in numbers(small)["curve"]] == [2, 5]
    assert [point["num_blocks"] for point in numbers(small, "--block-size", "64")["curve"]] == [20, 50]  # of 16 and 24


def test_the_table_answers_in_words(small):
    printed = kvcast(small, "--pool", "2", "--at", "1,3")
    assert "3 requests, 2,561 prompt tokens" in printed
    assert "Your pool of 2 blocks (--pool) hits 20.0%, the ceiling is 40.0%" in printed
    assert "90% of the ceiling needs 1.5 times that (3 blocks)" in printed
    assert "← 1" in printed
    assert "Below 2 blocks an engine would refuse the longest request" in printed
    assert "which is all that there is to hit" in kvcast(small, "--pool", "3")
    assert "90% of it needs 3 blocks (1,536 tokens) of the 3 distinct ones" in kvcast(small)


def test_the_pool_of_a_profile_is_marked(small):
    """In blocks of the profile's engine, without vLLM's null block, once for each number of instances."""
    profile = load_profile(PROFILE)
    found = numbers(small, "--profile", PROFILE, "--instances", "1,4")
    assert found["block_size"] == profile.block_size == 128
    num_blocks = profile.num_gpu_blocks(128) - 1
    assert found["pool"] == {"num_blocks": num_blocks, "origin": f"profile {PROFILE}", "instances": [1, 4]}
    marked = {point["num_blocks"]: point["instances"] for point in found["curve"] if point["instances"]}
    assert marked == {num_blocks: 1, 4 * num_blocks: 4}


def test_a_scenario_says_block_size_pool_and_instances():
    path = ROOT / "scenarios" / "shared_prefix.yaml"
    found = numbers(path, "--router", "cost", "--router", "round_robin")
    assert (found["source"], found["block_size"], found["num_requests"]) == ("shared_prefix", 128, 1000)
    assert found["pool"]["instances"] == [2]
    together, apart = found["static_routing"]
    assert together["router"] == "cost+0.02"
    assert together["num_hits"] >= apart["num_hits"] > 0
    assert "2 pools as one cache" in kvcast(path)


def test_another_pool_stands_in_place_of_the_scenarios_own():
    """The requests and instances are the scenario's; what a cache of that size hits does not depend on who asks."""
    path = ROOT / "scenarios" / "shared_prefix.yaml"
    found = numbers(path, "--pool", "100", "--router", "round_robin", "--at", "200")
    assert found["pool"] == {"num_blocks": 100, "origin": "--pool", "instances": [2]}
    assert found["static_routing"][0]["num_blocks_per_instance"] == 100
    assert [(point["num_blocks"], point["instances"]) for point in found["curve"]] == [(200, 2)]
    assert found["curve"][0]["lru"] == numbers(path, "--at", "200")["curve"][0]["lru"]


def test_what_a_scenario_evicts_by_is_replayed(tmp_path):
    text = (ROOT / "scenarios" / "shared_prefix.yaml").read_text(encoding="utf-8")
    path = tmp_path / "kept.yaml"
    path.write_text(text + "\neviction: {policy: lfu, counts: kept}\n")
    found = numbers(path, "--at", "100", "--policy", "fifo")
    assert {"lru", "lfu(counts=kept)", "fifo", "belady"} < set(found["curve"][0])


def test_sessions_of_a_scenario_are_routed_to():
    found = numbers(ROOT / "scenarios" / "support_ten_tenants.yaml", "--router", "session", "--router", "round_robin")
    at_home, in_turn = found["static_routing"]
    assert at_home["hit_rate"] > in_turn["hit_rate"]


def test_figure_and_tables_are_written(small, tmp_path):
    folder = tmp_path / "out" / "curve"
    printed = kvcast(small, "--pool", "2", "--router", "match:0.5", "--policy", "lfu", "-o", folder)
    assert str(folder / "hit_curve.svg") in printed
    assert sorted(path.name for path in folder.iterdir()) == [
        "hit_curve.csv", "hit_curve.json", "hit_curve.png", "hit_curve.svg", "static_routing.csv",
    ]  # fmt: skip
    found = json.loads((folder / "hit_curve.json").read_text())
    with (folder / "hit_curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * len(found["curve"])
    assert {one["policy"] for one in rows} == {"lru", "lfu", "belady"}
    with (folder / "static_routing.csv").open() as file:
        routed = list(csv.DictReader(file))
    assert [int(one["num_instances"]) for one in routed] == [1, 2, 4, 8]
    drawn = (folder / "hit_curve.svg").read_text()
    kvcast(small, "--pool", "2", "--router", "match:0.5", "--policy", "lfu", "-o", folder)
    assert (folder / "hit_curve.svg").read_text() == drawn


def test_one_request_is_one(tmp_path):
    assert "one.jsonl: 1 request, 10 prompt tokens\n" in kvcast(file_of(tmp_path / "one.jsonl", row(0, 10, 1)))


def test_many_policies_get_a_table_of_their_own(small):
    printed = kvcast(small, "--policy", "lfu", "--policy", "lfu:counts=kept", "--policy", "fifo")
    headings = [line.split() for line in printed.splitlines() if "blocks  " in line]
    assert headings == [
        ["blocks", "tokens", "of", "all", "lru", "of", "blocks"],
        ["blocks", "lru", "lfu", "lfu(counts=kept)", "fifo", "belady"],
    ]


def test_shares_of_tenants_are_written_as_in_a_scenario():
    """A tenant whose idle blocks may take nothing leaves a pool to the others, who hit more than beside it."""
    scenario = ROOT / "scenarios" / "reserved_cache.yaml"
    point = numbers(scenario, "--at", "1k", "--policy", "quota:limit={noisy: 0%, regular: 1}")["curve"][0]
    assert point["quota(limit={noisy: 0.0, regular: 1.0})"]["num_hits"] > point["lru"]["num_hits"]


def test_no_repeated_prefix_is_said(tmp_path):
    path = file_of(tmp_path / "new.jsonl", row(0, 512, 1), row(10, 1024, 2, 3))
    printed = kvcast(path, "--pool", "5", "--policy", "lfu", "-o", tmp_path / "out")
    assert "No request finds a whole block of an earlier one: a cache of any size hits nothing." in printed
    assert numbers(path)["ceiling"]["num_hits"] == 0


def test_a_block_that_no_prompt_fills_is_said(small, tmp_path):
    printed = kvcast(small, "--block-size", "1e9", "-o", tmp_path / "out")
    assert "No prompt fills a block of 1,000,000,000 tokens: nothing is ever cached." in printed


def test_unusable_lines_are_counted(tmp_path):
    rows = [row(place, 512, place % 3) for place in range(20)]
    path = file_of(tmp_path / "some.jsonl", *rows, "{}")
    assert "skipped 1 line" in kvcast(path)
    assert "some.jsonl:21" in complaint(path, "--strict")


@pytest.mark.parametrize("name", ["azure", "burstgpt"])
def test_lengths_alone_are_refused(name, tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_bytes(SAMPLES[name])
    expected = f"a trace of lengths only ({name}), which tells nothing of what prompts share"
    assert expected in complaint(path)


def test_what_cannot_be_read_is_refused(tmp_path):
    assert "cannot read the trace" in complaint(tmp_path / "none.jsonl")
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert "empty" in complaint(empty)
    assert "no such file" in complaint(tmp_path / "none.yaml")
    sessions = ROOT / "scenarios" / "traces" / "weka_sample.jsonl.gz"
    assert "expected a scenario whose trace says session_arrivals" in complaint(sessions)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--at", "0"), "--at: got '0', expected at least 1"),
        (("--at", "5,,7"), "--at: got ''"),
        (("--pool", "0"), "--pool: got '0', expected at least 1"),
        (("--block-size", "0"), "--block-size: got '0', expected at least 1"),
        (("--as-file", "--block-size", "16"), "--block-size: got 16, expected 512 with --as-file"),
        (("--pool", "5", "--profile", PROFILE), "--pool: got one beside --profile"),
        (("--profile", "none"), "profile: no shipped profile 'none'"),
        (("--profile", PROFILE, "--block-size", "1e9"), "less than one block of 1000000000 tokens"),
        (("--router", "match"), "--router: how large is a pool? expected --pool or --profile"),
        (("--instances", "4"), "--instances: how large is a pool? expected --pool or --profile"),
        (("--router", "session", "--pool", "5"), "--router session: no request has a session"),
        (("--policy", "lf"), "--policy: unknown policy 'lf' (did you mean 'lfu'?)"),
        (("--policy", "lru"), "--policy: got lru, expected another policy"),
        (("--policy", "lfu:kept"), "--policy lfu: got 'kept', expected PARAMETER=VALUE"),
        (("--policy", "lfu:count=kept"), "count: unknown parameter (did you mean 'counts'?)"),
        (("--policy", "quota:limit=[5%]"), "quota: limit: got ['5%']"),
        (("--policy", "quota:limit={chat: 5%, other: 1}"), "--policy quota: there is no tenant 'chat'"),
        (("--policy", "ttl:ttl=30s"), "--policy ttl: goes by sessions, and no request has one"),
        (("--option", "block_tokens=16"), "format mooncake has no option 'block_tokens'"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, expected, small):
    assert expected in complaint(small, *arguments)


def test_what_a_scenario_says_itself_is_refused():
    path = ROOT / "scenarios" / "shared_prefix.yaml"
    for option, key in (
        (("--profile", PROFILE), "profile"), (("--block-size", "16"), "engine.block_size"),
        (("--as-file",), "nothing, since its engine counts"), (("--strict",), "a trace's strict"),
        (("--format", "mooncake"), "a trace's format"), (("--option", "seed=1"), "a trace's own keys"),
    ):  # fmt: skip
        assert complaint(path, *option) == f"{option[0]}: is for traces; of a scenario ({path}) that is told by {key}"
    closed = ROOT / "scenarios" / "batch_beside_chat.yaml"
    assert "conversations.users: a closed loop" in complaint(closed)


def test_it_is_a_command_of_kvcast(small, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["hit-curve", str(small), "--json"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["num_requests"] == 3
