"""What is computed elsewhere comes from the same versions as here, or is refused."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from functools import cache
from typing import TypeVar

from simulator import experiment
from simulator.errors import InputError
from simulator.executors import Executor

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")


@cache
def versions() -> dict[str, str]:
    """Of this process, where they cannot change; finding them takes milliseconds."""
    return experiment.versions()


def each(
    executor: Executor, function: Callable[[Task], tuple[dict[str, str], Outcome]], tasks: Sequence[Task],
    expected: Mapping[str, str],
) -> Generator[tuple[int, Outcome], None, None]:  # fmt: skip
    """The place and outcome of every task, as they come; ``function`` answers with the versions that ran it, too.

    Raises InputError for a worker of other versions than ``expected``.
    """
    with closing(executor.each(function, tasks)) as outcomes:
        for place, (theirs, outcome) in outcomes:
            if theirs != expected:
                name = next(name for name in expected if theirs.get(name) != expected[name])
                found = f"{name} {theirs.get(name)}"
                raise InputError(f"--executor: a worker has {found}, expected {expected[name]} as here")
            yield place, outcome
