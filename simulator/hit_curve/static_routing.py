"""Hit rates of several instances behind a router that knows no time: requests come one by one and end at once.

The load of an instance is the uncached blocks that it was given so far. That tells what a rule does to caches, and what
it would do to balance; queues, evictions by running requests and late events are the simulation's
(`kvcast compare`). Rules and conventions: policies.md 4.1, "Static routing".
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from simulator.errors import InputError, nearest
from simulator.hit_curve.asked import Asked
from simulator.hit_curve.instance_cache import InstanceCache
from simulator.hit_curve.sample import hashed
from simulator.routing.hashing import jump_hash
from simulator.units import number


@dataclass
class Fleet:
    """The instances as a rule sees them: their caches, and the uncached blocks that each was given."""

    caches: list[InstanceCache]
    assigned: list[int]

    def num_hits(self, asked: Asked) -> list[int]:
        """What each would hit."""
        return [cache.num_hits(asked) for cache in self.caches]


class Rule(ABC):
    """Chooses an instance. Ties go to the lower number."""

    summary: str
    default: float | None = None  # of its one parameter; None where it has none

    def __init__(self, num_instances: int, value: float) -> None:
        self.num_instances = num_instances
        self.value = value

    @abstractmethod
    def choose(self, place: int, asked: Asked, fleet: Fleet) -> int:
        """Where request number ``place`` goes."""

    def check(self) -> None:  # noqa: B027 - most go by what every request has
        """Raises InputError, after the last request, where none had what the rule goes by."""


class RoundRobin(Rule):
    summary = "each in turn"

    def choose(self, place: int, asked: Asked, fleet: Fleet) -> int:  # noqa: ARG002
        return place % self.num_instances


class Random(Rule):
    summary = "any, drawn with seed 0"

    def __init__(self, num_instances: int, value: float) -> None:
        super().__init__(num_instances, value)
        self._rng = random.Random(0)  # noqa: S311 - not for secrets

    def choose(self, place: int, asked: Asked, fleet: Fleet) -> int:  # noqa: ARG002
        return self._rng.randrange(self.num_instances)


class Session(Rule):
    summary = "always the same one for a session, by the hash of session_hash; without a session, fewest requests"

    def __init__(self, num_instances: int, value: float) -> None:
        super().__init__(num_instances, value)
        self._num_sent = [0] * num_instances
        self._has_sessions = False

    def choose(self, place: int, asked: Asked, fleet: Fleet) -> int:  # noqa: ARG002
        if asked.session is None:
            chosen = self._num_sent.index(min(self._num_sent))
        else:
            chosen = jump_hash(hashed(asked.session), self.num_instances)
            self._has_sessions = True
        self._num_sent[chosen] += 1
        return chosen

    def check(self) -> None:
        if not self._has_sessions and any(self._num_sent):
            raise InputError(
                "--router session: no request has a session, expected some (of mooncake: a scenario whose trace says "
                "session_from: second_block)"
            )


class LongestPrefix(Rule):
    summary = "the one that holds most of the prompt's leading blocks, whatever its load"

    def choose(self, place: int, asked: Asked, fleet: Fleet) -> int:  # noqa: ARG002
        hits = fleet.num_hits(asked)
        return hits.index(max(hits))


class Match(Rule):
    summary = "the longest match where it is more than so much of the prompt (ties: least load), else the least load"
    default = 0.3

    def choose(self, place: int, asked: Asked, fleet: Fleet) -> int:  # noqa: ARG002
        hits, assigned = fleet.num_hits(asked), fleet.assigned
        most = max(hits)
        among = range(self.num_instances)
        if most > self.value * asked.num_blocks:
            return min((one for one in among if hits[one] == most), key=assigned.__getitem__)
        return min(among, key=assigned.__getitem__)


class Cost(Rule):
    summary = "the least uncached blocks + so much of the load above the mean"
    default = 0.02

    def choose(self, place: int, asked: Asked, fleet: Fleet) -> int:  # noqa: ARG002
        hits, assigned = fleet.num_hits(asked), fleet.assigned
        mean = sum(assigned) / self.num_instances
        return min(
            range(self.num_instances), key=lambda one: self.value * max(0.0, assigned[one] - mean) - hits[one]
        )


RULES: Mapping[str, type[Rule]] = MappingProxyType({
    "round_robin": RoundRobin,
    "random": Random,
    "session": Session,
    "longest_prefix": LongestPrefix,
    "match": Match,
    "cost": Cost,
})


@dataclass(frozen=True)
class RuleSpec:
    """A rule by name, with the value of its parameter."""

    name: str
    value: float = 0.0

    @property
    def label(self) -> str:
        """``match>0.3``, ``cost+0.02``, or the name alone."""
        sign = {"match": ">", "cost": "+"}.get(self.name)
        return self.name if sign is None else f"{self.name}{sign}{self.value:g}"


def parse_rules(given: Iterable[str]) -> tuple[RuleSpec, ...]:
    """``cost`` or ``cost:0.1``, each once. Raises InputError, one line."""
    found: dict[str, RuleSpec] = {}
    for text in given:
        name, colon, value = text.partition(":")
        if name not in RULES:
            raise InputError(f"--router: unknown {name!r}{nearest(name, RULES)}")
        default = RULES[name].default
        if default is None and colon:
            raise InputError(f"--router {name}: got {value!r}, expected no number")
        try:
            spec = RuleSpec(name, (number(value) if colon else default) or 0.0)
        except InputError as error:
            raise InputError(f"--router {name}: {error}") from None
        if spec.value < 0 or (name == "match" and spec.value > 1):
            raise InputError(f"--router {name}: got {value}, expected {'0 to 1' if name == 'match' else '0 or more'}")
        found[spec.label] = spec
    return tuple(found.values())


@dataclass(frozen=True)
class Routed:
    """What ``num_instances`` of ``num_blocks`` blocks each hit together under a rule.

    ``imbalance`` is the largest share of the uncached work over the mean one.
    """

    rule: RuleSpec
    num_instances: int
    num_blocks: int
    num_hits: int
    imbalance: float


def route(requests: Iterable[Asked], spec: RuleSpec, num_instances: int, num_blocks: int, block_size: int) -> Routed:
    """Send the requests to instances, one by one. Raises InputError where the rule lacks what it goes by."""
    rule = RULES[spec.name](num_instances, spec.value)
    caches = [InstanceCache(num_blocks, block_size) for _ in range(num_instances)]
    fleet = Fleet(caches, [0] * num_instances)
    total = 0
    for place, asked in enumerate(requests):
        chosen = rule.choose(place, asked, fleet)
        num_hits = caches[chosen].serve(asked)
        fleet.assigned[chosen] += asked.num_blocks - num_hits
        total += num_hits
    rule.check()
    work = sum(fleet.assigned)
    imbalance = max(fleet.assigned) * num_instances / work if work else 1.0
    return Routed(spec, num_instances, num_blocks, total, imbalance)
