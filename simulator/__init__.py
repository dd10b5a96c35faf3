"""Simulate a cluster of LLM serving instances with prefix caching, calibrated on the device that will serve.

    >>> import simulator
    >>> scenario = simulator.load("scenarios/shared_prefix.yaml")  # doctest: +SKIP
    >>> comparison = simulator.compare(scenario)  # doctest: +SKIP

Reading order: ``request``, ``prefix``, ``block_pool``, ``kv_cache`` and ``scheduler`` decide what an engine does in a
step; ``step_time`` says how long that takes; ``instance`` and ``cluster`` let time pass; ``experiment`` runs it often.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.comparison import Comparison
    from simulator.engine_args import EngineArgs, EngineConfig
    from simulator.errors import InputError
    from simulator.experiment import compare
    from simulator.profile import Profile, load_profile
    from simulator.scenario import Scenario, load, parse

__version__ = "0.1.0"

__all__ = [
    "Comparison", "EngineArgs", "EngineConfig", "InputError", "Profile", "Scenario", "compare", "load", "load_profile",
    "parse",
]  # fmt: skip

# Resolved at first use (PEP 562), so that nothing heavy is loaded by those who need none of it.
_HOME = {
    "Comparison": "comparison",
    "EngineArgs": "engine_args",
    "EngineConfig": "engine_args",
    "InputError": "errors",
    "Profile": "profile",
    "Scenario": "scenario",
    "compare": "experiment",
    "load": "scenario",
    "load_profile": "profile",
    "parse": "scenario",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"simulator.{_HOME[name]}"), name)
    raise AttributeError(f"module 'simulator' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
