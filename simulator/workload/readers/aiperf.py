"""Conversations as JSON lines, as AIPerf and NVIDIA Dynamo write and replay them: one turn a line.

Keys (their other names in brackets): ``session_id``; ``timestamp`` (``timestamp_ms``, ``created_time``) and ``delay``
(``delay_ms``) in milliseconds, the delay counting from the end of the session's turn before; ``input_length``
(``input_tokens``), ``output_length`` (``output_tokens``); ``hash_ids``, or ``hash_runs`` as [first id, count], of
``block_tokens`` (512) tokens, the same in all sessions; ``group_id`` stands as the tenant. Of Dynamo's agentic rows
``request_id``, ``wait_for`` and ``tool_wait_ms`` are read too. Other keys are ignored.

A turn's ids are those of its whole prompt (Dynamo) or of what it adds to the conversation (AIPerf, whose replay puts
the turns and the answers before it in front): the first turns that follow another tell which, by repeating an id or
not. Sessions have no common clock where all first turns have the same time or none; a later turn without a time comes
its delay after the one before, as if that had taken no time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from simulator.request import Prompt
from simulator.workload.lines import numbered_lines
from simulator.workload.readers.blocks import Stretch, along, check_count, ids_of, stretches, stretches_of
from simulator.workload.readers.fields import (
    MAX_TOKENS,
    Fields,
    json_object,
    name,
    optional_number,
    shown,
    text,
    tokens,
)
from simulator.workload.readers.reading import LineTrace, Unusable
from simulator.workload.readers.recognition import Head
from simulator.workload.records import Record

BLOCK_TOKENS = 512
_IDS = 0  # the segment along which block ids count; answers come after it

_NAMES = {
    "timestamp": ("timestamp", "timestamp_ms", "created_time"),
    "delay": ("delay", "delay_ms"),
    "input_length": ("input_length", "input_tokens"),
    "output_length": ("output_length", "output_tokens"),
}


class _Turn(NamedTuple):
    """The session's last turn: its place in the file, time, and the conversation up to the end of its answer."""

    place: int
    time_s: float
    conversation: Prompt
    num_tokens: int


class Aiperf(LineTrace):
    """See the module."""

    format = "aiperf"
    description = "AIPerf's and Dynamo's JSON lines of conversations: session_id, delay, hash_ids of 512 tokens"
    options = frozenset({"block_tokens"})
    may_have_sessions = True
    may_start_together = True

    def __init__(self, path: Path, *, strict: bool = False, block_tokens: int = BLOCK_TOKENS) -> None:
        super().__init__(path, strict=strict)
        self.block_tokens: int = block_tokens
        self.sessions_start_together, self.turns_are_whole = _survey(path)

    @classmethod
    def recognises(cls, head: Head) -> bool:
        """Turns of sessions without texts."""
        has_length = bool(head.keys & set(_NAMES["input_length"]))
        return has_length and bool(head.keys & {"session_id", "wait_for", "delay", "delay_ms"})

    def _parser(self) -> Callable[[bytes], Record]:
        turns: dict[int | str, _Turn] = {}
        places: dict[int | str, int] = {}  # of the requests that have a name
        first_ms: float | None = None
        place = 0

        def parse(line: bytes) -> Record:
            nonlocal first_ms, place
            fields = json_object(line)
            session = name(fields, "session_id")
            before = None if session is None else turns.get(session)
            time_ms = optional_number(fields, _key(fields, "timestamp"))
            after_s = _after_s(fields, before)
            parent = _parent(fields, places, place if before is None else before.place)
            num_output = tokens(fields, _key(fields, "output_length"))
            prompt, num_prompt = self._prompt(fields, before)
            if first_ms is None and time_ms is not None:
                first_ms = time_ms
            time_s = _time_s(time_ms, first_ms or 0.0, after_s, before)
            answer: int | None = None
            conversation: Prompt = ()
            if session is not None:
                if not self.turns_are_whole:
                    answer = place + 1
                    conversation = (*(prompt or ((None, 0, num_prompt),)), (answer, 0, num_output))
                turns[session] = _Turn(place, time_s, conversation, num_prompt + num_output)
            if (own := name(fields, "request_id")) is not None:
                places[own] = place
            place += 1
            return Record(
                time_s, num_prompt, num_output, prompt, session, after_s, text(fields, "group_id"), answer, parent
            )

        return parse

    def _prompt(self, fields: Fields, before: _Turn | None) -> tuple[Prompt | None, int]:
        """The runs (None where the file says nothing of them) and the number of tokens."""
        num_tokens = tokens(fields, _key(fields, "input_length"))
        found = _stretches(fields)
        if found is not None:
            check_count(sum(count for _, count in found), num_tokens, self.block_tokens)
        added = along(_IDS, found or [], num_tokens, self.block_tokens)
        if before is None or self.turns_are_whole:
            return None if found is None else added, num_tokens
        if before.num_tokens + num_tokens > MAX_TOKENS:
            raise Unusable(f"the conversation has {before.num_tokens + num_tokens} tokens, expected <= {MAX_TOKENS}")
        return before.conversation + added, before.num_tokens + num_tokens


