"""The warm-up that a sweep cuts from every run: one number, found before anything is varied.

A comparison finds it on all of its runs; a sweep keeps no requests to find it on, and may go on with more settings and
replications later. So it is found on the scenario as it is, in a fixed number of replications: the same whatever is
varied, in which order and where.
"""

from __future__ import annotations

from simulator import experiment
from simulator.executors import Executor
from simulator.result import RunResult
from simulator.scenario import Scenario
from simulator.steady import Waits, judge
from simulator.sweep import workers

NUM_REPLICATIONS = 5


def find(scenario: Scenario, executor: Executor, *, draws_profile: bool) -> int:
    """How many of the first requests do not count: those that the scenario states, else what MSER-5 finds in its first
    replications, with the first of its policies (0 where there is no steady state, see ``steady.judge``).
    """
    if scenario.warmup != "auto":
        return int(scenario.warmup)
    if not scenario.workload.is_stationary:
        return 0
    tasks = [(scenario, number, draws_profile) for number in range(NUM_REPLICATIONS)]
    found = dict(workers.each(executor, series, tasks, workers.versions()))
    return judge({"": [found[number] for number in range(NUM_REPLICATIONS)]}, is_stationary=True).num_skipped


def series(task: tuple[Scenario, int, bool]) -> tuple[dict[str, str], Waits]:
    """The versions that ran a replication, with the profile's errors drawn or not, and its waits."""
    scenario, replication, draws_profile = task
    result = experiment.run(
        scenario, router=scenario.routing[0], replication=replication, draws_profile=draws_profile
    )
    return workers.versions(), result.before_cooldown().waits()


def without(result: RunResult, scenario: Scenario, num_skipped: int) -> RunResult:
    """The run of a setting without its warm-up: as many requests as are stated or, where they were found, no more than
    half of each tenant's, and none where that has no steady state. ``result`` has no cool-down any more. Raises
    InputError for a stated warm-up as long as the run.
    """
    if scenario.warmup == "auto":
        num_skipped = min(num_skipped, result.most_skipped) if scenario.workload.is_stationary else 0
    return result.after(num_skipped)
