"""A trace of any format in order of arrival, on one clock.

Most files stand in that order, and are streamed. Those that do not (logs by completion, conversations one after
another) are read whole and sorted, and so are those whose sessions have no common clock: each gets its start drawn, in
the order in which the sessions stand in the file.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from simulator.counts import counted
from simulator.errors import InputError
from simulator.streams import python_stream, stream
from simulator.workload.arrivals import arrival_times_s
from simulator.workload.draws import NUM_PER_DRAW
from simulator.workload.readers import FileTrace, open_trace
from simulator.workload.readers.servegen import Servegen
from simulator.workload.records import Record
from simulator.workload.spec import TraceSpec

Row = tuple[float, Record]
Lines = Iterable[tuple[int, Record]]  # with the line that each stands on

_MOST_NAMED = 10  # tenants, in an error


class Recorded:
    """A tenant's trace in one replication. ``folder`` is where the scenario's paths start.

    Random: when sessions start, and all of ServeGen's clients (a stream a replication each). Raises InputError for a
    file that cannot be read or is of another format, and where ``session_arrivals`` is missing or changes nothing.
    """

    def __init__(self, spec: TraceSpec, name: str, seed: int, replication: int, folder: Path) -> None:
        self.path = folder / spec.path
        self._spec = spec
        self._name = name
        self._seed = seed
        self._replication = replication
        self._folder = folder
        self._trace = self._open()
        if self._trace.sessions_start_together and spec.session_arrivals is None:
            raise InputError(f"{self.path}: times within sessions only, expected session_arrivals: when sessions start")
        if spec.session_arrivals is not None and not self._trace.sessions_start_together:
            raise InputError(f"{self.path}: the requests have times, expected no session_arrivals")

    def span_s(self) -> float:
        """Seconds from 0 to the last arrival, whoever's it is. Reads the whole file."""
        if isinstance(self._trace, Servegen):
            return self._trace.span_s()
        return max(time_s for time_s, _ in self._all_rows(self._trace.records))

    def rows(self, from_s: float = 0.0, until_s: float | None = None) -> Iterator[Row]:
        """(arrival in seconds, record), ascending. What lies outside ``from_s`` and ``until_s`` may be missing."""
        trace = self._trace
        if isinstance(trace, Servegen) and until_s is not None:
            # Two weeks of a million requests an hour: drawn where they are wanted.
            part = self._open(start_s=from_s, duration_s=until_s - from_s)
            return ((from_s + record.arrival_s, record) for _, record in part.records())
        return self._all_rows(self._records)

    def _all_rows(self, records: Callable[[], Lines]) -> Iterator[Row]:
        if self._trace.sessions_start_together:
            return iter(sorted(_staggered(records(), self._starts_s()), key=_time))
        if self._trace.in_order:
            return _checked(records(), self.path)
        if _is_in_order(records()):
            return ((record.arrival_s, record) for _, record in records())
        return _sorted(records())

    def in_file_order(self) -> Iterator[Row]:
        """(time in seconds, record) as the records stand in the file."""
        if self._trace.sessions_start_together:
            return _staggered(self._records(), self._starts_s())
        return ((record.arrival_s, record) for _, record in self._records())

    def skipped(self) -> str | None:
        """The lines passed over, in words. Reads the whole file."""
        for _ in self._trace.records():
            pass
        if not self._trace.num_skipped:
            return None
        line, reason = self._trace.skipped()[0]
        return f"without {counted(self._trace.num_skipped, 'unusable line')} (the first: {line}, {reason})"

    def _records(self) -> Lines:
        tenant = self._spec.tenant
        return self._trace.records() if tenant is None else _of_tenant(self._trace.records(), tenant, self.path)

    def _open(self, **more: Any) -> FileTrace:
        spec, options = self._spec, more
        for key in ("tokenizer", "lengths"):
            if (file := getattr(spec, key)) is not None:
                options[key] = self._folder / file
        for key in ("block_tokens", "gap_s"):
            if (value := getattr(spec, key)) is not None:
                options[key] = value
        if spec.format == Servegen.format:
            rng = python_stream(self._seed, "workload", self._name, "servegen", self._replication)
            options["seed"] = rng.getrandbits(64)
        return open_trace(self.path, spec.format, strict=spec.strict, **options)

    def _starts_s(self) -> Iterator[float]:
        assert self._spec.session_arrivals is not None  # looked at when it was opened
        rng = stream(self._seed, "workload", self._name, "sessions", self._replication)
        drawn = arrival_times_s(self._spec.session_arrivals, rng, NUM_PER_DRAW)
        return chain.from_iterable(times_s.tolist() for times_s in drawn)


def _time(row: Row) -> float:
    return row[0]


def _of_tenant(records: Lines, tenant: str, path: Path) -> Iterator[tuple[int, Record]]:
    """One tenant's records; what waits for another tenant's request waits for none. Raises InputError without one."""
    kept: list[int] = []  # their places in the file: parents are named by theirs
    others: dict[str, None] = {}
    for place, (line, record) in enumerate(records):
        if record.tenant != tenant:
            if record.tenant is not None and not kept:
                others[record.tenant] = None
            continue
        parent = record.parent
        if parent is not None:
            at = bisect_left(kept, parent)
            record = record._replace(parent=at if at < len(kept) and kept[at] == parent else None)
        kept.append(place)
        yield line, record
    if not kept:
        shown = ", ".join(list(others)[:_MOST_NAMED]) + (", ..." if len(others) > _MOST_NAMED else "")
        raise InputError(f"{path}: no request of tenant {tenant!r}, expected one of {shown or 'no tenants at all'}")


def _staggered(records: Lines, starts_s: Iterator[float]) -> Iterator[Row]:
    """Each session from its own start on; a record without a session is one."""
    start_of: dict[int | str, float] = {}
    for _, record in records:
        if record.session is None:
            start_s = next(starts_s)
        elif (known := start_of.get(record.session)) is not None:
            start_s = known
        else:
            start_s = start_of[record.session] = next(starts_s)
        yield start_s + record.arrival_s, record


def _checked(records: Lines, path: Path) -> Iterator[Row]:
    last_s, last_line = 0.0, 0
    for line, record in records:
        if record.arrival_s < last_s:
            raise InputError(
                f"{path}:{line}: arrives at {record.arrival_s:g} s, expected no earlier than line {last_line} "
                f"({last_s:g} s)"
            )
        last_s, last_line = record.arrival_s, line
        yield last_s, record


def _is_in_order(records: Lines) -> bool:
    last_s = 0.0
    for _, record in records:
        if record.arrival_s < last_s:
            return False
        last_s = record.arrival_s
    return True


def _sorted(records: Lines) -> Iterator[Row]:
    rows = sorted(((record.arrival_s, record) for _, record in records), key=_time)
    first_s = min(0.0, rows[0][0])  # the file's first request need not be the first to arrive
    return ((time_s - first_s, record) for time_s, record in rows)
