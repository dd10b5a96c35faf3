"""One engine step as it was recorded, and the row fields that it becomes.

Only the standard library is imported here: an engine's own interpreter reads this file too.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Step:
    """What was computed, and when, on one monotonic clock in seconds.

    ``pieces`` are (new, already computed) tokens of every request in the batch. ``scheduled_s`` is the time at which
    ``schedule`` began, ``ended_s`` that at which ``update_from_output`` ended, ``previous_s`` the latter of the step
    before (None at first). Where batches overlap, a step is scheduled before the one before it ends.
    """

    pieces: tuple[tuple[int, int], ...]
    scheduled_s: float
    ended_s: float
    previous_s: float | None = None

    @property
    def started_s(self) -> float:
        """From here on the step was the one that the engine worked on."""
        return self.scheduled_s if self.previous_s is None else max(self.scheduled_s, self.previous_s)

    @property
    def duration_s(self) -> float:
        """Seconds from ``started_s`` to the end."""
        return self.ended_s - self.started_s

    @property
    def gap_s(self) -> float:
        """Seconds between the end of the step before and the start of this one; 0 where they overlap, or at first."""
        return 0.0 if self.previous_s is None else self.started_s - self.previous_s

    @property
    def num_decodes(self) -> int:
        """Requests that compute one token (``simulator.plan.Plan`` counts so)."""
        return sum(new == 1 for new, _ in self.pieces)

    @property
    def prefills(self) -> tuple[tuple[int, int], ...]:
        """The pieces that compute more than one token."""
        return tuple(piece for piece in self.pieces if piece[0] > 1)

    def fields(self, *, regime: str, index: int, graph_sizes: tuple[int, ...] = ()) -> dict[str, Any]:
        """The fields of a ``step`` row. The first of a take (``index`` 0) has no gap: the engine was idle before."""
        prefills = self.prefills
        num_tokens = sum(new for new, _ in self.pieces)
        padded = bisect_left(graph_sizes, num_tokens)
        return {
            "kind": "step",
            "regime": regime,
            "num_decodes": self.num_decodes,
            "decode_context": sum(computed + 1 for new, computed in self.pieces if new == 1),
            "num_prefills": len(prefills),
            "num_prefill_tokens": sum(new for new, _ in prefills),
            "prefill_pairs": sum(new * computed + new * (new + 1) // 2 for new, computed in prefills),
            "max_context": max(new + computed for new, computed in self.pieces),
            "duration_s": self.duration_s,
            "gap_s": self.gap_s if index else None,
            "num_padded_tokens": graph_sizes[padded] if padded < len(graph_sizes) else None,
            "prefill_pieces": prefills or None,
            "index": index,
        }
