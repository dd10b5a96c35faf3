"""What a router answers: send the request to an instance, hold it for a while, or refuse it."""

from __future__ import annotations

from typing import NamedTuple


class Send(NamedTuple):
    """Submit the request to instance number ``instance`` now."""

    instance: int


class Hold(NamedTuple):
    """Ask again at ``until_s``, seconds on the simulation's clock."""

    until_s: float


class Refuse(NamedTuple):
    """Turn the request away; ``reason`` goes into its record."""

    reason: str


Decision = Send | Hold | Refuse
