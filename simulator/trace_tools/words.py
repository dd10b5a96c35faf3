"""What was passed over, in words."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.counts import counted


def skipped_in_words(num_skipped: int, skipped: Sequence[tuple[int, str]]) -> list[str]:
    """How many lines were passed over, and the first of them with the reason; nothing where none was."""
    if not num_skipped:
        return []
    more = num_skipped - len(skipped)
    return [
        f"skipped {counted(num_skipped, 'line')}:",
        *(f"  line {line}: {reason}" for line, reason in skipped),
        *([f"  and {more:,} more"] if more > 0 else []),
    ]
