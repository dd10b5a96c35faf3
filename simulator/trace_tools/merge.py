"""Several traces as one, in order of time."""

from __future__ import annotations

import heapq
import math
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from simulator.errors import InputError
from simulator.request import Run
from simulator.trace_tools.stream import Stream
from simulator.workload.records import Record
from simulator.workload.segments import SEGMENTS_PER_TENANT

_SUFFIXES = {".gz", ".jsonl", ".json", ".csv"}


def tenants_of(paths: Sequence[Path]) -> list[str]:
    """A name for each file: its own without endings, numbered where several have the same."""
    names = [_stem(path) for path in paths]
    often = Counter(names)
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(f"{name}-{seen[name]}" if often[name] > 1 else name)
    return found


def merged(streams: Sequence[Stream], tenants: Sequence[str] | None) -> Stream:
    """All requests of the ``streams``, by time; of one time, those of the first stream first.

    ``tenants``: a name a stream, which becomes the tenant (before the stream's own names, where it has any) and keeps
    its texts and sessions apart from the others'. None: the streams are parts of one trace, in which the same names
    mean the same. Where times are per session, one stream follows the other. Raises InputError where they are so in
    some streams only.
    """
    together = streams[0].sessions_start_together
    for stream in streams[1:]:
        if stream.sessions_start_together != together:
            first, other = ("per session", "on one clock") if together else ("on one clock", "per session")
            raise InputError(
                f"merge: times are {first} in {streams[0].name}, but {other} in {stream.name}, expected one kind"
            )
    known = [stream.block_tokens for stream in streams if stream.block_tokens is not None]

    def read(notes: list[str]) -> Iterator[Record]:
        parts = [_numbered(stream, index) for index, stream in enumerate(streams)]
        rows = chain(*parts) if together else heapq.merge(*parts, key=lambda row: row[0])
        new_places = [array("q") for _ in streams]
        for place, (_, index, record) in enumerate(rows):
            new_places[index].append(place)
            if record.parent is not None:
                record = record._replace(parent=new_places[index][record.parent])
            yield record if tenants is None else _apart(record, index, len(streams), tenants[index])
        for stream in streams:
            notes += stream.notes

    sources = " + ".join(dict.fromkeys(stream.source for stream in streams))
    return Stream("merge", math.gcd(*known) if known else None, together, sources, read)


def _numbered(stream: Stream, index: int) -> Iterator[tuple[float, int, Record]]:
    return ((record.arrival_s, index, record) for record in stream.records())


def _apart(record: Record, index: int, num_streams: int, tenant: str) -> Record:
    """The record with names that no other stream uses: segments are dealt out in turn."""

    def own(segment: int | None) -> int | None:
        if segment is None:
            return None
        segment = segment * num_streams + index
        if segment >= SEGMENTS_PER_TENANT:
            raise InputError(f"merge: numbers of texts in {tenant} are too large, expected it anonymised first")
        return segment

    def run(one: Run) -> Run:
        return own(one[0]), one[1], one[2]

    return record._replace(
        prompt=None if record.prompt is None else tuple(map(run, record.prompt)),
        output_segment=own(record.output_segment),
        session=None if record.session is None else f"{tenant}/{record.session}",
        tenant=tenant if record.tenant is None else f"{tenant}/{record.tenant}",
    )


def _stem(path: Path) -> str:
    while path.suffix in _SUFFIXES and path.stem:
        path = path.with_suffix("")
    return path.name
