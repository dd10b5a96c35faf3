"""A stand-in for torch_npu."""

from types import SimpleNamespace

npu = SimpleNamespace(device_count=lambda: 2, get_device_name=lambda _: "Ascend910B3")
