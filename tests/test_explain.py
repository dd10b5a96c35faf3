"""`kvcast explain`: bands, stories, the run that is meant, and the command."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from simulator import cli, scenario
from simulator.errors import InputError
from simulator.explain.explanation import Explanation, explain
from simulator.explain.parts import NAMES, PARTS
from simulator.explain.source import Source, open_source
from simulator.explain.story import Story
from simulator.explain.table import heading
from simulator.explain.words import duration
from tests.test_scenario import TEXT

ROOT = Path(__file__).parent.parent
BUSY = """\
name: busy
engine: {model: Qwen/Qwen3-0.6B, dialect: vllm-0.32, async_scheduling: false, max_model_len: 8192, max_num_seqs: 4}
profile: qwen3-0.6b-ascend910-a3
cluster: {instances: 2}
workload:
  tenants:
    - name: chat
      synthetic: {num_requests: 60, arrivals: {process: poisson, rate_per_s: 20}, num_prefixes: 3, prefix_tokens: 512,
                  suffix_tokens: 100, output_tokens: 20}
    - name: papers
      synthetic: {num_requests: 8, arrivals: {process: poisson, rate_per_s: 2}, suffix_tokens: 8000, output_tokens: 5}
    - name: silent
      synthetic: {num_requests: 1, arrivals: {process: poisson, rate_per_s: 1}, suffix_tokens: 9000, output_tokens: 5}
routing: [round_robin, least_requests]
replications: 2
"""


def run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert run("explain", *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    return printed.err.removeprefix("error: ")


@pytest.fixture(scope="module")
def busy() -> Explanation:
    return explain(Source(scenario.parse(BUSY)), router="round_robin")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `kvcast compare` wrote of two policies, and the scenario beside it."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "busy.yaml").write_text(BUSY)
    assert run("compare", folder / "busy.yaml", "--jobs", "1", "-o", folder / "out") == 0
    return folder


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    """A copy of that run's folder, to be damaged."""
    return Path(shutil.copytree(made / "out", tmp_path / "out"))


# --- bands ------------------------------------------------------------------------------------------------------------


def test_every_request_is_in_one_band_and_means_add_up(busy: Explanation) -> None:
    """Over all bands and tenants: parts sum to TTFT, bands to their tenant, tenants to all."""
    bands = {(band.tenant, band.name): band for band in busy.bands()}
    assert [tenant for tenant, name in bands if name == "all"] == ["all tenants", "chat", "papers", "silent"]
    for (tenant, name), band in bands.items():
        if name == "all":
            members = [bands[tenant, part] for part in ("p0-50", "p50-90", "p90-99", "p99-100")]
            assert sum(member.num_requests for member in members) == band.num_requests
        if band.num_requests:
            assert math.fsum(band.mean_s[part] for part in NAMES) == pytest.approx(band.mean_s["ttft_s"], rel=1e-12)
            assert math.fsum(band.share(part) or 0 for part in NAMES) == pytest.approx(1)
    assert [bands["chat", name].num_requests for name in ("p0-50", "p50-90", "p90-99", "p99-100")] == [30, 24, 6, 0]
    assert [bands["papers", name].num_requests for name in ("p0-50", "p50-90", "p90-99", "p99-100")] == [4, 4, 0, 0]
    assert bands["silent", "all"].num_requests == 0  # its prompt is too long, and refused
    assert bands["all tenants", "all"].num_requests == 68


def test_slower_bands_are_slower(busy: Explanation) -> None:
    means = [band.mean_s["ttft_s"] for band in busy.bands() if band.tenant == "chat" and band.num_requests]
    assert means[:3] == sorted(means[:3])


def test_a_tenant_alone(busy: Explanation) -> None:
    alone = explain(Source(busy.scenario), tenant="papers")
    assert {band.tenant for band in alone.bands()} == {"papers"}
    assert set(alone.slowest(100)["tenant"]) == {"papers"}
    together = [band for band in busy.bands() if band.tenant == "papers"]
    assert alone.bands() == together


def test_the_slowest_are_the_slowest(busy: Explanation) -> None:
    ttft_s = busy.requests["ttft_s"].dropna().sort_values(ascending=False).head(5).tolist()
    assert busy.slowest(5)["ttft_s"].tolist() == ttft_s


