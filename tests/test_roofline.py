"""Devices of the tables, and the priors that their data sheets give a rank."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import calibration
from calibration.geometry import load_geometry
from calibration.roofline import load_device, rank_roofline, roofline
from simulator.errors import InputError
from simulator.step_time import FORMULAS

DATA = Path(calibration.__file__).parent / "data"
H100, ASCEND = "H100 SXM", "Atlas 800 A2 313T (64G)"
ASCEND_TABLE = (DATA / "ascend_devices" / "devices.csv").read_text(encoding="utf-8")
ASCEND_DEVICES = [row["device"] for row in csv.DictReader(ASCEND_TABLE.splitlines())]


@pytest.mark.parametrize("name", ASCEND_DEVICES)
def test_every_ascend_device_of_the_table_loads(name: str) -> None:
    device = load_device(name)
    assert device.name == name
    assert device.int8_ops_per_s > device.flops_per_s > device.bytes_per_s > device.link_bytes_per_s > 1e9
    assert device.fp8_flops_per_s is None


# Data sheets of NVIDIA: dense TFLOP/s in bfloat16, GB/s of memory, GB/s of NVLink or PCIe in one direction.
@pytest.mark.parametrize(
    ("name", "tflops", "memory_gb_per_s", "link_gb_per_s"),
    [
        ("H100 SXM", 989, 3350, 450),
        ("H200 SXM", 989, 4800, 450),
        ("A100 SXM", 312, 2039, 300),
        ("RTX PRO 6000 Server", 468, 1792, 64),
    ],
)
def test_gpu_rates_are_shares_of_the_data_sheet(
    name: str, tflops: float, memory_gb_per_s: float, link_gb_per_s: float
) -> None:
    device = load_device(name)
    assert device.flops_per_s == pytest.approx(0.79 * tflops * 1e12, rel=1e-3)
    assert device.bytes_per_s == pytest.approx(0.8 * memory_gb_per_s * 1e9, rel=1e-9)
    assert device.link_bytes_per_s == pytest.approx(0.6 * link_gb_per_s * 1e9, rel=1e-9)
    assert "assumption" in device.source


def test_devices_go_by_the_names_that_drivers_report() -> None:
    assert load_device("NVIDIA H100 80GB HBM3") == load_device("H100 SXM")
    assert load_device("910B3") == load_device("Ascend910B3") == load_device(ASCEND)


def test_chip_names_have_the_rates_of_their_rows() -> None:
    """CANN's platform files: 20 cores of 16^3 multiply-adds a cycle, at 1.8 GHz (910B3) and 1.5 GHz (910B4-1)."""
    for name, clock_hz in (("910B3", 1.8e9), ("910B4-1", 1.5e9)):
        assert load_device(name).flops_per_s == pytest.approx(0.7 * 20 * 16**3 * 2 * clock_hz, rel=1e-3)


@pytest.mark.parametrize("name", ["Atlas 800 A3 560T", "H100", "910B4"])
def test_unknown_device_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="--device: unknown"):
        load_device(name)


def test_priors_of_a_dense_model_by_hand() -> None:
    """Llama-3.1-8B on an H100: 6.98 G parameters in the layers, 0.525 G in the head, 131,072 bytes of KV a token."""
    priors = roofline(load_geometry("meta-llama/Llama-3.1-8B"), load_device(H100))
    layers, head = 32 * (2 * 4096 * 128 * 40 + 3 * 4096 * 14336), 128_256 * 4096
    assert priors["weights_s"].value == pytest.approx(2 * (layers + head) / (0.8 * 3.35e12))
    assert priors["device_step_s"].value == priors["weights_s"].value
    assert priors["token_s"].value == pytest.approx(2 * layers / (0.79 * 989e12))
    assert priors["decode_token_s"].value == pytest.approx(2 * (layers + head) / (0.79 * 989e12))
    assert priors["context_s"].value == pytest.approx(131_072 / (0.8 * 3.35e12))
    assert priors["prefill_pair_s"].value == pytest.approx(4 * 32 * 32 * 128 / (0.79 * 989e12))
    assert "experts_s" not in priors
    assert "expert_share" not in priors


