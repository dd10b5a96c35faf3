"""Profiles: what is refused, what is said about memory and errors, how they are found."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.plan import Plan
from simulator.profile import load_profile, parse_profile

ASCEND = "qwen3-0.6b-ascend910-a3"
SYNTHETIC = "linear-8ms-50us"


def content(name: str = ASCEND) -> dict[str, Any]:
    shipped = importlib.resources.files("calibration") / "profiles" / f"{name}.json"
    loaded: dict[str, Any] = json.loads(shipped.read_text(encoding="utf-8"))
    return loaded


def put(*keys: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(tree: dict[str, Any]) -> None:
        for key in keys[:-1]:
            tree = tree[key]
        tree[keys[-1]] = value

    return change


def drop(*keys: str) -> Callable[[dict[str, Any]], None]:
    def change(tree: dict[str, Any]) -> None:
        for key in keys[:-1]:
            tree = tree[key]
        del tree[keys[-1]]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("coefficients", "host_decode_s", "value", value=float("nan")), "coefficients.host_decode_s.value"),
        (put("coefficients", "host_decode_s", "value", value=float("inf")), "coefficients.host_decode_s.value"),
        (put("coefficients", "host_decode_s", "value", value=-1.0), "coefficients.host_decode_s.value.*-1"),
        (put("coefficients", "host_decode_s", "value", value="0.03"), "coefficients.host_decode_s.value"),
        (put("coefficients", "host_decode_s", "standard_error", value=None), "a standard error belongs to .*measured"),
        (put("coefficients", "decode_token_s", "standard_error", value=0.1), "a standard error belongs to .*measured"),
        (put("coefficients", "host_decode_s", "unti", value="s"), "coefficients.host_decode_s.unti: unknown key"),
        (drop("coefficients", "host_decode_s"), "coefficients.host_decode_s: missing"),
        (put("coefficients", "step_s", value=content()["overhead"]["constant_s"]), "coefficients.step_s: unknown"),
        (put("formula", value="host_devise"), "unknown 'host_devise' .did you mean 'host_device'"),
        (put("schema_version", value=2), "schema_version"),
        (drop("identity", "model"), "identity.model: missing"),
        (put("kv_bytes_per_token", value=0), "kv_bytes_per_token"),
        (put("memory", "weights", "value", value=-5), "memory.weights.value"),
        (put("extra", value=1), "extra: unknown key"),
    ],
)
def test_bad_profile_is_refused_in_one_line_naming_file_and_key(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    tree = content()
    change(tree)
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(tree), encoding="utf-8")
    with pytest.raises(InputError, match=message) as refusal:
        load_profile(path)
    assert "mine.json: " in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "not json"])
def test_what_is_no_profile_at_all_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"^broken\.json: ") as refusal:
        parse_profile(text, "broken.json")
    assert "\n" not in str(refusal.value)


def test_bytes_that_are_no_text_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a JSON text"):
        load_profile(path)
    with pytest.raises(InputError, match="cannot read"):
        load_profile(str(tmp_path / "missing.json"))
    with pytest.raises(InputError, match="cannot read"):
        load_profile(tmp_path)


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match=r"did you mean 'qwen3-0\.6b-ascend910-a3'"):
        load_profile("qwen3-0.6b-ascend910")


def test_name_and_path_give_the_same_profile(tmp_path: Path) -> None:
    path = tmp_path / "copy.json"
    path.write_text(json.dumps(content()), encoding="utf-8")
    assert load_profile(path) == load_profile(str(path)) == load_profile(ASCEND)


def test_profile_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_profile(ASCEND).name = "other"  # type: ignore[misc]


def test_pool_size_follows_vllm_rule() -> None:
    """blocks = (device * utilization - weights - other) // block bytes; bytes given verbatim replace the parenthesis.

    28 layers x 2 x 8 KV heads x 128 x 2 bytes = 114,688 bytes a token, 14 MiB a block of 128.
    """
    profile = load_profile(ASCEND)
    assert profile.kv_bytes_per_token == 28 * 2 * 8 * 128 * 2
    assert profile.block_size == 128
    mib = 1024**2
    assert profile.num_gpu_blocks(128, kv_cache_memory_bytes=140 * mib) == 10
    assert profile.num_gpu_blocks(128, kv_cache_memory_bytes=140 * mib - 1) == 9
    memory = profile.memory
    available = int(memory.device.value * 0.92) - memory.weights.value - memory.other.value
    assert profile.num_gpu_blocks(128) == available // (14 * mib)
    assert profile.num_gpu_blocks(128, gpu_memory_utilization=0.5) < profile.num_gpu_blocks(128)
    assert memory.other.origin == "prior"
    assert "assumption" in memory.other.source


def test_no_room_for_a_block_is_refused() -> None:
    profile = load_profile(ASCEND)
    with pytest.raises(InputError, match="less than one block"):
        profile.num_gpu_blocks(128, gpu_memory_utilization=0.01)
    with pytest.raises(InputError, match="less than one block"):
        profile.num_gpu_blocks(128, kv_cache_memory_bytes=1)


def test_synthetic_profile_is_what_its_name_says_and_says_that_it_is_synthetic() -> None:
    profile = load_profile(SYNTHETIC)
    step = profile.step_time()
    assert step.elapsed(Plan(num_decodes=5, decode_context=500), 10) == pytest.approx(0.080, rel=1e-12)
    chunk = Plan(num_prefills=1, num_prefill_tokens=2000, prefill_pairs=1e6)
    assert step.elapsed(chunk) == pytest.approx(0.108, rel=1e-12)
    assert step.overhead_s(10_000) == 0
    assert {coefficient.origin for coefficient in profile.coefficients.values()} == {"convention"}
    assert "SYNTHETIC" in profile.provenance.description
    assert profile.held_out_error is None
    assert profile.in_sample_error is None


def test_errors_are_the_largest_of_their_kind() -> None:
    profile = load_profile(ASCEND)
    relative = [abs(r.predicted_s - r.measured_s) / r.measured_s for r in profile.errors.held_out]
    assert profile.held_out_error == pytest.approx(max(relative), rel=1e-9)
    fitted = {residual.case for residual in profile.errors.in_sample}
    held_out = {residual.case for residual in profile.errors.held_out}
    assert held_out < fitted
    assert len(fitted) - len(held_out) == profile.errors.num_not_held_out
