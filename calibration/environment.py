"""What was measured on: device, driver, software, model, and how busy the host was.

``describe`` gives two things: the *identity*, in which rows of one file must agree, and the *environment*, which is
recorded beside it. What cannot be read is None or left out, never guessed. Only the standard library is imported here;
device libraries are asked for by name, and only by an interpreter that has them.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import itertools
import json
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Fields = dict[str, Any]
_MEBI = 1024**2
# Reading more than this to name the weights would take longer than many a probe.
_MOST_DIGESTED_BYTES = 4 * 1024**3
_PACKAGES = ("vllm", "vllm-ascend", "torch", "torch-npu", "transformers", "numpy", "triton", "triton-ascend")
_CANN_FILES = (
    "{home}/aarch64-linux/ascend_toolkit_install.info",
    "{home}/x86_64-linux/ascend_toolkit_install.info",
    "{home}/version.cfg",
)
_ASCEND_HOME = "/usr/local/Ascend/ascend-toolkit/latest"


@dataclass(frozen=True)
class Host:
    """The machine that the engine runs on. ``device_type`` is vLLM's word: ``npu``, ``cuda`` or ``cpu``.

    ``root`` stands in for ``/`` in tests.
    """

    device_type: str
    root: Path = Path("/")

    def run(self, *command: str) -> str | None:
        """What a command prints, None if it is not there or fails."""
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    def read(self, path: str) -> str | None:
        """A text file, None if it is not there."""
        try:
            return (self.root / path.lstrip("/")).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def version(self, package: str) -> str | None:
        """The version of an installed distribution."""
        names = (package, f"{package}-cpu") if package == "vllm" else (package,)
        for name in names:
            try:
                return importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        return None

    def module(self, name: str) -> Any:
        """A module, None if it is not installed."""
        try:
            return importlib.import_module(name)
        except ImportError:
            return None


def describe(host: Host, model: str, load_format: str) -> tuple[Fields, Fields]:
    """(identity, environment). The engine adds what only it knows: dtype, parallelism, graph mode, block size."""
    device, details = {"npu": _npu, "cuda": _cuda}.get(host.device_type, _cpu)(host)
    versions = {package: version for package in _PACKAGES if (version := host.version(package)) is not None}
    identity = {
        "torch": versions.get("torch"),
        "torch_npu": versions.get("torch-npu"),
        "vllm": versions.get("vllm", "not known"),
        "vllm_ascend": versions.get("vllm-ascend"),
        "model": model_name(model),
        "model_sha256": _digest([Path(model, "config.json")]),
        "weights": _weights(Path(model), load_format),
        **device,
    }
    commits = {
        package: commit
        for package in ("vllm", "vllm_ascend")
        if (commit := getattr(host.module(f"{package}._version"), "__commit_id__", None))
    }
    environment = {
        "device_type": host.device_type,
        **details,
        "versions": versions,
        "commits": commits,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "host": _host(host),
        "variables": {name: value for name, value in sorted(os.environ.items()) if _matters(name)},
    }
    return identity, environment


def _matters(name: str) -> bool:
    prefixes = ("VLLM_", "ASCEND_", "HCCL_", "OMP_", "CUDA_VISIBLE", "TASK_QUEUE", "PYTORCH_")
    return name.startswith(prefixes) and not any(word in name for word in ("KEY", "TOKEN", "SECRET", "PASSWORD"))


def model_name(model: str) -> str:
    """A model's name from its path: the folder's, or the repository's where that is a download cache."""
    for part in Path(model).parts:
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/")
    return Path(model).name if Path(model).is_dir() else model


# Devices ------------------------------------------------------------------------------------------------------------


def _npu(host: Host) -> tuple[Fields, Fields]:
    text = host.run("npu-smi", "info") or ""
    chips = npu_chips(text)
    found = re.search(r"npu-smi\s+(\S+)", text)
    torch_npu = host.module("torch_npu")
    visible = torch_npu.npu.device_count() if torch_npu else len(chips)
    name = torch_npu.npu.get_device_name(0) if torch_npu else None
    memory = f", {chips[0]['hbm_total_mb']} MB HBM" if chips else ""
    driver = _setting(host.read("/usr/local/Ascend/driver/version.info"), "Version")
    home = os.environ.get("ASCEND_HOME_PATH") or os.environ.get("ASCEND_TOOLKIT_HOME") or _ASCEND_HOME
    cann = (_setting(host.read(path.format(home=home)), "version") for path in _CANN_FILES)
    identity = {
        "device": f"{name or (chips[0]['name'] if chips else 'npu')}{memory}",
        "driver": driver or (found.group(1) if found else None),
        "cann": next((version for version in cann if version), None),
    }
    clocks = host.run("npu-smi", "info", "-t", "common", "-i", str(chips[0]["npu"])) if chips else None
    return identity, {"num_devices": visible, "chips": chips, "clocks": _table(clocks, "Freq", "Temperature", "Usage")}


