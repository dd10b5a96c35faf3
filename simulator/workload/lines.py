"""The text of a file, plain or gzipped, and its numbered lines one at a time."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from simulator.errors import InputError
from simulator.signatures import NUM_BYTES, kind_of

_GZIP_MAGIC = b"\x1f\x8b"
_EXPECTED = "expected lines of JSON or CSV, plain or gzipped"

UNREADABLE = (gzip.BadGzipFile, EOFError, zlib.error, OSError)


def text_of(raw: BufferedReader, path: Path) -> BufferedReader | gzip.GzipFile:
    """The open file's text; gzip is recognised by its first two bytes.

    Raises InputError for a file that is no text, or is named ``.gz`` and is not gzip; UNREADABLE.
    """
    is_gzip = raw.read(2) == _GZIP_MAGIC
    raw.seek(0)
    text = gzip.GzipFile(fileobj=raw) if is_gzip else raw
    kind = kind_of(text.peek(NUM_BYTES)[:NUM_BYTES])
    if kind is not None:
        raise InputError(f"{path}: is {kind}{' within gzip' if is_gzip else ''}, {_EXPECTED}")
    if path.suffix == ".gz" and not is_gzip:
        raise InputError(f"{path}: named .gz, but is not gzip")
    return text


def unreadable(path: Path, error: Exception, num_lines: int) -> InputError:
    """What to say of a file that ``error``, one of UNREADABLE, stopped the reading of after so many lines."""
    if isinstance(error, IsADirectoryError):
        return InputError(f"{path}: is a folder, {_EXPECTED}")
    if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
        return InputError(f"{path}: cannot read the trace: {error.strerror or error}")
    return InputError(f"{path}: corrupt gzip after line {num_lines}: {error}")


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield ``(line number from 1, line)`` of the non-blank lines.

    Raises InputError for a file that cannot be read, is no text, is named ``.gz`` and is not gzip, or breaks off.
    """
    number = 0
    try:
        with path.open("rb") as raw, text_of(raw, path) as lines:
            for number, line in enumerate(lines, start=1):
                if not line.isspace():
                    yield number, line
    except UNREADABLE as error:
        raise unreadable(path, error, number) from error
