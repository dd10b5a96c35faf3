"""Counts in words."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """``1 line``, ``2,000 lines``; ``2 launches`` of one launch where ``many`` says so."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
