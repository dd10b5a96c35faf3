"""A device that is in no shipped table: its data sheet as people write it down."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError, field_validator

from calibration.devices import Device
from simulator.errors import InputError
from simulator.profile import Strict
from simulator.scenario import problems, strict_yaml
from simulator.units import Bandwidth, Bytes, PositiveNumber, Share

_LEAST_BANDWIDTH, _LEAST_MEMORY, _MOST_TFLOPS = 1e8, 2**28, 1e6  # bytes a second, bytes; slips of the pen beyond
_UNSTATED = "a guess, since the sheet does not state it"


class DeviceSheet(Strict):
    """Peaks as the vendor prints them (dense, 16 bits; one direction of a link inside a node), and the shares of them
    that are taken to be reached. ``int8_tops`` and ``fp8_tflops`` are left out where the device is no faster in these
    formats, ``link_bandwidth`` where one device serves alone. ``is_ascend``: an NPU that vllm-ascend runs on.
    """

    name: str = Field(min_length=1)
    source: str = Field(min_length=1, description="where the figures are from")
    bf16_tflops: PositiveNumber = Field(le=_MOST_TFLOPS, description="10^12 operations a second in 16 bits")
    int8_tops: PositiveNumber | None = None
    fp8_tflops: PositiveNumber | None = None
    memory: Bytes = Field(gt=0, description="a size like 64 GiB")
    memory_bandwidth: Bandwidth = Field(description="a bandwidth like 1.6 TB/s")
    link_bandwidth: Bandwidth | None = None
    compute_efficiency: Share = Field(0.7, gt=0)
    memory_efficiency: Share = Field(0.7, gt=0)
    link_efficiency: Share = Field(0.6, gt=0)
    is_ascend: bool = False

    @field_validator("memory_bandwidth", "link_bandwidth")
    @classmethod
    def _is_a_bandwidth(cls, value: float | None) -> float | None:
        """A bare number is of bytes, which hardly anybody means."""
        if value is not None and value < _LEAST_BANDWIDTH:
            raise ValueError(f"got {value:g} bytes a second, expected a bandwidth like 1.6 TB/s")
        return value

    @field_validator("memory")
    @classmethod
    def _is_a_memory(cls, value: int) -> int:
        if value < _LEAST_MEMORY:
            raise ValueError(f"got {value:,} bytes, expected a size like 64 GiB")
        return value

    def device(self) -> Device:
        """What is reached of it."""
        compute, memory = (self._share(name) for name in ("compute_efficiency", "memory_efficiency"))
        flops_per_s = self.bf16_tflops * 1e12 * self.compute_efficiency
        link, reads = self.link_bandwidth, f"{self.memory_bandwidth / 1e9:g} GB/s x {memory}"
        return Device(
            name=self.name,
            flops_per_s=flops_per_s,
            int8_ops_per_s=(self.int8_tops or self.bf16_tflops) * 1e12 * self.compute_efficiency,
            fp8_flops_per_s=self.fp8_tflops and self.fp8_tflops * 1e12 * self.compute_efficiency,
            bytes_per_s=self.memory_bandwidth * self.memory_efficiency,
            memory_bytes=self.memory,
            memory_source=f"{self.name}: nominal ({self.source}); an engine sees less",
            source=f"{self.name}: {self.bf16_tflops:g} TFLOP/s x {compute}, {reads} ({self.source})",
            link_bytes_per_s=None if link is None else link * self.link_efficiency,
            link_source="" if link is None else (
                f"{link / 1e9:g} GB/s x {self._share('link_efficiency')} inside a node ({self.source})"
            ),
            is_ascend=self.is_ascend,
        )  # fmt: skip

    def _share(self, name: str) -> str:
        """An efficiency in words, marked where nobody stated it."""
        return f"{getattr(self, name):g}" + ("" if name in self.model_fields_set else f" ({_UNSTATED})")


def read_sheet(path: Path) -> Device:
    """The device in a YAML file. Raises InputError ``FILE: key: ...``."""
    data = strict_yaml.read(strict_yaml.text_of(path, "a data sheet in YAML"), str(path))
    try:
        return DeviceSheet.model_validate(data).device()
    except ValidationError as error:
        raise InputError(f"{path}: {problems.one_line(error, DeviceSheet, data)}") from None
