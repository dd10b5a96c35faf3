"""Mooncake's request traces (FAST 2025): one JSON object a line, prompts as hash ids of 512-token blocks.

Format: kvcache-ai/Mooncake, FAST25-release/traces. ``timestamp`` is milliseconds and never goes back, ``input_length``
and ``output_length`` are tokens, ``hash_ids`` names the prompt's blocks in order, the last of which may be partial. The
same id means the same block after the same prefix, so an id is a text of its own: a segment. Answers are not
identified. Further keys are ignored, as traces carry extras.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

from simulator.counts import counted
from simulator.errors import InputError
from simulator.request import Prompt
from simulator.workload.lines import numbered_lines
from simulator.workload.segments import SEGMENTS_PER_TENANT

BLOCK_TOKENS = 512
_TOO_LATE = 2**53  # ms: no float has every whole number from here on
_TOO_LONG = 2**28  # tokens: more than block keys can count (prefix.py)


class Record(NamedTuple):
    """One line: lengths in tokens, blocks by id."""

    input_length: int
    output_length: int
    hash_ids: list[int]


def read(path: Path) -> Iterator[tuple[float, Record]]:
    """Yield ``(seconds since the first timestamp, record)`` in file order.

    Raises InputError, with the line's number, for what is not such a line, and for an empty file.
    """
    first: int | None = None
    previous, previous_line = 0, 0
    for number, line in numbered_lines(path):
        timestamp, record = _parse(path, number, line)
        if first is None:
            first = timestamp
        elif timestamp < previous:
            raise InputError(
                f"{path}:{number}: timestamp {timestamp} is earlier than {previous} in line {previous_line}"
            )
        previous, previous_line = timestamp, number
        yield (timestamp - first) / 1000, record
    if first is None:
        raise InputError(f"{path}: the trace is empty")


def span_s(path: Path) -> float:
    """Seconds from the first timestamp to the last. Reads the whole file, and parses two lines of it.

    Raises InputError as ``read`` does.
    """
    first = last = None
    for last in numbered_lines(path):
        first = first or last
    if first is None or last is None:
        raise InputError(f"{path}: the trace is empty")
    return (_parse(path, *last)[0] - _parse(path, *first)[0]) / 1000


def prompt(record: Record, base: int) -> Prompt:
    """The record's prompt as runs; block ``k`` is segment ``base + k``."""
    ids = record.hash_ids
    runs = list(zip(map(base.__add__, ids), repeat(0), repeat(BLOCK_TOKENS), strict=False))
    runs[-1] = (base + ids[-1], 0, record.input_length - BLOCK_TOKENS * (len(ids) - 1))
    return tuple(runs)


def second_block(record: Record, base: int) -> int:
    """The session of a request, told by its second block; where there is only one, by that."""
    return base + record.hash_ids[min(1, len(record.hash_ids) - 1)]


def parse(line: bytes) -> tuple[int, Record]:
    """The timestamp (ms) and record of a line. Raises InputError, without the place, for what is not such a line."""
    try:
        fields = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"not JSON: {error.msg} (character {error.pos + 1})") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}") from error
    if type(fields) is not dict:
        raise InputError("not a JSON object")
    try:
        timestamp, ids = fields["timestamp"], fields["hash_ids"]
        record = Record(fields["input_length"], fields["output_length"], ids)
    except KeyError as error:
        raise InputError(f"key {error} is missing") from error
    # One chained comparison a line on the way of good lines; what exactly is wrong is found out afterwards. `type`, not
    # `isinstance`: true and false are no numbers here.
    if not (
        type(timestamp) is type(record.input_length) is type(record.output_length) is int
        and _TOO_LATE > timestamp >= 0 < record.output_length < _TOO_LONG
        and type(ids) is list
        and 0 < len(ids) == -(-record.input_length // BLOCK_TOKENS)
        and set(map(type, ids)) == {int}
        and min(ids) >= 0
        and max(ids) < SEGMENTS_PER_TENANT
    ):
        raise InputError(_complaint(timestamp, record))
    return timestamp, record


def _parse(path: Path, number: int, line: bytes) -> tuple[int, Record]:
    try:
        return parse(line)
    except InputError as error:
        raise InputError(f"{path}:{number}: {error}") from error


def _complaint(timestamp: Any, record: Record) -> str:
    for name, value, least in (
        ("timestamp", timestamp, 0),
        ("input_length", record.input_length, 1),
        ("output_length", record.output_length, 1),
    ):
        if type(value) is not int or value < least:
            return f"{name} is {reprlib.repr(value)}, expected a whole number >= {least}"
    if timestamp >= _TOO_LATE:
        return f"timestamp is {reprlib.repr(timestamp)}, expected milliseconds below 2^53"
    if record.output_length >= _TOO_LONG:
        return f"output_length is {reprlib.repr(record.output_length)}, expected less than 2^28 tokens"
    ids = record.hash_ids
    if type(ids) is not list:
        return f"hash_ids is {reprlib.repr(ids)}, expected a list"
    num_blocks = -(-record.input_length // BLOCK_TOKENS)
    if len(ids) != num_blocks:
        return (
            f"hash_ids has {len(ids)} for {counted(record.input_length, 'token')}, expected {num_blocks} (one each "
            f"{BLOCK_TOKENS})"
        )
    wrong = next(k for k in ids if type(k) is not int or not 0 <= k < SEGMENTS_PER_TENANT)
    return f"hash id {reprlib.repr(wrong)}, expected a whole number >= 0 and < {SEGMENTS_PER_TENANT}"
