"""Engines that answer probes: vLLM in process (``vllm``), and a server seen from a client (``openai_server``).

An engine is launched, says what it is, and then takes one case after the other. Only the standard library is imported
here: an engine's own interpreter reads this file too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from calibration.probes import Case, Limits

Fields = dict[str, Any]


@dataclass(frozen=True)
class Description:
    """What one launch is: ``identity``, ``covariates`` and ``capacity`` in the words of ``measurement``, ``limits`` for
    planning, and ``environment``, which is whatever else could be read. ``launch_id`` tells apart the lives of
    an engine that outlives a session.
    """

    identity: Fields
    covariates: Fields
    capacity: Fields | None
    limits: Limits
    environment: Fields = field(default_factory=dict)
    engine_args: Fields = field(default_factory=dict)
    launch_id: str | None = None


class Launch(Protocol):
    """One running engine. To be closed."""

    def describe(self) -> Description:
        """What was launched."""
        ...

    def take(self, case: Case, repeat: int) -> list[Fields]:
        """Play a case once; the fields of its rows (``measurement``, without ``launch``, ``repeat``, ``covariates``).

        A row whose check failed carries ``failed``. Raises InputError if the engine broke down.
        """
        ...

    def close(self) -> None:
        """End the engine."""
        ...


class Engine(Protocol):
    """Something that can be launched.

    ``probes`` are those that it can play (``probes.Case.probe``). ``relaunches``: a launch really starts it
    afresh; else somebody has to, between two sessions.
    """

    @property
    def name(self) -> Literal["vllm", "openai"]:
        """As rows carry it."""
        ...

    @property
    def engine_args(self) -> Fields:
        """What was asked for: a part of what a description says."""
        ...

    @property
    def probes(self) -> frozenset[str]:
        """See above."""
        ...

    @property
    def relaunches(self) -> bool:
        """See above."""
        ...

    def launch(self) -> Launch:
        """Start afresh. Raises InputError if it does not start."""
        ...
