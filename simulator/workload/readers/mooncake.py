"""Mooncake's traces (FAST 2025), by the same rules as their fast replay in ``workload.mooncake``.

Every block has an id, the last, partial one too, and an id is a segment. Timestamps that go back are kept here (the
replay refuses them), so that they can be counted.
"""

from __future__ import annotations

from collections.abc import Callable

from simulator.errors import InputError
from simulator.workload import mooncake
from simulator.workload.mooncake import BLOCK_TOKENS
from simulator.workload.readers.reading import LineTrace, Unusable
from simulator.workload.readers.recognition import Head
from simulator.workload.records import Record

KEYS = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})


class Mooncake(LineTrace):
    """See the module."""

    format = "mooncake"
    description = "Mooncake's JSON lines: timestamp (ms), input_length, output_length, hash_ids of 512 tokens"
    block_tokens = BLOCK_TOKENS
    in_order = True

    @classmethod
    def recognises(cls, head: Head) -> bool:
        """Mooncake's keys, and as many ids as its rule demands."""
        return looks_like_mooncake(head) and is_whole(head.first)

    def _parser(self) -> Callable[[bytes], Record]:
        first: int | None = None

        def parse(line: bytes) -> Record:
            nonlocal first
            try:
                timestamp, record = mooncake.parse(line)
            except InputError as error:
                raise Unusable(str(error)) from error
            if first is None:
                first = timestamp
            return Record(
                (timestamp - first) / 1000, record.input_length, record.output_length, mooncake.prompt(record, 0)
            )

        return parse


def looks_like_mooncake(head: Head) -> bool:
    """Its keys, and none by which others tell sessions."""
    return head.keys >= KEYS and not head.keys & {"session_id", "chat_id", "request_id"}


def is_whole(fields: dict | None) -> bool:
    """Whether each begun block of 512 tokens has an id; so it is taken where no line can be read."""
    if fields is None:
        return True
    ids, length = fields["hash_ids"], fields["input_length"]
    return type(ids) is list and type(length) is int and len(ids) == -(-length // BLOCK_TOKENS)
