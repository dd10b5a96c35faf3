"""The command line: what it prints, how it ends, and what it does not load."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from simulator import cli
from tests.test_scenario import TEXT

ROOT = Path(__file__).parent.parent


def run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


@pytest.fixture
def scenario_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(TEXT)
    return path


def loaded_by(*arguments: str) -> set[str]:
    """The modules that a fresh interpreter has after this command line."""
    code = (
        "import sys; from simulator.cli import main\n"
        f"try: main({list(arguments)!r})\n"
        "except SystemExit: pass\n"
        "print('MODULES', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.rpartition("MODULES ")[2].split())


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("compare", "--help")])
def test_help_loads_nothing_heavy(arguments: tuple[str, ...]) -> None:
    modules = loaded_by(*arguments)
    assert "simulator.cli" in modules
    heavy = {"pandas", "seaborn", "scipy", "matplotlib", "numpy", "simpy", "pyarrow", "pydantic", "calibration"}
    assert not modules & heavy


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, simulator; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert not set(done.stdout.split()) & {"pandas", "numpy", "simpy", "pydantic", "click"}


def test_every_public_name_resolves() -> None:
    import simulator

    for name in simulator.__all__:
        assert getattr(simulator, name).__name__ == name
    assert dir(simulator) == sorted(simulator.__all__)
    with pytest.raises(AttributeError, match="^module 'simulator' has no attribute 'nothing'$"):
        _ = simulator.nothing


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in ("calibrate", "compare", "import", "routers", "run", "schema"))


def test_the_calibrate_group_is_found_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("calibrate", "--help") == 0
    assert capsys.readouterr().out.startswith("Usage: kvcast calibrate ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("compaer",), "unknown command 'compaer' (did you mean 'compare'?)"),
        (("compare",), "Missing argument 'SCENARIO'."),
        (("compare", "none.yaml"), "none.yaml: no such file, expected a scenario in YAML"),
        (("compare", "x.yaml", "--limit", "0"), "--limit: got '0', expected at least 1"),
        (("compare", "x.yaml", "--jobs", "-1"),
         "--jobs: got '-1', expected a whole number like 2048, '32k' (32000), '32K' (32768) or 1e5"),
        (("compare", "x.yaml", "--seed", "a"),
         "--seed: got 'a', expected a whole number like 2048, '32k' (32000), '32K' (32768) or 1e5"),
        (("compare", "x.yaml", "--sede", "1"), "No such option '--sede'. Did you mean '--seed'?"),
        (("import", "sglang serve"), "command: got 'sglang serve', expected 'vllm serve MODEL --argument value ...'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_exit_2(
    arguments: tuple[str, ...],
    line: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.err == f"error: {line}\n"
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_in_the_scenario_names_its_file(capsys: pytest.CaptureFixture[str], scenario_file: Path) -> None:
    scenario_file.write_text(TEXT.replace("seqs: 64", "seqs: none"))
    assert run("compare", scenario_file) == 2
    line = capsys.readouterr().err
    assert line.startswith(f"error: {scenario_file}: engine.max_num_seqs: got 'none', expected ")
    assert line.count("\n") == 1


def test_run_asks_which_policy(capsys: pytest.CaptureFixture[str], scenario_file: Path) -> None:
    assert run("run", scenario_file) == 2
    assert capsys.readouterr().err == "error: --router: missing, expected one of round_robin, longest_prefix\n"
    assert run("run", scenario_file, "--router", "round_robbin") == 2
    line = "error: --router: the scenario has no policy 'round_robbin' (did you mean 'round_robin'?)\n"
    assert capsys.readouterr().err == line


def test_an_output_that_is_a_file_is_refused_before_anything_runs(
    capsys: pytest.CaptureFixture[str], scenario_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from simulator import experiment

    monkeypatch.setattr(experiment, "compare", lambda *_, **__: pytest.fail("a simulation was started"))
    assert run("compare", scenario_file, "-o", scenario_file) == 2
    assert capsys.readouterr().err == f"error: {scenario_file}: {scenario_file} is not a folder\n"


def test_compare_writes_a_report_and_prints_json(
    capsys: pytest.CaptureFixture[str], scenario_file: Path, tmp_path: Path
) -> None:
    out_dir = tmp_path / "report"
    assert run("compare", scenario_file, "--json", "--jobs", "1", "--limit", "4", "-o", out_dir) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)
    assert captured.err == ""
    assert (out_dir / "report.html").is_file()


def test_the_folder_is_called_after_the_scenario(
    capsys: pytest.CaptureFixture[str], scenario_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(scenario_file.parent)
    assert run("run", scenario_file, "--router", "round_robin", "--jobs", "1", "--limit", "4") == 0
    assert Path("out/small/report.html").is_file()
    assert "round_robin" in capsys.readouterr().out


def test_the_seed_decides_the_bytes(capsys: pytest.CaptureFixture[str], scenario_file: Path, tmp_path: Path) -> None:
    printed = []
    for seed in ("1", "1", "2"):
        assert run("compare", scenario_file, "--json", "--jobs", "1", "--seed", seed, "-o", tmp_path / "out") == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != printed[2]


def test_an_interrupt_leaves_nothing_behind(scenario_file: Path, tmp_path: Path) -> None:
    scenario_file.write_text(TEXT.replace("num_requests: 10", "num_requests: 2M"))
    before = set(tmp_path.iterdir())
    arguments = ["compare", str(scenario_file), "--jobs", "1", "-o", str(tmp_path / "out")]
    code = (
        "import simulator.cli, simulator.experiment as experiment\n"
        "compare = experiment.compare\n"
        "def announced(*args, **kwargs):\n"
        "    print('started', flush=True)\n"
        "    return compare(*args, **kwargs)\n"
        "experiment.compare = announced\n"
        f"simulator.cli.main({arguments!r})"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    time.sleep(0.5)  # some way into two million requests
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert set(tmp_path.iterdir()) == before


def test_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("schema") == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Scenario"


def test_evictions_lists_every_policy_with_its_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    from simulator.eviction import POLICIES

    assert run("evictions") == 0
    out = capsys.readouterr().out
    assert out.startswith("vllm: ")
    for name, policy in POLICIES.items():
        assert f"\n{name}: {policy.summary}\n    source: {policy.source}\n" in out
    assert "    ttl: required (how long" in out


def test_routers_lists_every_policy_with_its_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    from simulator.routing import PRESETS, ROUTERS

    assert run("routers") == 0
    out = capsys.readouterr().out
    for name, router in ROUTERS.items():
        assert f"{name}: {router.summary}\n    source: {router.source}\n" in out
        assert all(f"    {parameter}: " in out for parameter in router.Params.model_fields)
    presets = out.partition("\nPresets")[2]
    for name, preset in PRESETS.items():
        assert f"{name}: {preset.summary}\n    source: {preset.source}\n    policy: {preset.policy}\n" in presets


def test_import_prints_an_engine_block(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = "vllm serve M --max-num-seqs 64 --max-model-len 32K --api-key k3y"
    expected = {"model": "M", "max_num_seqs": 64, "max_model_len": "32K", "api_key": "(hidden)"}
    assert run("import", command) == 0
    out = capsys.readouterr().out
    assert yaml.safe_load(out) == {"engine": expected}
    assert "\n  # dialect: required, the vLLM release whose decisions are simulated (vllm-0.23, vllm-0.32)\n" in out
    assert run("import", command, "-o", tmp_path / "engine.yaml") == 0
    assert (tmp_path / "engine.yaml").read_text() == out
    assert [path.name for path in tmp_path.iterdir()] == ["engine.yaml"]


def test_import_lists_what_it_refuses(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "engine.yaml"
    assert run("import", "vllm serve M --enable-eplb --max-num-seq 4", "-o", target) == 2
    assert capsys.readouterr().err == (
        "refused: enable_eplb: not modelled: only tensor and pipeline parallel engines, as measured by the profile, "
        "are simulated, so that True would change results\n"
        "refused: max_num_seq: unknown key (did you mean 'max_num_seqs'?)\n"
        "error: command: 2 of its arguments cannot be simulated as they are\n"
    )
    assert not target.exists()


def test_import_into_a_missing_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    target = tmp_path / "none" / "engine.yaml"
    assert run("import", "vllm serve M", "-o", target) == 2
    assert capsys.readouterr().err == f"error: {target}: cannot write it (No such file or directory)\n"
