"""What a scenario compares: labelled settings, one for each routing policy of it, or of each of its variants."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simulator.errors import InputError
from simulator.routing import RoutingSpec
from simulator.scenario import changes

if TYPE_CHECKING:
    from simulator.scenario.model import Scenario

# What all variants share: their names and streams, how often they are run, from when on they count, and a plan.
SHARED = ("name", "question", "seed", "replications", "warmup", "variants", "plan")
# Labels of tables: a colon parts a variant from its policy.
_NAME = re.compile(r"[^\s:(\[](?:[^:\n]{0,38}[^\s:])?")


@dataclass(frozen=True)
class Setting:
    """One thing to compare: a scenario without variants, under one of its routing policies."""

    label: str
    scenario: Scenario
    router: RoutingSpec
    variant: str | None = None


def read(variants: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[changes.KeyPath, Any]]:
    """The changed keys of each variant by path. Raises InputError ``variants.NAME: ...``."""
    return {name: _read(name, keys) for name, keys in variants.items()}


def _read(name: str, keys: Mapping[str, Any]) -> dict[changes.KeyPath, Any]:
    if not _NAME.fullmatch(name):
        raise InputError(f"variants: got {name!r}, expected a short name without ':'")
    try:
        found = changes.flatten(keys)
    except InputError as error:
        raise InputError(f"variants.{name}: {error}") from None
    for path in found:
        if path[0] in SHARED:
            raise InputError(f"variants.{name}: {changes.write_path(path)} is the same for all variants")
    return found


def settings(scenario: Scenario) -> Iterator[Setting]:
    """What the scenario compares, in its order. Raises InputError as ``Scenario.variant``."""
    if not scenario.variants:
        for router in scenario.routing:
            yield Setting(router.label, scenario, router)
        return
    for name in scenario.variants:
        variant = scenario.variant(name)
        for router in variant.routing:
            label = name if len(variant.routing) == 1 else f"{name}: {router.label}"
            yield Setting(label, variant, router, name)


def check(scenario: Scenario) -> None:
    """Raise InputError for a variant that does not fit together, changes nothing, or repeats another."""
    changed = read(scenario.variants)
    as_it_is = [effect(scenario, router) for router in scenario.routing]
    seen: dict[tuple[object, ...], str] = {}
    for name, keys in changed.items():
        variant = scenario.variant(name)
        try:
            variant.check()
        except InputError as error:
            raise InputError(f"variants.{name}: {error}") from None
        effects = [effect(variant, router) for router in variant.routing]
        if keys and effects == as_it_is:
            raise InputError(f"variants.{name}: {changes.describe(keys)} changes nothing here, "
                             "expected a setting that does, or {} for the scenario as it is")  # fmt: skip
        for router, found in zip(variant.routing, effects, strict=True):
            if found in seen:
                raise InputError(f"variants.{name}: with {router.label} it is the same as variants.{seen[found]}")
            seen[found] = name


def effect(scenario: Scenario, router: RoutingSpec) -> tuple[object, ...]:
    """What the simulation reads of a setting: two that agree here agree in every number."""
    said = scenario.model_dump(mode="json", exclude={*SHARED, "engine", "profile", "routing"})
    return (
        repr(said), scenario.engine_config, scenario.acceptance, scenario.profile, router.policy, router.params,
    )  # fmt: skip
