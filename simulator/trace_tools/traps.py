"""What may mislead whoever replays a trace without looking, in words."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.counts import counted
from simulator.trace_tools.info import Info, Prompts

_NEARLY_ALL = 0.99


def traps(info: Info) -> list[str]:
    """One sentence each."""
    return [*_times(info), *_lengths(info), *_sessions(info), *_texts(info)]


def _times(info: Info) -> Iterator[str]:
    if info.sessions_start_together:
        yield (
            "Times count from the start of each session: the file does not say when sessions start, so it has no rate. "
            "Reuse is counted with one session after another, as in the file."
        )
    elif info.arrivals is not None and info.arrivals.lumped:
        found = info.arrivals
        tick = f" (about {found.tick_s:g} s apart)" if found.tick_s else ""
        yield (
            f"Timestamps are lumped: {counted(found.num_distinct_times, 'distinct value')} for {info.num_requests:,} "
            f"requests{tick}, so requests arrive in clumps of {info.num_requests / found.num_distinct_times:.1f}."
        )
    if info.num_unordered:
        whose = " of its session" if info.sessions_start_together else ""
        yield (
            f"Timestamps go back, first in line {info.first_unordered_line}: {counted(info.num_unordered, 'request')} "
            f"earlier than the one before{whose}."
        )


def _lengths(info: Info) -> Iterator[str]:
    for limit, num in info.num_longer.items():
        if num:
            yield (
                f"{counted(num, 'prompt')} ({num / info.num_requests:.1%}) longer than {limit // 1024}K tokens: "
                "a model's context may be shorter."
            )
    if info.output_tokens.least < 1:
        yield "Some requests have an answer of 0 tokens: failed or cancelled ones, perhaps."


def _sessions(info: Info) -> Iterator[str]:
    if info.sessions is not None and info.sessions.num_duplicates:
        yield (
            f"{counted(info.sessions.num_duplicates, 'session')} of {info.sessions.num_judged:,} with three turns or "
            "more, with the same lengths at the beginning as an earlier one: recordings of one session, perhaps."
        )


def _texts(info: Info) -> Iterator[str]:
    found = info.prompts
    if found is None:
        yield "The file says nothing of what prompts share: hit rates cannot be told from it."
        return
    if found.num_requests < info.num_requests:
        yield f"{counted(info.num_requests - found.num_requests, 'request')} without a word on the prompt's text."
    yield from _same_start(found)
    finer = [one.block_size for one in found.ideal if one.block_size % (info.block_tokens or 1)]
    if finer:
        yield (
            f"The file tells blocks of {info.block_tokens} tokens apart and nothing finer: hits in blocks of "
            f"{', '.join(map(str, finer))} {'tokens' if finer != [1] else 'token'} are a lower bound."
        )


def _same_start(found: Prompts) -> Iterator[str]:
    share = found.num_same_start / found.num_requests
    if share >= _NEARLY_ALL and found.num_requests > 1:
        who = "Every request starts" if share == 1 else f"{share:.1%} of the requests start"
        yield (
            f"{who} with the same {counted(found.reuse.block_size, 'token')}: a router that goes by the longest prefix "
            "alone sends all of them to one instance."
        )
