"""Logs of several tenants: a generator for each, and what that loses."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from statistics import fmean

import pytest
import yaml

from simulator import cli, scenario
from simulator.whatif import tenants
from simulator.workload import WorkloadSpec, open_workload
from simulator.workload.readers import open_trace
from simulator.workload_fit import apart, parts
from simulator.workload_fit.fit import fit
from simulator.workload_fit.observed import read
from simulator.workload_fit.written import entry

SHARED_PREFIX = Path(__file__).parents[1] / "scenarios" / "shared_prefix.yaml"
CHAT = {
    "arrivals": {"process": "poisson", "rate_per_s": 2}, "num_requests": 4000, "block_tokens": 16, "common_tokens": 64,
    "thread_tokens": [100, 200, 400, 900], "another": [[0.5]], "pause": [5, 10, 20, 60],
    "extended": {"kept": [0.95, 1, 1, 1], "new_tokens": [[20, 80]]},
    "new_output_tokens": [[10, 60]], "output_tokens": [[5, 25]],
}  # fmt: skip
TASKS = {
    "arrivals": {"process": "gamma", "rate_per_s": 1, "cv": 2.0}, "num_requests": 2000, "block_tokens": 16,
    "heads": [{"tokens": 320, "weight": 3}, {"tokens": 160, "weight": 1}], "thread_tokens": [20, 90],
    "new_output_tokens": [[7]],
}  # fmt: skip


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["workload", "fit", *map(str, arguments)])
    return int(ended.value.code or 0)


@cache
def two_generators() -> tuple[tuple[dict, ...], ...]:
    """Lines of a log: CHAT and TASKS in one scenario, each with texts of its own."""
    tenants = [{"name": "chat", "tree": CHAT}, {"name": "tasks", "tree": TASKS}]
    numbers: dict[int, int] = {}
    return tuple(
        {"t": one.arrival_s, "in": one.num_prompt_tokens, "out": one.oracle_num_output_tokens,
         "tenant": ("chat", "tasks")[one.tenant],
         "runs": [[None if segment is None else numbers.setdefault(segment, len(numbers)), start, length]
                  for segment, start, length in one.prompt]}
        for one in open_workload(WorkloadSpec.model_validate({"tenants": tenants}), 0, 0)
    )  # fmt: skip


def plain(tenant: str | None, number: int, from_s: float = 0.0, head: int | None = None) -> list[dict]:
    """So many requests a second apart: 32 tokens of the text ``head``, if any, then 16 of nobody else's."""
    runs = [[None, 0, 16]] if head is None else [[head, 0, 32], [None, 0, 16]]
    line = {"in": 48 if head is not None else 16, "out": 5, "runs": runs}
    return [{"t": from_s + place, **line, **({"tenant": tenant} if tenant else {})} for place in range(number)]


def write_log(path: Path, lines: Iterable[dict]) -> Path:
    header = {"kvcast_trace": 1, "block_tokens": 16, "source": "test", "sessions_start_together": False}
    path.parent.mkdir(exist_ok=True)
    rows = sorted(lines, key=lambda line: line["t"])
    path.write_text("".join(json.dumps(line) + "\n" for line in (header, *rows)))
    return path


def fitted(capsys, path: Path, *arguments: object) -> tuple[dict[str, dict], str]:
    """The sources by tenant, in the order of the file, and the comments as one line."""
    assert run(path, *arguments) == 0
    printed = capsys.readouterr().out
    comments = " ".join(line[2:] for line in printed.splitlines() if line.startswith("# "))
    return {one["name"]: one["tree"] for one in yaml.safe_load(printed)["workload"]["tenants"]}, comments


