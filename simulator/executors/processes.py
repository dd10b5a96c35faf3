"""Tasks on processes of this machine."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

import joblib
from joblib.externals.loky import get_reusable_executor
from joblib.externals.loky.process_executor import TerminatedWorkerError

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")

# A process that dies takes all others with it. So often in a row without a single task done, and it is the tasks.
_MOST_DEATHS = 3


class Processes:
    """``jobs`` processes (None: one a core; 1: this one)."""

    def __init__(self, jobs: int | None = None) -> None:
        self.jobs = jobs

    def each(self, function: Callable[[Task], Outcome], tasks: Sequence[Task]) -> Generator[tuple[int, Outcome]]:
        """See Executor. Raises RuntimeError where processes die again and again."""
        num_jobs = min(self.jobs or joblib.cpu_count(), len(tasks))
        if num_jobs <= 1:
            for place, task in enumerate(tasks):
                yield place, function(task)
            return
        try:
            yield from _each(function, tasks, num_jobs)
        except BaseException:
            get_reusable_executor().shutdown(wait=False, kill_workers=True)
            raise


def _each(
    function: Callable[[Task], Outcome], tasks: Sequence[Task], num_jobs: int
) -> Generator[tuple[int, Outcome]]:
    left = dict(enumerate(tasks))
    num_deaths = 0
    while left:
        parallel = joblib.Parallel(n_jobs=num_jobs, return_as="generator_unordered", batch_size=1, backend="loky")
        try:
            for place, outcome in parallel(joblib.delayed(_placed)(function, *item) for item in left.copy().items()):
                del left[place]
                num_deaths = 0
                yield place, outcome
        except TerminatedWorkerError:
            num_deaths += 1
            if num_deaths == _MOST_DEATHS:
                raise RuntimeError(
                    f"processes died {num_deaths} times in a row before any of {len(left)} tasks was done (out of "
                    "memory? try fewer --jobs)"
                ) from None


def _placed(function: Callable[[Task], Outcome], place: int, task: Task) -> tuple[int, Outcome]:
    return place, function(task)
