"""A tenant's conversations: each turn follows the end of the answer before it.

What a conversation is made of (texts, lengths, number of turns, pauses) is drawn when it begins, from streams that are
read in the order in which conversations begin. So another router or engine moves turns in time and changes no text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice, repeat
from math import inf
from typing import NamedTuple

import numpy as np

from simulator.errors import InputError
from simulator.request import FINISHED, Prompt, Request
from simulator.streams import stream
from simulator.workload.arrivals import arrival_times_s
from simulator.workload.conversation_spec import AgentsSpec, ConversationSpec, LayerSpec
from simulator.workload.distributions import LengthSpec, PauseSpec
from simulator.workload.draws import NUM_PER_DRAW, lengths, one_by_one
from simulator.workload.layers import OWN_TEXTS, Layer, first_text
from simulator.workload.patience import Patience
from simulator.workload.segments import first_segment
from simulator.workload.spec import TenantSpec

Accept = Callable[[int, int], Iterator[int]]

_NOTHING = LengthSpec(distribution="fixed", mean=0)


class Agent(NamedTuple):
    """Tokens of a sub-agent's task, of its answer, and of what it reports to the conversation."""

    num_task_tokens: int
    num_output_tokens: int
    num_report_tokens: int


class Turn(NamedTuple):
    """One turn as drawn: what its prompt begins with, tokens of question and answer, sub-agents called after it, and
    seconds until the next.
    """

    layers: Prompt
    num_question_tokens: int
    num_output_tokens: int
    agents: list[Agent]
    pause_s: float


class Conversation:
    """One conversation under way. ``history`` is what the next prompt repeats after the layers."""

    __slots__ = ("history", "num_requests", "num_under_way", "number", "turn", "turns")

    def __init__(self, number: int, turns: list[Turn]) -> None:
        self.number = number
        self.turns = turns
        self.history: Prompt = ()
        self.turn = 0
        self.num_requests = 0
        self.num_under_way = 0  # sub-agents that the next turn waits for

    @property
    def now(self) -> Turn:
        """The turn under way."""
        return self.turns[self.turn]

    @property
    def is_followed(self) -> bool:
        """Whether anything follows a request of it."""
        return not self.is_last_turn or bool(self.now.agents)

    @property
    def is_last_turn(self) -> bool:
        """Whether nothing follows the turn under way."""
        return self.turn + 1 == len(self.turns)


