"""Azure's LLM inference traces: 2023 (Patel et al., Splitwise), 2024 (Stojkovic et al., DynamoLLM). Lengths only.

Format: Azure/AzurePublicDataset. Columns ``TIMESTAMP`` (UTC; ``2023-11-16 18:17:03.9799600`` or, in 2024,
``2024-05-10 00:00:00.009930+00:00``), ``ContextTokens``, ``GeneratedTokens``; others are ignored.
"""

from __future__ import annotations

from datetime import date

from simulator.workload.readers.columns import ColumnTrace, RowParser, column_tokens
from simulator.workload.readers.fields import shown
from simulator.workload.readers.reading import Unusable
from simulator.workload.records import Record

_TICKS_PER_S = 10**7  # whole ticks, so that differences of large times keep every digit


class Azure(ColumnTrace):
    """See the module."""

    format = "azure"
    description = "Azure's CSV of 2023 and 2024: TIMESTAMP, ContextTokens, GeneratedTokens (lengths only)"
    columns = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

    def _row_parser(self, places: tuple[int, ...]) -> RowParser[Record]:
        time_at, prompt_at, output_at = places
        clock = _Clock()
        first: int | None = None

        def parse(row: list[str]) -> Record:
            nonlocal first
            ticks = clock.ticks(row[time_at])
            num_prompt = column_tokens("ContextTokens", row[prompt_at])
            num_output = column_tokens("GeneratedTokens", row[output_at])
            if first is None:
                first = ticks
            return Record((ticks - first) / _TICKS_PER_S, num_prompt, num_output)

        return parse


class _Clock:
    """Timestamps -> ticks of 100 ns; the day is looked up once a day, as parsing dates is what costs."""

    def __init__(self) -> None:
        self._day = ""
        self._days = 0

    def ticks(self, text: str) -> int:
        """Raises Unusable for what is no such time."""
        try:
            if text[:10] != self._day:
                self._days = date.fromisoformat(text[:10]).toordinal()
                self._day = text[:10]
            clock, zone_s = _zone(text[11:])
            hours, minutes, rest = clock.split(":")
            whole, _, fraction = rest.partition(".")
            seconds = self._days * 86400 + _below(hours, 24) * 3600 + _below(minutes, 60) * 60 + _below(whole, 61)
            return (seconds - zone_s) * _TICKS_PER_S + (_fraction(fraction) if fraction else 0)
        except ValueError:
            expected = "a time like 2023-11-16 18:17:03.9799600"
            raise Unusable(f"TIMESTAMP is {shown(text)}, expected {expected}") from None


def _zone(clock: str) -> tuple[str, int]:
    """The time of day without its zone, and the zone's seconds ahead of UTC. Raises ValueError."""
    if clock.endswith(("Z", "z")):
        return clock[:-1], 0
    for sign, mark in ((1, "+"), (-1, "-")):
        start = clock.rfind(mark)
        if start >= 0:
            hours, minutes = clock[start + 1 :].split(":")
            return clock[:start], sign * (_below(hours, 24) * 3600 + _below(minutes, 60) * 60)
    return clock, 0


def _fraction(digits: str) -> int:
    """Ticks; digits after the seventh are cut off. Raises ValueError."""
    return _below(digits.ljust(7, "0"), 10 ** max(7, len(digits))) // 10 ** max(0, len(digits) - 7)


def _below(digits: str, end: int) -> int:
    """Digits only: ``int`` takes signs, blanks and underscores too. Raises ValueError."""
    if not (digits.isascii() and digits.isdigit()) or int(digits) >= end:
        raise ValueError(digits)
    return int(digits)
