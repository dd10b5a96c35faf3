"""What a router answers: send the request to an instance, hold it for a while, or refuse it."""

from __future__ import annotations

from typing import NamedTuple


class Copy(NamedTuple):
    """The first ``num_blocks`` blocks of the prompt, copied from instance ``source`` within ``copy_s`` seconds."""

    source: int
    num_blocks: int
    copy_s: float


class Send(NamedTuple):
    """Submit the request to instance number ``instance`` now, or when ``copy`` has brought it cached blocks.

    ``prefill_s``: how long the router expects its prefill to take, for `View.prefill_s`.
    """

    instance: int
    copy: Copy | None = None
    prefill_s: float = 0.0


class Hold(NamedTuple):
    """Ask again at ``until_s``, seconds on the simulation's clock. None: keep it in the router's queue, whose first is
    asked again whenever a first or last token passes the router.
    """

    until_s: float | None = None


class Refuse(NamedTuple):
    """Turn the request away; ``reason`` goes into its record."""

    reason: str


Decision = Send | Hold | Refuse
