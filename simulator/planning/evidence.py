"""The runs so far, by setting, load and replication: each is made once, counted, and kept whatever happens next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from simulator import experiment
from simulator.errors import InputError
from simulator.executors import Executor
from simulator.planning.outcome import Outcome, Task, simulate
from simulator.planning.space import Candidate
from simulator.scenario import Scenario
from simulator.scenario.offered_load import at_load


class Stage(StrEnum):
    """What a run was made for."""

    SEARCH = "the search"
    HEADROOM = "the headroom"
    RELIEF = "what would help"
    NINES = "one more nine"
    OPTIONS = "other options"
    PROFILE = "drawn profiles"


class OutOfBudget(Exception):
    """No further run may be made."""


Place = tuple[int, float, bool]


class Run(NamedTuple):
    """A run with what it was of."""

    candidate: Candidate
    load: float
    drawn: bool
    replication: int
    outcome: Outcome


@dataclass
class Evidence:
    """Outcomes by the place of the candidate, the factor of its load, and whether its profile was drawn. ``budget`` is
    the most runs; ``progress()`` is called after each.
    """

    executor: Executor
    budget: int | None = None
    progress: Callable[[], None] | None = None
    stage: Stage = Stage.SEARCH
    num_runs: dict[Stage, int] = field(default_factory=lambda: dict.fromkeys(Stage, 0))
    _found: dict[Place, dict[int, Outcome]] = field(default_factory=dict)
    _candidates: dict[int, Candidate] = field(default_factory=dict)
    _scenarios: dict[tuple[int, float], Scenario] = field(default_factory=dict)
    _versions: dict[str, str] = field(default_factory=experiment.versions)

    def of(self, candidate: Candidate, load: float = 1.0, *, drawn: bool = False) -> list[Outcome]:
        """The outcomes there are, in order of replication."""
        found = self._found.get((candidate.place, load, drawn), {})
        return [found[number] for number in sorted(found)]

    def need(
        self, candidate: Candidate, number: int, load: float = 1.0, *, drawn: bool = False
    ) -> list[Outcome]:
        """At least the first ``number`` replications, run where they are missing. Raises OutOfBudget before a run too
        many, and InputError as the runs do.
        """
        place = (candidate.place, load, drawn)
        self._candidates[candidate.place] = candidate
        found = self._found.setdefault(place, {})
        missing = [replication for replication in range(number) if replication not in found]
        if self.budget is not None and sum(self.num_runs.values()) + len(missing) > self.budget:
            raise OutOfBudget
        scenario = self._at(candidate, load)
        tasks = [Task(scenario, replication, drawn) for replication in missing]
        with closing(self.executor.each(simulate, tasks)) as outcomes:
            for index, outcome in outcomes:
                _check_versions(outcome, self._versions)
                found[missing[index]] = outcome
                self.num_runs[self.stage] += 1
                if self.progress is not None:
                    self.progress()
        return self.of(candidate, load, drawn=drawn)

    def runs(self) -> list[Run]:
        """Every run there is, by setting, load, profile and replication."""
        return [
            Run(self._candidates[place], load, drawn, replication, outcomes[replication])
            for (place, load, drawn), outcomes in sorted(self._found.items(), key=lambda item: item[0])
            for replication in sorted(outcomes)
        ]

    def _at(self, candidate: Candidate, load: float) -> Scenario:
        if load == 1:
            return candidate.scenario
        place = (candidate.place, load)
        if place not in self._scenarios:
            self._scenarios[place] = at_load(candidate.scenario, load)
        return self._scenarios[place]


def _check_versions(outcome: Outcome, ours: Mapping[str, str]) -> None:
    for name, version in outcome.versions.items():
        if ours[name] != version:
            raise InputError(f"--executor: a worker has {name} {version}, expected {ours[name]} as here")
