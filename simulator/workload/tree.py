"""A tenant's requests from a growing tree of prompts: threads that begin, and are taken up again.

Only threads that have another turn are kept, and only their texts have names: what nobody reads again is private. Each
quantity has a random stream of its own, and the order of arrival alone says who comes next, so that another engine or
tenant changes nothing.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate, count
from typing import NamedTuple

from simulator.request import Prompt, Request
from simulator.streams import stream
from simulator.workload.arrivals import arrival_times_s, until
from simulator.workload.draws import NUM_PER_DRAW, one_by_one
from simulator.workload.segments import first_segment
from simulator.workload.spec import TenantSpec
from simulator.workload.tables import Table, value_at
from simulator.workload.tree_spec import TreeSpec

_Named = Callable[[str], Iterator[float]]


class Thread(NamedTuple):
    """A thread after its last request: ``prompt`` of ``num_tokens``, of which the head is ``num_head_tokens``."""

    prompt: Prompt
    num_tokens: int
    num_head_tokens: int
    turn: int
    session: int


def grow(tenant: TenantSpec, index: int, seed: int, replication: int) -> Iterator[Request]:
    """Yield drawn requests in order of arrival. Numbering is left to who merges the tenants."""
    spec = tenant.tree
    assert spec is not None  # who calls has looked
    return until(_endless(tenant, spec, index, seed, replication), spec.num_requests, spec.duration)


def _endless(tenant: TenantSpec, spec: TreeSpec, index: int, seed: int, replication: int) -> Iterator[Request]:
    def named(purpose: str) -> Iterator[float]:
        return one_by_one(stream(seed, "workload", tenant.name, f"tree: {purpose}", replication).random)

    texts = _Texts(spec, first_segment(index), named)
    waiting = _Paused(spec.pause or (), named("pause")) if spec.pool is None else _Pool(spec, spec.pool, named("pool"))
    another, outputs = named("another"), named("output")
    clock = stream(seed, "workload", tenant.name, "arrivals", replication)
    for times_s in arrival_times_s(spec.arrivals, clock, NUM_PER_DRAW):
        for arrival_s in times_s.tolist():
            earlier = waiting.take(arrival_s)
            thread = texts.begun() if earlier is None else texts.continued(earlier)
            place = bisect_right(spec.length_classes, thread.num_tokens)
            lengths = spec.new_output_tokens if earlier is None else spec.output_tokens
            assert lengths is not None  # the specification demands it where there are later turns
            output = max(1, round(value_at(_of_class(lengths, place), next(outputs))))
            prompt = thread.prompt
            if spec.another and next(another) < _chance(spec, spec.another, place, output, thread.turn):
                waiting.put(thread, arrival_s)
            elif prompt and prompt[-1][0] is not None and texts.is_last(prompt[-1][0]):
                prompt = (*prompt[:-1], (None, 0, prompt[-1][2]))  # nobody reads it again
            yield Request(
                request_id=-1,
                arrival_s=arrival_s,
                prompt=prompt,
                num_prompt_tokens=thread.num_tokens,
                max_tokens=output,
                oracle_num_output_tokens=output,
                tenant=index,
                session=thread.session,
                priority=tenant.priority,
                cache_salt=tenant.salt_of(thread.session),
                lora=tenant.lora,
                skip_reading_prefix_cache=tenant.skip_reading_prefix_cache,
            )


def _chance(spec: TreeSpec, another: tuple[tuple[float, ...], ...], place: int, output: int, turn: int) -> float:
    """Of another turn, after a prompt of class ``place`` and an answer of ``output`` tokens."""
    row = place * (len(spec.answer_classes) + 1) + bisect_right(spec.answer_classes, output)
    return another[row][bisect_right(spec.turn_groups, turn)]


class _Texts:
    """Draws prompts. Segment ``base`` is the common text, then the heads, then a new one for each text of a thread."""

    def __init__(self, spec: TreeSpec, base: int, named: _Named) -> None:
        self._spec = spec
        self._base = base
        self._common: Prompt = ((base, 0, spec.common_tokens),) if spec.common_tokens else ()
        self._weights = list(accumulate(head.weight for head in spec.heads))
        self._all_weights = sum(head.weight for head in spec.heads) + (spec.headless or 0.0)
        self._next = count(base + 1 + len(spec.heads))
        self._newest = base
        self._heads, self._lengths = named("head"), named("thread_tokens")
        self._kinds, self._kept, self._new = named("kind"), named("kept"), named("new_tokens")

    def is_last(self, segment: int) -> bool:
        """Whether it is the text that was made last: a private one may take its place."""
        return segment == self._newest

    def begun(self) -> Thread:
        """The first prompt of a new thread."""
        spec, prompt = self._spec, self._common
        num_head = spec.common_tokens or 0
        if self._weights:
            head = bisect_right(self._weights, next(self._heads) * self._all_weights)
            if head < len(spec.heads):
                prompt = (*prompt, (self._base + 1 + head, 0, spec.heads[head].tokens))
                num_head += spec.heads[head].tokens
        num_own = max(0 if prompt else 1, round(value_at(spec.thread_tokens, next(self._lengths))))
        session = self._text()
        if num_own:
            prompt = (*prompt, (session, 0, num_own))
        return Thread(prompt, num_head + num_own, num_head, 0, session)

    def continued(self, thread: Thread) -> Thread:
        """The prompt of the next turn."""
        spec = self._spec
        assert spec.extended is not None  # the specification demands it where there are later turns
        place = bisect_right(spec.length_classes, thread.num_tokens)
        chance, kept_chance, new_chance = next(self._kinds), next(self._kept), next(self._new)
        if chance < spec.repeats:
            return thread._replace(turn=thread.turn + 1)
        falls = spec.falls_back is not None and (chance - spec.repeats) / (1 - spec.repeats) < spec.falls_back[place]
        again = spec.fallen if falls and spec.fallen is not None else spec.extended
        size, head = spec.block_tokens, thread.num_head_tokens
        whole = max(0, thread.num_tokens // size - head // size)
        kept = max(head, (head // size + round(value_at(again.kept, kept_chance) * whole)) * size)
        num_new = max(0 if kept else 1, round(value_at(_of_class(again.new_tokens, place), new_chance)))
        prompt = _front(thread.prompt, kept)
        if num_new:
            prompt = (*prompt, (self._text(), 0, num_new))
        return Thread(prompt, kept + num_new, head, thread.turn + 1, thread.session)

    def _text(self) -> int:
        self._newest = next(self._next)
        return self._newest


def _of_class(tables: tuple[Table, ...], place: int) -> Table:
    """The class's table, or the one for all."""
    return tables[place if len(tables) > 1 else 0]


