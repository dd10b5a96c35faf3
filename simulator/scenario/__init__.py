"""Scenarios: `load` a file or `parse` a text into a frozen `Scenario`; anything wrong is one line.

Reading order: ``model`` (what can be said; ``plan_spec``: to plan by), ``changes``, ``variants`` and ``offered_load``
(the same said otherwise), ``strict_yaml`` (how it is read), ``problems`` (how errors are worded).
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from simulator.errors import InputError
from simulator.scenario import plan_spec, problems, strict_yaml
from simulator.scenario.model import ClusterSpec, Scenario
from simulator.scenario.variants import Setting

__all__ = ["ClusterSpec", "Scenario", "Setting", "load", "parse"]


def load(path: str | Path) -> Scenario:
    """The scenario in this file, checked together with its profile. Raises InputError ``FILE: key.path: ...``."""
    file = Path(path)
    return parse(strict_yaml.text_of(file, "a scenario in YAML"), str(path), file.parent)


def parse(text: str, where: str = "scenario", base_dir: str | Path = ".") -> Scenario:
    """The scenario in ``text``, which errors call ``where``; its paths start from ``base_dir``. Raises InputError."""
    data = strict_yaml.read(text, where)
    try:
        scenario = Scenario.model_validate(data)
    except ValidationError as error:
        raise InputError(f"{where}: {problems.one_line(error, Scenario, data)}") from None
    scenario._base_dir = Path(base_dir)
    try:
        scenario.check()
        if scenario.plan is not None:  # not of every change to it: only a plan looks at it
            plan_spec.check(scenario.plan, scenario.workload.tenants)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return scenario