def test_a_log_of_two_generators_gives_both_back(tmp_path, capsys):
    found, comments = fitted(capsys, write_log(tmp_path / "log.jsonl", two_generators()))
    assert list(found) == ["chat", "tasks"]
    chat, tasks = found["chat"], found["tasks"]
    assert (chat["num_requests"], tasks["num_requests"]) == (4000, 2000)
    assert chat["arrivals"]["rate_per_s"] == pytest.approx(2, rel=0.1)
    assert tasks["arrivals"]["rate_per_s"] == pytest.approx(1, rel=0.15)
    assert tasks["arrivals"]["cv"] == pytest.approx(2, rel=0.2)
    assert chat["common_tokens"] == 64
    assert "heads" not in chat
    assert fmean(chat["pause"]) == pytest.approx(fmean(CHAT["pause"]), rel=0.1)
    assert fmean(chat["thread_tokens"]) == pytest.approx(400, rel=0.1)
    assert "common_tokens" not in tasks
    assert "another" not in tasks
    assert [head["tokens"] for head in tasks["heads"]] == [320, 160]
    assert "Lost" not in comments, "they share no text and send all the time"


def test_a_tenant_alone_is_fitted_as_a_file_of_its_requests(tmp_path, capsys):
    log = write_log(tmp_path / "log.jsonl", two_generators())
    each, _ = fitted(capsys, log)
    for name in ("chat", "tasks"):
        own = write_log(tmp_path / "own.jsonl", [line for line in two_generators() if line["tenant"] == name])
        expected, _ = fitted(capsys, own)
        assert fitted(capsys, log, "--tenant", name)[0] == {name: expected["own"]}
        assert each[name] == expected["own"]
        halves = [fitted(capsys, path, "--first-half")[0] for path in (log, own)]
        assert halves[0][name] == halves[1]["own"]


def test_a_file_of_one_tenant_is_fitted_as_one_that_names_none(tmp_path, capsys):
    lines = [line for line in two_generators() if line["tenant"] == "tasks"]
    bare = [{key: value for key, value in line.items() if key != "tenant"} for line in lines]
    written = []
    for folder, rows in (("named", lines), ("bare", bare)):
        assert run(write_log(tmp_path / folder / "log.jsonl", rows), "--compare") == 0
        written.append(capsys.readouterr().out)
    assert written[0] == written[1]
    assert "name: log\n" in written[0]
    fitted_alone = fit(read(open_trace(tmp_path / "bare" / "log.jsonl"), "log"), 16)
    assert yaml.safe_load(written[0])["workload"]["tenants"] == [entry("log", fitted_alone.source)]


def test_as_one_knows_nothing_of_tenants(tmp_path, capsys):
    bare = [{key: value for key, value in line.items() if key != "tenant"} for line in two_generators()]
    expected, _ = fitted(capsys, write_log(tmp_path / "bare" / "log.jsonl", bare))
    assert fitted(capsys, write_log(tmp_path / "log.jsonl", two_generators()), "--as-one")[0] == expected


def test_small_tenants_are_fitted_together_or_left_out_and_named(tmp_path, capsys):
    """Nothing is lost without a word: entries and what is left out make up the file."""
    lines = plain("a", 500) + plain(None, 300) + plain("b", 150) + plain("others", 250)
    found, comments = fitted(capsys, write_log(tmp_path / "log.jsonl", lines))
    assert {name: one["num_requests"] for name, one in found.items()} == {"a": 500, "unnamed": 300, "others": 250}
    assert "Left out: b with fewer than 200 requests (150 requests, 12 % of all)." in comments
    found, comments = fitted(capsys, write_log(tmp_path / "log.jsonl", lines + plain("c", 150, 0.5)))
    assert {name: one["num_requests"] for name, one in found.items()} == {
        "a": 500, "unnamed": 300, "others": 250, "others-2": 300,
    }  # fmt: skip
    assert "Fitted as one, others-2: b, c with fewer than 200 requests (300 requests, 22 % of all)." in comments


def test_where_nobody_sends_enough_all_are_one(tmp_path, capsys):
    lines = [line for number in range(9) for line in plain(f"user {number}", 50, number / 9)]
    found, comments = fitted(capsys, write_log(tmp_path / "log.jsonl", lines))
    assert found["log"]["num_requests"] == 450
    assert "All 9 tenants fitted as one: none has the 200 requests that a fit needs." in comments


