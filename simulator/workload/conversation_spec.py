"""What a scenario says about conversations: prompts of layers, turns, pauses, sub-agents. Frozen and strict."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, StrictBool, model_validator

from simulator.units import PositiveCount, PositiveNumber, PositiveSeconds, Share
from simulator.workload.distributions import ArrivalSpec, Length, LengthSpec, Pause, PauseSpec, Spec


class LayerSpec(Spec):
    """One layer of the text that a conversation's prompts begin with.

    Of ``texts`` different ones each conversation has one, all alike or the k-th with weight ``k ** -zipf_exponent``.
    With ``churn`` a text is replaced by a new one that often (seconds), one after another. ``unique``: a text of the
    conversation's own. ``shared_as``: the same texts in every tenant whose layer says the same name (a system prompt
    of the service that all its customers use). ``renewed: every_turn``: chosen anew in each turn (a timestamp in front
    of the system prompt), so that nothing after it is found again.
    """

    name: str = Field(min_length=1)
    tokens: Length
    texts: PositiveCount | None = Field(default=None, le=10**6)
    zipf_exponent: PositiveNumber | None = None
    churn: PositiveSeconds | None = None
    unique: StrictBool = False
    renewed: Literal["every_turn"] | None = None
    shared_as: str | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _every_key_matters(self) -> Self:
        if self.tokens.is_zero:
            raise ValueError(f"layer {self.name!r}: tokens: a layer has at least one token")
        if self.unique and (self.texts is not None or self.churn is not None):
            raise ValueError(f"layer {self.name!r}: texts and churn would change nothing for a unique text")
        if self.unique and self.shared_as is not None:
            raise ValueError(f"layer {self.name!r}: a unique text is shared with nobody")
        if self.zipf_exponent is not None and (self.texts or 1) < 2:
            raise ValueError(f"layer {self.name!r}: zipf_exponent would change nothing without two texts or more")
        if self.renewed and not self.unique and (self.texts or 1) < 2:
            raise ValueError(f"layer {self.name!r}: renewed would change nothing without two texts or more")
        return self


class AgentsSpec(Spec):
    """Sub-agents: after a turn, with this probability, ``number`` of them start from the conversation so far, each with
    a task of its own; the next turn waits for all, and its prompt gets ``report_tokens`` from each.
    """

    number: Length
    share_of_turns: Share = 1.0
    task_tokens: Length
    output_tokens: Length
    report_tokens: Length

    @model_validator(mode="after")
    def _calls_some(self) -> Self:
        if self.number.is_zero or not self.share_of_turns:
            raise ValueError("agents: number and share_of_turns must be above 0")
        return self


class UsersSpec(Spec):
    """A closed loop: so many users, each with one conversation at a time and a pause before the next."""

    number: PositiveCount = Field(le=10**6)
    pause: Pause = PauseSpec(distribution="fixed", mean=0.0)


class ConversationSpec(Spec):
    """Conversations: a prompt of layers, then turns in which question and answer are added to what came before.

    They start by ``arrivals``, or one after another for each of ``users`` (a closed loop), until ``num_conversations``
    have started or ``duration`` is over. The next turn is sent ``think_time`` after the answer has *ended*, so that a
    slow engine slows its users down. The history that a turn repeats holds the answers as the engine gave them.
    """

    arrivals: ArrivalSpec | None = None
    users: UsersSpec | None = None
    num_conversations: PositiveCount | None = None
    duration: PositiveSeconds | None = None
    layers: tuple[LayerSpec, ...] = ()
    turns: Length = LengthSpec(distribution="fixed", mean=1)
    question_tokens: Length | None = None
    output_tokens: Length
    think_time: Pause | None = None
    agents: AgentsSpec | None = None

    @model_validator(mode="after")
    def _describes_one_stream(self) -> Self:
        if (self.arrivals is None) == (self.users is None):
            raise ValueError("give exactly one of arrivals and users")
        if (self.num_conversations is None) == (self.duration is None):
            raise ValueError("give exactly one of num_conversations and duration")
        if self.turns.is_zero:
            raise ValueError("turns: a conversation has at least one turn")
        if self.output_tokens.is_zero:
            raise ValueError("output_tokens: a request generates at least one token")
        if self.question_tokens is None and (not self.layers or self.more_turns):
            raise ValueError("question_tokens: missing; without layers, or in a second turn, there is nothing to ask")
        if self.question_tokens is not None and self.question_tokens.is_zero and not self.layers:
            raise ValueError("a prompt has at least one token: give layers or question_tokens")
        if self.think_time is not None and not self.more_turns:
            raise ValueError("think_time would change nothing in conversations of one turn")
        names = [layer.name for layer in self.layers]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two layers are called {repeated[0]!r}")
        return self

    @property
    def open_loop(self) -> bool:
        """Whether no request waits for another, so that arrivals are what they are, however long answers take."""
        return self.users is None and not self.more_turns and self.agents is None

    @property
    def more_turns(self) -> bool:
        """Whether any conversation has a second turn."""
        return not (self.turns.distribution == "fixed" and self.turns.mean == 1)
