"""Recorded sessions whose requests follow the simulated ends of those they waited for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from test_clients import served

from simulator.errors import InputError
from simulator.workload import WorkloadSpec, open_workload

HEAD = {"kvcast_trace": 1, "block_tokens": None, "source": "by hand", "sessions_start_together": False}
# Two sessions; in the first, two requests wait for the same one, and the last for one of these.
ROWS: list[dict[str, Any]] = [
    {"t": 0, "in": 100, "out": 10, "session": "a"},
    {"t": 5, "in": 200, "out": 10, "session": "a", "after": 2.0},
    {"t": 6, "in": 300, "out": 10, "session": "a", "after": 3.0, "parent": 0},
    {"t": 7, "in": 400, "out": 10, "session": "b"},
    {"t": 9, "in": 500, "out": 10, "session": "a", "after": 0.5, "parent": 1},
    {"t": 20, "in": 600, "out": 10},
]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in (HEAD, *ROWS)), encoding="utf-8")
    return path


def tenant(path: Path, **trace: Any) -> dict[str, Any]:
    return {"trace": {"format": "kvcast", "path": str(path), "pace": "answers"} | trace}


def test_each_request_follows_the_end_of_what_it_waited_for(trace: Path) -> None:
    rows, _ = served(tenant(trace), instances=1)
    at = {row.num_prompt_tokens: row for row in rows.itertuples()}
    assert at[100].arrival_s == 0
    assert at[200].arrival_s == at[100].finish_s + 2.0
    assert at[300].arrival_s == at[100].finish_s + 3.0
    assert at[500].arrival_s == at[200].finish_s + 0.5
    assert (at[400].arrival_s, at[600].arrival_s) == (7, 20)
    assert len(rows) == len(ROWS)


def test_the_clock_rules_without_pace(trace: Path) -> None:
    paced = tenant(trace)
    del paced["trace"]["pace"]
    rows, _ = served(paced, instances=1)
    assert sorted(rows["arrival_s"]) == [row["t"] for row in ROWS]


def test_what_waits_for_a_retried_request_waits_for_the_retry(trace: Path) -> None:
    """The first answer takes longer than the time-out every time: three attempts, then the others come."""
    rows, _ = served(tenant(trace) | {"timeout": "20 ms", "retries": 2}, instances=1)
    attempts = rows[rows["num_prompt_tokens"] == 100]
    assert list(attempts["state"]) == ["aborted"] * 3
    (second, *_) = rows[rows["num_prompt_tokens"] == 200].itertuples()
    assert second.arrival_s == attempts["finish_s"].max() + 2.0


def test_it_is_a_closed_loop(trace: Path) -> None:
    spec = WorkloadSpec.model_validate({"tenants": [{"name": "t", **tenant(trace)}]})
    workload = open_workload(spec, 0, 0)
    assert not workload.open_loop
    assert "closed loop" in workload.resampling


def test_a_trace_without_delays_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = ({key: value for key, value in row.items() if key != "after"} for row in ROWS)
    path.write_text("".join(json.dumps(row) + "\n" for row in (HEAD, *rows)), encoding="utf-8")
    with pytest.raises(InputError, match="no request of the trace has a delay"):
        served(tenant(path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "azure"}, "pace would change nothing for format azure"),
        ({"window": "1 s"}, "window does not go with pace"),
        ({"rate_scale": 2}, "rate_scale does not go with pace"),
        ({"limit": 3}, "limit does not go with pace"),
    ],
)
def test_what_does_not_go_with_it_is_refused(trace: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        WorkloadSpec.model_validate({"tenants": [{"name": "t", **tenant(trace, **change)}]})
