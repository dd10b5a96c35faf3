"""Tasks on processes of this machine: joblib's, which are kept for the next call."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TypeVar

from joblib import cpu_count
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import BrokenProcessPool

from simulator.counts import counted

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")

# A process that dies takes all others with it. So often in a row without a single task done, and it is the tasks.
_MOST_DEATHS = 3
# Tasks a process that are handed over before one is done, so that none waits for the next.
_AHEAD = 2


class Processes:
    """``jobs`` processes (None: one a core; 1: this one)."""

    def __init__(self, jobs: int | None = None) -> None:
        self.jobs = jobs

    def each(self, function: Callable[[Task], Outcome], tasks: Sequence[Task]) -> Generator[tuple[int, Outcome]]:
        """See Executor. Raises RuntimeError where processes die again and again."""
        num_jobs = min(self.jobs or cpu_count(), len(tasks))
        if num_jobs > 1:
            yield from _each(function, tasks, num_jobs)
            return
        for place, task in enumerate(tasks):
            yield place, function(task)


def _each(
    function: Callable[[Task], Outcome], tasks: Sequence[Task], num_jobs: int
) -> Generator[tuple[int, Outcome]]:
    left = deque(range(len(tasks)))
    running: dict[Future[Outcome], int] = {}
    num_deaths = 0
    while left or running:
        pool = get_reusable_executor(max_workers=num_jobs)
        try:
            while left or running:
                # Few at a time: what waits in the pool makes it slow to stop.
                while left and len(running) < _AHEAD * num_jobs:
                    future = pool.submit(function, tasks[left[0]])
                    running[future] = left.popleft()
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    outcome = future.result()
                    place = running.pop(future)
                    num_deaths = 0
                    yield place, outcome
        except BrokenProcessPool:
            left.extendleft(sorted(running.values(), reverse=True))
            running.clear()
            num_deaths += 1
            if num_deaths == _MOST_DEATHS:
                raise RuntimeError(
                    f"processes died {num_deaths} times in a row before any of {counted(len(left), 'task')} was done "
                    "(out of memory? try fewer --jobs)"
                ) from None
        except BaseException:
            for future in running:
                future.cancel()
            pool.shutdown(wait=False, kill_workers=True)
            raise
