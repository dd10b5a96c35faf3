"""A workload without an engine: every answer comes whole, the moment its request does."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count

from simulator.request import FINISHED, REFUSED, TOO_LONG, Request, is_too_long
from simulator.workload.tenants import Workload


def answered_at_once(workload: Workload, max_model_len: int | None = None) -> Iterator[Request]:
    """The requests by arrival, each ended before the next comes: turns follow each other as they do, and nobody gives
    up. Those that an engine of ``max_model_len`` would refuse have ended so, and nothing follows that waits for an
    answer. Endless where users come back endlessly.
    """
    arriving = iter(workload)
    ahead = next(arriving, None)
    following: list[tuple[float, int, Request]] = []
    order = count()
    while ahead is not None or following:
        if ahead is None or (following and following[0][0] < ahead.arrival_s):
            request = heappop(following)[2]
        else:
            request, ahead = ahead, next(arriving, None)
        if max_model_len is not None and is_too_long(request, max_model_len):
            request.state, request.refusal = REFUSED, TOO_LONG
        else:
            request.state = FINISHED
            request.num_output_tokens = min(request.oracle_num_output_tokens, request.max_tokens)
        yield request
        for follower in workload.ended(request, request.arrival_s):
            heappush(following, (follower.arrival_s, next(order), follower))
