"""Qwen-Bailian's anonymous traces (Alibaba; Wang et al., "KVCache Cache in the Wild", USENIX ATC 2025).

Format: alibaba-edu/qwen-bailian-usagetraces-anon. ``timestamp`` is seconds, ``hash_ids`` name the prompt's 16-token
blocks by their own content (not by what comes before), so an id is a segment. ``parent_chat_id`` names the request
that this one follows, -1 none: a session is what hangs together, and is named after its first request. The request's
``type`` (text, search, image, file) stands as its tenant. How long clients waited is not recorded.
"""

from __future__ import annotations

from collections.abc import Callable

from simulator.workload.readers.blocks import check_count, ids_of, segments
from simulator.workload.readers.fields import json_object, number, text, tokens, whole
from simulator.workload.readers.reading import LineTrace
from simulator.workload.readers.recognition import Head
from simulator.workload.records import Record

BLOCK_TOKENS = 16


class Bailian(LineTrace):
    """See the module."""

    format = "bailian"
    description = "Qwen-Bailian's JSON lines: chat_id, parent_chat_id, timestamp (s), type, hash_ids of 16 tokens"
    block_tokens = BLOCK_TOKENS
    may_have_sessions = True

    @classmethod
    def recognises(cls, head: Head) -> bool:
        """Its own keys."""
        return head.keys >= {"chat_id", "input_length", "output_length", "timestamp"}

    def _parser(self) -> Callable[[bytes], Record]:
        first: float | None = None
        chats: dict[int, tuple[int, int]] = {}  # chat -> its session, and its place in the file
        last_of: dict[int, int] = {}  # session -> place of its last request so far
        place = 0

        def parse(line: bytes) -> Record:
            nonlocal first, place
            fields = json_object(line)
            time_s = number(fields, "timestamp")
            num_prompt, num_output = tokens(fields, "input_length"), tokens(fields, "output_length")
            chat, follows = whole(fields, "chat_id"), whole({"parent_chat_id": -1, **fields}, "parent_chat_id", -1)
            prompt, kind = None, text(fields, "type")
            if "hash_ids" in fields:
                ids = ids_of(fields)
                check_count(len(ids), num_prompt, BLOCK_TOKENS)
                prompt = segments(ids, num_prompt, BLOCK_TOKENS)
            # Of a request before the file's first one only the name is known.
            session, parent = chats.get(follows, (follows, None)) if follows >= 0 else (chat, None)
            if parent == last_of.get(session):
                parent = None
            if first is None:
                first = time_s
            chats[chat] = session, place
            last_of[session] = place
            place += 1
            return Record(time_s - first, num_prompt, num_output, prompt, session, tenant=kind, parent=parent)

        return parse
