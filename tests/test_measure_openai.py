"""The client-side engine, against a small server that streams like vLLM's."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from calibration.cli import calibrate
from calibration.engines.openai_server import OpenAiEngine, _intervals
from calibration.engines.streaming import samples
from calibration.measurement import RequestRow, StepRow, read_measurements
from calibration.play import Served
from calibration.probes import Case
from simulator.errors import InputError

BLOCK = 16
TOKEN_S = 0.001
SERVER_S, ENGINE_S = 0.004, 0.003
TOLD = {"device": "test", "max_num_batched_tokens": 64, "max_num_seqs": 2}


class FakeServer(ThreadingHTTPServer):
    """State of a served engine: what is cached, and the counters that /metrics shows."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.cached: set[tuple[int, ...]] = set()
        self.counters: dict[str, float] = {"vllm:prefix_cache_hits_total": 0.0}
        self.lock = threading.Lock()
        self.started = 1000.0
        self.offers_reset = True
        self.offers_metrics = True
        self.tells_hits = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def look_up(self, prompt: list[int]) -> int:
        with self.lock:
            hit = 0
            while hit + BLOCK < len(prompt) and tuple(prompt[: hit + BLOCK]) in self.cached:
                hit += BLOCK
            self.cached.update(tuple(prompt[:end]) for end in range(BLOCK, len(prompt) + 1, BLOCK))
            self._count(hit)
            return hit

    def _count(self, hit: int) -> None:
        times = {
            "vllm:time_to_first_token_seconds": SERVER_S, "vllm:request_queue_time_seconds": 0.0,
            "vllm:request_prefill_time_seconds": ENGINE_S,
        }  # fmt: skip
        self.counters["vllm:prefix_cache_hits_total"] += hit
        for name, value in times.items():
            for suffix, more in (("_count", 1.0), ("_sum", value)):
                self.counters[name + suffix] = self.counters.get(name + suffix, 0.0) + more


