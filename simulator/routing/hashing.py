"""Policies that send equal keys to equal places."""

from __future__ import annotations

import hashlib
import random
from typing import Any

from simulator.request import Request
from simulator.routing.decision import Send
from simulator.routing.dispatch_rate import WINDOW_S, DispatchRate
from simulator.routing.router import Params, Router
from simulator.routing.view import View


class SessionHashParams(Params):
    """It has none."""

    @property
    def needs_sessions(self) -> bool:
        """See `Params.needs_sessions`."""
        return True


class SessionHash(Router):
    """All requests of a session to one instance, by a consistent hash. vLLM production-stack ``a6c01db``, ``session``.

    The hash is blake2b and then the jump consistent hash of Lamping and Veach (2014) in place of a ring: as even, and
    one more instance moves only the sessions that it takes. As upstream, a request without a session goes to the lowest
    QPS: the fewest dispatches of the last minute, of all requests, and an instance that had none ever before those.
    """

    summary = "each session to one instance, by consistent hash; without a session, fewest dispatches lately"
    Params = SessionHashParams
    source = "vLLM production-stack session (a6c01db); Lamping and Veach 2014"

    def __init__(self, params: Any, num_instances: int, rng: random.Random) -> None:
        super().__init__(params, num_instances, rng)
        self._rate = DispatchRate(num_instances, WINDOW_S)

    def choose(self, request: Request, view: View, now_s: float) -> Send:  # noqa: ARG002
        session = request.session
        instance = self._rate.lowest(now_s) if session is None else home_of(session, self.num_instances)
        self._rate.sent(instance, now_s)
        return Send(instance)


def home_of(session: int, num_instances: int) -> int:
    """The instance of a session."""
    digest = hashlib.blake2b(str(session).encode(), digest_size=8).digest()
    return jump_hash(int.from_bytes(digest, "big"), num_instances)


def jump_hash(key: int, num_buckets: int) -> int:
    """The bucket of a 64-bit ``key``: Lamping and Veach, "A fast, minimal memory, consistent hash algorithm" (2014).

    Growing from n to n + 1 buckets moves a key only into the new bucket, with probability 1 / (n + 1).
    """
    bucket, jump = -1, 0
    while jump < num_buckets:
        bucket = jump
        key = (key * 2862933555777941757 + 1) % 2**64
        jump = int((bucket + 1) * (2**31 / ((key >> 33) + 1)))
    return bucket
