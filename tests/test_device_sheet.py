"""A device of one's own: its sheet is read as the shipped tables are, and what it does not state is marked."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from calibration.device_sheet import read_sheet
from calibration.devices import load_device
from calibration.geometry import load_geometry
from calibration.roofline import roofline
from simulator import cli
from simulator.errors import InputError

ROOT = Path(__file__).parent.parent

# NVIDIA's data sheet of the H100 SXM5, and the shares that the shipped table has for it.
H100 = {
    "name": "mine", "source": "data sheet", "bf16_tflops": 989, "memory": "80 GiB", "memory_bandwidth": "3350 GB/s",
    "link_bandwidth": "450 GB/s", "compute_efficiency": "79 %", "memory_efficiency": 0.8, "link_efficiency": 0.6,
}  # fmt: skip


def sheet(folder: Path, **changes: Any) -> Path:
    path = folder / "mine.yaml"
    given = {key: value for key, value in (H100 | changes).items() if value is not None}
    path.write_text(yaml.safe_dump(given, sort_keys=False))
    return path


def test_a_sheet_with_the_figures_of_a_shipped_device_gives_its_priors(tmp_path: Path) -> None:
    geometry = load_geometry("meta-llama/Llama-3.1-8B")
    mine, shipped = load_device(str(sheet(tmp_path))), load_device("H100 SXM")
    for num_ranks in (1, 4):
        own, theirs = (roofline(geometry, device, num_ranks) for device in (mine, shipped))
        assert {key: prior.value for key, prior in own.items()} == pytest.approx(
            {key: prior.value for key, prior in theirs.items()}
        )
    assert (mine.memory_bytes, mine.is_ascend) == (shipped.memory_bytes, shipped.is_ascend)


def test_what_the_sheet_does_not_state_is_a_guess_and_marked(tmp_path: Path) -> None:
    device = read_sheet(sheet(tmp_path, compute_efficiency=None, int8_tops=None))
    assert device.flops_per_s == pytest.approx(0.7 * 989e12)
    assert device.int8_ops_per_s == device.flops_per_s, "no faster in 8 bits"
    assert "989 TFLOP/s x 0.7 (a guess" in device.source
    assert "3350 GB/s x 0.8 (data sheet)" in device.source


def test_several_ranks_need_a_link(tmp_path: Path) -> None:
    geometry, device = load_geometry("meta-llama/Llama-3.1-8B"), read_sheet(sheet(tmp_path, link_bandwidth=None))
    assert roofline(geometry, device)["token_s"].value > 0
    with pytest.raises(InputError, match="^--device: mine has no link_bandwidth, which ranks need that send to each "):
        roofline(geometry, device, 2)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"bf16_tflops": None}, "bf16_tflops: missing, expected 10^12 operations a second in 16 bits"),
        ({"memory_bandwidth": "1.6 TB"}, "memory_bandwidth: got '1.6 TB', expected a bandwidth like"),
        ({"memory_bandwidth": 1.6}, "memory_bandwidth: got 1.6 bytes a second, expected a bandwidth like 1.6 TB/s"),
        ({"memory": "1 KiB"}, "memory: got 1,024 bytes, expected a size like 64 GiB"),
        ({"bf16_tflops": 1e300}, "bf16_tflops: got 1e+300"),
        ({"memory": "64 apples"}, "memory: got '64 apples', expected a size like"),
        ({"compute_efficiency": 70}, "compute_efficiency: got 70, expected a share between 0 and 1, or like '92 %'"),
        ({"memory_efficiency": 0}, "memory_efficiency: got 0"),
        ({"bf16_tflop": 1}, "bf16_tflop: unknown key (did you mean 'bf16_tflops'?)"),
        ({"is_ascend": "perhaps"}, "is_ascend: got 'perhaps', expected true or false"),
    ],
)
def test_mistakes_are_one_clear_line(tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    path = sheet(tmp_path, **changes)
    with pytest.raises(InputError) as error:
        load_device(str(path))
    assert str(error.value).startswith(f"{path}: {line}")


def test_a_missing_sheet_and_an_unknown_name_say_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.yaml: no such file, expected a data sheet in YAML$"):
        load_device(str(tmp_path / "none.yaml"))
    with pytest.raises(InputError, match=r"unknown 'H100'.*; your own is the path of a data sheet, NAME\.yaml$"):
        load_device("H100")


def test_the_sheet_of_the_readme_is_one(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^  ```yaml\n(.*?)^  ```$", readme, flags=re.DOTALL | re.MULTILINE)
    path = tmp_path / "my-npu.yaml"
    path.write_text(dedent(block))
    device = read_sheet(path)
    assert (device.name, device.is_ascend) == ("My NPU", True)
    assert "guess" not in device.source + device.link_source


def test_a_profile_is_fitted_with_the_sheet_standing_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ROOT / "calibration" / "data" / "ascend_article" / "long_input.jsonl"
    path = tmp_path / "fitted.json"
    options = ["--prior", "roofline", "--device", str(sheet(tmp_path)), "-o", str(path)]
    with pytest.raises(SystemExit) as end:
        cli.main(["calibrate", "fit", str(rows), *options])
    assert end.value.code == 0, capsys.readouterr().err
    assert "mine: 989 TFLOP/s x 0.79" in path.read_text()
