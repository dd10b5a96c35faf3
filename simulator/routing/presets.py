"""What products ship, by name: a policy with the parameters of one release or one way of starting it.

A preset stands wherever a policy's name may, and its parameters can be changed like a policy's. Names follow the
products'; one that is a policy's own name (``random``, ``oracle``) needs no entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True)
class Preset:
    """``policy`` with ``values``, as ``source`` has it."""

    policy: str
    summary: str
    source: str
    values: Mapping[str, object] = field(default_factory=dict)


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "rr": Preset("round_robin", "each instance in turn", "vLLM production-stack roundrobin (a6c01db)"),
        "p2c": Preset(
            "power_of_two", "fewer in flight of two random instances", "vllm-router power_of_two (fa999f9)"
        ),
        "least-request": Preset("least_requests", "fewest requests in flight", "AIBrix least-request (e3e10f9)"),
        "session-hash": Preset(
            "session_hash", "each session to one instance", "vLLM production-stack session (a6c01db)"
        ),
        "dynamo-2026": Preset(
            "dynamo", "Dynamo's defaults of August 2026: the least cost wins", "NVIDIA Dynamo (config 0243c51)"
        ),
        "dynamo-2025": Preset(
            "dynamo",
            "Dynamo as documented in mid-2025: drawn by cost, at temperature 0.5",
            "NVIDIA Dynamo, documents of mid-2025",
            {"temperature": 0.5},
        ),
    }
)
