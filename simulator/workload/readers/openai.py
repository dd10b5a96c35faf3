"""Requests with their texts as JSON lines: OpenAI's batch files, logs, vLLM's custom data set, AIPerf's texts.

The prompt is ``messages``, ``prompt`` or ``text_input`` of the line or of its ``body``; a message is written as its
role, its text (images and such are left out) and its tool calls. The answer's length is the first found of
``output_tokens``, ``output_length``, ``usage.completion_tokens`` and, as a bound, ``max_completion_tokens`` and
``max_tokens``. When it came: ``arrival_s`` or ``created`` (seconds), ``timestamp_ms``, or ``timestamp``: a time like
2026-01-31T12:00:00Z or seconds (milliseconds in AIPerf's lines, those with ``text_input`` or ``output_length``).
Further ``session_id`` or ``conversation_id``, ``delay`` (milliseconds after the session's request before) and ``user``,
which stands as the tenant. Where the first line has no time, sessions have no common clock, and a request without a
session is one of its own.

``tokenizer`` is the path of a tokenizer.json (library ``tokenizers``); without it four characters are a token.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.workload.readers.fields import (
    MAX_TOKENS,
    Fields,
    json_object,
    name,
    number,
    optional_number,
    shown,
    text,
    tokens,
)
from simulator.workload.readers.reading import LineTrace, Unusable
from simulator.workload.readers.recognition import Head, read_head
from simulator.workload.readers.texts import TOKEN_WIDTH, Texts, Tokens
from simulator.workload.records import Record

_PROMPTS = ("messages", "prompt", "text_input")
_TIMES = ("arrival_s", "timestamp_ms", "timestamp", "created")


class OpenAi(LineTrace):
    """See the module."""

    format = "openai"
    description = "requests with texts as JSON lines: messages, prompt or text_input (a local tokenizer.json helps)"
    options = frozenset({"tokenizer"})
    block_tokens = 1
    may_have_sessions = True
    may_start_together = True

    def __init__(self, path: Path, *, strict: bool = False, tokenizer: Path | str | None = None) -> None:
        super().__init__(path, strict=strict)
        self._encode = _characters if tokenizer is None else _encoder(Path(tokenizer))
        if tokenizer is None:
            self.assumed = ("four characters are a token",)
        self.assumed += ("a message is its role and its text, without the model's chat template",)
        self.sessions_start_together = not _has_times(path)

    @classmethod
    def recognises(cls, head: Head) -> bool:
        """A prompt's text, in the line or in its body."""
        body = head.first.get("body") if type(head.first) is dict else None
        keys = head.keys | (set(body) if type(body) is dict else set())
        return bool(keys & set(_PROMPTS))

    def _parser(self) -> Callable[[bytes], Record]:
        texts, encode = Texts(), self._encode
        first_s: float | None = None
        last_s: dict[int | str, float] = {}
        place = 0

        def parse(line: bytes) -> Record:
            nonlocal first_s, place
            fields = json_object(line)
            time_s = _time_s(fields)
            session = name(fields, "session_id") or name(fields, "conversation_id")
            delay_ms = optional_number(fields, "delay", 0)
            follows = session is not None and session in last_s
            after_s = delay_ms / 1000 if delay_ms is not None and follows else None
            num_output, tenant = _num_output(fields), text(_body(fields), "user")
            content = encode(_prompt(fields))
            if not 0 < len(content) <= MAX_TOKENS * TOKEN_WIDTH:
                raise Unusable(f"a prompt of {len(content) // TOKEN_WIDTH} tokens, expected 1 to {MAX_TOKENS}")
            if time_s is None:
                time_s = (last_s[session] if session is not None and follows else 0.0) + (after_s or 0.0)
            else:
                if first_s is None:
                    first_s = time_s
                time_s -= first_s
            if session is not None:
                last_s[session] = time_s
            elif self.sessions_start_together:
                session = f"line {place}"
            place += 1
            runs = texts.runs(content)
            return Record(time_s, len(content) // TOKEN_WIDTH, num_output, runs, session, after_s, tenant)

        return parse


def _has_times(path: Path) -> bool:
    first = read_head(path).first
    return type(first) is dict and any(first.get(key) is not None for key in _TIMES)


def _body(fields: Fields) -> Fields:
    body = fields.get("body")
    return body if type(body) is dict else fields


def _prompt(fields: Fields) -> str:
    body = _body(fields)
    for key in _PROMPTS:
        content = body.get(key)
        if type(content) is str and content:
            return content
        if type(content) is list and content and all(type(part) is str for part in content):
            raise Unusable(f"{key} has {len(content)} prompts, expected one")
        if type(content) is list and content:
            return "".join(_message(message) for message in content)
    raise Unusable(f"no text, expected one of {', '.join(_PROMPTS)}")


def _message(message: Any) -> str:
    if type(message) is not dict or type(message.get("role")) is not str:
        raise Unusable(f"a message is {shown(message)}, expected an object with role and content")
    content = message.get("content")
    if type(content) is list:  # parts of several kinds
        parts = [part.get("text") for part in content if type(part) is dict]
        content = "".join(part for part in parts if type(part) is str)
    calls = message.get("tool_calls")
    spoken = content if type(content) is str else ""
    return f"{message['role']}\n{spoken}{json.dumps(calls) if calls else ''}\n"


def _num_output(fields: Fields) -> int:
    body, usage = _body(fields), fields.get("usage")
    for place, key in (
        (fields, "output_tokens"),
        (fields, "output_length"),
        (usage if type(usage) is dict else {}, "completion_tokens"),
        (body, "max_completion_tokens"),
        (body, "max_tokens"),
    ):
        if place.get(key) is not None:
            return tokens(place, key)
    raise Unusable("nothing says how long the answer is, expected output_tokens, usage or max_tokens")


def _time_s(fields: Fields) -> float | None:
    key = next((key for key in _TIMES if fields.get(key) is not None), None)
    if key is None:
        return None
    if key == "timestamp" and type(fields[key]) is str:
        return _instant_s(fields[key])
    in_ms = key == "timestamp_ms" or (key == "timestamp" and bool(fields.keys() & {"text_input", "output_length"}))
    return number(fields, key) / 1000 if in_ms else number(fields, key)


def _instant_s(written: str) -> float:
    """Seconds of a time like 2026-01-31T12:00:00Z; without a zone it is UTC."""
    try:
        moment = datetime.fromisoformat(written)
    except ValueError:
        raise Unusable(f"timestamp is {shown(written)}, expected one like 2026-01-31T12:00:00Z") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _characters(content: str) -> Tokens:
    """Four characters a token; what is missing at the end is made up, so that a part of a token equals no whole one."""
    return content + "\0" * (-len(content) % TOKEN_WIDTH)


def _encoder(path: Path) -> Callable[[str], Tokens]:
    """Text -> numbers of tokens by a tokenizer.json. Raises InputError where it cannot be had."""
    if not path.is_file():
        raise InputError(f"{path}: no such file, expected a tokenizer.json")
    try:
        from tokenizers import Tokenizer  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise InputError(
            f"{path}: the library 'tokenizers' is not installed, expected it (pip install tokenizers) or no tokenizer: "
            "four characters are a token then"
        ) from None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        # The library raises plain Exceptions.
        raise InputError(f"{path}: not a tokenizer.json: {error}") from error

    def encode(content: str) -> Tokens:
        try:
            return array("I", tokenizer.encode(content).ids).tobytes()
        except (TypeError, UnicodeError) as error:  # half a character, as JSON may hold
            raise Unusable(f"a text that the tokenizer does not take: {error}") from error

    return encode
