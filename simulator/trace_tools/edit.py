"""New traces made of old ones: a part of one, the same faster or longer, several as one, one without names.

Each takes streams and gives a stream: nothing is read before the new file is written.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator
from dataclasses import replace

from simulator.counts import counted
from simulator.errors import InputError
from simulator.request import Run
from simulator.trace_tools.stream import Stream
from simulator.workload.records import Record

_CUT = -1
_MAX_TOKENS = 2**28 - 1  # block keys count tokens below 2^28 (prefix.py)


def cut(
    stream: Stream,
    start_s: float = 0.0,
    end_s: float | None = None,
    first: int | None = None,
    num_sessions: int | None = None,
    seed: int = 0,
) -> Stream:
    """The requests with ``start_s`` <= time < ``end_s``, of so many sessions drawn by ``seed``, the ``first`` of those.

    Times stay those of the file. Raises InputError, when read, where there are fewer sessions than asked for.
    """

    def read(notes: list[str]) -> Iterator[Record]:
        chosen = None if num_sessions is None else _draw(stream, num_sessions, seed)
        new_places = array("q")
        num_kept = num_orphans = 0
        for record in stream.records():
            inside = start_s <= record.arrival_s and (end_s is None or record.arrival_s < end_s)
            if not inside or (chosen is not None and record.session not in chosen) or num_kept == first:
                new_places.append(_CUT)
                continue
            new_places.append(num_kept)
            num_kept += 1
            if record.parent is not None:
                parent = new_places[record.parent] if record.parent < len(new_places) else _CUT
                record = record._replace(parent=parent if parent != _CUT else None)
                if parent == _CUT:
                    record = record._replace(after_s=None)
                    num_orphans += 1
            yield record
        notes += stream.notes
        if num_orphans:
            notes.append(f"now by time, since what they waited for is cut away: {counted(num_orphans, 'request')}")

    return replace(stream, read=read, notes=[])


def scaled(stream: Stream, rate: float = 1.0, lengths: float = 1.0) -> Stream:
    """The same requests ``rate`` times as fast (delays of clients too), with ``lengths`` times as many tokens.

    Tokens are scaled by their place in the text they are of, so prompts share what they shared; each run is rounded by
    itself. No prompt gets shorter than a token, nor does an answer that had one.
    """

    def place(tokens: int) -> int:
        return int(tokens * lengths + 0.5)

    def run(one: Run) -> Run:
        segment, start, length = one
        return segment, place(start), place(start + length) - place(start)

    def read(notes: list[str]) -> Iterator[Record]:
        for record in stream.records():
            prompt, num_tokens = record.prompt, max(1, place(record.num_prompt_tokens))
            if prompt is not None:
                prompt = tuple(one for one in map(run, prompt) if one[2]) or ((None, 0, 1),)
                num_tokens = sum(length for _, _, length in prompt)
            if num_tokens > _MAX_TOKENS:
                raise InputError(f"--lengths: a prompt of {num_tokens:,} tokens, expected no more than {_MAX_TOKENS:,}")
            yield record._replace(
                arrival_s=record.arrival_s / rate,
                after_s=None if record.after_s is None else record.after_s / rate,
                num_prompt_tokens=num_tokens,
                num_output_tokens=max(1, place(record.num_output_tokens)) if record.num_output_tokens else 0,
                prompt=prompt,
            )
        notes += stream.notes

    block_tokens = stream.block_tokens
    if block_tokens is not None:
        longer = block_tokens * lengths
        block_tokens = int(longer) if longer >= 1 and longer == int(longer) else 1
    return replace(stream, block_tokens=block_tokens, read=read, notes=[])


def anonymised(stream: Stream) -> Stream:
    """The same requests under new names: texts, sessions and tenants are numbered in order of appearance, and the
    earliest time is 0. Memory grows with the number of names.
    """

    def read(notes: list[str]) -> Iterator[Record]:
        earliest_s = min((record.arrival_s for record in stream.records()), default=0.0)
        texts: dict[int, int] = {}
        sessions: dict[int | str, int] = {}
        tenants: dict[str, str] = {}
        for record in stream.records():
            prompt = record.prompt
            if prompt is not None:
                prompt = tuple((_number(segment, texts), start, length) for segment, start, length in prompt)
            tenant = record.tenant
            yield record._replace(
                arrival_s=record.arrival_s - earliest_s,
                prompt=prompt,
                output_segment=_number(record.output_segment, texts),
                session=_number(record.session, sessions),
                tenant=None if tenant is None else tenants.setdefault(tenant, f"tenant-{len(tenants)}"),
            )
        notes += stream.notes

    return replace(stream, source="anonymised", read=read, notes=[])


def _number(name: int | str | None, known: dict) -> int | None:
    if name is None:
        return None
    number: int = known.setdefault(name, len(known))
    return number


def _draw(stream: Stream, num_sessions: int, seed: int) -> set[int | str]:
    found: dict[int | str, None] = {}
    for record in stream.records():
        if record.session is not None:
            found[record.session] = None
    if len(found) < num_sessions:
        has = counted(len(found), "session")
        raise InputError(f"--sessions: the trace has {has}, expected at least {num_sessions:,}")
    return set(random.Random(seed).sample(list(found), num_sessions))  # noqa: S311 - a sample, not a secret
