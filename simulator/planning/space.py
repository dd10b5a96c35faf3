"""What may be chosen: every combination of the free keys, each a cluster with a price."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from simulator.errors import InputError, nearest
from simulator.scenario import Scenario
from simulator.scenario.changes import KeyPath, read_path, write_path, write_value
from simulator.scenario.plan_spec import CostSpec, PlanSpec, free_values
from simulator.scenario.variants import effect
from simulator.sweep.axes import label

INSTANCES: KeyPath = ("cluster", "instances")
_MOST_CANDIDATES = 20_000


@dataclass(frozen=True)
class Candidate:
    """One setting: its scenario without variants and plan, the chosen values of all keys but the number of instances,
    and what an hour of it costs. ``place`` is its own among all candidates, ``family`` that of its values.
    """

    scenario: Scenario
    values: Mapping[str, Any]
    cost: float
    place: int
    family: int

    @property
    def instances(self) -> int:
        """How many there are."""
        return self.scenario.cluster.instances

    @property
    def label(self) -> str:
        """The setting in words: ``8 instances, routing=dynamo``."""
        chosen = [f"{key}={label(value)}" for key, value in self.values.items()]
        return ", ".join([f"{self.instances} instance{'s' * (self.instances > 1)}", *chosen])


@dataclass(frozen=True)
class Space:
    """All candidates. Those of a family differ in the number of instances alone, and stand in its order."""

    families: tuple[tuple[Candidate, ...], ...]
    keys: tuple[str, ...]

    @cached_property
    def candidates(self) -> list[Candidate]:
        """All of them, family by family."""
        return [candidate for family in self.families for candidate in family]


def read_space(scenario: Scenario, plan: PlanSpec) -> Space:
    """The candidates of a scenario with one policy, or with ``routing`` among the free keys.

    Raises InputError ``plan....`` for a setting that cannot be run, for two that are the same, and for prices that do
    not fit the profiles.
    """
    base = scenario.with_changes({("plan",): None}).changed(replications=1)
    free = {read_path(key): free_values(key, said) for key, said in plan.free.items()}
    numbers = free.pop(INSTANCES, [base.cluster.instances])
    if len(numbers) > 1 and not all(isinstance(one, int) and not isinstance(one, bool) for one in numbers):
        raise InputError(f"plan.free.cluster.instances: got {write_value(numbers)}, expected whole numbers")
    count = len(numbers)
    for values in free.values():
        count *= len(values)
    if count > _MOST_CANDIDATES:
        raise InputError(f"plan.free: {count:,} settings, expected at most {_MOST_CANDIDATES:,}")
    families: list[tuple[Candidate, ...]] = []
    seen: dict[tuple[object, ...], Candidate] = {}
    for number, combination in enumerate(itertools.product(*free.values())):
        chosen = dict(zip(free, combination, strict=True))
        family = _family(base, chosen, sorted(numbers), plan.cost, number)
        families.append(family)
        first = effect(family[0].scenario, family[0].scenario.routing[0])
        if (other := seen.setdefault(first, family[0])) is not family[0]:
            raise InputError(f"plan.free: {family[0].label} is the same setting as {other.label}")
    _refuse_idle_prices(plan.cost, families)
    return Space(tuple(families), tuple(plan.free))


def _family(
    base: Scenario, chosen: Mapping[KeyPath, Any], numbers: Sequence[int], cost: CostSpec, family: int
) -> tuple[Candidate, ...]:
    names = {write_path(path): value for path, value in chosen.items()}
    found: list[Candidate] = []
    said = names
    try:
        # One after the other, as given: a policy before its parameters.
        for path, value in chosen.items():
            base = base.with_changes({path: value})
        for number in numbers:
            said = {"cluster.instances": number, **names} if len(numbers) > 1 else names
            changed = base.with_changes({INSTANCES: number})
            if not found:  # the number of instances decides on nothing else
                changed.check()
            place = family * len(numbers) + len(found)
            found.append(Candidate(changed, names, number * _price(changed, cost), place, family))
    except InputError as error:
        if str(error).startswith("plan."):
            raise
        shown = ", ".join(f"{name}={label(value)}" for name, value in said.items())
        raise InputError(f"plan.free: {shown}: {error}") from None
    if len(found[0].scenario.routing) != 1:
        raise InputError("plan.free.routing: expected a list of policies, one for each setting")
    return tuple(found)


def _price(scenario: Scenario, cost: CostSpec) -> float:
    """Of an hour of one instance."""
    prices, profile = cost.prices, scenario.device_profile
    if isinstance(prices, Mapping):
        if scenario.profile not in prices:
            raise InputError(f"plan.cost: no price for the profile {scenario.profile!r}"
                             f"{nearest(scenario.profile, prices)}")  # fmt: skip
        price = prices[scenario.profile]
    else:
        price = prices
    if cost.npu_hour is None:
        return price
    return price * profile.identity.tensor_parallel_size * profile.identity.pipeline_parallel_size


def _refuse_idle_prices(cost: CostSpec, families: Sequence[Sequence[Candidate]]) -> None:
    if isinstance(cost.prices, Mapping):
        used = {family[0].scenario.profile for family in families}
        if idle := [name for name in cost.prices if name not in used]:
            raise InputError(f"plan.cost: the price of {idle[0]!r} changes nothing{nearest(idle[0], used)}")
