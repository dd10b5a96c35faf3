"""What a device's data sheet predicts before anything is measured: priors, with no error known."""

from __future__ import annotations

import csv
import importlib.resources
from dataclasses import dataclass

from calibration.geometry import Geometry
from simulator.errors import InputError, nearest

_DEVICE_TABLE = "Ascend/msmodeling device table"


@dataclass(frozen=True)
class Device:
    """Reachable rates of a device (peak times the share that the source assumes reachable), and its visible memory."""

    name: str
    flops_per_s: float
    bytes_per_s: float
    memory_bytes: int
    memory_source: str
    source: str


@dataclass(frozen=True)
class Prior:
    """A coefficient before measurement: its value (SI) and where that comes from."""

    value: float
    source: str


def load_device(name: str) -> Device:
    """The device of this name in the shipped table. Raises InputError for an unknown one."""
    rows = {row["device"]: row for row in _table("devices.csv")}
    if name not in rows:
        raise InputError(f"--device: unknown {name!r}{nearest(name, rows)}")
    row = rows[name]
    visible_gib, memory_source = row["memory_gib"], f"{name}: nominal ({_DEVICE_TABLE}); an engine sees less"
    for seen in _table("visible_memory.csv"):
        if seen["memory_gib"] == row["memory_gib"]:
            visible_gib, memory_source = seen["visible_gib"], f"{seen['visible_gib']} GiB visible: {seen['source']}"
    compute, memory = float(row["assumed_compute_efficiency"]), float(row["assumed_memory_efficiency"])
    return Device(
        name=name,
        flops_per_s=float(row["bf16_tflops"]) * 1e12 * compute,
        bytes_per_s=float(row["memory_bandwidth_tib_per_s"]) * 1024**4 * memory,
        memory_bytes=int(float(visible_gib) * 1024**3),
        memory_source=memory_source,
        source=(
            f"{name}: {row['bf16_tflops']} TFLOP/s x {compute:g}, "
            f"{row['memory_bandwidth_tib_per_s']} TiB/s x {memory:g} ({_DEVICE_TABLE}; the shares are its assumptions)"
        ),
    )


def _table(file: str) -> list[dict[str, str]]:
    path = importlib.resources.files("calibration") / "data" / "ascend_devices" / file
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def roofline(geometry: Geometry, device: Device) -> dict[str, Prior]:
    """Priors of the formulas' device-side coefficients. Host times have none: they must be measured.

    Each is bytes or operations over the reachable rate. A ``step_s`` is host and device together, so it has no
    prior either.
    """

    def reads(num_bytes: int, what: str) -> Prior:
        return Prior(num_bytes / device.bytes_per_s, f"{num_bytes} bytes of {what}; {device.source}")

    def computes(flops: int, what: str) -> Prior:
        return Prior(flops / device.flops_per_s, f"{flops} operations {what}; {device.source}")

    return {
        "device_step_s": reads(geometry.step_read_bytes, "weights read once a step"),
        "weights_s": reads(geometry.step_read_bytes, "weights read once a step"),
        "prefill_token_s": computes(geometry.prefill_token_flops, "a prefill token (layers)"),
        "token_s": computes(geometry.prefill_token_flops, "a token (layers)"),
        "prefill_pair_s": computes(geometry.pair_flops, "a query-key pair"),
        "decode_token_s": computes(geometry.decode_token_flops, "a decode (layers and output head)"),
        "context_s": reads(geometry.kv_bytes_per_token, "keys and values a token of context"),
        "decode_context_s": reads(geometry.kv_bytes_per_token, "keys and values a token of context"),
    }
