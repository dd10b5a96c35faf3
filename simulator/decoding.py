"""Decoding requests moved as a group: one token in, one token out, every step, for all.

While a request only decodes, nothing happens to it except that its context reaches a block border, and that it ends.
Both are known ahead, so members are filed under the step in which that happens and are not visited in between. Steps
are counted by calls of ``schedule`` (*schedule index*); a member with ``joined`` has computed ``index + joined`` tokens
before the step with that index, and the step that computes position p delivers answer token ``p - num_prompt_tokens +
2``.
"""

from __future__ import annotations

import heapq

from simulator.request import Request, in_order

_NEVER = 1 << 62


class DecodeGroup:
    """Members, filed by what happens to them next.

    ``asynchronous``: output returns one step after the next one was scheduled, so a request whose last token is in
    flight is left out of that step (*draining*) though it still runs.
    """

    __slots__ = (
        "_borders",
        "_changes",
        "_longest",
        "asynchronous",
        "block_size",
        "border",
        "count",
        "finish",
        "joined_sum",
        "members",
        "num_named",
        "stop",
        "version",
    )

    def __init__(self, block_size: int, asynchronous: bool) -> None:
        self.block_size = block_size
        self.asynchronous = asynchronous
        self.members: dict[Request, None] = {}
        self.count = 0  # members that the next step schedules; the draining ones are not among them
        self.num_named = 0  # members whose answers others may know as part of a prompt
        self.joined_sum = 0
        self.border: dict[int, list[Request]] = {}  # schedule index -> members who then need a new block
        self.finish: dict[int, list[Request]] = {}  # schedule index whose output is the member's last token
        self.stop: dict[
            int, list[Request]
        ] = {}  # schedule index from which a member with a known last token is left out
        self._borders: list[int] = []  # heap of the keys of `border`; ones left empty do no harm
        self._changes: list[int] = []  # heap of completions after which the set of scheduled members differs
        self._longest: list[tuple[int, int, Request]] = []  # heap by -joined; who has left is dropped when on top
        self.version = 0

    def join(self, request: Request, index: int) -> bool:
        """Move the request with the group from schedule index ``index`` on; False if it will not be scheduled then."""
        joined = request.num_computed_tokens - index
        last = request.last_output + request.num_prompt_tokens - 2 - joined
        drains = self.asynchronous and not request.stops_early
        if drains and last < index:
            return False
        request.joined, request.joined_at = joined, index
        self.members[request] = None
        self.num_named += request.output_segment is not None
        self.count += 1
        self.version += 1
        self.joined_sum += joined
        heapq.heappush(self._longest, (-joined, self.version, request))
        self._file_border(request, index + -request.num_computed_tokens % self.block_size)
        if last >= index:  # else the output in flight ends it, and this step is wasted on it
            self._file(self.finish, last, request)
        heapq.heappush(self._changes, last)
        if drains:
            self._file(self.stop, last + 1, request)
            heapq.heappush(self._changes, last - 1)
        return True

    def leave(self, request: Request, index: int) -> None:
        """Take a member out before the step ``index`` and write down how far it came."""
        joined: int = request.joined
        last, end = self.last_index(request), self.end_index(request)
        stopping = self.stop.get(last + 1)
        if stopping is None or request not in stopping:
            counted = end == _NEVER
        else:
            counted = True
            stopping.remove(request)
        if counted:
            self._uncount(joined)
            self._unfile_border(request, index)
        finishing = self.finish.get(last)
        if finishing is not None and request in finishing:
            finishing.remove(request)
        del self.members[request]
        self.num_named -= request.output_segment is not None
        request.num_computed_tokens = min(index, end) + joined
        request.joined = None

    def last_index(self, request: Request) -> int:
        """The schedule index whose output is the member's last token."""
        return request.last_output + request.num_prompt_tokens - 2 - request.joined

    def end_index(self, request: Request) -> int:
        """The schedule index from which the member is left out, its last token being in flight; else never reached."""
        return self.last_index(request) + 1 if self.asynchronous and not request.stops_early else _NEVER

    def drop_stopped(self, index: int) -> None:
        """Leave out, from step ``index`` on, those whose last token is already in flight."""
        for request in self.stop.pop(index, ()):
            self._uncount(request.joined)
            self._unfile_border(request, index)

    def next_border(self, index: int) -> int | None:
        """The first border at or after ``index``."""
        borders = self._borders
        while borders and borders[0] < index:
            heapq.heappop(borders)
        return borders[0] if borders else None

    def next_change(self, completing: int) -> int:
        """The first completion, at or after ``completing``, after which a step schedules other members."""
        changes = self._changes
        while changes[0] < completing:
            heapq.heappop(changes)
        return changes[0]

    def pass_borders(self, index: int) -> list[Request]:
        """The members at a border in step ``index``, in running order; filed under their next one."""
        visits = self.border.pop(index, None)
        if visits is None:  # those that were filed here have left
            return []
        if len(visits) > 1:
            visits.sort(key=in_order)
        following = self.border.get(index + self.block_size)
        if following is None:
            self.border[index + self.block_size] = list(visits)
            heapq.heappush(self._borders, index + self.block_size)
        else:
            following.extend(visits)
        return visits

    def pass_border(self, request: Request, index: int) -> None:
        """File a member that just took a block under its next border."""
        self._file_border(request, index + self.block_size)

    def decode_context(self, index: int) -> int:
        """KV entries that the step ``index`` attends, over all scheduled members (own token included)."""
        return self.count * (index + 1) + self.joined_sum

    def max_context(self, index: int) -> int:
        """The longest context in the step ``index``."""
        longest = self._longest
        while True:
            joined, _, request = longest[0]
            if request.joined == -joined and (not self.asynchronous or index < self.end_index(request)):
                return index + 1 - joined
            heapq.heappop(longest)

    def scheduled(self, index: int) -> list[Request]:
        """The members that the step ``index`` schedules, in running order."""
        return sorted((r for r in self.members if r.joined_at <= index < self.end_index(r)), key=in_order)

    def _uncount(self, joined: int) -> None:
        self.count -= 1
        self.version += 1
        self.joined_sum -= joined

    def _file_border(self, request: Request, index: int) -> None:
        filed = self.border.get(index)
        if filed is None:
            self.border[index] = [request]
            heapq.heappush(self._borders, index)
        else:
            filed.append(request)

    def _unfile_border(self, request: Request, index: int) -> None:
        border = index + -(index + request.joined) % self.block_size
        filed = self.border[border]
        filed.remove(request)
        if not filed:
            del self.border[border]

    @staticmethod
    def _file(bucket: dict[int, list[Request]], index: int, request: Request) -> None:
        filed = bucket.get(index)
        if filed is None:
            bucket[index] = [request]
        else:
            filed.append(request)