def _key(fields: Fields, canonical: str) -> str:
    """The name by which a line has this key; the first one where it has none."""
    names = _NAMES[canonical]
    return next((key for key in names if key in fields), names[0])


def _stretches(fields: Fields) -> list[Stretch] | None:
    if "hash_runs" in fields:
        return stretches_of(fields)
    return None if fields.get("hash_ids") is None else stretches(ids_of(fields))


def _after_s(fields: Fields, before: _Turn | None) -> float | None:
    """The delay, where it is one: a first turn has none, but what it waits for counts."""
    delay_ms = optional_number(fields, _key(fields, "delay"), 0)
    if before is None and not fields.get("wait_for"):
        return None
    tool_ms = optional_number(fields, "tool_wait_ms", 0)
    return None if delay_ms is None and tool_ms is None else ((delay_ms or 0.0) + (tool_ms or 0.0)) / 1000


def _parent(fields: Fields, places: dict[int | str, int], last: int) -> int | None:
    """Place of the last of the requests that it waits for, None where that is the session's turn before (``last``)."""
    names = fields.get("wait_for")
    if not names:
        return None
    if type(names) is not list or any(type(one) is not str and type(one) is not int for one in names):
        raise Unusable(f"wait_for is {shown(names)}, expected a list of request_id")
    known = [places[one] for one in names if one in places]
    if len(known) < len(names):
        raise Unusable(f"wait_for is {shown(names)}, expected request_id of lines before")
    return None if max(known) == last else max(known)


def _time_s(time_ms: float | None, first_ms: float, after_s: float | None, before: _Turn | None) -> float:
    if time_ms is not None:
        return (time_ms - first_ms) / 1000
    return (after_s or 0.0) + (0.0 if before is None else before.time_s)


def _survey(path: Path) -> tuple[bool, bool]:
    """Whether sessions start together, and whether each turn has its whole prompt's ids. Reads on until both are known.

    Lines that cannot be used do not count.
    """
    first_times: set[float | None] = set()
    first_ids: dict[int | str, int | None] = {}
    have_clock, are_whole = False, None
    for _, line in numbered_lines(path):
        try:
            fields = json_object(line)
            session, time = name(fields, "session_id"), optional_number(fields, _key(fields, "timestamp"))
            found = _stretches(fields)
        except Unusable:
            continue
        if session is None or (session not in first_ids and first_times and time not in first_times):
            have_clock = True
        elif session not in first_ids:
            first_times.add(time)
        leading = found[0][0] if found else None
        if session is not None and session in first_ids and are_whole is None and leading is not None:
            are_whole = leading == first_ids[session]
        if session is not None:
            first_ids.setdefault(session, leading)
        if have_clock and are_whole is not None:
            break
    together = not have_clock and (len(first_ids) > 1 or first_times == {None})
    return together, are_whole is not False
