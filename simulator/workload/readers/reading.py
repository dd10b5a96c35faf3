"""How every trace is read: lazily, as often as asked, with what cannot be used counted and named.

A reader says how one line becomes a record (``LineTrace``) or yields records itself (``FileTrace``). It raises
``Unusable`` for a line that it cannot use; what befalls that line is decided here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path

from simulator.counts import counted
from simulator.errors import InputError
from simulator.workload.lines import numbered_lines
from simulator.workload.readers.recognition import Head
from simulator.workload.records import Record

NUM_NAMED = 20  # so many of the lines passed over are kept by name
MOST_SKIPPED = 0.1  # of all lines; a trace that lacks more is another trace


class Unusable(Exception):
    """A line without a usable request; says what is wrong and what was expected, not where."""


class Skips:
    """The lines passed over in one reading. ``num_lines`` counts the lines that should have held a request."""

    def __init__(self, path: Path, strict: bool, owner: FileTrace | None = None) -> None:
        self._owner = owner
        self.path = path
        self.strict = strict
        self.num_lines = 0
        self.num_skipped = 0
        self.named: list[tuple[int, str]] = []

    def add(self, line: int, reason: str, path: Path | None = None) -> None:
        """Pass over a line (of ``path``, where it is another file). Raises InputError when that is not wanted."""
        if self.strict:
            raise InputError(f"{path or self.path}:{line}: {reason}")
        self.num_skipped += 1
        if self._owner is not None:
            self._owner.num_skipped = self.num_skipped
        if len(self.named) < NUM_NAMED:
            self.named.append((line, reason if path is None else f"{path.name}: {reason}"))

    def check(self, *, has_records: bool) -> None:
        """At the end: raise InputError for a file without requests and for one of which too much is missing."""
        if not self.num_lines:
            raise InputError(f"{self.path}: the trace is empty")
        if self.num_skipped > MOST_SKIPPED * self.num_lines:
            line, reason = self.named[0]
            raise InputError(
                f"{self.path}:{line}: {reason} (unusable: {self.num_skipped:,} of {counted(self.num_lines, 'line')}, "
                f"expected no more than {MOST_SKIPPED:.0%})"
            )
        if not has_records:
            raise InputError(f"{self.path}: no line holds a request, expected at least one")


class FileTrace(ABC):
    """A recorded trace in a file; see ``records.Trace``.

    ``in_order``: the format's requests stand in order of arrival. ``may_have_sessions``, ``may_have_tenants``:
    the format can tell sessions, tenants.
    ``may_start_together``: the content decides ``sessions_start_together``, known once the file is open.
    ``assumed``: what the reader takes for granted that the file does not say, in words. ``num_skipped``: lines that
    the last reading passed over.
    """

    format: str
    description: str
    options: frozenset[str] = frozenset()
    block_tokens: int | None = None
    sessions_start_together: bool = False
    in_order: bool = False
    may_have_sessions: bool = False
    may_have_tenants: bool = False
    may_start_together: bool = False
    assumed: tuple[str, ...] = ()
    num_skipped: int = 0

    def __init__(self, path: Path, *, strict: bool = False) -> None:
        self.path = path
        self.strict = strict
        self._skips = Skips(path, strict)

    @classmethod
    @abstractmethod
    def recognises(cls, head: Head) -> bool:
        """Whether a file that begins so is of this format."""

    @abstractmethod
    def _read(self, skips: Skips) -> Iterator[tuple[int, Record]]:
        """The records; lines that cannot be used go to ``skips``."""

    def records(self) -> Iterator[tuple[int, Record]]:
        """(line, record) in the file's order.

        Raises InputError for a file that cannot be read or is empty, for the first unusable line when strict, and at
        the end where more than a tenth of the lines were unusable.
        """
        skips = self._skips = Skips(self.path, self.strict, self)
        self.num_skipped = 0
        records = self._read(skips)
        first = next(records, None)
        if first is not None:
            yield first
            yield from records
        skips.check(has_records=first is not None)

    def skipped(self) -> list[tuple[int, str]]:
        """Line and reason of the first lines that the last reading passed over, at most 20."""
        return list(self._skips.named)


class LineTrace(FileTrace):
    """A trace with one request a line."""

    @abstractmethod
    def _parser(self) -> Callable[[bytes], Record]:
        """What turns a line into its record, for one reading; it may remember lines before. Raises Unusable."""

    def _read(self, skips: Skips) -> Iterator[tuple[int, Record]]:
        parse = self._parser()
        for number, line in numbered_lines(self.path):
            skips.num_lines += 1
            try:
                record = parse(line)
            except Unusable as error:
                skips.add(number, str(error))
            else:
                yield number, record