def test_text_of_other_tenants_is_said_to_be_lost(tmp_path, capsys):
    """By hand: a sends first; of b's 300 x 48 tokens the first request's 32 are hits that b alone would not have."""
    lines = plain("a", 300, head=0) + plain("b", 300, 0.5, head=0)
    path = write_log(tmp_path / "log.jsonl", lines)
    records = read(open_trace(path), path)
    several = parts.by_tenant(records, "log", path).parts
    assert apart.borrowed_tokens(records, several, 16) == [0, 32]
    _, comments = fitted(capsys, path)
    assert f"Lost: 0.11 % of the prompt tokens (b {100 * 32 / 14400:.2g} %) had been sent before by other" in comments
    _, comments = fitted(capsys, path, "--tenant", "b")
    assert "Lost: 0.22 % of the prompt tokens had been" in comments
    for arguments in (["--tenant", "a"], ["--as-one"]):
        assert "Lost" not in fitted(capsys, path, *arguments)[1]


def test_tenants_that_come_late_are_said_to_start_with_the_others(tmp_path, capsys):
    path = write_log(tmp_path / "log.jsonl", plain("a", 1000) + plain("b", 300, 600.5))
    assert "(of 999 s: b from 600 to 900 s); all generators start at 0 s" in fitted(capsys, path)[1]


def test_requests_are_dealt_out_in_proportion(tmp_path, capsys):
    path = write_log(tmp_path / "log.jsonl", plain("a", 600) + plain("b", 300))
    for number, dealt in ((2, [1, 1]), (3000, [2000, 1000]), (1001, [667, 334])):
        found, _ = fitted(capsys, path, "--requests", number)
        assert [one["num_requests"] for one in found.values()] == dealt


def test_each_tenant_and_all_together_are_compared(tmp_path, capsys):
    path = write_log(tmp_path / "log.jsonl", two_generators())
    assert run(path, "--compare", "-o", tmp_path / "out.yaml") == 0
    printed = capsys.readouterr().out
    for title in ("chat. What it was fitted to (4,000", "tasks. What it was fitted to (2,000", "in one cache (6,000"):
        assert title in printed
    assert printed.count("Alike within 3 points") == 3


def test_whatif_and_scenarios_take_all_tenants_that_are_written(tmp_path):
    path = write_log(tmp_path / "log.jsonl", plain("a", 600) + plain("12", 300))
    assert run(path, "-o", tmp_path / "out.yaml") == 0
    whole = yaml.safe_load(SHARED_PREFIX.read_text())
    loaded = scenario.parse(yaml.safe_dump({**whole, **yaml.safe_load((tmp_path / "out.yaml").read_text())}))
    assert [one.name for one in loaded.workload.tenants] == ["a", "12"]
    other = scenario.parse(yaml.safe_dump(whole))
    entries, words = tenants.added(other, str(tmp_path / "out.yaml"))
    assert [one["name"] for one in entries] == ["a", "12"]
    assert "2 more tenants (a, 12)" in words


@pytest.mark.parametrize(
    ("lines", "arguments", "complaint"),
    [
        (plain("chat", 300), ["--tenant", "chta"], "no request of tenant 'chta' (did you mean 'chat'?)"),
        (plain("a", 9) + plain("b", 8), ["--tenant", "zz"], "no request of tenant 'zz' (it has a, b)"),
        (plain(None, 300), ["--tenant", "a"], "no request names a tenant (format kvcast), expected it without"),
        (plain("a", 300) + plain("b", 9), ["--tenant", "b"], "tenant b: 9 requests, expected at least 200"),
        (plain("a", 300), ["--tenant", "a", "--as-one"], "--tenant: does not go with --as-one"),
        (plain("a", 300), ["--as-one"], "--as-one: would change nothing"),
        (plain("a", 300) + plain("b", 300), ["--name", "c"], "2 tenants to fit to, expected --tenant or --as-one"),
        (plain("a", 300) + plain("b", 300), ["--requests", 1], "--requests: 1 for 2 tenants"),
        (plain("a", 300) + [{**line, "t": 7} for line in plain("b", 300)], [], "tenant b: all requests come at once"),
        (plain("a", 300) + [{**line, "runs": None} for line in plain("b", 300)], [], "tenant b: 300 of 300 requests"),
    ],
)  # fmt: skip
def test_what_tenants_cannot_be_fitted_is_said_in_one_line(lines, arguments, complaint, tmp_path, capsys):
    assert run(write_log(tmp_path / "log.jsonl", lines), *arguments) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
