"""What a scenario says about a growing tree of prompts: the source that ``kvcast workload fit`` writes."""

from __future__ import annotations

from itertools import pairwise
from typing import Self

from pydantic import Field, model_validator

from simulator.units import PositiveCount, PositiveNumber, PositiveSeconds, Share
from simulator.workload.distributions import ArrivalSpec, Spec
from simulator.workload.tables import Table


class HeadSpec(Spec):
    """A text that many threads begin with, after the common one: its tokens, and its weight among the heads."""

    tokens: PositiveCount
    weight: PositiveNumber


class AgainSpec(Spec):
    """What the next prompt of a thread keeps of the one before, and what it adds.

    ``kept``: shares of the earlier prompt's whole blocks after its head, counted from their front. ``new_tokens``: the
    tokens after what is kept, a table for each class of the earlier prompt's length, or one for all.
    """

    kept: Table
    new_tokens: tuple[Table, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _keeps_no_more_than_there_is(self) -> Self:
        if self.kept[-1] > 1:
            raise ValueError("kept: shares are not above 1")
        return self


class TreeSpec(Spec):
    """Prompts that grow into a tree: each request begins a thread of its own, or goes on where an earlier one was.

    A new thread's prompt has the ``common_tokens`` that all have, one of ``heads`` (chosen by weight; ``headless`` is
    the weight of having none), then ``thread_tokens`` (a table) of its own. After each request its thread
    has ``another`` turn with a probability that depends on the prompt's length (classes that ``length_classes`` part,
    in tokens), on the answer's (``answer_classes``) and on the turns so far (groups that begin with the turns of
    ``turn_groups``; the first turn is 0): a row a class, a number a group. With classes of both prompts and answers,
    each class of prompts has a row for each class of answers, the shortest prompts' rows first.

    When the next turn comes: ``pause`` (a table, in seconds) after the one before, with the first arrival from then on,
    and arrivals for which no turn is due begin threads. Or, with ``pool``: each arrival is the next turn of any of the
    ``pool`` threads that have not ended, begun or not, all alike, as when a fixed set of documents or dialogues is
    worked off in random order; new threads become fewer. One that has not begun is chosen ``unbegun_weight`` times as
    often as one that has. When all have ended, another ``pool`` of them takes over.

    The next turn is the same prompt again (share ``repeats``), or falls back to the front of it (share
    ``falls_back``, a number a class; what is kept and added says ``fallen``), or goes on (``extended``). Kept text is
    cut down to whole blocks of ``block_tokens``, the granularity at which the trace told what is shared.

    ``new_output_tokens`` and ``output_tokens`` are answers of first and of later turns, a table for each class of the
    request's own prompt, or one for all. Exactly one of ``num_requests`` and ``duration`` ends the stream.
    """

    arrivals: ArrivalSpec
    num_requests: PositiveCount | None = None
    duration: PositiveSeconds | None = None
    block_tokens: PositiveCount = 1
    common_tokens: PositiveCount | None = None
    heads: tuple[HeadSpec, ...] = ()
    headless: PositiveNumber | None = None
    length_classes: tuple[PositiveCount, ...] = ()
    answer_classes: tuple[PositiveCount, ...] = ()
    turn_groups: tuple[PositiveCount, ...] = ()
    thread_tokens: Table
    another: tuple[tuple[Share, ...], ...] | None = None
    pause: Table | None = None
    pool: PositiveCount | None = Field(default=None, le=10**7)
    unbegun_weight: PositiveNumber = 1.0
    repeats: Share = 0.0
    falls_back: tuple[Share, ...] | None = None
    extended: AgainSpec | None = None
    fallen: AgainSpec | None = None
    new_output_tokens: tuple[Table, ...]
    output_tokens: tuple[Table, ...] | None = None

    @property
    def grows(self) -> bool:
        """Whether any thread has a second turn."""
        return self.another is not None

    @model_validator(mode="after")
    def _describes_one_stream(self) -> Self:
        if (self.num_requests is None) == (self.duration is None):
            raise ValueError("give exactly one of num_requests and duration")
        for name in ("length_classes", "answer_classes", "turn_groups"):
            if any(low >= high for low, high in pairwise(getattr(self, name))):
                raise ValueError(f"{name}: each is above the one before")
        if self.headless is not None and not self.heads:
            raise ValueError("headless would change nothing without heads")
        if self.thread_tokens[-1] < 1 and not self.common_tokens and (not self.heads or self.headless):
            raise ValueError("thread_tokens: a prompt has at least one token")
        return self

    @model_validator(mode="after")
    def _turns_are_described(self) -> Self:
        later = ("extended", "output_tokens")
        if self.another is None:
            names = (*later, "pause", "pool", "repeats", "falls_back", "fallen", "answer_classes", "turn_groups")
            if idle := [name for name in names if getattr(self, name)]:
                raise ValueError(f"{' and '.join(idle)} would change nothing without another turn (another)")
            return self
        if missing := [name for name in later if getattr(self, name) is None]:
            raise ValueError(f"{' and '.join(missing)}: missing; what a second turn is like")
        if (self.pause is None) == (self.pool is None):
            raise ValueError("give exactly one of pause and pool")
        if self.pool is None and self.unbegun_weight != 1:
            raise ValueError("unbegun_weight would change nothing without a pool")
        if (self.falls_back is None) != (self.fallen is None):
            raise ValueError("falls_back and fallen go together")
        return self

    @model_validator(mode="after")
    def _tables_have_a_row_a_class(self) -> Self:
        num_classes, num_groups = len(self.length_classes) + 1, len(self.turn_groups) + 1
        rows: dict[str, tuple[object, ...] | None] = {
            "falls_back": self.falls_back,
            "extended.new_tokens": self.extended.new_tokens if self.extended is not None else None,
            "fallen.new_tokens": self.fallen.new_tokens if self.fallen is not None else None,
            "new_output_tokens": self.new_output_tokens,
            "output_tokens": self.output_tokens,
        }
        for name, given in rows.items():
            one_for_all = name != "falls_back" and given is not None and len(given) == 1
            if given is not None and len(given) != num_classes and not one_for_all:
                raise ValueError(f"{name}: {len(given)} given for {num_classes} classes of length")
        num_answers = len(self.answer_classes) + 1
        if self.another is not None and len(self.another) != num_classes * num_answers:
            both = f"{num_classes} classes of length" + f" times {num_answers} of answers" * (num_answers > 1)
            raise ValueError(f"another: {len(self.another)} given for {both}")
        for row in self.another or ():
            if len(row) != num_groups:
                raise ValueError(f"another: a row of {len(row)} for {num_groups} groups of turns")
        return self
