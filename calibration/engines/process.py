"""vLLM launched in its own interpreter: cases go in as JSON lines, rows come out."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Literal

from calibration.engines import Description, Fields
from calibration.probes import Case, Limits
from simulator.errors import InputError

# What the engine's interpreter sees of this package: these files, and nothing that could shadow one of its own.
_FILES = (
    "__init__.py", "environment.py", "play.py", "probes.py", "steps.py", "engines/__init__.py", "engines/recording.py",
    "engines/vllm.py",
)  # fmt: skip
_CLOSING_S = 20.0


class VllmEngine:
    """Launches vLLM on a model by the interpreter ``python``, which needs to have vLLM and nothing else."""

    name: Literal["vllm"] = "vllm"
    probes = frozenset(("ttft", "chunk", "decode", "mixed"))
    relaunches = True

    def __init__(self, python: str, model: Path, engine_args: dict[str, Any]) -> None:
        """Raises InputError if the model has no config.json."""
        if not (model / "config.json").is_file():
            raise InputError(f"--model {model}: no config.json in it, expected a model directory")
        self.python = python
        self.model = model
        self.engine_args = engine_args

    def launch(self) -> VllmLaunch:
        """A fresh engine. Raises InputError with the engine's own last words if it does not start."""
        return VllmLaunch(self.python, {"model": str(self.model.resolve()), "engine_args": self.engine_args})


class VllmLaunch:
    """One engine process."""

    def __init__(self, python: str, asked: dict[str, Any]) -> None:
        self._python = python
        self._folder = tempfile.TemporaryDirectory(prefix="kvcast-measure-")
        package = Path(self._folder.name, "calibration")
        for name in _FILES:
            (package / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(Path(__file__).parents[1] / name, package / name)
        self._log = Path(self._folder.name, "log").open("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 (ours)
        others = os.environ.get("PYTHONPATH")
        try:
            self._process = subprocess.Popen(
                [python, "-m", "calibration.engines.vllm", json.dumps(asked)],
                env=os.environ | {"PYTHONPATH": self._folder.name + (os.pathsep + others if others else "")},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                # Ctrl-C is for the parent, which ends the engine in its own way.
                start_new_session=True,
            )
        except OSError as error:
            self._forget()
            raise InputError(
                f"--engine-python {python}: cannot be run ({error.strerror}), expected a Python with vLLM"
            ) from None
        try:
            self._description = _description(self._answer()["ready"])
        except BaseException:
            self.close()
            raise

    def describe(self) -> Description:
        """What was launched."""
        return self._description

    def take(self, case: Case, repeat: int) -> list[Fields]:
        """The rows of one take. Raises InputError if the engine broke down."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"case": vars(case), "repeat": repeat}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise InputError(f"the engine ended: {self._last_words()}") from None
        rows: list[Fields] = self._answer()["rows"]
        return rows

    def close(self) -> None:
        """End the engine: politely, then not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it may have ended already
            self._process.stdin.close()
        try:
            self._process.wait(_CLOSING_S)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._forget()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                if "error" in answer:
                    raise InputError(f"the engine failed: {' '.join(str(answer['error']).split())[:300]}")
                return answer
        raise InputError(f"--engine-python {self._python}: the engine did not start: {self._last_words()}")

    def _last_words(self) -> str:
        try:
            code = self._process.wait(_CLOSING_S)
        except subprocess.TimeoutExpired:
            code = None
        self._log.seek(0)
        lines = [line.strip() for line in self._log.read().splitlines() if line.strip()]
        return lines[-1][:300] if lines else f"exit code {code}"

    def _forget(self) -> None:
        self._log.close()
        self._folder.cleanup()


def _description(said: dict[str, Any]) -> Description:
    limits = said.pop("limits")
    return Description(limits=Limits(**limits | {"graph_sizes": tuple(limits["graph_sizes"])}), **said)
