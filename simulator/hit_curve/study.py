"""Everything that `kvcast hit-curve` says about a source of requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from simulator.eviction import EvictionSpec
from simulator.hit_curve.lru import Lru, lru
from simulator.hit_curve.policies import BOUND, check_policies, replayed
from simulator.hit_curve.sample import Sample, sample
from simulator.hit_curve.source import Source
from simulator.hit_curve.static_routing import Routed, RuleSpec, route

MOST_BLOCKS = 300_000  # blocks that a policy is replayed over: below a second a size and policy
MOSTLY = 0.9  # of the ceiling


@dataclass(frozen=True)
class Pool:
    """What one instance can hold, in blocks (vLLM's null block left out), and who says so."""

    num_blocks: int
    origin: str


@dataclass(frozen=True)
class Point:
    """Blocks hit by a cache of ``num_blocks``; of policies estimated where they were replayed on a sample, None where
    that is too small. ``lru_error`` is how far off the sample was for LRU, in hit rate.
    """

    num_blocks: int
    num_hits: int
    policies: dict[str, float | None]
    lru_error: float | None = None


@dataclass(frozen=True)
class Study:
    """``instances`` are numbers of them that ``pool`` is marked for. ``sample`` is None where nothing was replayed."""

    name: str
    lru: Lru
    points: tuple[Point, ...]
    policies: tuple[str, ...]
    sample: Sample | None
    pool: Pool | None
    instances: tuple[int, ...]
    routed: tuple[Routed, ...]
    notes: tuple[str, ...]

    @property
    def pools(self) -> dict[int, int]:
        """Blocks of so many instances together -> how many instances."""
        return {} if self.pool is None else {number * self.pool.num_blocks: number for number in self.instances}

    def point(self, num_blocks: int) -> Point:
        """The point of a capacity that was asked for."""
        return next(point for point in self.points if point.num_blocks == num_blocks)

    @property
    def is_sampled(self) -> bool:
        """Whether policies were replayed on a part of the requests only."""
        return self.sample is not None and not self.sample.is_whole

    @property
    def largest_lru_error(self) -> float:
        """How far off the sample was for LRU at the worst of the sizes, in hit rate."""
        return max((abs(point.lru_error) for point in self.points if point.lru_error is not None), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """All numbers; rates are shares of 1."""
        found, pool = self.lru, self.pool
        return {
            "source": self.name,
            "block_size": found.counting.block_size,
            "counted_as": "file" if found.counting.as_file else "vllm",
            "num_requests": found.num_requests,
            "num_prompt_tokens": found.num_tokens,
            "num_prompt_blocks": found.num_blocks,
            "num_distinct_blocks": found.num_distinct,
            "num_longest_blocks": found.num_longest,
            "ceiling": self._rates(found.ceiling),
            "num_blocks_for_90_percent_of_ceiling": found.num_for(MOSTLY),
            "curve": [self._point(point) for point in self.points],
            "sample": self._sampled() if self.is_sampled else None,
            "pool": None if pool is None else {
                "num_blocks": pool.num_blocks, "origin": pool.origin, "instances": list(self.instances),
            },
            "static_routing": [
                {
                    "router": one.rule.label, "num_instances": one.num_instances,
                    "num_blocks_per_instance": one.num_blocks, **self._rates(one.num_hits), "imbalance": one.imbalance,
                }
                for one in self.routed
            ],
            "notes": list(self.notes),
        }  # fmt: skip

    def _rates(self, num_hits: float | None) -> dict[str, float | None]:
        if num_hits is None:
            return {"num_hits": None, "hit_rate": None, "block_hit_rate": None}
        return {
            "num_hits": num_hits, "hit_rate": self.lru.share(num_hits), "block_hit_rate": self.lru.of_blocks(num_hits),
        }  # fmt: skip

    def _point(self, point: Point) -> dict[str, Any]:
        every = {"lru": point.num_hits, **point.policies}
        return {
            "num_blocks": point.num_blocks,
            "num_tokens": point.num_blocks * self.lru.counting.block_size,
            "instances": self.pools.get(point.num_blocks),
            **{policy: self._rates(num_hits) for policy, num_hits in every.items()},
            "sampled_lru_error": point.lru_error,
        }

    def _sampled(self) -> dict[str, Any]:
        assert self.sample is not None  # who calls has looked
        return {
            "requests": self.sample.words, "num_requests": len(self.sample.requests),
            "block_factor": self.sample.coarse, "largest_lru_error": self.largest_lru_error,
        }  # fmt: skip


def study(
    source: Source,
    *,
    capacities: Sequence[int] = (),
    policies: Sequence[EvictionSpec] = (BOUND,),
    rules: Sequence[RuleSpec] = (),
    instances: Sequence[int] = (1,),
    pool: Pool | None = None,
    most_blocks: int = MOST_BLOCKS,
) -> Study:
    """The LRU curve in one reading, another for ``policies``, and one each for a rule and a number of ``instances``.

    ``capacities`` are in blocks (none given: 1, 2, 5, 10, ... from the longest request on until all fits). Rules need a
    ``pool``. Policies are replayed on ``most_blocks`` blocks at most. Raises InputError for requests that cannot be
    read, or none at all.
    """
    found = lru(source.asked(), source.counting, source.name)
    notes = tuple(source.notes)
    sizes = set(capacities or _sizes(found))
    if pool is not None:
        sizes.update(number * pool.num_blocks for number in instances)
    ordered = sorted(sizes)
    part = sample(source, found, most_blocks, ordered) if policies and found.ceiling else None
    if part is not None:
        check_policies(policies, part, source.tenants)
    columns = {spec.label: _column(spec, part, found, ordered, tuple(source.tenants)) for spec in policies}
    points = []
    for place, size in enumerate(ordered):
        error = None if part is None or part.is_whole else part.lru_error(found, size)
        values = {label: column[place] for label, column in columns.items()}
        points.append(Point(size, found.curve.hits(size), values, error))
    routed = [
        route(source.asked(), rule, number, pool.num_blocks, source.counting.block_size)
        for rule in rules for number in instances if pool is not None
    ]  # fmt: skip
    return Study(
        source.name, found, tuple(points), tuple(columns), part, pool, tuple(instances), tuple(routed), notes
    )


def _column(
    spec: EvictionSpec, part: Sample | None, found: Lru, sizes: Sequence[int], tenants: Sequence[str]
) -> list[float | None]:
    """Blocks hit at each size, ascending."""
    if part is None:
        return [None if found.ceiling else 0.0 for _ in sizes]
    column: list[float | None] = []
    for size in sizes:
        # The bound never hits less in a larger cache: once at the ceiling it stays there.
        done = spec == BOUND and column and column[-1] == found.ceiling
        column.append(found.ceiling if done else replayed(spec, part, found, size, tenants))
    return column


def _sizes(found: Lru) -> list[int]:
    """1, 2, 5, 10, ...: those that hold the longest request, up to the first that holds everything."""
    longest, distinct = max(1, found.num_longest), max(1, found.num_distinct)
    sizes = []
    for size in _series():
        if size >= longest:
            sizes.append(size)
        if size >= distinct:
            break
    return sizes


def _series() -> Iterator[int]:
    return (step * 10**power for power in count() for step in (1, 2, 5))
