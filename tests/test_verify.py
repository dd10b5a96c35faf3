"""`kvcast verify` itself, with a stand-in for the interpreter that has vLLM: reports, shrinking, bad input."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from simulator import cli
from simulator.errors import InputError
from simulator.parity.cases import generate_case
from simulator.parity.engine import Engine
from simulator.parity.verify import Tally, dialect_of, shrink, verify

MakeEngine = Callable[..., str]
Kvcast = Callable[..., tuple[int, str, str]]
FAKE = Path(__file__).with_name("fake_engine.py")


@pytest.fixture
def python(tmp_path: Path) -> MakeEngine:
    """Makes an executable that runs a shell command with the interpreter's arguments; answers its path."""

    def make(command: str, name: str = "python") -> str:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{command}\n")
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture
def engine(python: MakeEngine) -> MakeEngine:
    """Makes a stand-in for vLLM of a version, which differs where a case has all the ``planted`` requests."""

    def make(version: str = "0.32.0", *planted: int) -> str:
        words = [sys.executable, str(FAKE), version, *map(str, planted)]
        return python(f'exec {shlex.join(words)} "$@"')

    return make


@pytest.fixture
def kvcast(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Kvcast:
    """Runs `kvcast verify`; answers exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["verify", *map(str, arguments)])
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return run


@pytest.fixture
def complaint(kvcast: Kvcast, tmp_path: Path) -> Callable[..., str]:
    """What is said about bad input: one line, exit code 2, nothing written."""

    def run(*arguments: object) -> str:
        before = set(tmp_path.iterdir())
        code, out, err = kvcast(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert set(tmp_path.iterdir()) == before
        return err.removeprefix("error: ").rstrip()

    return run


def test_equal_decisions(kvcast: Kvcast, engine: MakeEngine) -> None:
    code, out, err = kvcast("--engine-python", engine(), "--cases", 2, "--family", "basic", "--family", "edge")
    assert (code, err) == (0, "")
    assert out.startswith("vLLM 0.32.0: 4 cases, ")
    assert out.endswith(", 0 differences\n")


def test_a_case_in_which_vllm_fails_is_left_out_and_counted(kvcast: Kvcast, engine: MakeEngine) -> None:
    code, out, _ = kvcast("--engine-python", engine(), "--family", "basic", "--seed", 999, "--cases", 3)
    assert code == 0
    assert "2 cases" in out
    assert "0 differences (1 more ended in an assertion or a standstill of vLLM's own)" in out


def test_a_difference_is_shrunk_to_what_it_needs_and_can_be_played_again(
    kvcast: Kvcast, engine: MakeEngine, tmp_path: Path
) -> None:
    planted = engine("0.23.0", 3, 11)
    code, out, _ = kvcast("--engine-python", planted, "--family", "pressure", "-o", "found.json")
    assert code == 1
    assert "difference in family pressure, seed 0, dialect vllm-0.23, record " in out
    assert "shrunk to 2 requests" in out
    assert "update.num_free" in out
    assert out.endswith(", 1 difference\n")
    found = json.loads((tmp_path / "found.json").read_text())
    assert [row["id"] for row in found["requests"]] == [3, 11]
    assert found["actions"] == []
    ours, vllm = found["difference"]["ours"], found["difference"]["vllm"]
    assert vllm["update"] == ours["update"] | {"num_free": ours["update"]["num_free"] + 1}
    again, out, _ = kvcast("found.json", "--engine-python", planted)
    assert again == 1
    assert "shrunk to 2 requests" in out
    mended, out, _ = kvcast("found.json", "--engine-python", engine("0.23.0"))
    assert (mended, out.endswith(", 0 differences\n")) == (0, True)


def test_shrinking_ends_after_so_many_tries(engine: MakeEngine) -> None:
    with Engine(engine("0.32.0", 0, 5)) as fake:
        found = verify(fake, [generate_case("basic", 0)], Tally())
        assert found is not None
        few, many = shrink(fake, found, num_tries=2), shrink(fake, found)
    assert len(many.case["requests"]) == 2
    assert len(many.case["requests"]) < len(few.case["requests"]) <= len(found.case["requests"])


@pytest.mark.parametrize(
    ("version", "dialect", "verified"),
    [
        ("0.32.0", "0.32", True), ("0.23.0", "0.23", True), ("0.32.0+cpu", "0.32", True),
        ("0.9.2", "0.23", False), ("0.2.3", "0.23", False), ("0.27.1", "0.23", False), ("0.28.0", "0.32", False),
        ("0.33.0rc1", "0.32", False), ("0.320.0", "0.32", False), ("1.0.0", "0.32", False), ("1.23.0", "0.32", False),
    ],
)  # fmt: skip
def test_the_dialect_of_a_version_is_its_own_or_the_nearest(version: str, dialect: str, verified: bool) -> None:
    assert dialect_of(version) == (dialect, verified)


@pytest.mark.parametrize("version", ["", "dev", "0", "zero.32", "0.x"])
def test_a_version_that_cannot_be_read(version: str, complaint: Callable[..., str], engine: MakeEngine) -> None:
    with pytest.raises(InputError, match="expected something like"):
        dialect_of(version)
    assert f"vLLM version {version!r}" in complaint("--engine-python", engine(version))


def test_an_unverified_version_runs_with_a_warning(kvcast: Kvcast, engine: MakeEngine) -> None:
    code, out, err = kvcast("--engine-python", engine("0.31.4"), "--cases", 1, "--family", "basic")
    assert code == 0
    assert err == "warning: vLLM 0.31.4 is not a verified version; comparing with dialect vllm-0.32\n"
    assert out.startswith("vLLM 0.31.4: 1 case,")


def test_an_interpreter_without_vllm(complaint: Callable[..., str], python: MakeEngine, tmp_path: Path) -> None:
    without = python("echo \"ModuleNotFoundError: No module named 'vllm'\" >&2; exit 1")
    assert complaint("--engine-python", without) == (
        f"--engine-python {without}: cannot import vLLM (ModuleNotFoundError: No module named 'vllm')"
    )
    assert "cannot import vLLM (exit code 3)" in complaint("--engine-python", python("exit 3"))
    assert "cannot import vLLM" in complaint("--engine-python", "/bin/true")
    for nothing in (tmp_path / "absent", tmp_path):
        assert "cannot be run" in complaint("--engine-python", nothing)


def test_an_engine_that_breaks_off(complaint: Callable[..., str], python: MakeEngine) -> None:
    broken = python('case "$*" in *--describe*) echo \'{"vllm": "0.32.0"}\';; *) exit 7;; esac')
    assert "the harness ended early (exit code 7)" in complaint("--engine-python", broken)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("requests: []", "not JSON, expected a case of format 'kvcast-case-1'"),
        ("", "not JSON"),
        ("[]", "format: got 'list', expected 'kvcast-case-1'"),
        ('{"requests": []}', "format: got None, expected 'kvcast-case-1'"),
        ('{"format": "kvcast-case-2"}', "format: got 'kvcast-case-2', expected 'kvcast-case-1'"),
    ],
)
def test_a_file_that_is_no_case(
    text: str, expected: str, complaint: Callable[..., str], engine: MakeEngine, tmp_path: Path
) -> None:
    (tmp_path / "case.json").write_text(text)
    assert f"case.json: {expected}" in complaint("case.json", "--engine-python", engine())


def test_a_case_file_that_is_not_there(complaint: Callable[..., str], engine: MakeEngine) -> None:
    assert complaint("absent.json", "--engine-python", engine()) == "absent.json: No such file or directory"


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--family", "egde", "'egde': expected one of basic, "), ("--size", "huge", "'huge': expected one of small"),
        ("--cases", "0", "--cases: got '0', expected"), ("--cases", "many", "--cases: got 'many', expected"),
        ("--seed", "-1", "--seed: got '-1', expected"),
    ],
)  # fmt: skip
def test_bad_options(option: str, value: str, expected: str, complaint: Callable[..., str], engine: MakeEngine) -> None:
    assert expected in complaint(option, value, "--engine-python", engine())
