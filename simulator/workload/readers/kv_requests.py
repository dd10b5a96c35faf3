"""Stored blocks -> the requests that stored them; see ``kv_events`` for the rules and their traps."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from simulator.request import Prompt
from simulator.workload.readers.fields import MAX_TOKENS, shown
from simulator.workload.readers.reading import Unusable
from simulator.workload.records import Record

Hash: TypeAlias = int | str


class Stored(NamedTuple):
    """Blocks that one request stored after ``parent``, in order."""

    hashes: list[Hash]
    parent: Hash | None
    block_tokens: int
    lora: str | None


class _Text:
    """Blocks that follow one another: a segment, after ``before``."""

    __slots__ = ("before", "num_before", "num_blocks", "segment")

    def __init__(self, segment: int, before: Prompt) -> None:
        self.segment = segment
        self.before = before
        self.num_before = sum(length for _, _, length in before)
        self.num_blocks = 0


class _Open:
    """A request that may go on after its newest block, ``tip``."""

    __slots__ = ("answer_segment", "arrival_s", "last_s", "line", "lora", "num_answer", "prompt", "tip")

    def __init__(self, line: int, arrival_s: float, stored: Stored) -> None:
        self.line = line
        self.arrival_s = self.last_s = arrival_s
        self.lora = stored.lora
        self.prompt: Prompt = ()
        self.num_answer = 0
        self.answer_segment: int | None = None
        self.tip = stored.hashes[-1]

    def record(self) -> Record:
        num_prompt = sum(length for _, _, length in self.prompt)
        return Record(
            self.arrival_s, num_prompt, max(1, self.num_answer), self.prompt, tenant=self.lora,
            output_segment=self.answer_segment,
        )  # fmt: skip


class Requests:
    """Puts events together. Requests come out in order of arrival; one that goes on holds back those after it."""

    def __init__(self, gap_s: float) -> None:
        self._gap_s = gap_s
        self._first_s = 0.0
        self._last_s: float | None = None
        self._block_tokens = 0
        self._found: dict[Hash, tuple[_Text, int]] = {}  # block -> its text, and how many of its blocks end with it
        self._num_texts = 0
        self._open: dict[Hash, _Open] = {}  # by newest block
        self._queue: deque[_Open] = deque()

    def add(self, line: int, time_s: float, stored: Stored) -> None:
        """Take in one event. Raises Unusable for one whose beginning is not known, or that does not fit the others."""
        self._check(time_s, stored)
        if self._last_s is None:
            self._first_s, self._block_tokens = time_s, stored.block_tokens
        self._last_s = time_s
        arrival_s = time_s - self._first_s
        request = self._continued(stored, arrival_s)
        is_answer = request is not None and len(stored.hashes) == 1
        if request is None:
            request = _Open(line, arrival_s, stored)
            self._queue.append(request)
        segment = self._place(stored, is_new=is_answer and not request.num_answer)
        if is_answer:
            if not request.num_answer:
                request.answer_segment = segment
            request.num_answer += stored.block_tokens
        else:
            request.prompt = self._runs(stored.hashes[-1])
        request.tip, request.last_s = stored.hashes[-1], arrival_s
        self._open[request.tip] = request

    def end_all(self) -> None:
        """Nothing goes on."""
        self._open.clear()

    def ended(self, time_s: float) -> Iterator[tuple[int, Record]]:
        """The requests that cannot go on at ``time_s``, with their lines, as long as none before them can."""
        now_s = time_s - self._first_s
        while self._queue:
            request = self._queue[0]
            if self._open.get(request.tip) is request:
                if now_s - request.last_s <= self._gap_s:
                    return
                del self._open[request.tip]
            self._queue.popleft()
            yield request.line, request.record()

    def _check(self, time_s: float, stored: Stored) -> None:
        if self._last_s is not None:
            if time_s < self._last_s:
                raise Unusable(f"ts is {time_s}, expected no earlier than {self._last_s} before it")
            if stored.block_tokens != self._block_tokens:
                raise Unusable(f"block_size is {stored.block_tokens}, expected {self._block_tokens} as before")
        num_tokens = len(stored.hashes) * stored.block_tokens
        if stored.parent is not None:
            if stored.parent not in self._found:
                raise Unusable(f"parent {shown(stored.parent)} is unknown, expected a recording from an empty cache")
            text, num_blocks = self._found[stored.parent]
            num_tokens += text.num_before + num_blocks * stored.block_tokens
        if num_tokens > MAX_TOKENS:
            raise Unusable(f"a prompt of {num_tokens} tokens, expected <= {MAX_TOKENS}")

    def _continued(self, stored: Stored, arrival_s: float) -> _Open | None:
        """The request that these blocks continue. Where others begin after its answer, it ends."""
        request = None if stored.parent is None else self._open.get(stored.parent)
        if request is None or request.lora != stored.lora:
            return None
        del self._open[request.tip]
        is_over = arrival_s - request.last_s > self._gap_s
        return None if is_over or (request.num_answer and len(stored.hashes) > 1) else request

    def _place(self, stored: Stored, *, is_new: bool) -> int | None:
        """Give each new block its place; ``is_new``: in a text of its own, whose segment is returned."""
        segment: int | None = None
        before = None if stored.parent is None else self._found[stored.parent]
        for hash_ in stored.hashes:
            place = self._found.get(hash_)
            if place is None:
                if before is None or is_new or before[1] != before[0].num_blocks:
                    before = (_Text(self._num_texts, () if before is None else self._runs_to(before)), 0)
                    self._num_texts += 1
                    segment, is_new = (before[0].segment if is_new else None), False
                text = before[0]
                text.num_blocks += 1
                place = self._found[hash_] = (text, text.num_blocks)
            before = place
        return segment

    def _runs(self, hash_: Hash) -> Prompt:
        return self._runs_to(self._found[hash_])

    def _runs_to(self, place: tuple[_Text, int]) -> Prompt:
        text, num_blocks = place
        return (*text.before, (text.segment, 0, num_blocks * self._block_tokens))
