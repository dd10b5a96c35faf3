"""Bad input through the real command line: one line on stderr, exit code 2, no traceback, nothing written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from simulator import cli

Kvcast = Callable[..., tuple[int, str, str]]

ROOT = Path(__file__).parent.parent
GOOD = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
SCENARIO = """\
name: small
engine:
  model: Qwen/Qwen3-0.6B
  dialect: vllm-0.23
  async_scheduling: false
  max_model_len: 4096
  num_gpu_blocks_override: 100
profile: qwen3-0.6b-ascend910-a3
cluster: {instances: 2}
workload:
  tenants:
    - name: chat
      trace: {format: mooncake, path: trace.jsonl}
routing: [round_robin, least_requests]
"""


@pytest.fixture
def kvcast(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Kvcast:
    """Runs the command line in ``folder``; answers exit code, stdout and stderr."""
    monkeypatch.chdir(folder)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:  # anything else would have been a traceback
            cli.main([*arguments])
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


@pytest.fixture
def complaint(folder: Path, kvcast: Kvcast) -> Callable[..., str]:
    """What is said about bad input, after checking how it is said."""

    def run(*arguments: str) -> str:
        before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
        code, out, err = kvcast(*arguments)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1, err
        assert err.startswith("error: ")
        assert "Traceback" not in err
        assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
        return err.removeprefix("error: ").rstrip()

    return run


def line(**changes: object) -> str:
    return json.dumps(GOOD | changes)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(SCENARIO)
    (tmp_path / "trace.jsonl").write_text(f"{line()}\n{line(timestamp=1000)}\n")
    return tmp_path


def test_the_good_scenario_runs(kvcast: Kvcast) -> None:
    code, _, err = kvcast("compare", "small.yaml", "--jobs", "1")
    assert (code, err) == (0, "")


@pytest.mark.parametrize(
    "command",
    [
        ("trace", "info", "FILE"), ("trace", "convert", "FILE", "-o", "new"),
        ("trace", "slice", "FILE", "--first", "1", "-o", "new"),
        ("trace", "scale", "FILE", "--rate", "2", "-o", "new"), ("trace", "merge", "trace.jsonl", "FILE", "-o", "new"),
        ("trace", "anonymise", "FILE", "-o", "new"), ("workload", "fit", "FILE"), ("hit-curve", "FILE"),
        ("compare", "small.yaml"),
    ],
)  # fmt: skip
def test_a_trace_in_parquet_is_refused_by_every_command_that_reads_one(
    folder: Path, complaint: Callable[..., str], command: tuple[str, ...]
) -> None:
    pd.DataFrame({"timestamp": [0]}).to_parquet(folder / "binary.parquet")
    (folder / "small.yaml").write_text(SCENARIO.replace("trace.jsonl", "binary.parquet"))
    found = complaint(*("binary.parquet" if word == "FILE" else word for word in command))
    assert found.endswith("binary.parquet: is a Parquet file, expected lines of JSON or CSV, plain or gzipped")


@pytest.mark.parametrize(
    ("lines", "where", "what"),
    [
        ([], "trace.jsonl", "the trace is empty"),
        ([line(), line(timestamp=5)[:-9]], "trace.jsonl:2", "not JSON"),
        ([line(), line(input_length=-600)], "trace.jsonl:2", "input_length is -600, expected a whole number >= 1"),
        ([line(output_length=float("nan"))], "trace.jsonl:1", "output_length is nan"),
        ([line(timestamp=float("inf"))], "trace.jsonl:1", "timestamp is inf"),
        ([line(), line(), line(hash_ids=[0])], "trace.jsonl:3", "hash_ids has 1 for 600 tokens, expected 2"),
        ([line(timestamp=9), line(timestamp=8)], "trace.jsonl:2", "timestamp 8 is earlier than 9 in line 1"),
        ([line(), "[]"], "trace.jsonl:2", "not a JSON object"),
        ([line(), '{"timestamp": 1}'], "trace.jsonl:2", "key 'hash_ids' is missing"),
    ],
)  # fmt: skip
def test_a_bad_trace(folder: Path, complaint: Callable[..., str], lines: list[str], where: str, what: str) -> None:
    (folder / "trace.jsonl").write_text("".join(f"{text}\n" for text in lines))
    found = complaint("compare", "small.yaml", "--jobs", "1")
    assert f"{where}: " in found
    assert what in found


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("instances: 2", "instances: 0", "small.yaml: cluster.instances: got 0, expected at least 1"),
        ("instances: 2", "instances: -1", "small.yaml: cluster.instances: got -1"),
        ("instances: 2", "instances: .nan", "small.yaml: cluster.instances: got '.nan'"),
        ("instances: 2", "instances: two", "small.yaml: cluster.instances: got 'two'"),
        ("round_robin", "round_robbin", "did you mean 'round_robin'?"),
        ("round_robin", "{policy: dynamo, temprature: 1.0}", "did you mean 'temperature'?"),
        ("round_robin", "{policy: dynamo, temperature: .nan}", "temperature: "),
        ("round_robin", "least_requests", "policy least_requests occurs twice"),
        ("override: 100", "override: 32", "one request of that length needs 32 blocks of 128 tokens, the pool has 31"),
        ("async_scheduling: false", "async_scheduling: 1", "engine.async_scheduling: got 1, expected true or false"),
        ("vllm-0.23", "vllm-0.19", "'vllm-0.23' or 'vllm-0.32'"),
        ("name: small", "name: small\nname: large", "name"),
        ("path: trace", "path: trice", "no such file 'trice.jsonl'"),
        ("ascend910-a3", "ascend910-a4", "did you mean 'qwen3-0.6b-ascend910-a3'?"),
        ("{format: mooncake,", "{format: mooncake, rate_scale: .nan,", "rate_scale: got '.nan'"),
        ("{format: mooncake,", "{format: mooncake, rate_scale: 0,", "rate_scale: got 0"),
        ("{format: mooncake,", "{format: mooncake, window: 1 h,", "longer than the trace"),
        ("{format: mooncake,", "{format: mooncake, smooth_s: -3,", "smooth_s: got -3"),
        ("engine:", "engine:\n  enable_lora: true", "engine.enable_lora: "),
        ("engine:", "engine:\n  max_num_seq: 4", "did you mean 'max_num_seqs'?"),
        ("workload:", "workload: {", "small.yaml"),
        ("[round_robin, least_requests]", "[session_hash]", "session_from"),
    ],
)  # fmt: skip
def test_a_bad_scenario(folder: Path, complaint: Callable[..., str], old: str, new: str, expected: str) -> None:
    assert old in SCENARIO
    (folder / "small.yaml").write_text(SCENARIO.replace(old, new))
    assert expected in complaint("compare", "small.yaml", "--jobs", "1")


def test_a_process_of_several_says_the_same_and_leaves_no_traceback(folder: Path) -> None:
    (folder / "trace.jsonl").write_text(f"{line()}\n{line()[:-9]}\n")
    done = subprocess.run(
        [sys.executable, "-m", "simulator.cli", "compare", "small.yaml", "--jobs", "2"],
        capture_output=True, text=True, cwd=folder, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert "trace.jsonl:2: not JSON" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_duplicate_key_is_named_with_its_line(folder: Path, complaint: Callable[..., str]) -> None:
    (folder / "small.yaml").write_text(SCENARIO.replace("  max_model_len: 4096", "  max_model_len: 4096\n  dialect: x"))
    found = complaint("compare", "small.yaml")
    assert "dialect" in found
    assert "7" in found


def test_a_missing_scenario(complaint: Callable[..., str]) -> None:
    assert complaint("compare", "none.yaml").startswith("none.yaml: no such file")


def test_a_folder_is_no_scenario(complaint: Callable[..., str]) -> None:
    assert complaint("compare", ".").startswith(".: ")


def test_a_binary_file_is_no_scenario(folder: Path, complaint: Callable[..., str]) -> None:
    (folder / "small.yaml").write_bytes(bytes(range(256)))
    complaint("compare", "small.yaml")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder that even root cannot write to")
def test_an_output_folder_that_cannot_be_written(complaint: Callable[..., str]) -> None:
    assert complaint("compare", "small.yaml", "-o", "/proc/out").startswith("/proc/out: cannot write there")


def test_a_prompt_longer_than_the_model_is_refused_and_counted(folder: Path, kvcast: Kvcast) -> None:
    long = line(timestamp=2000, input_length=5000, hash_ids=list(range(10)))
    (folder / "trace.jsonl").write_text(f"{line()}\n{line(timestamp=1000)}\n{long}\n")
    code, out, err = kvcast("compare", "small.yaml", "--jobs", "1", "-o", "out")
    assert (code, err) == (0, "")
    assert "Every policy refused 1 of 3 requests: " in " ".join(out.split())
    rows = pd.read_parquet(folder / "out" / "requests.parquet")
    assert rows.groupby(["policy", "state"], observed=True).size().to_dict() == {
        (policy, state): count for policy in ("least_requests", "round_robin")
        for state, count in (("finished", 2), ("refused", 1))
    }


def test_every_request_refused_is_no_error(folder: Path, kvcast: Kvcast) -> None:
    (folder / "trace.jsonl").write_text(f"{line(input_length=5000, hash_ids=list(range(10)))}\n")
    code, out, err = kvcast("compare", "small.yaml", "--jobs", "1")
    assert (code, err) == (0, "")
    assert "nan" not in out
    assert (folder / "out" / "small" / "report.html").is_file()


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_in_the_middle_leaves_nothing_half_written(folder: Path, jobs: str) -> None:
    """The whole foreground group gets the signal, as from a terminal."""
    (folder / "trace.jsonl").write_text("".join(f"{line(timestamp=10 * number)}\n" for number in range(100_000)))
    before = set(folder.rglob("*"))
    process = subprocess.Popen(
        [sys.executable, "-m", "simulator.cli", "compare", "small.yaml", "--jobs", jobs, "-o", "out"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    time.sleep(4)  # long enough to be at work, far too short to be done
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (out, err.strip()) == ("", "interrupted")
    assert set(folder.rglob("*")) == before
