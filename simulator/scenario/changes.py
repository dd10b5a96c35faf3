"""Changing what a scenario says: keys by their paths, in variants, sweeps and questions of what if.

A path is written as errors write it, ``engine.max_num_seqs`` or ``workload.tenants[0].limit``; an entry of a list also
goes by its name (``workload.tenants.chat.limit``), and the only routing policy needs none (``routing.temperature``).
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from simulator.errors import InputError, nearest

KeyPath = tuple[str, ...]

# A mapping with one of these keys says what something is, and stands for itself; any other mapping changes some keys.
KINDS = ("policy", "process", "distribution", "format", "method")
# Where a policy's name alone is short for a mapping with it.
_POLICIES = ("routing", "eviction")
_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
_WHOLE = re.compile(r"[^.\[\]]+(?:\[\d+\]|\.[^.\[\]]+)*")


def read_path(text: str) -> KeyPath:
    """The parts of ``text``: keys, names and numbers. Raises InputError where it is no path."""
    if not _WHOLE.fullmatch(text):
        raise InputError(f"got {text!r}, expected a key like engine.max_num_seqs or workload.tenants[0].limit")
    parts = tuple(match[1] or match[2] for match in _PART.finditer(text))
    return ("routing", *parts[1:]) if parts[0] == "router" else parts


def write_path(path: KeyPath) -> str:
    """The path as ``read_path`` reads it."""
    return "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path).removeprefix(".")


def flatten(keys: Mapping[str, Any]) -> dict[KeyPath, Any]:
    """The changed keys by their whole paths: ``{engine: {a: 1}}`` and ``{engine.a: 1}`` are the same.

    Raises InputError for a key that is given twice, or beside a key within it.
    """
    found: dict[KeyPath, Any] = {}
    for path, value in _leaves(keys, ()):
        for other in found:
            shorter = min(len(path), len(other))
            if path[:shorter] == other[:shorter]:
                raise InputError(f"{write_path(path)}: changed twice, as {write_path(other)} too")
        found[path] = value
    return found


def _leaves(keys: Mapping[str, Any], above: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    for key, value in keys.items():
        path = read_path(write_path((*above, key))) if above else read_path(key)
        if isinstance(value, Mapping) and value and not any(kind in value for kind in KINDS):
            yield from _leaves(value, path)
        else:
            yield path, value


def apply(said: Mapping[str, Any], changes: Mapping[KeyPath, Any]) -> dict[str, Any]:
    """A copy of ``said`` with each path set to its value. Raises InputError for a path into nothing.

    A key that a mapping lacks is made, since only the scenario's model knows which keys may be.
    """
    data = copy.deepcopy(dict(said))
    for path, value in changes.items():
        _set(data, path, copy.deepcopy(value))
    return data


def value_at(said: Mapping[str, Any], path: KeyPath) -> Any:
    """What ``said`` has at this path, None where it has nothing. Raises InputError for a path into nothing."""
    holder: Any = copy.deepcopy(dict(said))
    for depth, part in enumerate(path[:-1]):
        holder = _inside(holder, part, path[: depth + 1], path[depth + 1])
    return holder[_place(holder, path[-1], path[:-1])] if isinstance(holder, list) else holder.get(path[-1])


def describe(changes: Mapping[KeyPath, Any]) -> str:
    """The changes in one line: ``engine.max_num_seqs=64, routing=dynamo``."""
    return ", ".join(f"{write_path(path)}={write_value(value)}" for path, value in changes.items()) or "nothing changed"


def write_value(value: Any) -> str:
    """A value as people write it: text as it is, anything else as JSON without quotes."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False).replace('"', "")


def _set(data: dict[str, Any], path: KeyPath, value: Any) -> None:
    if path == ("routing",):
        data["routing"] = value if isinstance(value, list) else [value]
        return
    holder: Any = data
    for depth, part in enumerate(path[:-1]):
        holder = _inside(holder, part, path[: depth + 1], path[depth + 1])
    last = path[-1]
    if isinstance(holder, list):
        holder[_place(holder, last, path[:-1])] = value
    else:
        holder[last] = value


def _inside(holder: Any, part: str, path: KeyPath, following: str) -> Any:
    """What lies at ``part``, made a mapping where a key of it is to be changed."""
    place: Any = _place(holder, part, path[:-1]) if isinstance(holder, list) else part
    found = holder[place] if isinstance(holder, list) else holder.get(place)
    if found is None:
        found = holder[place] = {}
    elif isinstance(found, str) and path[0] in _POLICIES:
        found = holder[place] = {"policy": found}
    if not isinstance(found, dict | list):
        raise InputError(f"{write_path((*path, following))}: {write_path(path)} is {found!r}, expected a mapping")
    if path == ("routing",) and isinstance(found, list) and not (following.isdigit() or following in _names(found)):
        return _only_policy(found, following)
    return found


def _only_policy(policies: list[Any], parameter: str) -> Any:
    if len(policies) != 1:
        names = ", ".join(_names(policies))
        raise InputError(f"routing.{parameter}: the scenario has {len(policies)} policies, expected one "
                         f"(or routing.POLICY.{parameter}, of {names})")  # fmt: skip
    if isinstance(policies[0], str):
        policies[0] = {"policy": policies[0]}
    return policies[0]


def _place(entries: list[Any], part: str, path: KeyPath) -> int:
    """Where the entry of this number or name is."""
    names = _names(entries)
    if part.isdigit() and int(part) < len(entries):
        return int(part)
    if names.count(part) != 1:
        raise InputError(f"{write_path(path)}: no entry {part!r}{nearest(part, names)}")
    return names.index(part)


def _names(entries: list[Any]) -> list[str]:
    return [
        entry if isinstance(entry, str) else str(entry.get("name") or entry.get("policy") or number)
        if isinstance(entry, dict) else str(number)
        for number, entry in enumerate(entries)
    ]
