"""Tasks on a Ray cluster that is already there, or on one started on this machine."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import ray

from simulator.errors import InputError

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")

_CONNECT_S = 5
_MOST_RETRIES = 3


class Ray:
    """The cluster whose head listens at ``address``; None starts one here. Raises InputError where none answers."""

    def __init__(self, address: str | None) -> None:
        self.address = address
        if address is not None:
            _check_reachable(address)

    def each(self, function: Callable[[Task], Outcome], tasks: Sequence[Task]) -> Generator[tuple[int, Outcome]]:
        """See Executor. Ray runs a task again whose worker died, three times at most."""
        ours = not ray.is_initialized()
        if ours:
            _start(self.address)
        remote = ray.remote(max_retries=_MOST_RETRIES)(function)
        places = {remote.remote(task): place for place, task in enumerate(tasks)}
        try:
            while places:
                for done in ray.wait(list(places), num_returns=1)[0]:
                    yield places.pop(done), _result(done)
        finally:
            for reference in places:
                ray.cancel(reference, force=True)
            if ours:
                ray.shutdown()


def _start(address: str | None) -> None:
    try:
        ray.init(
            address=address or "local", include_dashboard=None if address else False, log_to_driver=False,
            configure_logging=True, logging_level=logging.ERROR,
        )  # fmt: skip
    except (ConnectionError, RuntimeError, ValueError) as error:
        where = address or "this machine"
        raise InputError(f"--address: no Ray cluster can be used at {where} ({' '.join(str(error).split())})") from None


def _check_reachable(address: str) -> None:
    """Ray itself would try for a minute."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        raise InputError(f"--address: got {address!r}, expected that of the Ray head, like host:6379 or ray://host:10001")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except (OSError, OverflowError):
        raise InputError(f"--address: no Ray cluster answers at {address} within {_CONNECT_S} s") from None


def _result(reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, ModuleNotFoundError):
            raise InputError(f"--executor ray: a worker lacks {cause.name}: install this kvcast there") from None
        raise cause from None
    except ray.exceptions.WorkerCrashedError:
        raise RuntimeError(f"Ray gave up on a task whose workers died {_MOST_RETRIES + 1} times") from None
