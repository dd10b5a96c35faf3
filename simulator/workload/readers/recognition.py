"""The beginning of a file, as far as it takes to tell its format."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from simulator.errors import InputError
from simulator.workload.lines import UNREADABLE, text_of, unreadable

_NUM_BYTES = 1 << 18
_NUM_LINES = 8  # the first of them may be damaged
_KEY = re.compile(rb'"([A-Za-z_]\w*)"\s*:')


class Head(NamedTuple):
    """``first``: the first line that is JSON, or None. ``keys``: its keys; of a document that does not end within the
    head, all keys at any depth. ``columns``: the names in the first line, where that is no JSON.
    """

    first: Any
    keys: frozenset[str]
    columns: tuple[str, ...]


def read_head(path: Path) -> Head:
    """Read no more than 256 KiB of text. Raises InputError for a file that cannot be read and for an empty one."""
    start = _start(path)
    lines = [line for line in start.splitlines() if not line.isspace() and line]
    if not lines:
        raise InputError(f"{path}: the trace is empty")
    if lines[0].lstrip(b"\xef\xbb\xbf \t")[:1] not in (b"{", b"["):
        names = lines[0].removeprefix(b"\xef\xbb\xbf").decode(errors="replace").split(",")
        return Head(None, frozenset(), tuple(name.strip().strip('"') for name in names))
    for line in lines[:_NUM_LINES]:
        document = _parsed(line)
        if isinstance(document, dict):
            return Head(document, frozenset(document), ())
        if isinstance(document, list):
            return Head(document, frozenset(), ())
    return Head(None, frozenset(key.decode() for key in _KEY.findall(start)), ())


def _start(path: Path) -> bytes:
    try:
        with path.open("rb") as raw, text_of(raw, path) as text:
            return text.read(_NUM_BYTES)
    except UNREADABLE as error:
        raise unreadable(path, error, 0) from error


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
