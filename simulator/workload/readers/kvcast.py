"""kvcast's own traces: JSON lines, written by ``kvcast trace convert``.

The first line is ``{"kvcast_trace": 1, "block_tokens": N or null, "source": ..., "sessions_start_together": bool}``;
each other one a request: ``{"t": seconds, "in": tokens, "out": tokens, "runs": [[segment or null, start, length], ...],
"session": ..., "after": seconds, "tenant": ..., "out_segment": ..., "parent": ...}``. What is absent is None; a
``parent`` is the place of a request, the first one's being 0.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path

from simulator.counts import counted
from simulator.errors import InputError
from simulator.request import Prompt, Run
from simulator.workload.lines import numbered_lines
from simulator.workload.readers.fields import (
    MAX_TOKENS,
    Fields,
    json_object,
    name,
    number,
    optional_number,
    shown,
    text,
    tokens,
    whole,
)
from simulator.workload.readers.reading import FileTrace, Skips, Unusable
from simulator.workload.readers.recognition import Head
from simulator.workload.records import Record
from simulator.workload.segments import SEGMENTS_PER_TENANT

VERSION = 1
_KEYS = frozenset({"t", "in", "out", "runs", "session", "after", "tenant", "out_segment", "parent"})


class Kvcast(FileTrace):
    """See the module. ``source``: where the trace came from, in words."""

    format = "kvcast"
    description = "kvcast's own JSON lines, with prompts as runs of tokens (written by kvcast trace convert)"
    may_have_sessions = True
    may_have_tenants = True
    may_start_together = True

    def __init__(self, path: Path, *, strict: bool = False) -> None:
        super().__init__(path, strict=strict)
        line, content = next(numbered_lines(path), (0, b""))
        if not line:
            raise InputError(f"{path}: the trace is empty")
        try:
            self.block_tokens, self.sessions_start_together, self.source = _header(json_object(content))
        except Unusable as error:
            raise InputError(f"{path}:{line}: {error}") from error

    @classmethod
    def recognises(cls, head: Head) -> bool:
        """Its first line."""
        return "kvcast_trace" in head.keys

    def _read(self, skips: Skips) -> Iterator[tuple[int, Record]]:
        lines = numbered_lines(self.path)
        next(lines, None)
        parse = _parser()
        for line, content in lines:
            skips.num_lines += 1
            try:
                record = parse(content)
            except Unusable as error:
                skips.add(line, str(error))
            else:
                yield line, record


def _header(fields: Fields) -> tuple[int | None, bool, str | None]:
    """Block size, whether sessions start together, source."""
    version, together = fields.get("kvcast_trace"), fields.get("sessions_start_together", False)
    if version != VERSION:
        raise Unusable(f"kvcast_trace is {shown(version)}, expected {VERSION}")
    if type(together) is not bool:
        raise Unusable(f"sessions_start_together is {shown(together)}, expected true or false")
    size = None if fields.get("block_tokens") is None else tokens(fields, "block_tokens")
    return size, together, text(fields, "source")


def _parser() -> Callable[[bytes], Record]:
    place = -1
    lost: list[int] = []  # places of lines that could not be used: nothing can wait for them, and places close up

    def parse(line: bytes) -> Record:
        nonlocal place
        place += 1
        try:
            record = _record(json_object(line), place)
        except Unusable:
            lost.append(place)
            raise
        if lost and record.parent is not None:
            before = bisect_left(lost, record.parent)
            gone = before < len(lost) and lost[before] == record.parent
            return record._replace(parent=None if gone else record.parent - before)
        return record

    return parse


def _record(fields: Fields, place: int) -> Record:
    if surplus := fields.keys() - _KEYS:
        raise Unusable(f"unknown key {shown(min(surplus))}, expected {', '.join(sorted(_KEYS))}")
    num_prompt = tokens(fields, "in")
    parent = None if fields.get("parent") is None else whole(fields, "parent")
    if parent is not None and parent >= place:
        raise Unusable(f"parent is {shown(parent)}, expected the place of a request before (this one's is {place})")
    return Record(
        number(fields, "t"),
        num_prompt,
        tokens(fields, "out"),
        None if fields.get("runs") is None else _runs(fields["runs"], num_prompt),
        name(fields, "session"),
        optional_number(fields, "after", 0),
        text(fields, "tenant"),
        None if fields.get("out_segment") is None else _segment(fields["out_segment"]),
        parent,
    )


def _runs(runs: object, num_tokens: int) -> Prompt:
    if type(runs) is not list:
        raise Unusable(f"runs is {shown(runs)}, expected a list of [segment or null, start, length]")
    found: list[Run] = []
    for run in runs:
        if type(run) is not list or len(run) != 3:
            raise Unusable(f"runs has {shown(run)}, expected [segment or null, start, length]")
        segment, start, length = run
        # A start is a place in a text; that of a block id's text is id * tokens of a block.
        if not (type(start) is type(length) is int and 0 <= start < 2**53 and 0 < length <= MAX_TOKENS):
            raise Unusable(f"runs has {shown(run)}, expected a start >= 0 and a length >= 1, in tokens")
        found.append((None if segment is None else _segment(segment), start, length))
    if (total := sum(length for _, _, length in found)) != num_tokens:
        raise Unusable(f"runs have {counted(total, 'token')}, expected {num_tokens} as 'in' says")
    return tuple(found)


def _segment(value: object) -> int:
    if type(value) is int and 0 <= value < SEGMENTS_PER_TENANT:
        return value
    raise Unusable(f"segment {shown(value)}, expected a whole number >= 0 and < {SEGMENTS_PER_TENANT}")
