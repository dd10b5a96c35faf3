"""A measuring session: launches an engine as often as needed and asks it every case that is not on file yet.

Rows are appended take by take, so that an interruption loses one take and the next session goes on from the file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from calibration.budget import Costs, within
from calibration.engines import Engine, Fields, Launch
from calibration.measurement import (
    Capacity,
    Covariates,
    Header,
    Measurements,
    RequestRow,
    Row,
    RowFile,
    StepRow,
    read_measurements,
    refuse_mixed,
)
from calibration.probes import Case, Limits, plan
from calibration.protocol import Rules, known_well, order, settling, take_means
from simulator.counts import counted
from simulator.errors import InputError
from simulator.profile import Identity, first_problem

_PLANNED_SHARE = 0.95  # of the time left: estimates are off


class Watcher(Protocol):
    """Whoever follows a session."""

    def say(self, text: str) -> None:
        """Something happened that is worth a line."""
        ...

    def left(self, num_done: int, num_left: int, seconds_left: float) -> None:
        """Takes done and left, and an estimate of the time they need."""
        ...


@dataclass(frozen=True)
class Settings:
    """``budget_s`` bounds the whole session (None: as long as it takes); ``seed`` is that of the order of cases."""

    rules: Rules = field(default_factory=Rules)
    budget_s: float | None = None
    seed: int = 1
    now: Callable[[], float] = time.monotonic


@dataclass
class Outcome:
    """What a session did: launches, takes, failed checks by case, and cases dropped for want of time."""

    num_launches: int = 0
    num_takes: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    dropped: list[Case] = field(default_factory=list)


def measure(engine: Engine, path: Path, settings: Settings, watcher: Watcher) -> Outcome:
    """Bring ``path`` to so many launches of every case as the rules ask.

    Raises InputError if the engine does not start or breaks down, if it is another than that on file, or if the file
    cannot be written.
    """
    return _Session(engine, path, settings, watcher).run()


class _Session:
    def __init__(self, engine: Engine, path: Path, settings: Settings, watcher: Watcher) -> None:
        self.engine = engine
        self.rules = settings.rules
        self.settings = settings
        self.watcher = watcher
        self.outcome = Outcome()
        self.file = RowFile(path)
        self.on_file = read_measurements(path) if path.stat().st_size and _has_rows(path) else None
        self.launches: dict[str, set[int]] = {}
        self.next_launch = _next_launch(self.on_file)
        self.resumed = False
        self.cases: list[Case] | None = None
        self.costs = Costs()
        self.begun_s = settings.now()

    def run(self) -> Outcome:
        if self._is_complete():
            every = counted(self.rules.num_launches, "launch", "launches")
            self.watcher.say(f"{self.file.path}: every case has {every}")
            return self.outcome
        while self.cases is None or self.num_launches_left() > 0:
            self._launch()
            self.outcome.num_launches += 1
            if not self.engine.relaunches:
                break
        if (left := self.num_launches_left()) > 0:
            missing = counted(left, "launch", "launches")
            self.watcher.say(f"missing: {missing}; restart the server, then run the same command again")
        return self.outcome

    def _is_complete(self) -> bool:
        """Whether the file says so, without launching: by the limits of a launch with the arguments now asked for."""
        asked = self.engine.engine_args.items()
        for header in self.on_file.headers if self.on_file else ():
            if header.limits and all(name in header.engine_args and header.engine_args[name] == v for name, v in asked):
                limits = Limits(**header.limits | {"graph_sizes": tuple(header.limits["graph_sizes"])})
                self._count(Covariates(**{name: header.limits[name] for name in Covariates.model_fields}))
                return not self._wanting(self._askable(limits))
        return False

    def _count(self, covariates: Covariates) -> None:
        """Which launches with these settings every case has on file."""
        self.launches = {}
        for row in self.on_file.rows if self.on_file else ():
            if row.case is not None and row.launch is not None and row.covariates == covariates:
                self.launches.setdefault(row.case, set()).add(row.launch)

    def _launch(self) -> None:
        begun_s = self.settings.now()
        launch = self.engine.launch()
        try:
            self._resume(launch.describe().launch_id)
            playing = _Launched(self, launch, self.settings.now() - begun_s)
            playing.warm_up()
            if self.cases is None:
                self._count(playing.covariates)
                self.cases = self._askable(playing.description.limits)
                playing.pilot(self._wanting(self.cases))
                self._fit_into_budget(playing)
            playing.play(self._wanting(self.cases))
        finally:
            launch.close()
        self.next_launch += 1

    def _resume(self, launch_id: str | None) -> None:
        """Go on with the launch on file if the engine is still living the same life."""
        for header in self.on_file.headers if self.on_file and launch_id is not None else ():
            if header.launch_id == launch_id and header.launch is not None:
                self.next_launch, self.resumed = header.launch, True

    def _askable(self, limits: Limits) -> list[Case]:
        return [case for case in plan(limits) if case.probe in self.engine.probes]

    def _wanting(self, cases: Sequence[Case]) -> list[Case]:
        """Those with too few launches, not counting the one under way."""
        wanted = self.rules.num_launches
        if self.resumed:
            cases = [case for case in cases if self.next_launch not in self.launches.get(case.key, ())]
        return [case for case in cases if len(self.launches.get(case.key, set()) - {self.next_launch}) < wanted]

    def num_launches_left(self) -> int:
        """Launches that some case still needs."""
        return max((self.rules.num_launches - len(done) for done in self._done()), default=0)

    def num_later_launches(self, number: int) -> int:
        """The same once launch ``number``, which is under way, has asked every case."""
        return max((self.rules.num_launches - len(done | {number}) for done in self._done()), default=0)

    def _done(self) -> Iterator[set[int]]:
        """The launches of every case that has not failed: a failing one is not asked for ever."""
        assert self.cases is not None
        for case in self.cases:
            if case.key not in self.outcome.failures:
                yield self.launches.get(case.key, set())

    def seconds_left(self) -> float:
        """Of the budget."""
        if self.settings.budget_s is None:
            return float("inf")
        return self.begun_s + self.settings.budget_s - self.settings.now()

    def _fit_into_budget(self, playing: _Launched) -> None:
        assert self.cases is not None
        wanting = self._wanting(self.cases)
        missing = {case.key: self.rules.num_launches - len(self.launches.get(case.key, set()) - {playing.number})
                   for case in wanting}  # fmt: skip
        launches = max(missing.values(), default=0)
        fixed_s = (launches - 1) * playing.ready_s + launches * self.costs.setup_s
        num_takes = self.rules.min_repeats + playing.warms_cases
        room_s = _PLANNED_SHARE * self.seconds_left() - fixed_s
        kept, needed_s = within(wanting, missing, num_takes, self.costs, room_s)
        dropped = [case for case in wanting if case not in kept]
        self.outcome.dropped = dropped
        self.cases = [case for case in self.cases if case not in dropped]
        self.watcher.say(
            f"{counted(len(kept), 'case')} in {counted(launches, 'launch', 'launches')}, about "
            f"{(needed_s + fixed_s) / 60:.1f} min"
            + (f"; {len(dropped)} left out for want of time" if dropped else "")
        )
        if needed_s > self.seconds_left() - fixed_s:
            self.watcher.say("the budget does not even hold the corner cases: it will be exceeded")


class _Launched:
    """One launch within a session."""

    def __init__(self, session: _Session, launch: Launch, startup_s: float) -> None:
        self.session = session
        self.launch = launch
        self.description = launch.describe()
        self.number = session.next_launch
        self.covariates = Covariates(**self.description.covariates)
        self.header = self._header(startup_s)
        if session.on_file is not None:
            refuse_mixed(session.on_file.header.identity, self.header.identity, str(session.file.path))
        self.begun_s = session.settings.now() - startup_s
        self.ready_s = startup_s
        # Devices but the CPU compile or tune for a shape when they first see it: each case has its own warm-up take.
        self.warms_cases = self.description.environment.get("device_type", "cpu") != "cpu"
        self.warmed: set[str] = set()
        self.takes: dict[str, dict[str, list[float]]] = {}
        self.repeats: dict[str, int] = {}

    def _header(self, startup_s: float) -> Header:
        said = self.description
        try:
            identity = Identity(**said.identity)
        except ValidationError as error:
            raise InputError(f"the engine's identity: {first_problem(error)}") from None
        return Header(
            kind="header",
            schema_version=1,
            identity=identity,
            measured=datetime.now(UTC).date().isoformat(),
            source="kvcast calibrate measure",
            license="not stated",
            launch=self.number,
            launch_id=said.launch_id,
            engine=self.session.engine.name,
            engine_args=said.engine_args,
            capacity=Capacity(**said.capacity) if said.capacity else None,
            limits=asdict(said.limits) | {"graph_sizes": list(said.limits.graph_sizes)},
            environment=said.environment,
            startup_s=startup_s,
        )

    def warm_up(self) -> None:
        """Repeat the largest chunk and a small decode until they settle. The header is written before their rows."""
        self.session.file.append([self.header])
        cases = self.session._askable(self.description.limits)
        heavy = max(cases, key=lambda case: (case.probe == "chunk", -case.num_requests, case.num_prompt_tokens))
        light = min(cases, key=lambda case: (case.probe != "decode", case.num_prompt_tokens, -case.num_requests))
        for case in dict.fromkeys((heavy, light)):
            times: list[float] = []
            words = None
            while words is None:
                rows = self._rows(case, len(times), warmup=True)
                self.session.file.append(rows)
                times.append(max(take_means(rows).values(), default=0.0) or 1e-9)
                words = settling(times, self.session.rules)
            self.session.watcher.say(f"launch {self.number}: warm-up, {case.key}: {words}")
        self.ready_s = self.session.settings.now() - self.begun_s

    def pilot(self, cases: Sequence[Case]) -> None:
        """The corner cases, twice: what the others will cost is estimated from these."""
        corners = [case for case in cases if case.rank == 0]
        for phase in order(corners, self.session.settings.seed, self.number):
            for _ in range(2):
                for case in phase:
                    if self._wanted(case):
                        self._take(case)
        self.session.costs.settle(self.description.limits.block_size)

    def play(self, cases: Sequence[Case]) -> None:
        """Every case in rounds, until each is known well enough or its phase's share of the time is spent."""
        session, now = self.session, self.session.settings.now
        phases = order(cases, session.settings.seed, self.number)
        left_s = session.seconds_left() / (1 + session.num_later_launches(self.number))
        for number, phase in enumerate(phases):
            # What an earlier phase leaves over, a later one may use.
            costs = [sum(map(session.costs.of, later)) for later in phases[number:]]
            begun_s, end_s = now(), now() + left_s * costs[0] / sum(costs)
            going = [case for case in phase if self._wanted(case)]
            while going:
                for case in going:
                    if self._wanted(case, now() >= end_s):
                        self._take(case)
                    self._report(cases)
                going = [case for case in going if self._wanted(case, now() >= end_s)]
            left_s -= now() - begun_s

    def _wanted(self, case: Case, late: bool = False) -> bool:
        """Whether a case needs another take in this launch; when late, only those without any."""
        if case.key in self.session.outcome.failures and self.repeats.get(case.key):
            return False
        if late and self.repeats.get(case.key):
            return False
        taken = self.takes.get(case.key, {})
        return not taken or any(not known_well(times, self.session.rules) for times in taken.values())

    def _take(self, case: Case) -> None:
        session = self.session
        begun_s = session.settings.now()
        repeat = self.repeats.get(case.key, 0)
        warmup = self.warms_cases and case.key not in self.warmed
        rows = self._rows(case, repeat, warmup)
        session.file.append(rows)
        session.outcome.num_takes += 1
        session.costs.took(case, session.settings.now() - begun_s)
        if warmup:
            self.warmed.add(case.key)
            return
        self.repeats[case.key] = repeat + 1
        failed = next((row.failed for row in rows if row.failed), None if rows else "no rows")
        if failed:
            session.outcome.failures[case.key] = failed
            session.watcher.say(f"FAILED {case.key}: {failed}")
            return
        session.launches.setdefault(case.key, set()).add(self.number)
        for name, mean in take_means(rows).items():
            self.takes.setdefault(case.key, {}).setdefault(name, []).append(mean)

    def _rows(self, case: Case, repeat: int, warmup: bool = False) -> list[Row]:
        rows = self.launch.take(case, repeat)
        more: Fields = {"launch": self.number, "repeat": repeat, "warmup": warmup, "covariates": self.covariates}
        return [_row(row | more) for row in rows]

    def _report(self, cases: Sequence[Case]) -> None:
        session = self.session
        later = session.num_later_launches(self.number)
        here = {case: max(session.rules.min_repeats - self.repeats.get(case.key, 0), 0) for case in cases}
        num_left = sum(here.values()) + later * len(cases) * session.rules.min_repeats
        seconds = sum(number * session.costs.of(case) for case, number in here.items())
        seconds += later * (self.ready_s + sum(session.rules.min_repeats * session.costs.of(case) for case in cases))
        session.watcher.left(session.outcome.num_takes, num_left, seconds)


def _row(fields: Fields) -> Row:
    for name in ("prefill_pieces", "token_s", "output_token_ids"):
        if fields.get(name) is not None:
            value: Any = fields[name]
            fields[name] = tuple(tuple(item) if isinstance(item, list) else item for item in value)
    try:
        kind = StepRow if fields["kind"] == "step" else RequestRow
        return kind(**fields)
    except ValidationError as error:
        raise InputError(f"{fields.get('case')}: the engine gave an impossible row: {first_problem(error)}") from None


def _has_rows(path: Path) -> bool:
    """Whether there is more than headers: a launch that broke down at once leaves its header alone."""
    with path.open(encoding="utf-8") as file:
        return any('"kind":"header"' not in line and line.strip() for line in file)


def _next_launch(on_file: Measurements | None) -> int:
    if on_file is None:
        return 0
    return 1 + max((header.launch for header in on_file.headers if header.launch is not None), default=-1)