def npu_chips(text: str) -> list[Fields]:
    """The chips in what ``npu-smi info`` prints: two table rows each."""
    first = re.compile(r"^\|\s*(\d+)\s+(\S+)\s*\|\s*(\S+)\s*\|\s*([\d.-]+)\s+(\d+)\s", re.MULTILINE)
    second = re.compile(r"\|\s*[0-9A-Fa-f]{4}:[\w:.]+\s*\|\s*(\d+)\s+.*?(\d+)\s*/\s*(\d+)\s*\|\s*$")
    chips: list[Fields] = []
    lines = text.splitlines()
    for line, following in itertools.pairwise(lines):
        head, tail = first.search(line), second.search(following)
        if head and tail:
            npu, name, health, power, temperature = head.groups()
            busy, used, total = tail.groups()
            chips.append(
                {
                    "npu": int(npu), "name": name, "health": health,
                    "power_w": _number(power), "temperature_c": int(temperature), "aicore_percent": int(busy),
                    "hbm_used_mb": int(used), "hbm_total_mb": int(total),
                }
            )  # fmt: skip
    return chips


def _cuda(host: Host) -> tuple[Fields, Fields]:
    names = ("name", "driver_version", "memory.total", "temperature.gpu", "clocks.sm", "clocks.max.sm", "power.draw")
    text = host.run("nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits") or ""
    chips = [dict(zip(names, map(str.strip, line.split(",")), strict=False)) for line in text.splitlines() if line]
    torch = host.module("torch")
    name = torch.cuda.get_device_name(0) if torch else None
    memory = f", {chips[0]['memory.total']} MiB" if chips else ""
    identity = {
        "device": f"{name or (chips[0]['name'] if chips else 'cuda')}{memory}",
        "driver": chips[0]["driver_version"] if chips else None,
        "cuda": getattr(torch.version, "cuda", None) if torch else None,
    }
    return identity, {"num_devices": torch.cuda.device_count() if torch else len(chips), "chips": chips}


def _cpu(host: Host) -> tuple[Fields, Fields]:
    text = host.run("lscpu")
    table = _table(text, "Model name", "CPU(s)", "Socket", "Thread", "MHz", "L3 cache", "Hypervisor", "NUMA")
    flags = set(_table(text, "Flags").get("Flags", "").split())
    kinds = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "sve", "bf16") if flag in flags]
    name = table.get("Model name") or platform.processor() or platform.machine()
    torch = host.module("torch")
    threads = torch.get_num_threads() if torch else os.cpu_count() or 1
    widest = f", {kinds[-1]}" if kinds else ""
    return {"device": f"{name}, {threads} threads{widest}"}, {"num_devices": 1, "lscpu": table}


# The host, and the model --------------------------------------------------------------------------------------------


def _host(host: Host) -> Fields:
    """Load and clocks of the host: what makes two launches on the same machine differ."""
    load = os.getloadavg() if hasattr(os, "getloadavg") else None
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    governor = host.read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    fields = {
        "num_cpus": usable,
        "load_1min": load[0] if load else None,
        "governor": governor.strip() if governor else None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _weights(folder: Path, load_format: str) -> str | None:
    """``random``, or a digest of the weight files: of all bytes, or, where they are large, of sizes and ends."""
    if load_format == "dummy":
        return "random"
    files = sorted(file for pattern in ("*.safetensors", "*.bin", "*.pt", "*.gguf") for file in folder.glob(pattern))
    if not files:
        return None
    if sum(file.stat().st_size for file in files) <= _MOST_DIGESTED_BYTES:
        return f"sha256:{_digest(files)}"
    return f"sampled-sha256:{_digest(files, _ends)}"


def _digest(files: Iterable[Path], chunks: Callable[[Path], Iterable[bytes]] | None = None) -> str | None:
    digest = hashlib.sha256()
    try:
        for file in files:
            for chunk in (chunks or _whole)(file):
                digest.update(chunk)
    except OSError:
        return None
    return digest.hexdigest()


def _whole(file: Path) -> Iterable[bytes]:
    with file.open("rb") as content:
        while chunk := content.read(_MEBI):
            yield chunk


def _ends(file: Path) -> Iterable[bytes]:
    size = file.stat().st_size
    yield json.dumps([file.name, size]).encode()
    with file.open("rb") as content:
        yield content.read(_MEBI)
        content.seek(max(size - _MEBI, 0))
        yield content.read(_MEBI)


def _table(text: str | None, *words: str) -> dict[str, str]:
    """The ``key : value`` lines whose key holds one of these words."""
    lines = (line.partition(":") for line in (text or "").splitlines())
    return {key.strip(): value.strip() for key, _, value in lines if any(word in key for word in words)}


def _setting(text: str | None, name: str) -> str | None:
    """The value of ``name=value`` (or ``name=[value]``) in a text."""
    found = re.search(rf"^\s*{name}\s*=\s*\[?([^\]\s]+)", text or "", re.MULTILINE)
    return found.group(1).strip("\"'") if found else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