def test_clients_that_hang_up_and_ask_again_drafts_and_adapters() -> None:
    """Each attempt is a request of its own; one without a first token has no parts; the sum is exact for all others."""
    data = yaml.safe_load(BUSY)
    data["engine"] |= {
        "max_num_seqs": 2, "enable_lora": True, "max_loras": 1, "acceptance_rate": 0.7, "async_scheduling": True,
        "speculative_config": {"method": "eagle", "num_speculative_tokens": 2},
    }  # fmt: skip
    chat, papers, _ = data["workload"]["tenants"]
    chat |= {"timeout": "700 ms", "retries": 2, "retry_after": "100 ms", "lora": "chat"}
    papers |= {"lora": "papers"}
    rows = explain(Source(scenario.parse(yaml.safe_dump(data))), router="least_requests").requests
    answered = rows[rows["ttft_s"].notna()]
    assert (rows["state"] == "aborted").sum() > 5
    assert (answered["num_retries"] > 0).sum() > 5
    assert (answered["queue_adapter_s"] > 0).sum() > 5
    for row in answered.to_dict("records"):
        assert math.fsum(row[name] for name in NAMES) == row["ttft_s"]
    assert rows[rows["ttft_s"].isna()]["own_s"].isna().all()


# --- stories ----------------------------------------------------------------------------------------------------------


def test_a_story_names_the_prompt_in_front_and_what_it_took() -> None:
    """One place and one instance: the second request waits for the whole of the first, of another tenant."""
    data = yaml.safe_load(TEXT)
    data["engine"] |= {"max_num_seqs": 1, "max_num_batched_tokens": 4096}
    data["cluster"]["instances"] = 1
    data["routing"] = ["round_robin"]
    data["workload"]["tenants"] = [
        {"name": name, "synthetic": {
            "num_requests": 1, "arrivals": {"process": "fixed", "rate_per_s": rate}, "suffix_tokens": num_tokens,
            "output_tokens": 2,
        }}
        for name, rate, num_tokens in (("first", 10_000, 4000), ("second", 100, 10))
    ]  # fmt: skip
    found = explain(Source(scenario.parse(yaml.safe_dump(data))))
    first, second = found.requests.itertuples()
    assert [other["request_id"] for other in Story(found).in_front(second)] == [0]
    assert Story(found).in_front(first) == []
    in_front_s = first.first_token_s - second.queued_s  # of the step in progress, what was left
    assert Story(found).in_front(second)[0]["seconds"] == pytest.approx(in_front_s)
    queue_s = second.first_scheduled_s - second.queued_s
    assert second.queue_seats_s == pytest.approx(queue_s - in_front_s)  # first's one decode
    assert second.queue_step_s == pytest.approx(in_front_s)
    text = Story(found).of(second)
    assert text.startswith("Request 1 of second (10 prompt tokens, 0 cached) came at 0.01 s and had its first token ")
    assert f"It queued {duration(queue_s)}: " in text
    assert "for one of the 1 places (max_num_seqs)" in text
    assert f"computed the prompt of request 0 of first (4,000 tokens, {duration(in_front_s)})." in text


def test_who_is_ahead_is_who_was_there_before_and_waits(busy: Explanation) -> None:
    """Counted anew from the rows, for every request."""
    rows = busy.requests[busy.requests["queued_s"].notna()]
    story = Story(busy)
    for row in rows.itertuples():
        expected = sum(
            other.instance == row.instance
            and (other.queued_s, other.request_id) < (row.queued_s, row.request_id)
            and other.first_scheduled_s > row.queued_s
            for other in rows.itertuples()
        )
        assert story._num_ahead(row) == expected


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (0.00004, "0.04 ms"), (0.35, "350 ms"), (3.14159, "3.14 s"), (4711, "4,711 s")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# --- which run --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted((ROOT / "scenarios").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_summary_gives_its_scenario_back(path: Path, tmp_path: Path) -> None:
    """All shipped scenarios, from what a summary holds of them: the same digest, settings and engine."""
    was = scenario.load(path).changed(limit=30, seed=5)
    said = {
        "scenario": was.model_dump(mode="json"), "digest": was.digest, "versions": {"kvcast": "0.1.0"},
        "num_replications": 1, "draws_profile": False, "policies": [], "base_dir": str(path.parent),
    }  # fmt: skip
    (tmp_path / "summary.json").write_text(json.dumps(said))
    found = open_source(tmp_path).scenario
    assert found.digest == was.digest
    assert [one.label for one in found.settings] == [one.label for one in was.settings]
    assert [one.scenario.engine_config for one in found.settings] == [
        one.scenario.engine_config for one in was.settings
    ]


