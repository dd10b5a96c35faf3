"""A scheduler that records what it schedules and when, on top of whichever scheduler vLLM would have picked.

``scheduler_cls`` takes the path of a class. ``path_of(base)`` is the path of the recording subclass of ``base``: the
class is made when vLLM looks it up in this module; a worker process, which only carries the path, needs nothing.
Works with every vLLM whose scheduler has ``schedule`` and ``update_from_output`` (checked on 0.23 and 0.32). Of vLLM it
reads ``SchedulerOutput.num_scheduled_tokens`` and ``Request.num_computed_tokens``, and changes nothing.
"""

from __future__ import annotations

import importlib
import time
from collections import deque
from typing import Any

from calibration.steps import Step

_SEPARATOR = "|"  # a class path holds dots, at the last of which vLLM splits


def path_of(base: type) -> str:
    """The path of the class that records what ``base`` does, for ``scheduler_cls``."""
    return f"{__name__}.{base.__module__.replace('.', _SEPARATOR)}{_SEPARATOR}{base.__qualname__}"


def __getattr__(name: str) -> type:
    module, _, base = name.rpartition(_SEPARATOR)
    if not module:
        raise AttributeError(name)
    return recording(getattr(importlib.import_module(module.replace(_SEPARATOR, ".")), base))


def recording(base: type) -> type:
    """A subclass of the scheduler class ``base`` with an attribute ``recorder``."""
    return type(f"Recording{base.__name__}", (Recording, base), {"__module__": __name__})


class Recorder:
    """Steps in flight and steps done. Times are those of ``time.perf_counter``, in seconds."""

    def __init__(self) -> None:
        self._in_flight: deque[tuple[int, tuple[tuple[int, int], ...], float]] = deque()
        self._done: list[Step] = []
        self._previous_s: float | None = None

    def scheduled(self, identity: int, pieces: tuple[tuple[int, int], ...], started_s: float) -> None:
        """A batch was composed. ``identity`` tells it from others in flight."""
        self._in_flight.append((identity, pieces, started_s))

    def updated(self, identity: int, ended_s: float) -> None:
        """The batch's output was taken in. Batches come back in the order in which they were composed."""
        while self._in_flight:
            known, pieces, started_s = self._in_flight.popleft()
            if known == identity:
                self._done.append(Step(pieces, started_s, ended_s, self._previous_s))
                break
        self._previous_s = ended_s

    def take(self) -> list[Step]:
        """The steps done since the last call."""
        done, self._done = self._done, []
        return done


class Recording:
    """Put in front of a scheduler class, notes plan and time of every step that computes something."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recorder = Recorder()

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM's own decision, noted."""
        started_s = time.perf_counter()
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        numbers = output.num_scheduled_tokens
        if numbers:
            # vLLM has by now counted the scheduled tokens as computed.
            requests = self.requests  # type: ignore[attr-defined]
            pieces = tuple((new, requests[name].num_computed_tokens - new) for name, new in numbers.items())
            self.recorder.scheduled(id(output), pieces, started_s)
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """vLLM's own bookkeeping, and the time at which it ended."""
        outputs = super().update_from_output(scheduler_output, *args, **kwargs)  # type: ignore[misc]
        if scheduler_output.num_scheduled_tokens:
            self.recorder.updated(id(scheduler_output), time.perf_counter())
        return outputs
