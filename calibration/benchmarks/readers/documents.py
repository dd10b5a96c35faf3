"""The text of a result file and the JSON or YAML documents in it, with the lines where they begin."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from simulator.errors import InputError

_GZIP = b"\x1f\x8b"
_BLANK = re.compile(r"\s*")


def read_text(path: Path) -> str:
    """The file's text, gzip or plain. Raises InputError for what cannot be read as text."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path.name}: cannot read the results: {error.strerror or error}") from None
    try:
        if content[:2] == _GZIP:
            content = gzip.decompress(content)
        return content.decode("utf-8-sig")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path.name}: corrupt gzip: {error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name}: not a text: byte {error.start} is not UTF-8") from None


def json_documents(text: str, file: str) -> Iterator[tuple[int, Any]]:
    """Line and value of each JSON document, one after the other: a whole file, JSON lines, or appended results."""
    decoder = json.JSONDecoder()
    position, line = 0, 1
    while True:
        blank = _BLANK.match(text, position)
        assert blank is not None  # it may be empty
        start = blank.end()
        if start == len(text):
            return
        line += text.count("\n", position, start)
        try:
            value, position = decoder.raw_decode(text, start)
        except json.JSONDecodeError as error:
            raise InputError(f"{file}, line {error.lineno}: not JSON: {error.msg} (column {error.colno})") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"{file}, line {line}: not JSON: {error}") from None
        yield line, value
        line += text.count("\n", start, position)


def yaml_document(text: str, file: str) -> Any:
    """The one YAML document."""
    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{file}{line}: not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, OverflowError) as error:
        words = " ".join(str(error).split())
        raise InputError(f"{file}: not YAML: {words[:100]}") from None