class Handler(BaseHTTPRequestHandler):
    """vLLM's paths."""

    server: FakeServer

    def log_message(self, *args: Any) -> None:
        pass

    def _answer(self, text: str, status: int = 200) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self) -> None:
        lines = [f'{name}{{engine="0"}} {value}' for name, value in self.server.counters.items()]
        lines.append(f'vllm:cache_config_info{{block_size="{BLOCK}",num_gpu_blocks="200"}} 1.0')
        lines.append(f"process_start_time_seconds {self.server.started}")
        texts = {
            "/v1/models": json.dumps({"data": [{"id": "tiny", "max_model_len": 200}]}),
            "/version": json.dumps({"version": "0.23.0"}),
            "/metrics": "\n".join(lines) if self.server.offers_metrics else None,
        }
        text = texts.get(self.path)
        self._answer(text or "not found", 200 if text else 404)

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/reset_prefix_cache":
            self.server.cached.clear()
            self._answer("", 200 if self.server.offers_reset else 404)
            return
        body = json.loads(content)
        hit = self.server.look_up(body["prompt"])
        self.send_response(200)
        self.end_headers()
        time.sleep(SERVER_S)
        for number in range(body["max_tokens"]):
            reason = "length" if number == body["max_tokens"] - 1 else None
            token = (sum(body["prompt"]) + number) % 1000
            self._event({"choices": [{"text": "x", "token_ids": [token], "finish_reason": reason}]})
            time.sleep(TOKEN_S)
        details = {"cached_tokens": hit} if self.server.tells_hits else None
        self._event({"choices": [], "usage": {"prompt_tokens_details": details}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, event: dict[str, Any]) -> None:
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.flush()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as fake:
        threading.Thread(target=fake.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield fake
        fake.shutdown()


def requests_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert not any("failed" in row for row in rows), rows[0].get("failed")
    return [row for row in rows if row["kind"] == "request"]


@pytest.mark.parametrize("tells_hits", [True, False])
@pytest.mark.parametrize("offers_reset", [True, False])
def test_cold_and_warm_with_or_without_reset(server: FakeServer, tells_hits: bool, offers_reset: bool) -> None:
    server.tells_hits, server.offers_reset = tells_hits, offers_reset
    launch = OpenAiEngine(server.url, "tiny", TOLD).launch()
    for repeat in range(2):
        rows = requests_of(launch.take(Case("ttft", 78, 64), repeat))
        hits = [row["num_cached_tokens"] for row in rows]
        assert hits == ([0, 64] if repeat == 0 else [64, 0])


def test_overhead_terms_are_what_server_and_engine_did_not_take(server: FakeServer) -> None:
    launch = OpenAiEngine(server.url, "tiny", TOLD).launch()
    for row in requests_of(launch.take(Case("ttft", 78, 64), 0)):
        assert row["interface"] == "http"
        assert row["http_s"] == pytest.approx(row["ttft_s"] - SERVER_S)
        assert row["http_s"] > 0
        assert row["frontend_s"] == pytest.approx(SERVER_S - ENGINE_S, abs=1e-9)
        # The server's own clock spaces the tokens; the client may see the first of them late, never all of them.
        assert row["total_s"] >= SERVER_S + TOKEN_S


def test_without_metrics_overhead_terms_are_not_known(server: FakeServer) -> None:
    server.offers_metrics = False
    told = {**TOLD, "block_size": BLOCK, "num_gpu_blocks": 200}
    for row in requests_of(OpenAiEngine(server.url, "tiny", told).launch().take(Case("ttft", 78, 64), 0)):
        assert "http_s" not in row
        assert "frontend_s" not in row


def test_wrong_hits_fail_the_take(server: FakeServer) -> None:
    launch = OpenAiEngine(server.url, "tiny", {**TOLD, "block_size": 2 * BLOCK}).launch()
    rows = launch.take(Case("ttft", 62, 48), 0)
    assert all(row["failed"] == "48 cached tokens reported, expected 32" for row in rows)


def test_a_server_that_reports_no_hits_fails_the_take(server: FakeServer) -> None:
    server.tells_hits = server.offers_metrics = False
    told = {**TOLD, "block_size": BLOCK, "num_gpu_blocks": 200}
    rows = OpenAiEngine(server.url, "tiny", told).launch().take(Case("ttft", 78, 64), 0)
    assert all("--enable-prompt-tokens-details" in row["failed"] for row in rows)


def test_batches_show_steps_as_times_between_tokens(server: FakeServer) -> None:
    launch = OpenAiEngine(server.url, "tiny", TOLD).launch()
    rows = launch.take(Case("decode", 32, num_requests=2), 0)
    assert rows
    for row in rows:
        assert (row["kind"], row["num_decodes"]) == ("step", 2)
        assert row["duration_s"] > 0
        assert 2 * 33 <= row["decode_context"] <= 2 * (32 + 32)


def test_tokens_that_arrive_together_show_no_step() -> None:
    times = [0.1, 0.2, 0.3, 0.3, 0.5, 0.6, 0.7]
    served = Served(32, len(times), begun_s=5.0, submit_s=0.0, token_s=times)
    rows = list(_intervals([served], Case("decode", 32)))
    assert [row["duration_s"] for row in rows] == pytest.approx([0.1, 0.1])
    assert [row["decode_context"] for row in rows] == [32 + 5, 32 + 6]


def measure(server: FakeServer, path: Path, *arguments: str) -> Any:
    told = [f"--engine-arg={name}={value}" for name, value in TOLD.items()]
    told.append("--engine-arg=max_model_len=60")  # few cases
    command = ["measure", "--engine", "openai", "--url", server.url, "--model", "tiny", "--launches", "2"]
    return CliRunner().invoke(calibrate, [*command, *told, "--budget", "1s", "-o", str(path), *arguments])


def test_a_launch_is_one_life_of_the_server(server: FakeServer, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    first = measure(server, path)
    assert first.exit_code == 0, first.output
    assert "restart the server" in first.output
    size = path.stat().st_size
    again = measure(server, path)
    assert again.exit_code == 0, again.output
    rows = read_measurements(path).rows
    assert {row.launch for row in rows} == {0}
    server.started += 50
    assert measure(server, path).exit_code == 0
    rows = read_measurements(path).rows
    assert path.stat().st_size > size
    assert {row.launch for row in rows} == {0, 1}
    assert {type(row) for row in rows} == {RequestRow, StepRow}
    assert {row.interface for row in rows} == {"http"}


@pytest.mark.parametrize(
    ("told", "model", "message"),
    [
        ({"max_num_batched_tokens": 64}, "tiny", "does not tell its device"),
        ({"device": "x"}, "tiny", "does not tell its max_num_batched_tokens"),
        (TOLD, "other", "serves tiny"),
    ],
)
def test_what_a_server_does_not_tell_is_asked_for(
    server: FakeServer, told: dict[str, Any], model: str, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        OpenAiEngine(server.url, model, told).launch()


def test_no_server_is_one_line() -> None:
    with pytest.raises(InputError, match="no answer"):
        OpenAiEngine("http://127.0.0.1:9", "tiny", TOLD).launch()
    with pytest.raises(InputError, match="expected a server such as"):
        OpenAiEngine("ftp://x", "tiny", TOLD)


def test_metrics_text_is_read_by_name_and_label() -> None:
    text = '# HELP x\nx_total{a="1",b="q r"} 3.0\nx_total{a="2"} 4e1\ny 5\n'
    assert list(samples(text)) == [
        ("x_total", {"a": "1", "b": "q r"}, 3.0),
        ("x_total", {"a": "2"}, 40.0),
        ("y", {}, 5.0),
    ]
