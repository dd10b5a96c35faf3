"""Prompts drawn for routers' own indexes, and the same prompts token by token."""

from __future__ import annotations

from itertools import count

from hypothesis import strategies as st

from simulator.request import Prompt, Request

_numbers = count()

# Few texts, begun at few places: prompts share beginnings, and runs end in the middle of each other.
runs = st.tuples(st.sampled_from([0, 1, 2, None]), st.sampled_from([0, 0, 0, 2]), st.integers(1, 6))
prompts = st.lists(runs, min_size=1, max_size=5).map(tuple)
# Texts are only ever sent whole: run k has k + 1 tokens.
whole = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(lambda path: tuple((k, 0, k + 1) for k in path))


def asks(prompt: Prompt) -> Request:
    """A request with this prompt."""
    num_tokens = sum(length for _, _, length in prompt)
    return Request(
        request_id=next(_numbers),
        arrival_s=0.0,
        prompt=prompt,
        num_prompt_tokens=num_tokens,
        max_tokens=1,
        oracle_num_output_tokens=1,
    )


def tokens(request: Request) -> list[tuple]:
    """The prompt token by token; private ones are nobody else's."""
    found: list[tuple] = []
    for segment, start, length in request.prompt:
        for i in range(length):
            found.append((request.request_id, len(found)) if segment is None else (segment, start + i, "text"))
    return found


def common(first: list[tuple], second: list[tuple]) -> int:
    """How many leading tokens two prompts share."""
    for i, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return i
    return min(len(first), len(second))
