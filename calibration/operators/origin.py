"""Where operator times come from, and what all readers of such tables answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from calibration.geometry import Rank
from calibration.operators.step import Step
from calibration.operators.table import Table


@dataclass(frozen=True)
class Origin:
    """The engine whose operators were timed, and by whom. ``left_out`` is what the tables do not hold, in words."""

    layout: str
    source: str
    license: str
    device: str
    vllm: str
    tables: tuple[Table, ...]
    left_out: str


class StepTables(Protocol):
    """Tables that give the time of a step of one model on one rank."""

    origin: Origin
    rank: Rank

    def covers(self, step: Step) -> bool:
        """Whether the tables reach so far."""
        ...

    def step_s(self, step: Step) -> float:
        """Seconds of the step's operators. Raises InputError where the tables do not reach."""
        ...
