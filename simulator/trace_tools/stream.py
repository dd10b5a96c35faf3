"""A trace on its way into a new file: read lazily, as often as asked, changed on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from simulator.trace_tools.words import skipped_in_words
from simulator.workload.records import Record, Trace


@dataclass
class Stream:
    """``read`` yields the records in order; ``notes`` then hold what the last reading has to say, in words.

    ``name`` is for messages; ``source`` is what the new file says of where it comes from. The rest is as in `Trace`.
    """

    name: str
    block_tokens: int | None
    sessions_start_together: bool
    source: str
    read: Callable[[list[str]], Iterator[Record]]
    notes: list[str] = field(default_factory=list)

    def records(self) -> Iterator[Record]:
        """From the first record on. Notes of an earlier reading are forgotten."""
        self.notes.clear()
        return self.read(self.notes)


def opened(trace: Trace, path: Path) -> Stream:
    """The records of a file as they are."""

    def read(notes: list[str]) -> Iterator[Record]:
        for _, record in trace.records():
            yield record
        notes += [f"{path.name}: assumed: {text}" for text in getattr(trace, "assumed", ())]
        notes += [f"{path.name}: {text}" for text in skipped_in_words(trace.num_skipped, trace.skipped())]

    # A file of our own says where it came from.
    source = getattr(trace, "source", None) or f"{trace.format}: {path.name}"
    return Stream(path.name, trace.block_tokens, trace.sessions_start_together, source, read)
