"""All prompts of a trace as one tree of token runs, grown a request at a time.

A node is "this segment, from this offset, after exactly these tokens", as a chain in `simulator.prefix`: equal paths
are equal texts. Whoever visits a node reads it from its front, so a few numbers a node tell all that is asked (how far
anyone has read, how far two have, who read a token last), whatever the size of a block. Time is one step a run of a
prompt and memory grows with the distinct runs; how many tokens a run has does not matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from simulator.request import Prompt, Run

_OFFSET_BITS = 40
_OFFSET = (1 << _OFFSET_BITS) - 1
_SHARED = 2

Span = tuple[int, int, int]
"""(visit, start, end): of the prompt's tokens from ``start`` to ``end``, that visit was the last one before this."""


class Visit(NamedTuple):
    """What a prompt met: ``seen`` of its first tokens were in an earlier prompt, ``seen_twice`` in two or more.

    ``spans`` cut the ``seen`` tokens by who read them last: the further from the start, the longer ago.
    """

    seen: int
    seen_twice: int
    spans: list[Span]


class Prefix(NamedTuple):
    """The first ``num_tokens`` tokens of ``num_requests`` prompts.

    ``num_saved`` are the tokens of its last part (beyond the next more popular prefix) that a boundless cache need not
    compute again.
    """

    num_tokens: int
    num_requests: int
    num_saved: int


