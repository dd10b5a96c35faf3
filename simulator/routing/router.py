"""What every routing policy is made of: checked parameters, and one method that chooses."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from simulator.request import Request
from simulator.routing.decision import Decision
from simulator.routing.fleet import Fleet
from simulator.routing.view import OwnIndex, View
from simulator.units import PositiveCount

Index = Literal["none", "dispatch", "events"]


class Params(BaseModel):
    """A policy's parameters: frozen, hashable, strict about types and names. Policies without any use it as it is."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @property
    def num_replicas(self) -> int:
        """How many routers run side by side."""
        return 1

    @property
    def needs_sessions(self) -> bool:
        """Whether a workload without any is refused."""
        return False

    @property
    def sheds_from(self) -> int | None:
        """From which priority on the router may refuse requests; a workload that has none of these is refused."""
        return None


class StatefulParams(Params):
    """Parameters of a policy that remembers something. ``replicas``: so many routers side by side, each of which knows
    its own dispatches only; requests take turns.
    """

    replicas: PositiveCount = 1

    @property
    def num_replicas(self) -> int:
        """How many routers run side by side."""
        return self.replicas


class Router(ABC):
    """A routing policy. One object a run and a replica; it reads the view and the request's prompt, and draws from
    ``rng`` alone.

    What it sees is said by attributes. ``index``: what fills the view's block index, nothing, the router's own
    dispatches (for ``ttl_s`` seconds each), or block events that arrive ``event_delay_s`` seconds after the engine's
    step; ``speculative_ttl_s``: for how long own dispatches count beside events; `make_own_index`: an index of its own
    kind; ``poll_s``, ``poll_delay_s``: seconds between two polls of the engines' metrics and until one is read;
    ``sees_truth``: the engines as they are.
    """

    summary: ClassVar[str]
    source: ClassVar[str]
    Params: ClassVar[type[Params]] = Params

    index: Index = "none"
    event_delay_s: float = 0.0
    ttl_s: float | None = None
    speculative_ttl_s: float | None = None
    tracks_active_blocks: bool = False
    poll_s: float | None = None
    poll_delay_s: float = 0.0
    sees_truth: ClassVar[bool] = False
    replica: int = 0  # which of the routers side by side this is

    def __init__(self, params: Any, num_instances: int, rng: random.Random) -> None:
        self.params = params
        self.num_instances = num_instances
        self.rng = rng

    @property
    def needs_block_keys(self) -> bool:
        """Whether the policy looks at ``request.block_keys`` at all."""
        return self.index != "none" or self.tracks_active_blocks or self.sees_truth

    def make_view(self, fleet: Fleet) -> View:
        """The empty view that this router reads."""
        return View(
            fleet,
            fills_at_dispatch=self.index == "dispatch",
            ttl_s=self.ttl_s,
            tracks_active_blocks=self.tracks_active_blocks,
            speculative_ttl_s=self.speculative_ttl_s,
            own=self.make_own_index(fleet),
        )

    def make_own_index(self, fleet: Fleet) -> OwnIndex | None:  # noqa: ARG002
        """The router's own kind of index, if it keeps one."""
        return None

    def rank(self, request: Request) -> float:  # noqa: ARG002
        """Place in the router's queue (`Hold` without a time): the least is asked again first, equals in order of
        arrival.
        """
        return 0.0

    @abstractmethod
    def choose(self, request: Request, view: View, now_s: float) -> Decision:
        """Where the request goes at ``now_s``. Changes nothing in the view: the cluster reports the dispatch."""
