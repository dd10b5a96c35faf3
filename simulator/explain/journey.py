"""One request on its way to its first token, and where its time goes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from simulator.explain.parts import COPY, OTHERS, OVERHEAD, OWN, PARTS, PREEMPTED, REASONS, ROUTER, SHARED, STEP, settle

_ROUNDING = 1e-9  # of sums of times, in relation to the time that they are at

class Span(NamedTuple):
    """A step that computes tokens of the request, from ``first`` to before ``last``; alone it would take ``own_s``."""

    start_s: float
    end_s: float
    own_s: float
    first: int
    last: int


class Journey:
    """Accounts for every moment once, in order of time.

    ``seconds`` are the parts so far. Decisions come before the steps that follow from them (two steps may be on their
    way), so a step is only counted when it has ended or a preemption cuts it off: from then on nothing comes of it.
    """

    __slots__ = (
        "_counted_s",
        "_lost",
        "_reached",
        "_spans",
        "log_length",
        "num_hit",
        "num_preemptions",
        "saved_s",
        "seconds",
    )

    def __init__(self, arrival_s: float, sent_s: float, overhead_s: float, log_length: int) -> None:
        self.seconds = [0.0] * len(PARTS)
        self.seconds[ROUTER] = sent_s - arrival_s
        self.seconds[OVERHEAD] = overhead_s
        self.log_length = log_length  # of the instance's queue log as it was sent
        self.num_hit: int | None = None  # tokens found at the first admission
        self.saved_s = 0.0
        self.num_preemptions = 0
        self._counted_s = sent_s + overhead_s  # up to here every moment has its part
        self._spans: list[Span] = []
        self._reached = 0  # tokens computed or found
        self._lost: int | None = None  # after a preemption: tokens to be had again

    def admitted(self, queued_s: float, now_s: float, num_hit: int, step_s: float, waited_s: Sequence[float]) -> None:
        """The first schedule: until then it waited ``step_s`` and, by reason, ``waited_s``."""
        self.seconds[COPY] = max(queued_s - self._counted_s, 0.0)
        self.seconds[STEP] = step_s
        for part, reason_s in zip(REASONS, waited_s, strict=True):
            self.seconds[part] = reason_s
        self.num_hit = self._reached = num_hit
        self._counted_s = now_s

    def resumed(self, now_s: float, num_hit: int) -> None:
        """Scheduled again after a preemption; what is found again is not lost."""
        if self._lost is not None and num_hit >= self._lost:
            self._pass(now_s)
            self._lost = None

    def computes(self, span: Span) -> None:
        """A step is on its way that computes tokens of it."""
        self._count(span.start_s)
        self._spans.append(span)
        self._reached = max(self._reached, span.last)

    def preempted(self, now_s: float) -> None:
        """All it has computed is given up; what is on its way is in vain."""
        self._count(now_s)
        self._spans.clear()
        self._pass(now_s)
        self._lost = self._reached
        self.num_preemptions += 1

    def arrives(self, ttft_s: float, now_s: float) -> list[float]:
        """The first token is there: all parts, whose exact sum is ``ttft_s``."""
        self._count(now_s)
        self._pass(now_s)
        # Rounding alone: every moment has its part.
        assert abs(math.fsum(self.seconds) - ttft_s) <= _ROUNDING * (1.0 + now_s)
        return settle(self.seconds, ttft_s)

    def _count(self, limit_s: float) -> None:
        """Count the steps that began before ``limit_s``, as far as they lie before it."""
        spans = self._spans
        while spans and spans[0].start_s < limit_s:
            self._add(spans.pop(0), limit_s)

    def _add(self, span: Span, limit_s: float) -> None:
        self._pass(span.start_s)
        whole_s, end_s = span.end_s - span.start_s, min(span.end_s, limit_s)
        elapsed_s = end_s - span.start_s
        self._counted_s = end_s
        again = 0.0  # the share of its tokens that had been computed before
        if self._lost is not None:
            again = min(max(self._lost - span.first, 0) / (span.last - span.first), 1.0)
            if span.last >= self._lost and end_s == span.end_s:
                self._lost = None
        again_s = elapsed_s * again
        own_s = min(span.own_s, whole_s) * (elapsed_s / whole_s if whole_s else 0.0) * (1.0 - again)
        self.seconds[PREEMPTED] += again_s
        self.seconds[OWN] += own_s
        self.seconds[SHARED] += max(elapsed_s - again_s - own_s, 0.0)

    def _pass(self, time_s: float) -> None:
        """Nothing of it is computed until ``time_s``."""
        if time_s > self._counted_s:
            self.seconds[OTHERS if self._lost is None else PREEMPTED] += time_s - self._counted_s
            self._counted_s = time_s
