"""Files that are one JSON document rather than lines of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from simulator.workload.lines import numbered_lines


def whole(path: Path) -> Iterator[tuple[int, bytes]]:
    """The file as one line, named by the number of its first. Raises InputError as ``numbered_lines``."""
    lines = list(numbered_lines(path))
    if lines:
        yield lines[0][0], b"".join(line for _, line in lines)