def _front(prompt: Prompt, num_tokens: int) -> Prompt:
    """The first ``num_tokens`` tokens."""
    runs = []
    for segment, start, length in prompt:
        if num_tokens <= 0:
            break
        runs.append((segment, start, min(length, num_tokens)))
        num_tokens -= length
    return tuple(runs)


class _Paused:
    """Threads that come back some time after their last request."""

    def __init__(self, pauses_s: tuple[float, ...], drawn: Iterator[float]) -> None:
        self._pauses_s = pauses_s
        self._drawn = drawn
        self._due: list[tuple[float, int, Thread]] = []
        self._numbers = count()

    def put(self, thread: Thread, now_s: float) -> None:
        pause_s = value_at(self._pauses_s, next(self._drawn))
        heapq.heappush(self._due, (now_s + pause_s, next(self._numbers), thread))

    def take(self, now_s: float) -> Thread | None:
        """The thread whose turn has been due longest, or None: a new one begins."""
        return heapq.heappop(self._due)[2] if self._due and self._due[0][0] <= now_s else None


class _Pool:
    """Threads that have not ended, any of which may be next: those not begun with ``unbegun_weight``, begun ones 1."""

    def __init__(self, spec: TreeSpec, size: int, drawn: Iterator[float]) -> None:
        self._size = self._num_unbegun = size
        self._unbegun_weight = spec.unbegun_weight
        self._drawn = drawn
        self._begun: list[Thread] = []

    def put(self, thread: Thread, now_s: float) -> None:  # noqa: ARG002 - no clock here
        self._begun.append(thread)

    def take(self, now_s: float) -> Thread | None:  # noqa: ARG002
        """One of them, or None: a new one begins."""
        begun = self._begun
        if not begun and not self._num_unbegun:
            self._num_unbegun = self._size
        unbegun = self._unbegun_weight * self._num_unbegun
        at = next(self._drawn) * (unbegun + len(begun)) - unbegun
        if at < 0:
            self._num_unbegun -= 1
            return None
        place = min(int(at), len(begun) - 1)
        thread, begun[place] = begun[place], begun[-1]
        begun.pop()
        return thread
