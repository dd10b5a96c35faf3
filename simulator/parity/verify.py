"""Compare our decisions with vLLM's, case by case, and shrink the first case in which they differ."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from queue import Queue
from typing import Any

from simulator.counts import counted
from simulator.errors import InputError, nearest
from simulator.parity.cases import DIALECTS, FAMILIES, FORMAT, SIZES, generate_cases
from simulator.parity.engine import Engine
from simulator.parity.engine_harness import digest
from simulator.parity.replay import Record, Replay

Case = dict[str, Any]
_WORDS = {
    "num_steps": "steps",
    "num_preemptions": "preemptions",
    "num_evictions": "evictions",
    "num_resumed_hits": "hits on resumption",
    "num_scheduled_victims": "victims already scheduled in the step",
}


@dataclass
class Tally:
    """What the compared cases contained, by vLLM's own counts."""

    num_cases: int = 0
    num_excluded: int = 0  # cases in which vLLM itself failed an assertion or stopped making progress
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_WORDS, 0))

    def add(self, summary: dict[str, Any]) -> None:
        """Count one compared case."""
        self.num_cases += 1
        for name in _WORDS:
            self.counts[name] += summary[name]

    def describe(self, num_differences: int) -> str:
        """One line: what was compared, and how many cases differ."""
        counts = [f"{self.counts[name]:,} {word}" for name, word in _WORDS.items()]
        differences = counted(num_differences, "difference")
        excluded = (
            f" ({self.num_excluded} more ended in an assertion or a standstill of vLLM's own)"
            if self.num_excluded
            else ""
        )
        return f"{counted(self.num_cases, 'case')}, {', '.join(counts)}, {differences}{excluded}"


@dataclass(frozen=True)
class Difference:
    """The first record in which the two sides differ."""

    case: Case
    position: int
    ours: Record | None
    vllm: Record | None

    def fields(self) -> Iterator[tuple[str, Any, Any]]:
        """(name, ours, vLLM's) of everything that differs in that record."""
        ours, theirs = _flat(self.ours), _flat(self.vllm)
        for name in dict.fromkeys((*theirs, *ours)):
            if ours.get(name) != theirs.get(name):
                yield name, ours.get(name), theirs.get(name)

    def describe(self) -> str:
        """Where and in what the two sides differ, a line a field."""
        case = self.case
        where = f"family {case['family']}, seed {case['seed']}, dialect vllm-{case['dialect']}, record {self.position}"
        lines = [f"difference in {where}; shrunk to {counted(len(case['requests']), 'request')}"]
        for name, ours, theirs in self.fields():
            lines += [f"  {name}", f"    simulated: {json.dumps(ours)}", f"    vLLM:      {json.dumps(theirs)}"]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """A file for a bug report: `kvcast verify FILE` plays it again."""
        return self.case | {"difference": {"record": self.position, "ours": self.ours, "vllm": self.vllm}}


def dialect_of(version: str) -> tuple[str, bool]:
    """The dialect for a vLLM version, and whether that very version was verified; else the nearest one."""
    numbers = re.match(r"(\d+)\.(\d+)(\.0(\+|$))?", version)
    if numbers is None:
        raise InputError(f"vLLM version {version!r}: expected something like 0.32.0")
    minor = 100 * int(numbers[1]) + int(numbers[2])
    nearest_one = min(DIALECTS, key=lambda dialect: abs(int(dialect.split(".")[1]) - minor))
    return nearest_one, nearest_one == f"{numbers[1]}.{numbers[2]}" and numbers[3] is not None


def read_case(path: str | Path, dialect: str) -> Case:
    """A case file of that dialect. Raises InputError for anything else."""
    try:
        case = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except ValueError:
        raise InputError(f"{path}: not JSON, expected a case of format {FORMAT!r}") from None
    if not isinstance(case, dict) or case.get("format") != FORMAT:
        found = case.get("format") if isinstance(case, dict) else type(case).__name__
        raise InputError(f"{path}: format: got {found!r}, expected {FORMAT!r}")
    missing = [name for name in ("dialect", "engine", "requests", "actions", "family", "seed") if name not in case]
    if missing:
        raise InputError(f"{path}: {missing[0]}: missing, expected a whole case of format {FORMAT!r}")
    if case["dialect"] != dialect:
        raise InputError(f"{path}: dialect: got {case['dialect']!r}, expected {dialect!r}, that of the engine's vLLM")
    case.pop("difference", None)
    return case


