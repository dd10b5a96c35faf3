"""Agentic coding sessions recorded by WEKA (callanjfox/kv-cache-tester), times and ids per session.

Two layouts: one request a line (``session``, ``t``, ``input_length``, ``output_length``, ``hash_runs``, ``agent``,
``api_time``, ``think_time``), and the original, one session a document or a line, whose ``requests`` may hold
sub-agents. Blocks are 64 tokens and only whole ones have an id: the rest of a prompt occurs nowhere else. Ids count
within the session, sub-agents included, so each session has a segment of its own (``hash_id_scope: global``: one for
all).

A request follows the one before it by its session, or by its sub-agent, ``think_time`` after that ended; a sub-agent's
first one follows the request that started it. Where ``think_time`` is missing it is what the times leave. What a main
request waits for is the main request before it, as recorded: sub-agents run beside it. An empty answer takes one token.
Some sessions of the original are recordings of the same one (34 of 710 begin with another's lengths): they are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from simulator.workload.lines import numbered_lines
from simulator.workload.readers import documents
from simulator.workload.readers.blocks import Stretch, along, check_count, ids_of, stretches, stretches_of
from simulator.workload.readers.fields import (
    MAX_TOKENS,
    Fields,
    json_object,
    name,
    number,
    optional_number,
    shown,
    tokens,
)
from simulator.workload.readers.reading import FileTrace, Skips, Unusable
from simulator.workload.readers.recognition import Head
from simulator.workload.records import Record

BLOCK_TOKENS = 64


class _Row(NamedTuple):
    """One request, in either layout. ``agent``: None is the main line of the session."""

    agent: str | None
    time_s: float
    num_prompt: int
    num_output: int
    blocks: list[Stretch]
    api_s: float | None
    think_s: float | None


class _Session:
    """What is known of a session so far: its segment, and the last request of its main line and of each sub-agent
    (place in the file, start and duration in seconds)."""

    def __init__(self, segment: int) -> None:
        self.segment = segment
        self.last_place = -1
        self.last_of: dict[str | None, tuple[int, float, float | None]] = {}


class Weka(FileTrace):
    """See the module."""

    format = "weka"
    description = "WEKA's agentic coding sessions: ids of 64 tokens and times per session, think and API times"
    block_tokens: int = BLOCK_TOKENS
    sessions_start_together = True
    may_have_sessions = True

    def __init__(self, path: Path, *, strict: bool = False) -> None:
        super().__init__(path, strict=strict)
        _, first = next(numbered_lines(path), (0, b""))
        self._is_document = first.strip() == b"{"  # one that is written over many lines
        self.block_tokens = self._block_tokens()

    @classmethod
    def recognises(cls, head: Head) -> bool:
        """Its own keys, of either layout."""
        return head.keys >= {"session", "hash_runs"} or head.keys >= {"requests", "hash_id_scope"}

    def _read(self, skips: Skips) -> Iterator[tuple[int, Record]]:
        sessions: dict[int | str, _Session] = {}
        place = 0
        for line, content in self._lines():
            for session_name, scope, row in self._rows(line, content, skips):
                if isinstance(row, Unusable):
                    skips.add(line, str(row))
                    continue
                session = sessions.get(session_name)
                if session is None:
                    session = sessions[session_name] = _Session(0 if scope == "global" else len(sessions) + 1)
                yield line, self._record(session_name, session, row, place)
                place += 1

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        return documents.whole(self.path) if self._is_document else numbered_lines(self.path)

    def _block_tokens(self) -> int:
        """What the first session says of its blocks."""
        _, first = next(self._lines(), (0, b""))
        try:
            size = json_object(first).get("block_size")
        except Unusable:
            return BLOCK_TOKENS
        return size if type(size) is int and 0 < size <= MAX_TOKENS else BLOCK_TOKENS

    def _rows(
        self, line: int, content: bytes, skips: Skips
    ) -> Iterator[tuple[int | str, object, _Row | Unusable]]:
        """Session, scope of its ids, and each request of a line, or what is wrong with it."""
        try:
            fields = json_object(content)
            session = _name(fields)
            entries = _entries(fields)
        except Unusable as error:
            skips.num_lines += 1
            skips.add(line, str(error))
            return
        for entry in entries:
            skips.num_lines += 1
            try:
                row: _Row | Unusable = self._row(entry)
            except Unusable as error:
                row = error
            yield session, fields.get("hash_id_scope"), row

    def _row(self, entry: Fields) -> _Row:
        num_prompt = tokens(entry, "input_length" if "input_length" in entry else "in")
        found = stretches_of(entry) if "hash_runs" in entry else stretches(ids_of(entry))
        check_count(sum(count for _, count in found), num_prompt, self.block_tokens, whole_only=True)
        agent = name(entry, "agent")
        return _Row(
            None if agent is None else str(agent),
            number(entry, "t"),
            num_prompt,
            max(1, tokens(entry, "output_length" if "output_length" in entry else "out", 0)),
            found,
            optional_number(entry, "api_time", 0),
            optional_number(entry, "think_time", 0),
        )

    def _record(self, session_name: int | str, session: _Session, row: _Row, place: int) -> Record:
        after_s, parent = None, None
        before = session.last_of.get(row.agent)
        # The think time of a sub-agent's first request is 0 in the file: it counts from nothing.
        think_s = row.think_s if before is not None else None
        if before is None and row.agent is not None:
            before = session.last_of.get(None)
        if before is not None:
            parent, start_s, api_s = before
            after_s = think_s
            if after_s is None and api_s is not None:
                after_s = max(0.0, row.time_s - start_s - api_s)
            if parent == session.last_place:
                parent = None
        session.last_of[row.agent] = place, row.time_s, row.api_s
        session.last_place = place
        prompt = along(session.segment, row.blocks, row.num_prompt, self.block_tokens)
        return Record(row.time_s, row.num_prompt, row.num_output, prompt, session_name, after_s, parent=parent)


def _name(fields: Fields) -> int | str:
    session = name(fields, "session" if "session" in fields else "id")
    if session is None:
        raise Unusable("session is missing, expected a name")
    return session


def _entries(fields: Fields) -> list[Fields]:
    """The requests of a line: itself, or those of a whole session, sub-agents in place and by the session's clock."""
    requests = fields.get("requests")
    if requests is None:
        return [fields]
    if type(requests) is not list:
        raise Unusable(f"requests is {shown(requests)}, expected a list")
    found: list[Fields] = []
    for entry in requests:
        if type(entry) is dict and entry.get("type") == "subagent" and type(entry.get("requests")) is list:
            found += _agent(entry)
        else:
            found.append(entry if type(entry) is dict else {})
    return found


def _agent(marker: Fields) -> list[Fields]:
    """A sub-agent's requests: their times count from its start, unless the first of them is not before that."""
    entries = [entry for entry in marker["requests"] if type(entry) is dict]
    try:
        start_s = number(marker, "t")
        if not entries or number(entries[0], "t") >= start_s > 0:
            start_s = 0.0
        return [{**entry, "t": start_s + number(entry, "t"), "agent": str(marker.get("agent_id"))} for entry in entries]
    except Unusable:
        return [{**entry, "t": None} for entry in entries]
