"""The platform is an NPU."""

from types import SimpleNamespace

current_platform = SimpleNamespace(device_type="npu")
