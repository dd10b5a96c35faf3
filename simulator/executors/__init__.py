"""Where tasks are run: on this machine's processes, or on a Dask or Ray cluster that the user already has.

An executor hands out each task's outcome exactly once, in any order, with the place of its task. A task is a function's
one argument, both are plain data, and an outcome depends on them alone: hence one whose process died is run again.
Dask and Ray are imported when asked for. Adding an executor takes its file and its line in `EXECUTORS`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Generator, Sequence
from typing import Protocol, TypeVar

from simulator.errors import InputError, nearest
from simulator.executors.processes import Processes

__all__ = ["EXECUTORS", "Executor", "Processes", "make_executor"]

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")

# Name: the package that must be there, and the class.
EXECUTORS = {"processes": ("joblib", "Processes"), "dask": ("distributed", "Dask"), "ray": ("ray", "Ray")}


class Executor(Protocol):
    """Runs tasks."""

    def each(self, function: Callable[[Task], Outcome], tasks: Sequence[Task]) -> Generator[tuple[int, Outcome]]:
        """The place of each task with ``function`` of it, as they are done. Closing the iterator stops the rest.

        Raises what ``function`` raised first, and InputError where tasks cannot be run there.
        """
        ...


def make_executor(name: str, *, jobs: int | None = None, address: str | None = None) -> Executor:
    """The executor of this name. Raises InputError for what is missing or would change nothing."""
    if name not in EXECUTORS:
        raise InputError(f"--executor: unknown {name!r}{nearest(name, EXECUTORS)}")
    if name == "processes":
        if address is not None:
            raise InputError("--address: changes nothing for --executor processes, expected dask or ray")
        return Processes(jobs)
    if jobs is not None:
        raise InputError(f"--jobs: changes nothing for --executor {name}, whose cluster decides")
    package, kind = EXECUTORS[name]
    if importlib.util.find_spec(package) is None:
        raise InputError(f"--executor {name}: the package {package} is not installed (pip install 'kvcast[{name}]')")
    made: Executor = getattr(importlib.import_module(f"simulator.executors.{name}"), kind)(address)
    return made
