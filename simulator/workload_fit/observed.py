"""A trace as threads: which request goes on where which earlier one was, what it keeps and what it adds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.counts import counted
from simulator.errors import InputError
from simulator.request import Prompt
from simulator.trace_tools.tree import PrefixTree, joined
from simulator.workload.records import Record, Trace

FEWEST_REQUESTS = 200  # tables of fewer would be their noise
_COMMON_SHARE = 0.98  # of the requests begin with it: a few may be shorter than it, or of other kinds
_HEAD_SHARE, _FEWEST_READERS, _MOST_HEADS = 0.02, 20, 24


@dataclass(frozen=True)
class Observed:
    """The requests of a trace in order of arrival, as arrays with one entry each.

    ``parent`` is the request that goes before in the thread (-1: none, it begins one), ``turn`` how many do, and
    ``kept`` the tokens of its prompt that this prompt begins with, in whole blocks of ``block_tokens``. ``head`` is the
    place in ``heads`` (tokens from a prompt's start) of the popular text that the prompt begins with, -1 where it is no
    more than the ``common_tokens``.
    """

    block_tokens: int
    common_tokens: int
    heads: tuple[int, ...]
    times_s: np.ndarray
    num_tokens: np.ndarray
    num_outputs: np.ndarray
    parent: np.ndarray
    turn: np.ndarray
    kept: np.ndarray
    head: np.ndarray

    @property
    def head_tokens(self) -> np.ndarray:
        """Tokens that a request's prompt begins with and that belong to no thread."""
        return np.array([*self.heads, self.common_tokens])[self.head]

    @property
    def is_hidden(self) -> np.ndarray:
        """Requests without a whole block of a thread's: none of a thread's others could be known by them."""
        return np.asarray(self.num_tokens // self.block_tokens <= self.head_tokens // self.block_tokens)

    @property
    def goes_on(self) -> np.ndarray:
        """The first request that follows each, or -1."""
        child = np.full(self.parent.size, -1)
        later = np.flatnonzero(self.parent >= 0)[::-1]
        child[self.parent[later]] = later
        return child


def read(trace: Trace, path: object) -> list[Record]:
    """The records in order of arrival. Raises InputError where they have no common clock."""
    if trace.sessions_start_together:
        raise InputError(f"{path}: times are per session, expected a trace in which all requests have one clock")
    records = [record for _, record in trace.records()]
    records.sort(key=lambda record: record.arrival_s)
    return records


def check_texts(records: Sequence[Record], path: object, format_: str) -> None:
    """Raise InputError where some do not tell their text."""
    if unknown := sum(record.prompt is None for record in records):
        raise InputError(
            f"{path}: {unknown:,} of {counted(len(records), 'request')} without a word on the text they "
            f"share, expected prompts as blocks or texts (format {format_})"
        )


def check_enough(records: Sequence[Record], path: object) -> None:
    """Raise InputError for what is too little to fit to."""
    if len(records) < FEWEST_REQUESTS:
        raise InputError(f"{path}: {counted(len(records), 'request')}, expected at least {FEWEST_REQUESTS} to fit to")
    if records[-1].arrival_s == records[0].arrival_s:
        raise InputError(f"{path}: all requests come at once, expected times of arrival")


def observe(records: Sequence[Record], block_tokens: int) -> Observed:
    """Cut the records (in order of arrival, all with prompts) into threads.

    A request goes on where the last one was that read the deepest token which it shares; it begins a thread if it
    shares no more whole blocks than its head has.
    """
    prompts = [record.prompt or () for record in records]
    common, heads, head = _heads(prompts)
    starts = np.array([*heads, common])[head] // block_tokens
    tree = PrefixTree()
    parent, turn, kept = (np.full(len(records), value) for value in (-1, 0, 0))
    for number, prompt in enumerate(prompts):
        visit = tree.visit(prompt)
        seen = visit.seen // block_tokens
        if seen > starts[number]:
            # The reader of the last whole block, not of the rest behind it.
            before = next(who for who, _, end in visit.spans if end >= seen * block_tokens)
            parent[number], turn[number], kept[number] = before, turn[before] + 1, seen * block_tokens
            if visit.seen == records[number].num_prompt_tokens:
                kept[number] = visit.seen
    return Observed(
        block_tokens=block_tokens,
        common_tokens=common,
        heads=heads,
        times_s=np.array([record.arrival_s for record in records]) - records[0].arrival_s,
        num_tokens=np.array([record.num_prompt_tokens for record in records]),
        num_outputs=np.array([record.num_output_tokens for record in records]),
        parent=parent,
        turn=turn,
        kept=kept,
        head=head,
    )


def _heads(prompts: Sequence[Prompt]) -> tuple[int, tuple[int, ...], np.ndarray]:
    """Tokens of the common text and of popular ones (from a prompt's start), and which of these each prompt has."""
    tree = PrefixTree()
    for prompt in prompts:
        tree.visit(prompt)
    prefixes = tree.prefixes()
    common = max((one.num_tokens for one in prefixes if one.num_requests >= _COMMON_SHARE * len(prompts)), default=0)
    fewest = max(_FEWEST_READERS, _HEAD_SHARE * len(prompts))
    popular = sorted((one for one in prefixes if one.num_tokens > common and one.num_requests >= fewest),
                     key=lambda one: -one.num_saved)[:_MOST_HEADS]  # fmt: skip
    depths = sorted({one.num_tokens for one in popular}, reverse=True)
    begun = [[_front(prompt, depth) for depth in depths] for prompt in prompts]
    readers = Counter(text for texts in begun for text in texts if text is not None)
    places = {text: place for place, text in enumerate(text for text, number in readers.items() if number >= fewest)}
    head = [next((places[text] for text in texts if text in places), -1) for texts in begun]
    lengths = [sum(length for _, _, length in text) for text in places]
    return common, tuple(lengths), np.array(head)


def _front(prompt: Prompt, num_tokens: int) -> Prompt | None:
    """The first ``num_tokens`` tokens, the same for the same text; None where there are fewer that have a name."""
    runs = []
    for segment, start, length in joined(prompt):
        runs.append((segment, start, min(length, num_tokens)))
        num_tokens -= length
        if num_tokens <= 0:
            return tuple(runs)
    return None
