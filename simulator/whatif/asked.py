"""What is asked: changes as people write them, each as a scenario in which other things hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulator.errors import InputError, nearest
from simulator.scenario import Scenario, changes, strict_yaml
from simulator.scenario.changes import KeyPath, read_path, write_path, write_value
from simulator.scenario.offered_load import load_changes
from simulator.scenario.variants import SHARED, effect
from simulator.whatif import tenants
from simulator.whatif.numbers import factor, relative, times

BEFORE, _AFTER = "before", "after"
_INSTANCES, _BLOCKS = ("cluster", "instances"), ("engine", "num_gpu_blocks_override")
_SHORT = {"instances": _INSTANCES, "kv_memory": _BLOCKS}
_OF_TENANTS = ("with", "without")
_EXPECTED = "rate=2x, instances=-1, kv_memory=50%, with=TENANT, without=TENANT or KEY=VALUE"
_LONGEST_LABEL = 40
_LONGEST_VALUE = 60
_SECONDS = re.compile(r"(\d\S*)( s)", re.ASCII)


@dataclass(frozen=True)
class Change:
    """One change: as it was written, in words, and the scenario with it. ``loads`` are factors of tenants' rates."""

    text: str
    words: str
    scenario: Scenario
    loads: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One thing to compare with the scenario as it is: changes, made one after the other, under a label."""

    label: str
    changes: tuple[Change, ...]

    @property
    def scenario(self) -> Scenario:
        """The scenario with all of the changes."""
        return self.changes[-1].scenario

    @property
    def words(self) -> str:
        """All changes in words, as in "at twice the rate and with one instance fewer"."""
        said = [change.words for change in self.changes]
        return said[0] if len(said) == 1 else f"{', '.join(said[:-1])} and {said[-1]}"

    @property
    def loads(self) -> dict[str, float]:
        """By what the rates of tenants are multiplied, by name."""
        found: dict[str, float] = {}
        for change in self.changes:
            for name, number in change.loads.items():
                found[name] = found.get(name, 1.0) * number
        return found


def ask(scenario: Scenario, texts: Sequence[str], *, each: bool = False) -> tuple[Case, ...]:
    """The cases that are asked for: all changes together or, with ``each``, one for each of them.

    The scenario has one routing policy and no variants. Raises InputError for a change that cannot be read or made,
    that changes nothing, or that is there twice.
    """
    if not texts:
        raise InputError(f"CHANGE: missing, expected {_EXPECTED}")
    if each:
        cases = tuple(Case(_label(text, number), (read_change(scenario, text),)) for number, text in enumerate(texts))
    else:
        cases = (Case(_AFTER, tuple(_one_after_the_other(scenario, texts))),)
        _check_keys(texts)
    seen = {_effect(scenario): BEFORE}
    for case in cases:
        _check(case)
        found = _effect(case.scenario)
        if (other := seen.get(found)) is not None:
            raise InputError("the changes together change nothing" if other == BEFORE
                             else f"{case.label}: the same as {other}, expected each change once")  # fmt: skip
        seen[found] = case.label
    return cases


def compared(scenario: Scenario, cases: Sequence[Case]) -> Scenario:
    """The scenario with a variant for how it is (``BEFORE``) and one for each case, by its label."""
    variants: dict[str, dict[str, Any]] = {BEFORE: {}}
    for case in cases:
        keys = _differences(_said(scenario), _said(case.scenario), ())
        variants[case.label] = {write_path(path): value for path, value in keys}
    return scenario.changed(variants=variants)


def read_change(scenario: Scenario, text: str) -> Change:
    """The change that ``text`` asks for (``rate=2x``, ``engine.max_num_seqs=64``). Raises InputError ``TEXT: ...``."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not (equals and key and value):
        raise InputError(f"CHANGE: got {text!r}, expected {_EXPECTED}")
    try:
        change = _read(scenario, key, value)
        changes_nothing = _effect(change.scenario) == _effect(scenario)
    except InputError as error:
        raise InputError(f"{text.strip()}: {error}") from None
    if len(change.scenario.routing) != 1:
        raise InputError(f"{text.strip()}: got {len(change.scenario.routing)} policies, expected one")
    if changes_nothing:
        raise InputError(f"{text.strip()}: changes nothing here")
    return change


def _label(text: str, number: int) -> str:
    text = text.strip()
    return text if len(text) <= _LONGEST_LABEL and ":" not in text else f"change {number + 1}"


def _one_after_the_other(scenario: Scenario, texts: Sequence[str]) -> Iterator[Change]:
    for text in texts:
        change = read_change(scenario, text)
        yield change
        scenario = change.scenario


def _check(case: Case) -> None:
    try:
        case.scenario.check()
    except InputError as error:
        raise InputError(f"{', '.join(change.text for change in case.changes)}: {error}") from None


def _check_keys(texts: Sequence[str]) -> None:
    """Raise InputError for a change that another one would undo: of a key that it sets outright, or of a rate, where
    each factor meets the end of the stream (``--limit``) again.
    """
    seen: dict[KeyPath, str] = {}
    for text in map(str.strip, texts):
        key, _, value = (part.strip() for part in text.partition("="))
        if key in _OF_TENANTS:
            continue
        is_rate = key == "rate" or key.startswith("rate.")
        path = (key,) if is_rate else _SHORT.get(key) or read_path(key)
        if path in seen and (is_rate or relative(value) is None):
            raise InputError(f"{text}: sets what {seen[path]} sets, expected one of the two")
        seen[path] = text


