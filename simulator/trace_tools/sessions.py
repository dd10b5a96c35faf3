"""Sessions, their turns, recordings of one session under several names, and tenants."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass

from simulator.trace_tools.spread import Spread, spread
from simulator.workload.records import Record

_TELLING_TURNS = 3  # lengths of so many first turns tell one session from another


@dataclass(frozen=True)
class Sessions:
    """``think_s`` are the clients' own delays, where the file tells them. ``num_duplicates`` sessions begin with the
    same lengths (in and out, three turns) as an earlier one.
    """

    num: int
    turns: Spread | None
    num_without: int  # requests of no session
    think_s: Spread | None
    num_judged: int  # sessions of three turns or more
    num_duplicates: int


@dataclass(frozen=True)
class Tenant:
    """One tenant's part of the file."""

    name: str
    num_requests: int
    num_input_tokens: int
    num_output_tokens: int


class SessionCount:
    """Counts sessions; memory grows with their number."""

    def __init__(self) -> None:
        self._turns: dict[int | str, int] = {}
        self._starts: dict[int | str, tuple[int, ...]] = {}
        self._num_without = 0
        self._think_s = array("d")

    def add(self, record: Record) -> None:
        if record.after_s is not None:
            self._think_s.append(record.after_s)
        name = record.session
        if name is None:
            self._num_without += 1
            return
        turn = self._turns[name] = self._turns.get(name, 0) + 1
        if turn <= _TELLING_TURNS:
            self._starts[name] = (*self._starts.get(name, ()), record.num_prompt_tokens, record.num_output_tokens)

    def sessions(self) -> Sessions | None:
        """None where no request belongs to one."""
        if not self._turns:
            return None
        alike = Counter(self._starts[name] for name, turns in self._turns.items() if turns >= _TELLING_TURNS)
        return Sessions(
            num=len(self._turns),
            turns=spread(list(self._turns.values())),
            num_without=self._num_without,
            think_s=spread(self._think_s),
            num_judged=alike.total(),
            num_duplicates=alike.total() - len(alike),
        )


class TenantCount:
    """Counts tenants; requests without one are nobody's."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}

    def add(self, record: Record) -> None:
        if record.tenant is not None:
            counts = self._counts.setdefault(record.tenant, [0, 0, 0])
            counts[0] += 1
            counts[1] += record.num_prompt_tokens
            counts[2] += record.num_output_tokens

    def tenants(self) -> tuple[Tenant, ...]:
        """The one with the most requests first."""
        found = [Tenant(name, *counts) for name, counts in self._counts.items()]
        return tuple(sorted(found, key=lambda one: -one.num_requests))
