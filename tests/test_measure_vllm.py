"""The in-process engine: the recording scheduler, the child process, the NPU path on stubs, and the real vLLM.

The real one needs ``KVCAST_ENGINE_PYTHON``, an interpreter with vLLM; ``KVCAST_ENGINE_PYTHONPATH`` is where it finds a
second version.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from calibration.cli import calibrate
from calibration.engines.process import VllmEngine
from calibration.engines.recording import Recorder, path_of, recording
from calibration.measurement import RequestRow, StepRow, read_measurements
from calibration.probes import Case
from calibration.steps import Step
from simulator.errors import InputError

STUBS = Path(__file__).parent / "stub_npu"
DATA = Path(__file__).parent / "data"
ENGINE_PYTHON = os.environ.get("KVCAST_ENGINE_PYTHON", "")
TINY = Path(__file__).parents[1] / "calibration" / "models" / "qwen3_tiny"


class BaseScheduler:
    """As much of a scheduler as the recording one touches."""

    def __init__(self) -> None:
        self.requests = {"a": SimpleNamespace(num_computed_tokens=0), "b": SimpleNamespace(num_computed_tokens=40)}

    def schedule(self, numbers: dict[str, int]) -> Any:
        for name, new in numbers.items():
            self.requests[name].num_computed_tokens += new
        return SimpleNamespace(num_scheduled_tokens=numbers)

    def update_from_output(self, scheduler_output: Any, output: str) -> str:
        return output


def test_recording_scheduler_notes_what_was_computed_and_changes_nothing() -> None:
    scheduler = recording(BaseScheduler)()
    assert isinstance(scheduler, BaseScheduler)
    for numbers in ({"a": 8, "b": 1}, {}, {"a": 1}):
        assert scheduler.update_from_output(scheduler.schedule(numbers), "output") == "output"
    first, second = scheduler.recorder.take()
    assert first.pieces == ((8, 0), (1, 40))
    assert second.pieces == ((1, 8),)
    assert first.previous_s is None
    assert first.ended_s == second.previous_s <= second.scheduled_s < second.ended_s
    assert scheduler.recorder.take() == []


def test_class_path_is_resolved_as_vllm_does() -> None:
    module, _, name = path_of(BaseScheduler).rpartition(".")
    found = getattr(__import__(module, fromlist=["x"]), name)
    assert issubclass(found, BaseScheduler)
    with pytest.raises(AttributeError):
        __import__(module, fromlist=["x"]).nothing_of_that_name  # noqa: B018


def test_overlapping_batches_share_no_time() -> None:
    recorder = Recorder()
    recorder.scheduled(1, ((5, 0),), 10.0)
    recorder.scheduled(2, ((1, 5),), 10.1)
    recorder.updated(1, 11.0)
    recorder.scheduled(3, ((1, 6),), 11.1)
    recorder.updated(2, 11.5)
    recorder.updated(3, 12.25)
    steps = recorder.take()
    assert [step.duration_s for step in steps] == pytest.approx([1.0, 0.5, 0.75])
    assert [step.gap_s for step in steps] == [0.0, 0.0, 0.0]


def test_step_fields_are_those_of_a_plan() -> None:
    step = Step(((100, 28), (1, 40), (1, 9)), scheduled_s=1.0, ended_s=1.5, previous_s=0.75)
    fields = step.fields(regime="mixed", index=3, graph_sizes=(1, 2, 64, 128))
    assert (fields["num_decodes"], fields["decode_context"]) == (2, 51)
    assert (fields["num_prefills"], fields["num_prefill_tokens"]) == (1, 100)
    assert fields["prefill_pairs"] == sum(28 + position for position in range(1, 101))
    assert fields["max_context"] == 128
    assert fields["num_padded_tokens"] == 128
    assert (fields["duration_s"], fields["gap_s"]) == (0.5, 0.25)
    assert step.fields(regime="mixed", index=0, graph_sizes=(1, 2))["num_padded_tokens"] is None


@pytest.fixture
def npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """An NPU host: stub vLLM and torch_npu, and an npu-smi that prints what one printed."""
    tool = tmp_path / "bin" / "npu-smi"
    tool.parent.mkdir()
    common, info = DATA / "npu-smi-common.txt", DATA / "npu-smi-info-a2.txt"
    tool.write_text(f'#!/bin/sh\nif [ "$2" = "-t" ]; then cat {common}; else cat {info}; fi\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(STUBS))
    model = tmp_path / "tiny"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return {"model": str(model), "output": str(tmp_path / "rows.jsonl")}


def run(npu: dict[str, Any], *arguments: str) -> Any:
    return CliRunner().invoke(
        calibrate, ["measure", "--model", npu["model"], "-o", npu["output"], "--budget", "1min", *arguments]
    )


def test_npu_host_is_measured_by_the_same_module(npu: dict[str, Any]) -> None:
    result = run(npu, "--launches", "2")
    assert result.exit_code == 0, result.output
    measurements = read_measurements(Path(npu["output"]))
    identity = measurements.header.identity
    assert identity.device == "Ascend910B3, 65536 MB HBM"
    assert (identity.vllm, identity.vllm_ascend, identity.torch_npu) == ("0.23.0", "0.23.0.post1", "2.10.0.post4")
    assert (identity.graph_mode, identity.block_size) == ("full_and_piecewise", 128)
    assert measurements.header.environment["chips"][0]["temperature_c"] == 42
    assert measurements.header.environment["clocks"]["Aicore Freq(MHZ)"] == "1800"
    assert {row.regime for row in measurements.rows} == {"cold_prefill", "warm_prefill", "decode", "mixed"}
    warmed = {(row.case, row.launch) for row in measurements.unused if row.warmup}
    assert warmed >= {(row.case, row.launch) for row in measurements.rows}, "a device that compiles for shapes"
    padded = {(row.num_decodes, row.num_padded_tokens) for row in measurements.rows if isinstance(row, StepRow)
              and row.regime == "decode"}  # fmt: skip
    assert (1, 1) in padded
    assert (4, 4) in padded
    warm = [row for row in measurements.rows if isinstance(row, RequestRow) and row.regime == "warm_prefill"]
    assert warm
    assert all(row.num_cached_tokens == row.expected_cached_tokens for row in warm)


def test_both_schedulings_go_into_two_files(npu: dict[str, Any]) -> None:
    result = run(npu, "--launches", "1", "--scheduling", "both")
    assert result.exit_code == 0, result.output
    output = Path(npu["output"])
    files = (output, output.with_name("rows-sync.jsonl"))
    assert [read_measurements(path).header.identity.async_scheduling for path in files] == [True, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine-arg", "no_such_option=3"], "the engine failed: TypeError: EngineArgs got an unexpected keyword"),
        (["--engine-arg", "max_num_seqs"], "--engine-arg max_num_seqs: expected NAME=VALUE"),
        (["--engine-arg", "model=x"], "--engine-arg model: set by the measurement itself"),
        (["--engine-arg", "a=1", "--engine-arg", "a=2"], "--engine-arg a: given twice"),
        (["--engine-python", "/no/such/python"], "--engine-python /no/such/python: cannot be run"),
        (["--budget", "soon"], "--budget: "),
        (["--url", "http://x"], "--url: belongs to --engine openai"),
        (["--engine", "openai"], "--url is missing"),
    ],
)
def test_bad_input_is_one_line(npu: dict[str, Any], arguments: list[str], message: str) -> None:
    result = run(npu, *arguments)
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
    assert "\n" not in str(result.exception)


def test_interpreter_without_vllm_is_one_line(npu: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    result = run(npu)
    assert isinstance(result.exception, InputError)
    assert "No module named 'vllm'" in str(result.exception)


def test_model_without_configuration_is_one_line(npu: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json in it"):
        VllmEngine(sys.executable, tmp_path, {})


def test_an_engine_that_dies_is_one_line(npu: dict[str, Any]) -> None:
    launch = VllmEngine(sys.executable, Path(npu["model"]), {}).launch()
    launch._process.kill()
    launch._process.wait()
    with pytest.raises(InputError, match="the engine"):
        launch.take(Case("chunk", 16), 0)
    launch.close()


def test_interrupting_leaves_a_file_to_go_on_from(npu: dict[str, Any]) -> None:
    command = [sys.executable, "-m", "simulator.cli", "calibrate", "measure", "--model", npu["model"]]
    root = str(Path(__file__).parents[1])
    paths = os.pathsep.join((str(STUBS), root))
    process = subprocess.Popen(
        [*command, "-o", npu["output"]], env=os.environ | {"PYTHONPATH": paths}, stderr=subprocess.PIPE, text=True
    )
    output = Path(npu["output"])
    deadline = time.monotonic() + 60
    while not (output.exists() and output.stat().st_size > 100_000):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT), errors  # a shell shows the same for both
    assert "interrupted; the same command goes on from here" in errors
    taken = {(row.case, row.launch) for row in read_measurements(output).rows}
    assert taken
    result = run(npu, "--launches", "1")
    assert result.exit_code == 0, result.output
    assert taken <= {(row.case, row.launch) for row in read_measurements(output).rows}


LIVE_SCHEDULER = """
import json, os, sys
from types import SimpleNamespace
from calibration.engines.recording import path_of
from simulator.parity.vllm_engine import Vllm
vllm = Vllm()
engine = {
    "max_model_len": 4096, "block_size": 16, "num_gpu_blocks": 100, "enable_prefix_caching": True, "max_loras": 0,
    "speculative": None, "max_num_batched_tokens": 64, "max_num_seqs": 4, "long_prefill_token_threshold": 0,
    "enable_chunked_prefill": True, "scheduler_reserve_full_isl": True, "policy": "fcfs", "watermark": 0.0,
    "max_num_active_seqs": None, "long_prefill_token_threshold_adaptive": False, "async_scheduling": False,
}
found = {"version": vllm.version}
for name, base in (("sync", vllm.scheduler), ("async", vllm.async_scheduler)):
    config = vllm.config.SchedulerConfig(
        max_model_len=4096, is_encoder_decoder=False, scheduler_cls=path_of(base), async_scheduling=name == "async"
    )
    vllm.scheduler = vllm.async_scheduler = config.get_scheduler_cls()
    scheduler = vllm.make_scheduler(engine | {"async_scheduling": name == "async"}, events=False)
    for number, length in enumerate((100, 5)):
        scheduler.add_request(vllm.request.Request(
            request_id=str(number), prompt_token_ids=list(range(1, length + 1)), pooling_params=None,
            sampling_params=vllm.sampling_params(max_tokens=3), block_hasher=vllm.block_hasher(engine),
        ))
    while scheduler.has_unfinished_requests():
        batch = scheduler.schedule()
        names = list(batch.num_scheduled_tokens)
        tokens = [[] if scheduler.requests[name].is_prefill_chunk else [7] for name in names]
        scheduler.update_from_output(batch, vllm.outputs.ModelRunnerOutput(
            req_ids=names, req_id_to_index={name: i for i, name in enumerate(names)}, sampled_token_ids=tokens
        ))
    steps = scheduler.recorder.take()
    found[name] = {
        "is_base": isinstance(scheduler, base), "pieces": [step.pieces for step in steps],
        "times": [[step.scheduled_s, step.ended_s] for step in steps],
    }