def _effect(scenario: Scenario) -> tuple[object, ...]:
    return effect(scenario, scenario.routing[0])


def _read(scenario: Scenario, key: str, value: str) -> Change:
    text = f"{key}={value}"
    if key.startswith("rate."):
        return _rate(scenario, text, value, key.removeprefix("rate."))
    if key in _NAMED:
        return _NAMED[key](scenario, text, value)
    path = read_path(key)
    if path[0] not in Scenario.model_fields:
        raise InputError(f"unknown key {path[0]!r}{nearest(path[0], [*_NAMED, *Scenario.model_fields])}")
    if path[0] in SHARED:
        raise InputError(f"{path[0]} is the same before and after")
    return _key(scenario, text, value, path)


def _rate(scenario: Scenario, text: str, value: str, tenant: str | None = None) -> Change:
    number = factor(value)
    if tenant is not None:
        tenants.place(scenario, tenant)
    who = [one.name for one in scenario.workload.tenants] if tenant is None else [tenant]
    changed = scenario.with_changes(load_changes(scenario.workload, number, who))
    words = f"at {times(number)} the rate" if tenant is None else f"with {tenant} at {times(number)} its rate"
    return Change(text, words, changed, dict.fromkeys(who, number))


def _instances(scenario: Scenario, text: str, value: str) -> Change:
    before = scenario.cluster.instances
    changed = _key(scenario, text, value, _INSTANCES).scenario
    after = changed.cluster.instances
    number = "one instance" if abs(after - before) == 1 else f"{abs(after - before)} instances"
    words = f"with {number} {'more' if after > before else 'fewer'} ({after}, not {before})"
    return Change(text, words, changed)


def _kv_memory(scenario: Scenario, text: str, value: str) -> Change:
    number, before = factor(value), scenario.engine_config.num_gpu_blocks
    after = max(1, round(before * number))
    words = f"with {times(number)} the KV memory ({after:,} blocks an instance, not {before:,})"
    return Change(text, words, scenario.with_changes({_BLOCKS: after}))


def _with(scenario: Scenario, text: str, value: str) -> Change:
    added, words = tenants.added(scenario, value)
    return Change(text, words, _with_tenants(scenario, [*tenants.said(scenario), *added]))


def _without(scenario: Scenario, text: str, value: str) -> Change:
    left = tenants.said(scenario)
    del left[tenants.place(scenario, value)]
    if not left:
        raise InputError(f"{value} is the only tenant, expected one that leaves others")
    return Change(text, f"without tenant {value}", _with_tenants(scenario, left))


def _with_tenants(scenario: Scenario, entries: list[dict[str, Any]]) -> Scenario:
    return scenario.with_changes({("workload", "tenants"): entries})


def _key(scenario: Scenario, text: str, value: str, path: KeyPath) -> Change:
    name, (before, unit) = write_path(path), _number_at(scenario, path)
    step = relative(value)
    if step is None:
        found = strict_yaml.read(f"value: {value}", "VALUE")["value"]
        keys = changes.flatten({name: found})
    else:
        if before is None:
            scenario.with_changes({path: 1})  # says so where there is no such key
            raise InputError(f"{name} has no number to begin with, expected a whole value")
        found = step.of(before)
        found = round(found) if isinstance(before, int) else f"{found!r}{unit}" if unit else found
        keys = {path: found}
    shown = write_value(found)
    shown = shown if len(shown) <= _LONGEST_VALUE else f"{shown[: _LONGEST_VALUE - 3]}..."
    was = "" if before is None else f" (before {write_value(before)}{unit})"
    return Change(text, f"with {name}={shown}{was}", scenario.with_changes(keys))


def _number_at(scenario: Scenario, path: KeyPath) -> tuple[float | None, str]:
    """The number that the scenario has there, vLLM's default where it states none, and its unit (targets have one);
    None where there is no number.
    """
    found = scenario.value_at(path)
    if isinstance(found, str) and (match := _SECONDS.fullmatch(found)):
        return float(match[1]), match[2]
    return (None if isinstance(found, bool) or not isinstance(found, int | float) else found), ""


_NAMED: dict[str, Callable[[Scenario, str, str], Change]] = {
    "rate": _rate, "instances": _instances, "kv_memory": _kv_memory, "with": _with, "without": _without,
}  # fmt: skip


def _said(scenario: Scenario) -> dict[str, Any]:
    return scenario.model_dump(mode="json", exclude_unset=True, exclude={"variants"})


def _differences(old: Any, new: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """The keys, as variants have them, that make ``new`` of ``old``."""
    if old == new:
        return
    if path == ("routing",):
        yield path, new[0]
    elif isinstance(old, dict) and isinstance(new, dict) and _is_same_kind(old, new):
        for key, value in new.items():
            yield from _differences(old.get(key), value, (*path, key))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new) and path[-1] == "tenants":
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _differences(one, other, (*path, str(number)))
    else:
        yield path, new


def _is_same_kind(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Whether one becomes the other by setting keys."""
    return old.keys() <= new.keys() and all(old.get(kind) == new.get(kind) for kind in changes.KINDS)