def test_a_run_is_explained_by_its_own_rows(made: Path) -> None:
    """Folder and summary are the same; each replication and policy is checked against the rows that are there."""
    table = pd.read_parquet(made / "out" / "requests.parquet")
    for path in (made / "out", made / "out" / "summary.json"):
        found = explain(open_source(path), router="least_requests", replication=1)
        assert found.num_uncounted is not None
        rows = table[(table["policy"] == "least_requests") & (table["replication"] == 1)].sort_values("request_id")
        assert found.requests["ttft_s"].tolist() == pytest.approx(rows["ttft_s"].tolist(), nan_ok=True, abs=0)


def test_what_the_report_of_the_run_does_not_count_is_said(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text(f"{TEXT}warmup: 5\n")
    assert run("run", tmp_path / "w.yaml", "--router", "round_robin", "--jobs", "1", "-o", tmp_path / "out") == 0
    found = explain(open_source(tmp_path / "out"), router="round_robin")
    assert found.num_uncounted == 5
    assert "Counted here are also the 5 of its warm-up and cool-down, unlike in its report." in heading(found)


def test_a_variant_is_found_under_its_label(tmp_path: Path) -> None:
    text = TEXT.replace("  - {policy: longest_prefix, index: dispatch}\n", "") + (
        "variants: {as_it_is: {}, four: {cluster.instances: 4, routing: [random, round_robin]}}\n"
    )
    (tmp_path / "v.yaml").write_text(text)
    assert run("compare", tmp_path / "v.yaml", "--jobs", "1", "-o", tmp_path / "out") == 0
    found = explain(open_source(tmp_path / "out"), variant="four", router="random")
    assert (found.label, found.num_uncounted) == ("four: random", 0)


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_prints_tables_meanings_and_stories(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", made / "out", "--router", "round_robin", "--top", "2") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("busy, round_robin, replication 0; its rows are those of the run: mean time to first token")
    assert "Left out: 1 request of 69 without a first token." in text
    assert "queue: seats: queued, passed over since max_num_seqs requests run." in text
    assert text.count(" had its first token ") == 2


def test_json_and_files_say_the_same(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "why"
    arguments = ("explain", made / "busy.yaml", "--router", "round_robin", "--tenant", "chat", "--json", "-o", folder)
    assert run(*arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((folder / "ttft.json").read_text())
    assert (printed["policy"], printed["rows_checked"], printed["num_with_first_token"]) == ("round_robin", False, 60)
    assert len(printed["slowest"]) == 3
    assert all(one["tenant"] == "chat" for one in printed["slowest"])
    rows = pd.read_csv(folder / "ttft_requests.csv")
    assert len(rows) == 60
    for row in rows.to_dict("records"):
        assert math.fsum(row[name] for name in NAMES) == row["ttft_s"]
    bands = pd.read_csv(folder / "ttft_bands.csv")
    assert set(bands["band"]) == {"p0-50", "p50-90", "p90-99", "all"}
    assert (folder / "ttft.png").stat().st_size > 10_000
    assert (folder / "ttft.svg").read_text().startswith("<?xml")


def test_help_and_readme_say_what_the_parts_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "--help") == 0
    text = capsys.readouterr().out
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("**Where the time goes.**")[2]
    for part in PARTS:
        word = part.label.removeprefix("queue: ")
        assert word in text
        assert f"| {part.label} |" in section.partition("\n\n**")[0]


# --- bad input --------------------------------------------------------------------------------------------------------


def test_no_such_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing: no such run, expected the output folder" in refused(capsys, tmp_path / "nothing")
    assert "no summary.json in it, expected the output folder" in refused(capsys, tmp_path)
    (tmp_path / "summary.json").write_text("{")
    assert "summary.json: cannot read it as JSON" in refused(capsys, tmp_path)
    (tmp_path / "summary.json").write_text("{}")
    assert "summary.json: has no 'scenario', expected the summary.json of kvcast" in refused(capsys, tmp_path)


def test_a_sweep_is_no_run(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of its settings none would be explained, but the scenario that they vary."""
    sweep = ("--router", "round_robin", "--vary", "cluster.instances=1,3", "--replications", "2", "--jobs", "1")
    assert run("sweep", made / "busy.yaml", *sweep, "-o", tmp_path) == 0
    capsys.readouterr()
    assert "summary.json: has no 'policies', expected the summary.json of kvcast run" in refused(capsys, tmp_path)


def test_a_setting_that_the_run_does_not_have(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = made / "out"
    assert refused(capsys, out) == "--router: missing, expected one of round_robin, least_requests\n"
    assert "--router: the scenario has no policy 'random'" in refused(capsys, out, "--router", "random")
    assert "no variant 'x' (it has none)" in refused(capsys, out, "--router", "round_robin", "--variant", "x")
    some = (out, "--router", "round_robin")
    assert refused(capsys, *some, "--replication", "2") == "--replication: got 2, the run has 2, counted from 0\n"
    assert "no tenant 'chad' (did you mean 'chat'?)" in refused(capsys, *some, "--tenant", "chad")
    assert refused(capsys, *some, "--top", "0").startswith("--top: got '0', expected")
    assert "--base-dir: is for runs" in refused(capsys, made / "busy.yaml", "--base-dir", made)


def edit(out: Path, change: Any) -> None:
    said = json.loads((out / "summary.json").read_text())
    change(said)
    (out / "summary.json").write_text(json.dumps(said))


def test_a_summary_that_was_changed_or_is_of_another_version(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(out, lambda said: said["scenario"].update(seed=3))
    text = refused(capsys, out, "--router", "round_robin")
    assert text.endswith("its scenario is not the one of its digest, expected the file as it was written\n")
    edit(out, lambda said: said["versions"].update(kvcast="0.0.9"))
    assert "(written by kvcast 0.0.9, this is 0.1.0)" in refused(capsys, out, "--router", "round_robin")
    edit(out, lambda said: said["scenario"].update(weather="fine"))
    assert "scenario: weather: unknown key" in refused(capsys, out, "--router", "round_robin")


def test_rows_that_come_out_otherwise(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As they do when a profile or kvcast has changed: here one time in the file is another."""
    table = pd.read_parquet(out / "requests.parquet")
    row = table.index[(table["policy"] == "round_robin") & (table["replication"] == 0)][4]
    number = table.loc[row, "request_id"]
    table.loc[row, "first_token_s"] += 1e-9
    table.to_parquet(out / "requests.parquet")
    text = refused(capsys, out, "--router", "round_robin")
    assert f"simulated again, request {number} has first_token_s " in text
    assert "a trace, a profile or kvcast has changed since, expected all as it was" in text
    assert run("explain", out, "--router", "least_requests") == 0  # whose rows are as they were


def test_a_run_without_its_rows_is_explained_and_not_called_checked(out: Path) -> None:
    (out / "requests.parquet").unlink()
    assert explain(open_source(out), router="round_robin").num_uncounted is None
    (out / "requests.parquet").write_text("no table")
    with pytest.raises(InputError, match="cannot read the rows of the run"):
        explain(open_source(out), router="round_robin")


def test_a_trace_that_changed_or_is_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = yaml.safe_load(TEXT) | {"routing": ["round_robin"]}
    data["workload"]["tenants"] = [{"name": "t", "trace": {"format": "mooncake", "path": "t.jsonl"}}]
    lines = [
        json.dumps({"timestamp": 900 * number, "input_length": 512, "output_length": 9, "hash_ids": [number]})
        for number in range(9)
    ]
    place = tmp_path / "there"
    place.mkdir()
    (place / "t.jsonl").write_text("\n".join(lines) + "\n")
    (place / "t.yaml").write_text(yaml.safe_dump(data))
    out = tmp_path / "out"
    assert run("run", place / "t.yaml", "--jobs", "1", "-o", out) == 0
    capsys.readouterr()
    assert explain(open_source(out)).num_uncounted is not None
    (place / "t.jsonl").write_text("\n".join(lines[1:]) + "\n")
    assert "simulated again, there were 9 requests, now 8: a trace" in refused(capsys, out)
    place.rename(tmp_path / "elsewhere")
    assert "no such file 't.jsonl'" in refused(capsys, out)
    (tmp_path / "elsewhere" / "t.jsonl").write_text("\n".join(lines) + "\n")
    assert explain(open_source(out, tmp_path / "elsewhere")).num_uncounted is not None
