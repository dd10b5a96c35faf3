"""The layouts of operator tables that are read, by name."""

from __future__ import annotations

from pathlib import Path

from calibration.devices import Device
from calibration.geometry import Rank
from calibration.operators import aiconfigurator, llmservingsim
from calibration.operators.origin import StepTables
from simulator.errors import InputError, nearest

LAYOUTS = (llmservingsim.LAYOUT, aiconfigurator.LAYOUT)


def open_tables(layout: str, folders: tuple[Path, ...], rank: Rank, device: Device) -> StepTables:
    """The tables in ``folders`` for this rank. Raises InputError where they do not hold what it needs."""
    if layout == llmservingsim.LAYOUT:
        return llmservingsim.LLMServingSimTables(folders, rank)
    if layout == aiconfigurator.LAYOUT:
        if rank.data_parallel_size > 1:
            raise InputError(f"--data-parallel-size: got {rank.data_parallel_size}, expected 1 with layout {layout}")
        return aiconfigurator.AIConfiguratorTables(folders, rank, device)
    raise InputError(f"--layout: unknown {layout!r}{nearest(layout, LAYOUTS)}")
