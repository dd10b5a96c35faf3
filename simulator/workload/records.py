"""One request of a trace, whatever the format of its file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from simulator.request import Prompt


class Record(NamedTuple):
    """A recorded request.

    ``arrival_s``: seconds since the file's first request, or since the start of its session where sessions have no
    common clock (``Trace.sessions_start_together``). ``prompt`` are runs whose segments are numbered in the file, from
    0; None where the file says nothing of what tokens are shared. ``session``, ``tenant``: numbers or names as in the
    file, None where it has none. ``after_s``: the client's own delay after the session's previous request ended, where
    the file tells it: the request then follows that end, not the clock. ``output_segment`` names the answer's text
    where later prompts quote it.
    """

    arrival_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    prompt: Prompt | None = None
    session: int | str | None = None
    after_s: float | None = None
    tenant: str | None = None
    output_segment: int | None = None
    parent: int | None = None  # the request (by place in the file, from 0) whose end it waits for, where not the last


class Trace(Protocol):
    """A file of recorded requests, read lazily as often as asked."""

    format: str
    block_tokens: int | None
    """Granularity at which the file knows what is shared; None where it knows nothing, 1 where it has texts."""
    sessions_start_together: bool
    """Whether times are per session, so that whoever replays it chooses when sessions start."""
    num_skipped: int
    """Lines passed over in the last reading, since they could not be used (never with ``strict``)."""

    def records(self) -> Iterator[tuple[int, Record]]:
        """(line number from 1, record) in the file's order. Raises InputError ``file:line: what, expected ...``."""
        ...

    def skipped(self) -> list[tuple[int, str]]:
        """Line and reason of the first passed-over lines of the last reading (at most 20)."""
        ...
