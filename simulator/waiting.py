"""The queue of requests that wait for admission: vLLM's ``v1/core/sched/request_queue.py``."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator

from simulator.request import Request


class FcfsQueue(deque[Request]):
    """In order of reception by the engine; preempted requests go to the front."""

    def add(self, request: Request) -> None:
        self.append(request)

    def put_back(self, request: Request) -> None:
        self.appendleft(request)

    def put_back_all(self, requests: Iterable[Request]) -> None:
        """Put requests, given in their order, back to the front."""
        self.extendleft(reversed(list(requests)))

    def pop_head(self) -> Request:
        return self.popleft()

    def drop(self, request: Request) -> bool:
        """Take one out from anywhere; False where it is not queued."""
        if request not in self:
            return False
        self.remove(request)
        return True


class PriorityQueue:
    """By (priority, arrival time, id), smallest first; a preempted request just re-enters."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[tuple, Request]] = []

    def add(self, request: Request) -> None:
        heapq.heappush(self._heap, ((request.priority, request.arrival_time, request.request_id), request))

    put_back = add

    def put_back_all(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.add(request)

    def pop_head(self) -> Request:
        return heapq.heappop(self._heap)[1]

    def drop(self, request: Request) -> bool:
        kept = [entry for entry in self._heap if entry[1] is not request]
        found = len(kept) < len(self._heap)
        self._heap = kept
        heapq.heapify(self._heap)
        return found

    def __getitem__(self, index: int) -> Request:
        return self._heap[index][1] if index == 0 else sorted(self._heap, key=lambda entry: entry[0])[index][1]

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in sorted(self._heap, key=lambda entry: entry[0]))


WaitingQueue = FcfsQueue | PriorityQueue


def make_queue(policy: str) -> WaitingQueue:
    """An empty queue of the scheduling policy, ``fcfs`` or ``priority``."""
    return PriorityQueue() if policy == "priority" else FcfsQueue()


def key_of_victim(request: Request) -> tuple:
    """Under the priority policy the running request with the largest such key is preempted first."""
    return (request.priority, request.arrival_time)
