"""vLLM in its own interpreter: cases go in as JSON lines, what its scheduler decided comes out."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any, Self

from simulator.errors import InputError

_MODULES = ("__init__.py", "engine_harness.py", "vllm_engine.py")


class Engine:
    """The interpreter ``python``, which has vLLM. To be used in a ``with`` statement.

    It sees nothing of this installation but a copy of the harness, so that no package of ours can shadow one of its
    own.
    """

    def __init__(self, python: str | Path) -> None:
        # The child runs in its own folder, so that nothing where the user stands shadows a module of the engine.
        self.python = str(Path(python).absolute()) if os.sep in str(python) else str(python)
        self._folder = tempfile.TemporaryDirectory(prefix="kvcast-verify-")
        package = Path(self._folder.name, "simulator", "parity")
        package.mkdir(parents=True)
        (package.parent / "__init__.py").touch()
        for name in _MODULES:
            shutil.copy(Path(__file__).with_name(name), package / name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.cleanup()

    def version(self) -> str:
        """vLLM's version there. Raises InputError if the interpreter does not run or cannot import vLLM."""
        try:
            done = subprocess.run(
                self._command("--describe"),
                env=self._environment(),
                cwd=self._folder.name,
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError as error:
            raise InputError(
                f"--engine-python {self.python}: cannot be run ({error.strerror}), expected a Python with vLLM"
            ) from None
        for line in done.stdout.splitlines():
            if line.startswith('{"vllm"'):
                return str(json.loads(line)["vllm"])
        why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise InputError(f"--engine-python {self.python}: cannot import vLLM ({why})")

    def play(self, cases: Iterable[dict[str, Any]], mode: str | None = None) -> Iterator[dict[str, Any]]:
        """What vLLM decided in each case, in order. ``mode``: None for whole records, ``digest`` or ``time-only``."""
        complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed below; a pipe that nobody reads would fill up
        process = subprocess.Popen(
            self._command(*([f"--{mode}"] if mode else [])),
            env=self._environment(),
            cwd=self._folder.name,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        feeder = Thread(target=_feed, args=(process.stdin, cases), daemon=True)
        feeder.start()
        try:
            for line in process.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
            if process.wait() != 0:
                complaints.seek(0)
                why = (complaints.read().strip().splitlines() or [f"exit code {process.returncode}"])[-1]
                raise InputError(f"--engine-python {self.python}: the harness ended early ({why})")
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
            complaints.close()
            feeder.join(timeout=1)

    def _command(self, *arguments: str) -> list[str]:
        return [self.python, "-m", "simulator.parity.engine_harness", *arguments]

    def _environment(self) -> dict[str, str]:
        others = os.environ.get("PYTHONPATH")
        return os.environ | {"PYTHONPATH": self._folder.name + (os.pathsep + others if others else "")}


def _feed(pipe: Any, cases: Iterable[dict[str, Any]]) -> None:
    try:
        with pipe:
            for case in cases:
                pipe.write(json.dumps(case, separators=(",", ":")) + "\n")
                pipe.flush()
    except (BrokenPipeError, ValueError):
        return  # the reader has stopped: it says why