class PrefixTree:
    """The runs of all prompts so far. Runs whose segment is None, and what follows them, are nobody else's."""

    def __init__(self) -> None:
        self.num_visits = 0
        self._nodes: dict[tuple[int, int, int], int] = {}
        # By node: tokens that one visit has read, that two have, and how many visits.
        self._longest: list[int] = [0]
        self._second: list[int] = [0]
        self._visits: list[int] = [0]
        self._shorter: dict[int, dict[int, int]] = {}  # node -> tokens -> visits that read so many: less than others
        # The last visit of the node's tokens: one number where the same for all, else [(tokens, visit)], in which
        # tokens fall and visits rise.
        self._last: list[int | list[tuple[int, int]]] = [-1]

    def visit(self, prompt: Prompt) -> Visit:
        """Add a prompt and say what of it was there before."""
        number, nodes = self.num_visits, self._nodes
        self.num_visits += 1
        spans: list[Span] = []
        position = depth = seen = twice = 0
        runs = iter(joined(prompt))
        for segment, start, length in runs:
            node = nodes.get((position, segment, start))
            if node is None:
                self._grow(position, (segment, start, length), number)
                for run in runs:  # nobody was here before: what follows is new as well
                    position = (len(self._longest) - 1 << _OFFSET_BITS) + length
                    self._grow(position, run, number)
                    length = run[2]
                break
            self._visits[node] += 1
            longest = self._longest[node]
            seen = depth + min(length, longest)
            if second := self._second[node]:
                twice = depth + min(length, second)
            last = self._last[node]
            if length == longest and type(last) is int:
                self._second[node] = length
                if spans and spans[-1][0] == last:
                    spans[-1] = (last, spans[-1][1], seen)
                else:
                    spans.append((last, depth, seen))
                self._last[node] = number
            else:
                self._read(node, length, number, depth, spans)
            position = (node << _OFFSET_BITS) + length
            depth += length
        return Visit(seen, twice, spans)

    def spans(self, prompt: Prompt) -> list[Span]:
        """The spans that ``visit`` would tell of, without adding the prompt; neighbours may be of one visit."""
        nodes, spans = self._nodes, []
        position = depth = 0
        for segment, start, length in joined(prompt):
            node = nodes.get((position, segment, start))
            if node is None:
                break
            last, begin = self._last[node], 0
            for end, who in reversed(last) if isinstance(last, list) else ((self._longest[node], last),):
                if begin < length:
                    spans.append((who, depth + begin, depth + min(end, length)))
                begin = end
            position = (node << _OFFSET_BITS) + length
            depth += length
        return spans

    def rare_parts(self, prompt: Prompt, limits: Sequence[int]) -> list[int | None]:
        """For each of the falling ``limits`` a number for the first part of an added prompt that no more prompts have
        begun, the same for all that have it; None where there is none such.
        """
        found: list[int | None] = []
        position = 0
        for segment, start, length in joined(prompt):
            node = self._nodes[position, segment, start]
            while self._visits[node] <= limits[len(found)]:
                found.append(node)
                if len(found) == len(limits):
                    return found
            position = (node << _OFFSET_BITS) + length
        return found + [None] * (len(limits) - len(found))

    def num_common_tokens(self, most: int) -> int:
        """Tokens of the parts that more than ``most`` prompts have begun."""
        lengths = zip(self._visits, self._longest, strict=True)
        return sum(length for visits, length in lengths if visits > most)

    def prefixes(self) -> list[Prefix]:
        """Every text from the start of a prompt that two requests or more have, each as far as all of them have it."""
        depths = [0] * len(self._longest)
        found: list[Prefix] = []
        ends: dict[int, int] = {}  # position -> the prefix that ends there
        for (position, _, _), node in self._nodes.items():  # a node comes after the one before it
            depth = depths[node] = depths[position >> _OFFSET_BITS] + (position & _OFFSET)
            place, num_before = ends.get(position, -1), 0
            for length, readers in self._readers(node):
                if place < 0 or found[place].num_requests != readers:
                    place = len(found)
                    found.append(Prefix(0, readers, 0))
                saved = found[place].num_saved + (length - num_before) * (readers - 1)
                found[place] = Prefix(depth + length, readers, saved)
                ends[(node << _OFFSET_BITS) + length] = place
                num_before = length
        return found

    def _readers(self, node: int) -> Iterator[tuple[int, int]]:
        """(tokens, visits that read as many or more), for each length that some visit read; down to two visits."""
        readers = self._visits[node]
        for length, num in sorted(self._shorter.get(node, {}).items()):
            if readers < _SHARED:
                return
            yield length, readers
            readers -= num
        if readers >= _SHARED:
            yield self._longest[node], readers

    def _grow(self, position: int, run: tuple[int, int, int], number: int) -> None:
        segment, start, length = run
        self._nodes[position, segment, start] = len(self._longest)
        self._longest.append(length)
        self._second.append(0)
        self._visits.append(1)
        self._last.append(number)

    def _read(self, node: int, length: int, number: int, depth: int, spans: list[Span]) -> None:
        """A visit of ``length`` tokens to a node whose tokens differ in who read them last, or will from now on."""
        longest, last = self._longest[node], self._last[node]
        lasts = [(longest, last)] if isinstance(last, int) else last
        begin = 0
        while lasts and lasts[-1][0] <= length:
            end, who = lasts.pop()
            spans.append((who, depth + begin, depth + end))
            begin = end
        if lasts and begin < length:
            spans.append((lasts[-1][1], depth + begin, depth + length))
        lasts.append((length, number))
        self._last[node] = lasts if len(lasts) > 1 else number
        if length != longest:
            shorter = self._shorter.setdefault(node, {})
            if length > longest:
                # All visits before this one that were not shorter were just so long.
                shorter[longest] = self._visits[node] - 1 - sum(shorter.values())
                self._longest[node] = length
            else:
                shorter[length] = shorter.get(length, 0) + 1
        self._second[node] = max(self._second[node], min(length, longest))


def joined(prompt: Prompt) -> Iterator[tuple[int, int, int]]:
    """The runs before the first unnamed one; a run that goes on where the one before stopped is the same run."""
    segment, begin, expected = None, 0, -1
    run: Run
    for run in prompt:
        if not run[2]:
            continue
        if run[0] == segment and run[1] == expected and segment is not None:
            expected += run[2]
            continue
        if segment is not None:
            yield segment, begin, expected - begin
        segment, begin, length = run
        if segment is None:
            return
        expected = begin + length
    if segment is not None:
        yield segment, begin, expected - begin
