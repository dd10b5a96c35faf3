"""A few fresh cases against an installed vLLM, where the environment names an interpreter that has one."""

from __future__ import annotations

import os

import pytest

from simulator import cli

PYTHON = os.environ.get("KVCAST_ENGINE_PYTHON")


@pytest.mark.skipif(not PYTHON, reason="KVCAST_ENGINE_PYTHON names no Python with vLLM (README, 'Decisions equal to')")
def test_decisions_equal_those_of_the_installed_vllm(
    capsys: pytest.CaptureFixture[str], tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main(["verify", "--engine-python", str(PYTHON), "--cases", "5"])
    printed = capsys.readouterr()
    assert ended.value.code == 0, printed.out + printed.err
    assert "30 cases, " in printed.out
    assert ", 0 differences" in printed.out
