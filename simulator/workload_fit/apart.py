"""What tenants of one file lose when each has a generator of its own: text of each other, and when they came."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from simulator.trace_tools.tree import PrefixTree
from simulator.workload.records import Record
from simulator.workload_fit.parts import Part, percent, some

_LATE = 0.1  # of the file's span


def borrowed_tokens(records: Sequence[Record], parts: Sequence[Part], block_tokens: int) -> list[int]:
    """For each part: tokens of its prompts that a boundless cache has from other senders' requests and not from its
    own, in whole blocks, at least one token of a prompt being computed. ``records`` are all of the file, by arrival.
    """
    part_of = {tenant: number for number, part in enumerate(parts) for tenant in part.tenants}
    if len(parts) == 1 and all(record.tenant in part_of for record in records):
        return [0]
    everyone, own = PrefixTree(), [PrefixTree() for _ in parts]
    found = [0] * len(parts)
    for record in records:
        prompt = record.prompt or ()
        seen = everyone.visit(prompt).seen
        if (number := part_of.get(record.tenant)) is not None:
            most = record.num_prompt_tokens - 1
            alone = min(own[number].visit(prompt).seen, most) // block_tokens
            found[number] += (min(seen, most) // block_tokens - alone) * block_tokens
    return found


def notes(records: Sequence[Record], parts: Sequence[Part], block_tokens: int) -> Iterator[str]:
    """Lines on what is lost, where anything is. ``records`` are all of the file, in order of arrival."""
    borrowed = borrowed_tokens(records, parts, block_tokens)
    if any(borrowed):
        tokens = [sum(record.num_prompt_tokens for record in part.records) for part in parts]
        each = [
            f"{part.name} {percent(lost / all_)}"
            for part, lost, all_ in zip(parts, borrowed, tokens, strict=True) if lost
        ]  # fmt: skip
        share = f"{percent(sum(borrowed) / sum(tokens))} of the prompt tokens"
        named, kept = (f" ({some(each)})", " (--as-one keeps them)") if len(parts) > 1 else ("", "")
        yield (
            f"Lost: {share}{named} had been sent before by other tenants only: hits of a cache without bound that "
            f"generators, which share no text, do not have{kept}."
        )
    if len(parts) > 1:
        yield from _not_all_the_time(records, parts)


def _not_all_the_time(records: Sequence[Record], parts: Sequence[Part]) -> Iterator[str]:
    first_s, last_s = records[0].arrival_s, records[-1].arrival_s
    most_s = _LATE * (last_s - first_s)
    found = [
        f"{part.name} from {part.records[0].arrival_s - first_s:,.0f} to {part.records[-1].arrival_s - first_s:,.0f} s"
        for part in parts
        if part.records[0].arrival_s - first_s > most_s or last_s - part.records[-1].arrival_s > most_s
    ]
    if found:
        yield f"Lost: who sends when (of {last_s - first_s:,.0f} s: {some(found)}); all generators start at 0 s."

