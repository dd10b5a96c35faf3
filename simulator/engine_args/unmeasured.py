"""In what an engine runs otherwise than the one whose steps were measured: there, no step time counts as measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.engine_args.config import EngineConfig
    from simulator.profile import Profile


def unmeasured(config: EngineConfig, profile: Profile) -> list[str]:
    """One sentence a difference, for the report; none for a profile of which nothing was measured."""
    if profile.measured is None:
        return []
    found = []
    measured = profile.identity.async_scheduling
    if measured is not None and measured != config.async_scheduling:
        names = {True: "asynchronous", False: "synchronous"}
        effect = "host time would overlap" if config.async_scheduling else "host time would no longer overlap"
        found.append(
            f"Measured with {names[measured]} scheduling, simulated {names[config.async_scheduling]}: {effect}, so "
            "step times rest on a prior."
        )
    if config.speculative is not None:
        found.append(
            "Measured without speculative decoding: drafts are charged as decodes, the drafter's own time is not, so "
            "step times rest on a prior."
        )
    if config.max_loras:
        found.append("Measured without LoRA adapters: their cost is left out, so step times rest on a prior.")
    return found
