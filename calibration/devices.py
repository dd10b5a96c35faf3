"""Device name -> reachable rates and memory, from the shipped tables."""

from __future__ import annotations

import csv
import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from calibration.geometry.shape import Arithmetic
from simulator.errors import InputError, nearest

_ASCEND_TABLE = "Ascend/msmodeling device table"
# Of a link's one-directional peak: what the Ascend table's project takes for A2 and A3; its comments: unconfirmed.
_ASCEND_LINK_SHARE = 0.7


@dataclass(frozen=True)
class Device:
    """Reachable rates of a device (peak times the share that a source assumes reachable), and its visible memory.

    ``flops_per_s`` holds for 16 bits; ``fp8_flops_per_s`` is None where the device does not compute in that format.
    ``link_bytes_per_s`` is what a rank sends to others inside a node, in one direction; None where nobody said.
    """

    name: str
    flops_per_s: float
    int8_ops_per_s: float
    fp8_flops_per_s: float | None
    bytes_per_s: float
    memory_bytes: int
    memory_source: str
    source: str
    link_bytes_per_s: float | None
    link_source: str
    is_ascend: bool

    def rate(self, arithmetic: Arithmetic) -> float:
        """Operations a second in this arithmetic; in 16 bits where the device has no fp8."""
        if arithmetic == "int8":
            return self.int8_ops_per_s
        if arithmetic == "fp8" and self.fp8_flops_per_s is not None:
            return self.fp8_flops_per_s
        return self.flops_per_s


def is_sheet(name: str) -> bool:
    """Whether this names a file rather than a device of the tables."""
    return name.endswith((".yaml", ".yml"))


def load_device(name: str) -> Device:
    """The device of this name in the shipped tables or their lists of names, or of the data sheet in this file (see
    ``device_sheet``). Raises InputError for another name, and for a sheet that cannot be read.
    """
    if is_sheet(name):
        from calibration.device_sheet import read_sheet

        return read_sheet(Path(name))
    known: dict[str, Device] = {}
    for folder, read in (("ascend_devices", _ascend), ("gpu_devices", _gpu)):
        devices = {row["device"]: read(row) for row in _table(folder, "devices.csv")}
        known |= devices | {row["name"]: devices[row["device"]] for row in _table(folder, "names.csv")}
    if name not in known:
        own = "; your own is the path of a data sheet, NAME.yaml"
        raise InputError(f"--device: unknown {name!r}{nearest(name, known)}{own}")
    return known[name]


def _ascend(row: Mapping[str, str]) -> Device:
    name = row["device"]
    visible_gib, memory_source = row["memory_gib"], f"{name}: nominal ({_ASCEND_TABLE}); an engine sees less"
    for seen in _table("ascend_devices", "visible_memory.csv"):
        if seen["memory_gib"] == row["memory_gib"]:
            visible_gib, memory_source = seen["visible_gib"], f"{seen['visible_gib']} GiB visible: {seen['source']}"
    compute, memory = float(row["assumed_compute_efficiency"]), float(row["assumed_memory_efficiency"])
    return Device(
        name=name,
        flops_per_s=float(row["bf16_tflops"]) * 1e12 * compute,
        int8_ops_per_s=float(row["int8_tops"]) * 1e12 * compute,
        fp8_flops_per_s=None,
        bytes_per_s=float(row["memory_bandwidth_tib_per_s"]) * 1024**4 * memory,
        memory_bytes=int(float(visible_gib) * 1024**3),
        memory_source=memory_source,
        source=(
            f"{name}: {row['bf16_tflops']} TFLOP/s x {compute:g}, "
            f"{row['memory_bandwidth_tib_per_s']} TiB/s x {memory:g} ({_ASCEND_TABLE}; the shares are its assumptions)"
        ),
        link_bytes_per_s=float(row["link_in_node_gb_per_s"]) * 1e9 * _ASCEND_LINK_SHARE,
        link_source=_link(row, _ASCEND_LINK_SHARE, _ASCEND_TABLE),
        is_ascend=True,
    )


def _gpu(row: Mapping[str, str]) -> Device:
    name, table = row["device"], f"AIConfigurator {row['source_file']}"
    compute, memory = float(row["assumed_compute_efficiency"]), float(row["assumed_memory_efficiency"])
    eight_bit, link = float(row["assumed_eight_bit_efficiency"]), float(row["assumed_link_efficiency"])
    return Device(
        name=name,
        flops_per_s=float(row["bf16_tflops"]) * 1e12 * compute,
        int8_ops_per_s=float(row["int8_tops"]) * 1e12 * eight_bit,
        fp8_flops_per_s=float(row["fp8_tflops"]) * 1e12 * eight_bit if row["fp8_tflops"] else None,
        bytes_per_s=float(row["memory_bandwidth_gb_per_s"]) * 1e9 * memory,
        memory_bytes=int(float(row["memory_gib"]) * 1024**3),
        memory_source=f"{name}: nominal ({table}); an engine sees less",
        source=(
            f"{name}: {row['bf16_tflops']} TFLOP/s x {compute:g}, {row['memory_bandwidth_gb_per_s']} GB/s x {memory:g} "
            f"({table}; the share of bandwidth is its correction, that of arithmetic kvcast's assumption)"
        ),
        link_bytes_per_s=float(row["link_in_node_gb_per_s"]) * 1e9 * link,
        link_source=_link(row, link, table),
        is_ascend=False,
    )


def _link(row: Mapping[str, str], share: float, table: str) -> str:
    return f"{row['link_in_node_gb_per_s']} GB/s x {share:g} inside a node ({table}; the share is an assumption)"


def _table(folder: str, file: str) -> list[dict[str, str]]:
    path = importlib.resources.files("calibration") / "data" / folder / file
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