print(json.dumps(found))
"""
# 64 tokens a step: a chunk of the first, its rest with the second prompt, then two decode steps of both.
EXPECTED_PIECES = [[[64, 0]], [[36, 64], [5, 0]], [[1, 100], [1, 5]], [[1, 101], [1, 6]]]


def live_paths() -> list[str]:
    return ["", *filter(None, [os.environ.get("KVCAST_ENGINE_PYTHONPATH")])]


live = pytest.mark.skipif(not ENGINE_PYTHON, reason="KVCAST_ENGINE_PYTHON names no interpreter with vLLM")


@pytest.mark.slow
@live
@pytest.mark.parametrize("path", live_paths())
def test_the_real_schedulers_are_recorded(path: str) -> None:
    root = str(Path(__file__).parents[1])
    paths = os.pathsep.join(filter(None, (path, root)))
    done = subprocess.run(
        [ENGINE_PYTHON, "-c", LIVE_SCHEDULER], env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for kind in ("sync", "async"):
        assert found[kind]["is_base"], found["version"]
        assert found[kind]["pieces"] == EXPECTED_PIECES, found["version"]
        moments = [moment for pair in found[kind]["times"] for moment in pair]
        assert moments == sorted(moments)


@pytest.mark.slow
@live
def test_the_real_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"))
    arguments = {"max_model_len": 1024, "max_num_batched_tokens": 256, "max_num_seqs": 4, "enforce_eager": True}
    launch = VllmEngine(ENGINE_PYTHON, TINY, arguments).launch()
    try:
        described = launch.describe()
        assert described.identity["weights"] == "random"
        block = described.limits.block_size
        rows = launch.take(Case("ttft", 4 * block + 14, 4 * block), 0)
        assert not any("failed" in row for row in rows), json.dumps(rows[0])
        cold, warm = (row for row in rows if row["kind"] == "request")
        assert (cold["num_cached_tokens"], warm["num_cached_tokens"]) == (0, 4 * block)
        assert cold["num_steps"] == -(-(4 * block + 14) // 256)
        assert warm["num_steps"] == 1
        assert 0 < cold["overhead_s"] < cold["ttft_s"]
        chunks = [row["prefill_pieces"][0] for row in rows if row["kind"] == "step" and row["num_prefills"]]
        assert chunks == [[256, 0], [256, 256], [14, 512], [14, 512]] or block != 128
        decode = launch.take(Case("decode", block, num_requests=2), 0)
        assert {row["num_decodes"] for row in decode} == {2}
        # The first decode step (of block + 1 tokens each) is left out.
        assert [row["decode_context"] for row in decode[:2]] == [2 * (block + 2), 2 * (block + 3)]
        mixed = launch.take(Case("mixed", block, num_requests=2, num_new_tokens=50), 0)
        assert {(row["num_decodes"], row["num_prefill_tokens"]) for row in mixed} == {(2, 50)}
    finally:
        launch.close()
