"""What was measured on, read from recorded tool output and stub device libraries.

The npu-smi texts follow the layout of Huawei's public documentation and of start-up reports to vllm-ascend; the figures
in them are made up.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from calibration.environment import Host, describe, model_name, npu_chips
from simulator.profile import Identity

DATA = Path(__file__).parent / "data"
VERSIONS = {
    "vllm": "0.23.0", "vllm-ascend": "0.23.0.post1", "torch": "2.10.0", "torch-npu": "2.10.0.post4",
    "transformers": "5.14.1",
}  # fmt: skip


@dataclass(frozen=True)
class Recorded(Host):
    """A host whose commands and modules are recorded."""

    printed: dict[tuple[str, ...], str] = field(default_factory=dict)
    modules: dict[str, Any] = field(default_factory=dict)

    def run(self, *command: str) -> str | None:
        return self.printed.get(command[:1] if command[0] != "npu-smi" else command)

    def version(self, package: str) -> str | None:
        return VERSIONS.get(package)

    def module(self, name: str) -> Any:
        return self.modules.get(name)


def npu_host(root: Path, text: str) -> Recorded:
    torch_npu = SimpleNamespace(
        npu=SimpleNamespace(device_count=lambda: 1, get_device_name=lambda _: "Ascend910B3"), __version__="2.10.0.post4"
    )
    (root / "usr/local/Ascend/driver").mkdir(parents=True)
    (root / "usr/local/Ascend/driver/version.info").write_text("Version=25.2.0\nascendhal_version=7.35.23\n")
    cann = root / "usr/local/Ascend/ascend-toolkit/latest/aarch64-linux"
    cann.mkdir(parents=True)
    (cann / "ascend_toolkit_install.info").write_text("package_name=Ascend-cann-toolkit\nversion=9.1.0\narch=aarch64\n")
    printed = {
        ("npu-smi", "info"): text,
        ("npu-smi", "info", "-t", "common", "-i", "0"): (DATA / "npu-smi-common.txt").read_text(),
    }
    modules = {"torch_npu": torch_npu, "vllm._version": SimpleNamespace(__commit_id__="gabc")}
    return Recorded("npu", root, printed, modules)


@pytest.fixture(autouse=True)
def no_toolkit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    monkeypatch.delenv("ASCEND_TOOLKIT_HOME", raising=False)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"]}))
    return folder


def complete(identity: dict[str, Any]) -> Identity:
    """With what the engine adds."""
    engine = {
        "dtype": "bfloat16",
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "graph_mode": "eager",
        "block_size": 128,
    }
    return Identity(**identity | engine)


def test_npu_identity_comes_from_npu_smi_torch_npu_and_the_toolkit(tmp_path: Path, model: Path) -> None:
    host = npu_host(tmp_path / "root", (DATA / "npu-smi-info-a2.txt").read_text())
    identity, environment = describe(host, str(model), "dummy")
    known = complete(identity)
    assert known.device == "Ascend910B3, 65536 MB HBM"
    assert (known.driver, known.cann, known.cuda) == ("25.2.0", "9.1.0", None)
    assert (known.vllm, known.vllm_ascend) == ("0.23.0", "0.23.0.post1")
    assert (known.torch, known.torch_npu) == ("2.10.0", "2.10.0.post4")
    assert (known.model, known.weights) == ("tiny", "random")
    assert environment["num_devices"] == 1
    assert environment["commits"] == {"vllm": "gabc"}
    assert environment["clocks"]["Aicore curFreq(MHZ)"] == "800"
    assert environment["clocks"]["Temperature(C)"] == "42"
    assert environment["versions"]["transformers"] == "5.14.1"
    json.dumps(environment)


def test_npu_without_torch_npu_or_files_says_what_npu_smi_says(tmp_path: Path, model: Path) -> None:
    host = Recorded("npu", tmp_path, {("npu-smi", "info"): (DATA / "npu-smi-info-a3.txt").read_text()})
    identity, environment = describe(host, str(model), "auto")
    assert identity["device"] == "Ascend910, 65536 MB HBM"
    assert identity["driver"] == "26.1.1"
    assert identity["cann"] is None
    assert identity["weights"] is None
    assert environment["num_devices"] == 2


def test_npu_chips_are_read_from_both_layouts() -> None:
    a2 = npu_chips((DATA / "npu-smi-info-a2.txt").read_text())
    assert [(chip["npu"], chip["name"], chip["health"]) for chip in a2] == [(0, "910B3", "OK"), (1, "910B3", "Warning")]
    assert [chip["temperature_c"] for chip in a2] == [42, 45]
    assert [chip["aicore_percent"] for chip in a2] == [0, 37]
    assert [chip["hbm_used_mb"] for chip in a2] == [3391, 58012]
    a3 = npu_chips((DATA / "npu-smi-info-a3.txt").read_text())
    assert [chip["power_w"] for chip in a3] == [171.2, None]
    assert {chip["hbm_total_mb"] for chip in a3} == {65536}
    assert npu_chips("npu-smi: command failed") == []


def test_cuda_identity_comes_from_nvidia_smi_and_torch(tmp_path: Path, model: Path) -> None:
    torch = SimpleNamespace(
        version=SimpleNamespace(cuda="13.0"),
        cuda=SimpleNamespace(get_device_name=lambda _: "NVIDIA H200", device_count=lambda: 1),
    )
    line = "NVIDIA H200, 580.65.06, 143771, 31, 345, 1980, 76.51\n"
    host = Recorded("cuda", tmp_path, {("nvidia-smi",): line}, {"torch": torch})
    identity, environment = describe(host, str(model), "dummy")
    known = complete(identity)
    assert (known.device, known.driver, known.cuda) == ("NVIDIA H200, 143771 MiB", "580.65.06", "13.0")
    assert environment["chips"][0]["clocks.max.sm"] == "1980"


def test_cpu_identity_names_threads_and_instruction_set(tmp_path: Path, model: Path) -> None:
    text = "Model name:   AMD EPYC\nCPU(s):   2\nFlags:  fpu avx2 avx512f avx512_bf16\n"
    torch = SimpleNamespace(get_num_threads=lambda: 1)
    host = Recorded("cpu", tmp_path, {("lscpu",): text}, {"torch": torch})
    identity, environment = describe(host, str(model), "dummy")
    assert complete(identity).device == "AMD EPYC, 1 threads, avx512_bf16"
    assert environment["lscpu"]["CPU(s)"] == "2"
    assert "Flags" not in environment["lscpu"]


def test_digests_tell_models_apart(tmp_path: Path, model: Path) -> None:
    host = Recorded("cpu", tmp_path)
    digests = []
    for content in (b"a", b"b"):
        (model / "model.safetensors").write_bytes(content)
        digests.append(describe(host, str(model), "auto")[0]["weights"])
    assert digests[0].startswith("sha256:")
    assert digests[0] != digests[1]
    before = describe(host, str(model), "auto")[0]["model_sha256"]
    (model / "config.json").write_text("{}")
    assert describe(host, str(model), "auto")[0]["model_sha256"] != before


def test_secrets_are_not_recorded(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "2")
    _, environment = describe(Recorded("cpu", tmp_path), str(model), "dummy")
    assert "VLLM_API_KEY" not in environment["variables"]
    assert environment["variables"]["VLLM_CPU_KVCACHE_SPACE"] == "2"


def test_model_names_of_download_caches(model: Path) -> None:
    assert model_name("/cache/models--Qwen--Qwen3-0.6B/snapshots/c1899de") == "Qwen/Qwen3-0.6B"
    assert model_name(str(model)) == "tiny"


def test_this_host_can_be_described(model: Path) -> None:
    identity, environment = describe(Host("cpu"), str(model), "dummy")
    assert identity["device"]
    json.dumps(environment)
