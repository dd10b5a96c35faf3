"""A trace whose clients wait: each request follows the end of the one that the file says it waited for."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.errors import InputError
from simulator.request import Request
from simulator.workload.records import Record

Placed = tuple[float, Record, Request]


class Paced:
    """Requests of one replication: iterate for those that wait for none, and tell it what ended.

    ``placed`` are all requests in the file's order with their times on the run's clock. One with a client's delay
    (``after_s``) waits for its ``parent``, else for the one before it in its session, and comes that delay after its
    end; the others come at their time. A request that was refused or given up counts as ended.
    """

    def __init__(self, placed: Iterator[Placed], limit: int | None = None) -> None:
        self._placed = placed
        self._limit = limit
        self._after_s: dict[Request, float] = {}
        self._followers: dict[Request, list[Request]] = {}

    def __iter__(self) -> Iterator[Request]:
        firsts = sorted(self._chained(), key=lambda request: request.arrival_s)
        if not self._after_s:
            raise InputError("pace: answers: no request of the trace has a delay, so that it changes nothing")
        yield from firsts[: self._limit]

    def ended(self, request: Request, now_s: float) -> list[Request]:
        """The requests that waited for this one, with their times of arrival."""
        following = self._followers.pop(request, [])
        for follower in following:
            follower.arrival_s = now_s + self._after_s.pop(follower)
        return following

    def replace(self, request: Request, again: Request) -> None:
        """The client asks the same again: what waits for the first waits for this one."""
        if request in self._followers:
            self._followers[again] = self._followers.pop(request)

    def _chained(self) -> Iterator[Request]:
        """Those that wait for none; the others are put behind what they wait for."""
        requests: list[Request] = []
        last_of: dict[int | str, Request] = {}
        for time_s, record, request in self._placed:
            before = last_of.get(record.session) if record.session is not None else None
            if record.parent is not None and record.parent < len(requests):
                before = requests[record.parent]
            requests.append(request)
            if record.session is not None:
                last_of[record.session] = request
            if before is None or record.after_s is None:
                request.arrival_s = time_s
                yield request
            else:
                self._after_s[request] = record.after_s
                self._followers.setdefault(before, []).append(request)
