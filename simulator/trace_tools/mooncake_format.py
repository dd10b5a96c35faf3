"""A trace as Mooncake's JSON lines, for tools that read those: hash ids of 512-token blocks, and nothing else.

A block is named by all tokens from the start of the prompt to its end, as in Mooncake's own files. Nothing is invented:
tokens that the file does not name get ids of their own.
"""

from __future__ import annotations

import json
import tempfile
from array import array
from collections.abc import Iterator
from itertools import count

import numpy as np

from simulator.counts import counted
from simulator.prefix import PRIVATE, Prefixes
from simulator.request import Prompt
from simulator.trace_tools.stream import Stream
from simulator.workload.mooncake import BLOCK_TOKENS
from simulator.workload.records import Record


def mooncake_lines(stream: Stream) -> Iterator[str]:
    """The lines of a file, by time. Reads the stream twice; notes say what was lost on the way."""
    look = _Look(stream)
    ids = _KeptIds() if look.keeps_ids else _NewIds()
    lines = (_line(record, ids) for record in stream.records())
    yield from lines if look.ordered else _by_time(lines, look.times)
    stream.notes += look.notes()


def _line(record: Record, ids: _KeptIds | _NewIds) -> str:
    return json.dumps({
        "timestamp": round(record.arrival_s * 1000),
        "input_length": max(1, record.num_prompt_tokens),
        "output_length": max(1, record.num_output_tokens),
        "hash_ids": ids.of(record),
    })  # fmt: skip


class _KeptIds:
    """The ids of a file whose segments are blocks of 512 tokens: those segments."""

    def of(self, record: Record) -> list[int]:
        assert record.prompt is not None
        return [segment for segment, _, _ in record.prompt]  # type: ignore[misc] # none is None: see _Look


class _NewIds:
    """Numbers blocks in order of appearance."""

    def __init__(self) -> None:
        self._prefixes = Prefixes(BLOCK_TOKENS)
        self._ids: dict[int, int] = {}
        self._next = count()

    def of(self, record: Record) -> list[int]:
        length = max(1, record.num_prompt_tokens)
        prompt = record.prompt or ((None, 0, length),)
        keys, end = self._prefixes.keys(prompt)
        if length % BLOCK_TOKENS:
            keys.append(end)
        return [self._id_of(key) for key in keys]

    def _id_of(self, key: int) -> int:
        if key >= PRIVATE:
            return next(self._next)  # nobody can ask for it again
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = next(self._next)
        return found


class _Look:
    """A first reading: whether times go up, whether ids can stay as they are, and what Mooncake's format cannot say."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.times = array("d")
        self.ordered = True
        self.keeps_ids = stream.block_tokens == BLOCK_TOKENS
        self._num_rounded = self._num_unknown = self._num_raised = 0
        self._with = dict.fromkeys(("sessions", "delays after the turn before", "tenants", "texts of answers"), False)
        self._blocks: dict[int, tuple[int | None, int]] = {}
        for record in stream.records():
            self._see(record)

    def _see(self, record: Record) -> None:
        if self.times and record.arrival_s < self.times[-1]:
            self.ordered = False
        self.times.append(record.arrival_s)
        self._num_rounded += abs(record.arrival_s - round(record.arrival_s, 3)) > 1e-9
        self._num_raised += record.num_output_tokens < 1 or record.num_prompt_tokens < 1
        self._num_unknown += record.prompt is None
        for name, value in zip(
            self._with, (record.session, record.after_s, record.tenant, record.output_segment), strict=True
        ):
            if value is not None:
                self._with[name] = True
        self.keeps_ids = self.keeps_ids and record.prompt is not None and self._are_blocks(record.prompt)

    def _are_blocks(self, prompt: Prompt) -> bool:
        """Whether each run is a block, under a name that always means so many tokens after the same blocks."""
        before = None
        for index, (segment, start, length) in enumerate(prompt, start=1):
            if segment is None or start or (length != BLOCK_TOKENS and index < len(prompt)) or length > BLOCK_TOKENS:
                return False
            if self._blocks.setdefault(segment, (before, length)) != (before, length):
                return False
            before = segment
        return bool(prompt)

    def notes(self) -> Iterator[str]:
        lost = [name for name, found in self._with.items() if found]
        if lost:
            yield f"lost, since Mooncake's format has no place for it: {', '.join(lost)}"
        if self._stream.sessions_start_together:
            yield "all sessions start at 0 s: the file does not say when they do, and Mooncake's format must"
        elif not self.ordered:
            yield "requests are sorted by time"
        if self._num_rounded:
            yield f"rounded to milliseconds: {counted(self._num_rounded, 'time')}"
        if self._num_raised:
            yield f"written with one token, the least there: {counted(self._num_raised, 'empty prompt or answer')}"
        if self._num_unknown:
            yield f"written as sharing nothing: {counted(self._num_unknown, 'prompt')} of unknown text"
        if (self._stream.block_tokens or 0) % BLOCK_TOKENS:
            yield f"what prompts share is kept in whole blocks of {BLOCK_TOKENS} tokens"


def _by_time(lines: Iterator[str], times: array[float]) -> Iterator[str]:
    """The lines in order of ``times``; they wait on disk, so memory does not grow with their length."""
    with tempfile.TemporaryFile() as waiting:
        ends = array("q", [0])
        for line in lines:
            waiting.write(line.encode())
            ends.append(waiting.tell())
        for index in np.argsort(np.array(times), kind="stable").tolist():
            waiting.seek(ends[index])
            yield waiting.read(ends[index + 1] - ends[index]).decode()
