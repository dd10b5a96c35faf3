"""More tenants: out of a file, or copies of one that is there."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from simulator.errors import InputError, nearest
from simulator.scenario import Scenario, problems, strict_yaml
from simulator.workload.spec import TenantSpec, TraceSpec

_COPIES = re.compile(r"(.+?)\s*\*\s*(\d+)", re.ASCII)
_MOST_COPIES = 1000
_PATHS = ("path", "tokenizer", "lengths")
_MOST_NAMED = 3


def said(scenario: Scenario) -> list[dict[str, Any]]:
    """The tenants as the file has them, without defaults."""
    return [one.model_dump(mode="json", exclude_unset=True) for one in scenario.workload.tenants]


def place(scenario: Scenario, name: str) -> int:
    """Where the tenant of this name is. Raises InputError."""
    names = [one.name for one in scenario.workload.tenants]
    if name not in names:
        raise InputError(f"the scenario has no tenant {name!r}{nearest(name, names)}")
    return names.index(name)


def added(scenario: Scenario, text: str) -> tuple[list[dict[str, Any]], str]:
    """The tenants that ``text`` adds (``FILE.yaml``, ``NAME`` for one more like that, ``NAME*3`` for three) as entries
    of a scenario, and the same in words. Raises InputError.

    A copy has a name of its own, and with it random streams of its own: it sends other requests of the same kind.
    """
    if text.endswith((".yaml", ".yml")):
        entries = _read(Path(text), scenario.base_dir)
        return entries, f"with {_tenants([entry['name'] for entry in entries])} of {text}"
    names = [one.name for one in scenario.workload.tenants]
    match = None if text in names else _COPIES.fullmatch(text)
    name, number = (match[1], int(match[2])) if match else (text, 1)
    entry = said(scenario)[place(scenario, name)]
    if not 1 <= number <= _MOST_COPIES:
        raise InputError(f"got {number} copies, expected 1 to {_MOST_COPIES:,}")
    copies = _free_names(name, names, number)
    return [{**entry, "name": copy} for copy in copies], f"with {_tenants(copies)} like {name}"


def _free_names(name: str, taken: list[str], number: int) -> list[str]:
    """``NAME-2``, ``NAME-3``, ..., without those that are taken."""
    possible = (f"{name}-{count}" for count in range(2, 2 + number + len(taken)))
    return [one for one in possible if one not in taken][:number]


def _tenants(names: list[str]) -> str:
    if len(names) == 1:
        return f"another tenant, {names[0]},"
    named = names if len(names) <= _MOST_NAMED else [*names[: _MOST_NAMED - 1], "...", names[-1]]
    return f"{len(names)} more tenants ({', '.join(named)})"


def _read(path: Path, base_dir: Path) -> list[dict[str, Any]]:
    """The tenants in a file: one entry, or a whole ``workload``. Paths in them start from the file's folder."""
    data = strict_yaml.read(strict_yaml.text_of(path, "a tenant in YAML"), str(path))
    inner = data.get("workload", data)
    entries = inner.get("tenants", [inner]) if isinstance(inner, dict) else inner
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{path}: expected a tenant as in a scenario (name: ...), or a workload with tenants")
    return [_entry(entry, path, base_dir) for entry in entries]


def _entry(entry: Any, path: Path, base_dir: Path) -> dict[str, Any]:
    try:
        tenant = TenantSpec.model_validate(entry)
    except ValidationError as error:
        raise InputError(f"{path}: {problems.one_line(error, TenantSpec, entry)}") from None
    found: dict[str, Any] = tenant.model_dump(mode="json", exclude_unset=True)
    if tenant.trace is not None:
        found["trace"] |= _paths(tenant.trace, path.parent, base_dir)
    return found


def _paths(trace: TraceSpec, folder: Path, base_dir: Path) -> dict[str, str]:
    """The trace's files, as seen from the scenario's folder."""
    given = {key: getattr(trace, key) for key in _PATHS if getattr(trace, key) is not None}
    return {key: os.path.relpath(folder / value, base_dir) for key, value in given.items()}