def test_priors_of_a_mixture_by_hand() -> None:
    priors = roofline(load_geometry("Qwen/Qwen3-30B-A3B"), load_device(ASCEND), tensor_parallel_size=2)
    memory, flops, link = 0.6 * 1.6 * 1024**4, 0.7 * 294.9e12, 0.7 * 196e9
    assert priors["experts_s"].value == pytest.approx(48 * 128 * 3 * 2048 * 384 * 2 / memory)
    assert priors["expert_share"].value == 8 / 128
    common = 48 * (2 * 2048 * 128 * 18 + 2048 * 128)
    assert priors["weights_s"].value == pytest.approx(2 * (common + 151_936 * 1024) / memory)
    active = 48 * 8 * 3 * 2048 * 384
    sent = 2 * 48 * 2048 * 2  # a ring of two sends each message once
    assert priors["token_s"].value == pytest.approx(2 * (common + active) / flops + sent / link)
    assert priors["prefill_token_s"].value == priors["token_s"].value
    assert priors["decode_token_s"].value == pytest.approx(priors["token_s"].value + 2 * 151_936 * 1024 / flops)
    assert priors["device_step_s"].value == pytest.approx(priors["weights_s"].value + priors["experts_s"].value)
    assert priors["context_s"].value == pytest.approx(49_152 / memory)
    assert "196 GB/s x 0.7" in priors["token_s"].source
    assert "one of 2 ranks" in priors["experts_s"].source


def test_formulas_know_every_prior() -> None:
    known = {name for formula in FORMULAS.values() for name in formula.coefficients}
    assert set(roofline(load_geometry("Qwen/Qwen3-30B-A3B"), load_device(H100))) <= known


def test_quantised_layers_are_read_and_computed_faster_and_the_head_is_not() -> None:
    device = load_device(ASCEND)
    plain, quantised = (roofline(load_geometry("Qwen3-32B", dtype=dtype), device) for dtype in ("bfloat16", "w8a8"))
    assert quantised["token_s"].value == pytest.approx(plain["token_s"].value * 294.9 / 626)
    head_s = plain["decode_token_s"].value - plain["token_s"].value
    assert quantised["decode_token_s"].value - quantised["token_s"].value == pytest.approx(head_s)
    head_read_s = 2 * 151_936 * 5120 / device.bytes_per_s
    halved = (plain["weights_s"].value - head_read_s) / 2
    assert quantised["weights_s"].value == pytest.approx(halved + head_read_s)
    assert "int8" in quantised["token_s"].source


def test_device_without_fp8_computes_in_16_bits() -> None:
    """An A100 reads weights of 8 bits and computes with them widened; an H100 has the rate for both."""
    geometries = [load_geometry("Qwen3-8B", dtype=dtype) for dtype in ("bfloat16", "fp8")]
    for name, ratio in (("A100 SXM", 1.0), (H100, 0.79 / 0.9)):
        plain, narrow = (roofline(geometry, load_device(name))["token_s"].value for geometry in geometries)
        assert narrow == pytest.approx(ratio * plain)


def test_latent_attention_is_bound_by_arithmetic_on_few_ranks() -> None:
    """128 heads on one latent of 1,152 bytes: 242 operations a byte, where this device reaches 196; with 8 of the heads
    on a rank of 16 reading takes longer.
    """
    geometry, device = load_geometry("DeepSeek-V3"), load_device(ASCEND)
    one, many = roofline(geometry, device)["context_s"], roofline(geometry, device, 16)["context_s"]
    assert one.value == pytest.approx(2 * 61 * 128 * 1088 / device.flops_per_s)
    assert many.value == pytest.approx(61 * 1152 / device.bytes_per_s)


def test_experts_on_other_replicas_cost_their_dispatch() -> None:
    geometry, device = load_geometry("Qwen/Qwen3-30B-A3B"), load_device("RTX PRO 6000 Server")
    alone = rank_roofline(geometry.rank(), device)
    replica = rank_roofline(geometry.rank(1, expert_parallel=True, data_parallel_size=2), device)
    sent = 48 * 2 * 8 * 2048 * 2 // 2
    assert replica["token_s"].value == pytest.approx(alone["token_s"].value + sent / device.link_bytes_per_s)
    assert replica["experts_s"].value == pytest.approx(alone["experts_s"].value / 2)
    assert replica["weights_s"].value == alone["weights_s"].value
