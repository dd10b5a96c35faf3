"""Tasks on a Ray cluster that is already there, or on one started on this machine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import ray

from simulator.errors import InputError
from simulator.executors.reach import host_and_port, listens

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")

_MOST_RETRIES = 3


class Ray:
    """The cluster whose head listens at ``address``; None starts one here. Raises InputError where none answers."""

    def __init__(self, address: str | None) -> None:
        self.address = address
        if address is None:
            return
        found = host_and_port(address)
        if found is None:
            expected = "that of the Ray head, like host:6379 or ray://host:10001"
            raise InputError(f"--address: got {address!r}, expected {expected}")
        if not listens(*found):
            raise InputError(f"--address: no Ray cluster answers at {address}")

    def each(self, function: Callable[[Task], Outcome], tasks: Sequence[Task]) -> Generator[tuple[int, Outcome]]:
        """See Executor. Ray runs a task again whose worker died, three times at most."""
        ours = not ray.is_initialized()
        if ours:
            _start(self.address)
        remote: Any = ray.remote(max_retries=_MOST_RETRIES)(_call)
        places: dict[Any, int] = {remote.remote(function, task): place for place, task in enumerate(tasks)}
        try:
            while places:
                for done in ray.wait(list(places), num_returns=1)[0]:
                    yield places.pop(done), _result(done)
        finally:
            for reference in places:
                ray.cancel(reference, force=True)
            if ours:
                ray.shutdown()


def _call(function: Callable[[Task], Outcome], task: Task) -> Outcome:
    return function(task)


def _start(address: str | None) -> None:
    try:
        ray.init(
            address=address or "local", include_dashboard=None if address else False, log_to_driver=False,
            logging_level=logging.ERROR,
        )  # fmt: skip
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = address or "this machine"
        raise InputError(f"--address: no Ray cluster can be used at {where} ({' '.join(str(error).split())})") from None


def _result(reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        # Ray tells of a function that a worker cannot load by a text only.
        if "No module named" in str(cause):
            lacking = str(cause).partition("No module named ")[2].split("\n")[0]
            raise InputError(f"--executor ray: a worker lacks {lacking}: install this kvcast there") from None
        raise cause from None
    except ray.exceptions.WorkerCrashedError:
        raise RuntimeError(f"Ray gave up on a task whose workers died {_MOST_RETRIES + 1} times") from None
