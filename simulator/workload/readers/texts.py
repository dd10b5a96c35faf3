"""Which texts begin alike, token by token: a radix tree of all prompts so far.

The common beginning of two prompts gets the same runs, whatever its length; a text found elsewhere than at the
beginning is another one. The tree keeps each distinct token once, in four bytes or characters, and about a kilobyte a
branch.
"""

from __future__ import annotations

from typing import TypeAlias

from simulator.request import Prompt, Run

TOKEN_WIDTH = 4  # bytes of a token's number, or characters where there is no tokenizer

Tokens: TypeAlias = bytes | str  # TOKEN_WIDTH bytes or characters a token


class _Node:
    """An edge of the tree: tokens ``start`` to ``start + len(tokens) / TOKEN_WIDTH`` of a segment, and what follows."""

    __slots__ = ("children", "segment", "start", "tokens")

    def __init__(self, segment: int, start: int, tokens: Tokens) -> None:
        self.segment = segment
        self.start = start
        self.tokens = tokens
        self.children: dict[Tokens, _Node] = {}  # by their first token


class Texts:
    """Gives runs; segments count from 0, a new one for each prompt that begins like no other all along."""

    def __init__(self) -> None:
        self._root: dict[Tokens, _Node] = {}
        self._num_segments = 0

    def runs(self, tokens: Tokens) -> Prompt:
        """The prompt's runs. Its length must be a multiple of ``TOKEN_WIDTH``."""
        runs: list[Run] = []
        children, position, end = self._root, 0, len(tokens)
        while position < end:
            child = children.get(tokens[position : position + TOKEN_WIDTH])
            if child is None:
                child = children[tokens[position : position + TOKEN_WIDTH]] = _Node(
                    self._num_segments, 0, tokens[position:]
                )
                self._num_segments += 1
            common = _common(child.tokens, tokens, position)
            if common < len(child.tokens) and position + common < end:
                _split(child, common)
            _append(runs, (child.segment, child.start, common // TOKEN_WIDTH))
            children, position = child.children, position + common
        return tuple(runs)


def _append(runs: list[Run], run: Run) -> None:
    """Add a run, or make the last one longer where it goes on."""
    if runs and runs[-1][0] == run[0] and runs[-1][1] + runs[-1][2] == run[1]:
        runs[-1] = (run[0], runs[-1][1], runs[-1][2] + run[2])
    else:
        runs.append(run)


def _common(edge: Tokens, tokens: Tokens, position: int) -> int:
    """How far ``tokens`` from ``position`` on goes along the edge; a multiple of ``TOKEN_WIDTH``."""
    longest = min(len(edge), len(tokens) - position)
    if edge[:longest] == tokens[position : position + longest]:
        return longest
    low, high = 0, longest // TOKEN_WIDTH  # equal up to low tokens, not up to high
    while high - low > 1:
        middle = (low + high) // 2
        if edge[: middle * TOKEN_WIDTH] == tokens[position : position + middle * TOKEN_WIDTH]:
            low = middle
        else:
            high = middle
    return low * TOKEN_WIDTH


def _split(node: _Node, at: int) -> None:
    """Cut the edge in two, so that something else can follow its first part."""
    rest = _Node(node.segment, node.start + at // TOKEN_WIDTH, node.tokens[at:])
    rest.children = node.children
    node.tokens, node.children = node.tokens[:at], {rest.tokens[:TOKEN_WIDTH]: rest}
