"""The numbered lines of a text file, plain or gzipped, one at a time."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from simulator.errors import InputError

_GZIP_MAGIC = b"\x1f\x8b"


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield ``(line number from 1, line)`` of the non-blank lines; gzip is recognised by its first two bytes.

    Raises InputError for a file that cannot be read, is named ``.gz`` and is not gzip, or breaks off.
    """
    number = 0
    try:
        with path.open("rb") as raw:
            is_gzip = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            if path.suffix == ".gz" and not is_gzip:
                raise InputError(f"{path}: named .gz, but is not gzip")
            with gzip.GzipFile(fileobj=raw) if is_gzip else raw as lines:
                for number, line in enumerate(lines, start=1):
                    if not line.isspace():
                        yield number, line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path}: corrupt gzip after line {number}: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot read the trace: {error.strerror or error}") from error
