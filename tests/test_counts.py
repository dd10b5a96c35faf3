"""One of a thing is singular, in whatever is printed of the least that there can be."""

from __future__ import annotations

import json
import re

import pytest

from simulator import cli
from simulator.counts import counted

ONE = {"t": 0, "in": 1, "out": 1, "session": "a", "tenant": "b", "runs": [[0, 0, 1]]}
SCENARIO = """\
name: one
engine: {dialect: vllm-0.32, async_scheduling: false, max_model_len: 1K}
profile: qwen3-0.6b-ascend910-a3
cluster: {instances: 1}
workload:
  tenants:
    - name: chat
      cache_salt: chat
      synthetic:
        num_requests: 1
        arrivals: {process: fixed, rate_per_s: 1}
        suffix_tokens: %d
        output_tokens: 1
routing: [round_robin]
"""
PLURALS = "requests|tokens|lines|blocks|instances|tenants|sessions|threads|turns|replications|times|values|pools|points"
ONE_OF_MANY = re.compile(rf"(?<![\w.,])1 (?:[a-z]+ ){{0,2}}(?:{PLURALS})\b")


def test_one_is_singular_and_thousands_have_commas():
    assert [counted(number, "line") for number in (0, 1, 2, 2000)] == ["0 lines", "1 line", "2 lines", "2,000 lines"]
    assert [counted(number, "launch", "launches") for number in (1, 2)] == ["1 launch", "2 launches"]


@pytest.fixture
def printed(tmp_path, capsys, monkeypatch):
    """What a command prints, errors too, in a folder with one request as a trace and as a scenario."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "one.jsonl").write_text(f"{json.dumps({'kvcast_trace': 1, 'block_tokens': 1})}\n{json.dumps(ONE)}\n")
    (tmp_path / "served.yaml").write_text(SCENARIO % 1)
    (tmp_path / "refused.yaml").write_text(SCENARIO % 2000)

    def run(*arguments):
        with pytest.raises(SystemExit):
            cli.main(list(arguments))
        found = capsys.readouterr()
        return found.out + found.err

    return run


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("trace info one.jsonl --block-size 1", "1 request, format kvcast"),
        ("trace convert one.jsonl -o new.jsonl", "new.jsonl: 1 request, format kvcast"),
        ("hit-curve one.jsonl --block-size 1 --pool 1", "one.jsonl: 1 request, 1 prompt token"),
        ("hit-curve served.yaml", "one: 1 request, 1 prompt token"),
        ("workload fit one.jsonl", "one.jsonl: 1 request, expected at least 200 to fit to"),
        ("run served.yaml", "(first 1 request, answered at once)"),
        ("run refused.yaml", "refused 1 of 1 request"),
        ("sweep served.yaml --vary cluster.instances=1,2", "in 1 replication"),
        ("sweep served.yaml --vary cluster.instances=1", "got 1 value, expected two or more"),
    ],
)
def test_what_is_said_of_one_request_has_no_plural(printed, command, expected):
    said = printed(*command.split())
    assert expected in said
    assert ONE_OF_MANY.findall(said) == []
