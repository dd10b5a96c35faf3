"""Files that commands write."""

from __future__ import annotations

from pathlib import Path

from simulator.errors import InputError


def write(path: Path, text: str, what: str) -> None:
    """Write a result. Raises InputError where that cannot be done."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot write the {what} ({error.strerror})") from None
