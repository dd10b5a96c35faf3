"""What every eviction policy is made of: checked parameters, and three methods that keep an order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Protocol

from pydantic import BaseModel, ConfigDict


class Params(BaseModel):
    """A policy's parameters: frozen, and strict about names. Policies without any use it as it is."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @property
    def tenants(self) -> list[str]:
        """The tenants that are named; a scenario has to have them."""
        return []


class User(Protocol):
    """Who computes, finds or gives back blocks: what a policy may know of a request. ``tenant`` counts from 0."""

    @property
    def request_id(self) -> int: ...
    @property
    def tenant(self) -> int: ...
    @property
    def session(self) -> int | None: ...
    @property
    def priority(self) -> int: ...


class Policy(ABC):
    """In which order idle blocks lose their content. One object for one cache.

    A block is a number that stands for a place: a block id of an engine's pool, or, in a trace-only replay, the content
    itself. Its *name* is its content (a block key). Names from `prefix.PRIVATE` on identify nothing: several blocks may
    share one. A block with content is either *held* by requests or *idle*; only idle ones can be evicted. ``now_s`` is
    the time of the call, kept up to date where ``needs_clock`` is true, else 0.

    The owner of the cache calls

    - ``keep`` where blocks become idle: the first time since they got their content, or again after a use;
    - ``use`` where a request finds blocks: idle ones are held from then on, and some may have been held already;
    - ``evict`` for the idle block that is to lose its content now: the policy forgets that block.

    A policy sees no content that is still held by the request that computed it: *insertion* is the first ``keep``.
    """

    summary: ClassVar[str]
    source: ClassVar[str]
    Params: ClassVar[type[Params]] = Params

    needs_clock: ClassVar[bool] = False
    # Whether no idle block is ever evicted before one that follows it in a prompt, not even where two requests computed
    # the same at once and each has some of the blocks that are found. It may be false without harm: waiting requests
    # are then looked at more often, since their hits may break in the middle.
    keeps_prefixes: ClassVar[bool] = False
    needs_sessions: ClassVar[bool] = False  # refused for a workload whose requests have none
    needs_future: ClassVar[bool] = False  # which only a replay knows: it calls `foresee` first
    # Whether a replay lets a request's own blocks be evicted while it is inserted, one by one from its first block on
    # (S3-FIFO's convention); else they are pinned, as an engine does, and inserted from the last block on.
    inserts_one_by_one: ClassVar[bool] = False

    def __init__(self, params: Any, num_blocks: int, tenants: Sequence[str] = ("",)) -> None:
        """``num_blocks`` is the size of the cache; ``tenants`` are the names that ``User.tenant`` counts."""
        self.params = params
        self.num_blocks = num_blocks
        self.tenants = tenants
        self.now_s = 0.0

    @abstractmethod
    def keep(self, blocks: Sequence[int], names: Sequence[int], places: Sequence[int], user: User) -> None:
        """``blocks`` hold ``names`` and are idle from now on, given back by ``user``, usually its last block first.

        ``places`` are their positions in the prompt, in blocks from 0.
        """

    @abstractmethod
    def use(self, blocks: Sequence[int], names: Sequence[int], user: User) -> None:
        """``user`` found these blocks, first one first, and holds them."""

    @abstractmethod
    def evict(self, user: User) -> int:
        """The idle block whose content goes, so that ``user`` gets a place. There is at least one idle block."""

    def foresee(self, requests: Iterable[Sequence[int]]) -> None:
        """All requests of a replay that is about to begin, as names of blocks: for policies that need the future."""
        raise NotImplementedError