class Conversations:
    """One replication of a tenant's conversations: iterate for those that begin by themselves, and tell it what ended.
    """

    def __init__(
        self, tenant: TenantSpec, spec: ConversationSpec, index: int, seed: int, replication: int,
        accept: Accept | None = None, patience: Patience | None = None,
    ) -> None:  # fmt: skip
        """``accept(conversation, place)``: the accepted drafts of a conversation's request, by place."""
        self._tenant = tenant
        self._accept = accept
        self._patience = patience
        self._spec = spec
        self._index = index
        self._base = first_segment(index)
        self._own_texts = count(self._base + OWN_TEXTS)
        self._begun = 0
        self._most = min(spec.num_conversations or inf, tenant.limit or inf)
        self._under_way: dict[Request, Conversation] = {}

        def named(purpose: str) -> np.random.Generator:
            return stream(seed, "workload", tenant.name, purpose, replication)

        self._arrivals = named("arrivals")

        def shared(layer: LayerSpec, purpose: str) -> np.random.Generator:
            if layer.shared_as is None:
                return named(f"layer {layer.name}: {purpose}")
            return stream(seed, "workload", f"layer shared as {layer.shared_as}: {purpose}", replication)

        self._layers = [
            Layer(layer, first_text(layer, number, self._base), named, partial(shared, layer))
            for number, layer in enumerate(spec.layers)
        ]
        self._turns = lengths(spec.turns, named("turns"))
        self._questions = lengths(spec.question_tokens or _NOTHING, named("question_tokens"))
        self._answers = lengths(spec.output_tokens, named("output_tokens"))
        self._pauses = _pauses(spec.think_time, named("think_time"))
        self._user_pauses = _pauses(spec.users.pause if spec.users else None, named("users"))
        self._agents = _agents(spec.agents, named) if spec.agents is not None else repeat([])

    def __iter__(self) -> Iterator[Request]:
        spec = self._spec
        if spec.users is not None:
            yield from islice(self._all_begin_at_once(), spec.users.number)
            return
        assert spec.arrivals is not None  # the specification demands one of the two
        for times_s in arrival_times_s(spec.arrivals, self._arrivals, NUM_PER_DRAW):
            for time_s in times_s.tolist():
                request = self._begin(time_s)
                if request is None:
                    return
                yield request

    def ended(self, request: Request, now_s: float) -> list[Request]:
        """The requests that follow this one's end, with their times of arrival; none after a refusal."""
        conversation = self._under_way.pop(request, None)
        if conversation is None:
            return []
        if conversation.num_under_way:  # this was a sub-agent
            conversation.num_under_way -= 1
            return [] if conversation.num_under_way else self._next_turn(conversation, now_s)
        if request.state != FINISHED:
            self._refuse_standstill(request, now_s)
            return self._next_conversation(now_s)
        agents = self._start_agents(conversation, request, now_s)
        return agents or self._next_turn(conversation, now_s)

    def replace(self, request: Request, again: Request) -> None:
        """The client asks the same again: what would have followed the first follows this one."""
        if request in self._under_way:
            self._under_way[again] = self._under_way.pop(request)

    # --- one turn after another -----------------------------------------------------------------------------------

    def _all_begin_at_once(self) -> Iterator[Request]:
        while (request := self._begin(0.0)) is not None:
            yield request

    def _begin(self, time_s: float) -> Request | None:
        """The first turn of the next conversation, or None when all have begun."""
        spec = self._spec
        if self._begun == self._most or (spec.duration is not None and time_s >= spec.duration):
            return None
        number, self._begun = self._begun, self._begun + 1
        return self._ask(Conversation(number, self._draw_turns(time_s)), time_s)

    def _draw_turns(self, time_s: float) -> list[Turn]:
        num_turns = max(1, next(self._turns))
        layers: Prompt = ()
        turns = []
        for number in range(num_turns):
            agents = next(self._agents)
            # A text that nobody repeats needs no name of its own.
            new_text = self._new_text if num_turns > 1 or agents else None
            layers = tuple(
                layer.run(time_s, new_text) if layer.is_renewed or not number else layers[place]
                for place, layer in enumerate(self._layers)
            )
            pause_s = next(self._pauses) if number + 1 < num_turns else 0.0
            turns.append(Turn(layers, next(self._questions), next(self._answers), agents, pause_s))
        return turns

    def _new_text(self) -> int:
        return next(self._own_texts)

    def _ask(self, conversation: Conversation, time_s: float, num_report_tokens: int = 0) -> Request:
        turn = conversation.now
        quoted = conversation.is_followed
        if num_new := turn.num_question_tokens + num_report_tokens:
            question = self._new_text() if quoted else None
            conversation.history = (*conversation.history, (question, 0, num_new))
        answer = self._new_text() if quoted else None
        prompt = (*turn.layers, *conversation.history)
        return self._request(conversation, time_s, prompt, turn.num_output_tokens, answer)

    def _request(
        self, conversation: Conversation, time_s: float, prompt: Prompt, num_outputs: int, answer: int | None
    ) -> Request:
        tenant = self._tenant
        session = self._base + conversation.number
        request = Request(
            request_id=-1,
            arrival_s=time_s,
            prompt=prompt,
            num_prompt_tokens=sum(length for _, _, length in prompt),
            max_tokens=num_outputs,
            oracle_num_output_tokens=num_outputs,
            output_segment=answer,
            tenant=self._index,
            session=session,
            priority=tenant.priority,
            cache_salt=tenant.salt_of(session),
            lora=tenant.lora,
            skip_reading_prefix_cache=tenant.skip_reading_prefix_cache,
        )
        if self._accept is not None:
            request.acceptance = self._accept(conversation.number, conversation.num_requests)
        if self._patience is not None:
            self._patience.limit(request, conversation.number, conversation.num_requests)
        conversation.num_requests += 1
        if conversation.is_followed or self._spec.users is not None:
            self._under_way[request] = conversation
        return request

    def _start_agents(self, conversation: Conversation, request: Request, now_s: float) -> list[Request]:
        """The sub-agents that this turn calls, behind the conversation so far with the turn's answer."""
        self._quote(conversation, request)
        turn = conversation.now
        conversation.num_under_way = len(turn.agents)
        shared = (*turn.layers, *conversation.history)
        return [
            self._request(
                conversation, now_s, (*shared, (None, 0, agent.num_task_tokens)), agent.num_output_tokens, None
            )
            for agent in turn.agents
        ]

    def _quote(self, conversation: Conversation, request: Request) -> None:
        """The answer becomes part of the history, as long as it came out."""
        if request.output_segment is not None:
            conversation.history = (*conversation.history, (request.output_segment, 0, request.num_output_tokens))

    def _next_turn(self, conversation: Conversation, now_s: float) -> list[Request]:
        if conversation.is_last_turn:
            return self._next_conversation(now_s)
        before = conversation.now
        conversation.turn += 1
        reported = sum(agent.num_report_tokens for agent in before.agents)
        return [self._ask(conversation, now_s + before.pause_s, reported)]

    def _refuse_standstill(self, request: Request, now_s: float) -> None:
        spec = self._spec.users
        if spec is not None and not spec.pause.mean and request.arrival_s == now_s:
            raise InputError(
                f"tenant {self._tenant.name!r}: a request ended the moment it was sent "
                f"({request.refusal or 'given up'}), and its user asks again at once: expected users.pause above 0"
            )

    def _next_conversation(self, now_s: float) -> list[Request]:
        """In a closed loop the user's next one."""
        if self._spec.users is None:
            return []
        request = self._begin(now_s + next(self._user_pauses))
        return [] if request is None else [request]


def _agents(spec: AgentsSpec, named: Callable[[str], np.random.Generator]) -> Iterator[list[Agent]]:
    """The sub-agents of one turn after another."""
    numbers, called = lengths(spec.number, named("agents")), named("agents called")
    tasks = lengths(spec.task_tokens, named("task_tokens"))
    outputs = lengths(spec.output_tokens, named("agent output_tokens"))
    reports = lengths(spec.report_tokens, named("report_tokens"))
    while True:
        number = next(numbers) if called.random() < spec.share_of_turns else 0
        yield [Agent(max(1, next(tasks)), max(1, next(outputs)), next(reports)) for _ in range(number)]


def _pauses(spec: PauseSpec | None, rng: np.random.Generator) -> Iterator[float]:
    if spec is None or not spec.mean:
        return repeat(0.0)
    return one_by_one(partial(_draw_pauses_s, spec, rng))


def _draw_pauses_s(spec: PauseSpec, rng: np.random.Generator, size: int) -> np.ndarray:
    if spec.distribution == "fixed":
        return np.full(size, spec.mean)
    if spec.distribution == "exponential":
        return rng.exponential(spec.mean, size)
    assert spec.cv is not None  # the specification demands it
    variance = np.log1p(spec.cv**2)
    return np.asarray(rng.lognormal(np.log(spec.mean) - variance / 2, np.sqrt(variance), size))