def random_cases(dialect: str, num_cases: int, seed: int, families: tuple[str, ...], size: str) -> list[Iterator[Case]]:
    """``num_cases`` random cases of each family. Raises InputError for an unknown family or size."""
    for word, known in [(family, FAMILIES) for family in families] + [(size, SIZES)]:
        if word not in known:
            raise InputError(f"{word!r}: expected one of {', '.join(known)}{nearest(word, known)}")
    return [generate_cases(family, num_cases, seed, dialect, size) for family in families or FAMILIES]


def verify(
    engine: Engine, cases: Iterable[Case], tally: Tally, progress: Callable[[], None] | None = None
) -> Difference | None:
    """Play all cases to both sides, counting into ``tally``; the first difference, or None."""
    for answer in engine.play(cases, "digest"):
        case = answer["case"]
        if is_excluded(answer["summary"]):
            tally.num_excluded += 1
        else:
            ours = [digest(record) for record in play(case, len(answer["records"]))]
            if ours != answer["records"]:
                return _difference(next(engine.play([case])))
            tally.add(answer["summary"])
        if progress is not None:
            progress()
    return None


def is_excluded(summary: dict[str, Any]) -> bool:
    """Whether vLLM itself failed in the case: it states no decision to compare with."""
    return bool(summary["assertion"] or summary["stalled"])


def play(case: Case, limit: int, *, grouping: bool = True) -> list[Record]:
    """Our records of the case, as they read after a trip through JSON; one more than ``limit`` at most."""
    records = Replay(case, grouping=grouping).run(limit + 1)
    return list(json.loads(json.dumps(records)))


def shrink(engine: Engine, found: Difference, num_tries: int = 400) -> Difference:
    """A smaller case with a difference: requests and actions are left out, half of them first, then fewer and fewer.

    This is ddmin of Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input" (2002), complements
    only.
    """
    asked: Queue[Case | None] = Queue()
    answers = engine.play(iter(asked.get, None))  # one start of the engine for all tries
    best, num_parts = found, 2
    while num_tries > 0:
        smaller = None
        for case in _without_a_part(best.case, num_parts):
            num_tries -= 1
            asked.put(case)
            smaller = _difference(next(answers))
            if smaller is not None or num_tries <= 0:
                break
        if smaller is not None:
            best, num_parts = smaller, max(2, num_parts - 1)
        elif num_parts < len(best.case["requests"]) + len(best.case["actions"]):
            num_parts *= 2
        else:
            break
    asked.put(None)
    return best


def _difference(answer: dict[str, Any]) -> Difference | None:
    """The first record in which we differ from the engine's full answer."""
    if is_excluded(answer["summary"]):
        return None
    case, theirs = answer["case"], answer["records"]
    for position, (our, their) in enumerate(zip_longest(play(case, len(theirs)), theirs)):
        if our != their:
            return Difference(case, position, our, their)
    return None


def _without_a_part(case: Case, num_parts: int) -> Iterator[Case]:
    """The case without each of ``num_parts`` equal parts of its requests and actions."""
    rows = [("requests", row) for row in case["requests"]] + [("actions", row) for row in case["actions"]]
    num_parts = min(num_parts, len(rows))
    if len(rows) < 2:
        return
    for part in range(num_parts):
        first, last = part * len(rows) // num_parts, (part + 1) * len(rows) // num_parts
        kept = rows[:first] + rows[last:]
        smaller = case | {name: [row for kind, row in kept if kind == name] for name in ("requests", "actions")}
        if smaller["requests"]:
            yield smaller


def _flat(record: Record | None) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in (record or {}).items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": part for key, part in value.items()}
        else:
            flat[name] = value
    return flat
