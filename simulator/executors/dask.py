"""Tasks on a Dask cluster that is already there."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import distributed

from simulator.errors import InputError
from simulator.executors.reach import CONNECT_S, host_and_port, listens

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")

# Adaptive clusters start their workers when there is work.
_WORKERS_S = 60


class Dask:
    """The cluster whose scheduler listens at ``address``. Raises InputError where none answers."""

    def __init__(self, address: str | None) -> None:
        if address is None:
            raise InputError("--address: missing, expected that of the Dask scheduler, like tcp://host:8786")
        found = host_and_port(address)
        if found is None:
            raise InputError(f"--address: got {address!r}, expected that of the Dask scheduler, like tcp://host:8786")
        if not listens(*found):
            raise _no_answer(address)
        self.address = address

    def each(self, function: Callable[[Task], Outcome], tasks: Sequence[Task]) -> Generator[tuple[int, Outcome]]:
        """See Executor. Dask runs a task again whose worker died, up to its own ``allowed-failures``."""
        with _connect(self.address) as client:
            futures = client.map(function, tasks, pure=False)
            places = {future.key: place for place, future in enumerate(futures)}
            try:
                _wait_for_a_worker(client, self.address)
                for future in distributed.as_completed(futures, loop=client.loop):
                    yield places[future.key], _result(future)
            finally:
                client.cancel(futures)


def _connect(address: str) -> distributed.Client:
    try:
        return distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError):
        raise _no_answer(address) from None


def _no_answer(address: str) -> InputError:
    return InputError(f"--address: no Dask scheduler answers at {address}")


def _wait_for_a_worker(client: distributed.Client, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=_WORKERS_S)
    except TimeoutError:
        raise InputError(f"--address: the Dask scheduler at {address} has had no worker for {_WORKERS_S} s") from None


def _result(future: distributed.Future) -> Any:
    try:
        return future.result()
    except ModuleNotFoundError as error:
        raise InputError(f"--executor dask: a worker lacks {error.name}: install this kvcast there") from None
    except distributed.KilledWorker as error:
        raise RuntimeError(f"Dask gave up on a task whose workers died again and again: {error}") from None
