"""The parts of a time to first token: moments of one request's way, none counted twice and none left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Part(NamedTuple):
    """``name`` is that of the column (seconds), ``label`` what tables say, ``meaning`` when a moment belongs here."""

    name: str
    label: str
    meaning: str


PARTS: tuple[Part, ...] = (
    Part("router_s", "router", "held by the router: from its arrival until it is sent to an instance"),
    Part("overhead_s", "overhead", "hashing and transport to the engine"),
    Part("copy_s", "copy", "waiting for blocks that are copied from another instance"),
    Part("queue_step_s", "queue: step", "queued, until the engine takes its next decision: a step is in progress"),
    Part("queue_seats_s", "queue: seats", "queued, passed over since max_num_seqs requests run"),
    Part("queue_blocks_s", "queue: blocks", "queued, passed over for lack of free blocks"),
    Part("queue_budget_s", "queue: budget", "queued, passed over since the step's token budget was used up"),
    Part("queue_adapter_s", "queue: adapter", "queued, passed over since no place was left for its adapter"),
    Part("own_s", "own prefill", "what its own chunks take when each is alone in its step"),
    Part("shared_s", "sharing", "the rest of the steps that computed its chunks: decodes and chunks beside them"),
    Part("others_s", "behind others", "running, while the step in progress computed no token of it"),
    Part("preempted_s", "preempted", "from a preemption until it has computed, or found, again what it had"),
)
"""In the order of a request's way. Queued means from the engine's reception to the first schedule, as vLLM's queue
time; what stopped admission at one decision is the reason until the next, for all who wait."""

ROUTER, OVERHEAD, COPY, STEP, SEATS, BLOCKS, BUDGET, ADAPTER, OWN, SHARED, OTHERS, PREEMPTED = range(len(PARTS))
REASONS = (SEATS, BLOCKS, BUDGET, ADAPTER)
"""Why a queue stands."""
NAMES = tuple(part.name for part in PARTS)


def settle(seconds: Sequence[float], total_s: float) -> list[float]:
    """The same parts with what rounding left over put to the largest, so that ``math.fsum`` of them is ``total_s``.

    What is left over is some units in the last place. Where the largest part is too coarse to take it whole, the next
    ones take the rest.
    """
    found = list(seconds)
    for index in sorted(range(len(found)), key=found.__getitem__, reverse=True):
        left_s = math.fsum([total_s, *(-value for value in found)])
        if not left_s:
            break
        found[index] += left_s
    return found
