"""Cases played on an engine that runs in this process: what is submitted, what is checked, which rows come out.

Only the standard library is imported here: an engine's own interpreter reads this file too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from calibration.probes import NUM_DECODE_STEPS, NUM_MIXED, NUM_SUFFIX_TOKENS, Case
from calibration.steps import Step

Fields = dict[str, Any]
_NUM_PRIMING_TOKENS = 3  # output tokens of the request that fills the cache, as in the article
# Step by step more than this for one take: the engine is stuck.
_MOST_STEPS = 20_000


@dataclass(frozen=True)
class Delta:
    """What one engine step brought for one request."""

    request_id: str
    token_ids: tuple[int, ...]
    num_cached_tokens: int | None
    finish_reason: str | None


class Stepping(Protocol):
    """The engine's own interface: what ``LLMEngine`` offers, and its recorded steps."""

    def now(self) -> float:
        """Monotonic seconds, of the clock that steps are recorded with."""
        ...

    def reset_prefix_cache(self) -> bool:
        """Forget every cached block; whether that succeeded."""
        ...

    def add_request(self, request_id: str, prompt: list[int], max_tokens: int) -> None:
        """Submit a prompt of token ids; ``max_tokens`` come out of it, no fewer."""
        ...

    def step(self) -> list[Delta]:
        """Run one step of the engine."""
        ...

    def recorded(self) -> list[Step]:
        """The steps since the last call that computed something, in the order of their end."""
        ...


@dataclass
class Served:
    """A request and what came back. ``begun_s`` is when it was handed over, ``submit_s`` how long that took;
    ``token_s`` are seconds since it began.
    """

    num_prompt_tokens: int
    num_output_tokens: int
    begun_s: float
    submit_s: float
    token_s: list[float] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    num_cached_tokens: int | None = None
    finish_reason: str | None = None

    def receive(self, delta: Delta, now_s: float) -> None:
        """Take in what came at ``now_s``."""
        self.token_ids += delta.token_ids
        self.token_s += [now_s - self.begun_s] * len(delta.token_ids)
        if delta.num_cached_tokens is not None:
            self.num_cached_tokens = delta.num_cached_tokens
        self.finish_reason = delta.finish_reason or self.finish_reason


class Texts:
    """Token ids drawn from a seed, so that every launch puts the same questions. ``num_tokens``: of the vocabulary."""

    def __init__(self, num_tokens: int) -> None:
        # The lowest ids are special tokens in most vocabularies.
        self._lowest, self._num = min(1000, num_tokens // 4), num_tokens

    def text(self, name: str, length: int) -> list[int]:
        """The first ``length`` tokens of the text of that name."""
        draw = random.Random(name).randrange  # noqa: S311 (no secret)
        return [draw(self._lowest, self._num) for _ in range(length)]

    def pair(self, case: Case) -> tuple[list[int], list[int]]:
        """A first prompt that fills the cache and a second that shares exactly its first tokens."""
        shared = self.text(f"{case.key} shared", case.num_shared_tokens)
        second = self.text(f"{case.key} second", case.num_prompt_tokens - len(shared))
        if not second:
            return shared, shared
        first = self.text(f"{case.key} first", NUM_SUFFIX_TOKENS)
        if first[0] == second[0]:
            first[0] = self._lowest + (first[0] - self._lowest + 1) % (self._num - self._lowest)
        return shared + first, shared + second


class Player:
    """Plays cases on one launched engine and remembers what its prefix cache holds."""

    def __init__(
        self, engine: Stepping, block_size: int, num_vocabulary_tokens: int, graph_sizes: tuple[int, ...] = ()
    ) -> None:
        self.engine = engine
        self.block_size = block_size
        self.graph_sizes = graph_sizes
        self.texts = Texts(num_vocabulary_tokens)
        self._primed: dict[int, int] = {}
        self._answers: dict[str, list[int]] = {}
        self._num_requests = 0
        self._num_fresh = 0

    def take(self, case: Case, repeat: int) -> list[Fields]:
        """The rows of one take. A failed check marks all of them."""
        play = {"ttft": self._ttft, "chunk": self._chunk, "decode": self._decode, "mixed": self._mixed}[case.probe]
        rows, problems = play(case, repeat)
        return marked(rows, case, "in_process", problems)

    # The probes -----------------------------------------------------------------------------------------------------

    def _ttft(self, case: Case, repeat: int) -> tuple[list[Fields], list[str]]:
        """Cold and warm in turn, each after the same first prompt: only what the cache keeps of it differs."""
        rows: list[Fields] = []
        problems: list[str] = []
        first, second = self.texts.pair(case)
        for warm in (False, True) if repeat % 2 == 0 else (True, False):
            self._reset(problems)
            self._serve_alone(first, _NUM_PRIMING_TOKENS)
            if not warm:
                self._reset(problems)
            self.engine.recorded()
            served = self._serve_alone(second, 1 + NUM_DECODE_STEPS)
            steps = self.engine.recorded()
            expected = case.expected_hit(self.block_size) if warm else 0
            problems += self._problems(case, served, expected)
            regime = "warm_prefill" if expected else "cold_prefill"
            rows.append(request_fields(served, steps, expected, regime))
            rows += self._step_rows(steps, regime)
        return rows, problems

    def _chunk(self, case: Case, _repeat: int) -> tuple[list[Fields], list[str]]:
        """Fresh prompts at once: steps of nothing but prefill."""
        self.engine.recorded()
        names = [self._add(self._fresh(case.num_prompt_tokens), 1) for _ in range(case.num_requests)]
        served = self._run(dict(names))
        steps = self.engine.recorded()
        problems = [problem for request in served for problem in self._problems(None, request, 0)]
        return self._step_rows(steps, "cold_prefill"), problems

    def _decode(self, case: Case, _repeat: int) -> tuple[list[Fields], list[str]]:
        """Known texts, found in the cache, decode together; their prefill is not looked at."""
        served, steps = self._beside(case, NUM_DECODE_STEPS + 2, [])
        rows = [
            fields
            for fields in self._step_rows(steps, "decode")
            if fields["num_decodes"] == case.num_requests and not fields["num_prefills"]
        ]
        # What comes right after the prefill still holds its clean-up: the first step is left out.
        return rows[1 : NUM_DECODE_STEPS + 1], self._beside_problems(served, rows[1:], "decoded all requests together")

    def _mixed(self, case: Case, _repeat: int) -> tuple[list[Fields], list[str]]:
        """Fresh prompts, one after the other, while known texts decode."""
        fresh = [self._fresh(case.num_new_tokens) for _ in range(NUM_MIXED)]
        served, steps = self._beside(case, 3 * NUM_MIXED + 3, fresh)
        rows = [
            fields
            for fields in self._step_rows(steps, "mixed")
            if fields["num_decodes"] >= case.num_requests and fields["num_prefills"] == 1
        ]
        for fields in rows:
            fields["gap_s"] = None  # handing over the prompt fell into it
        return rows, self._beside_problems(served, rows, "computed a chunk beside all decodes")

    def _beside_problems(self, served: Sequence[Served], rows: Sequence[Fields], what: str) -> list[str]:
        problems = [problem for request in served for problem in self._problems(None, request, None)]
        return problems if rows else [*problems, f"no step {what}"]

    # Requests -------------------------------------------------------------------------------------------------------

    def _beside(
        self, case: Case, num_output_tokens: int, fresh: list[list[int]]
    ) -> tuple[list[Served], list[Step]]:
        """Decode the case's texts together; once all do, serve the fresh prompts one after the other beside them."""
        for number in range(case.num_requests):
            self._prime(number, case.num_prompt_tokens)
        self.engine.recorded()
        waiting = dict(
            self._add(self._known(number, case.num_prompt_tokens), num_output_tokens)
            for number in range(case.num_requests)
        )
        served = list(waiting.values())
        while fresh and any(len(request.token_s) < 2 for request in served):
            self._step(waiting)
        for prompt in fresh:
            name, request = self._add(prompt, 1)
            waiting[name] = request
            served.append(request)
            while not request.finish_reason:
                self._step(waiting)
        self._run(waiting)
        return served, self.engine.recorded()

    def _known(self, number: int, length: int) -> list[int]:
        return self.texts.text(f"known {number}", length)

    def _fresh(self, length: int) -> list[int]:
        self._num_fresh += 1
        return self.texts.text(f"fresh {self._num_fresh}", length)

    def _prime(self, number: int, length: int) -> None:
        if self._primed.get(number, 0) < length:
            self._serve_alone(self._known(number, length), 1)
            self._primed[number] = length

    def _reset(self, problems: list[str]) -> None:
        self._primed.clear()
        if self.engine.reset_prefix_cache() is not True:
            problems.append("reset_prefix_cache did not return True")

    def _serve_alone(self, prompt: list[int], num_output_tokens: int) -> Served:
        return self._run(dict([self._add(prompt, num_output_tokens)]))[0]

    def _add(self, prompt: list[int], num_output_tokens: int) -> tuple[str, Served]:
        name = f"kvcast-{self._num_requests}"
        self._num_requests += 1
        begun = self.engine.now()
        self.engine.add_request(name, prompt, num_output_tokens)
        return name, Served(len(prompt), num_output_tokens, begun, self.engine.now() - begun)

    def _run(self, waiting: dict[str, Served]) -> list[Served]:
        served = list(waiting.values())
        for _ in range(_MOST_STEPS):
            if all(request.finish_reason for request in served):
                return served
            self._step(waiting)
        raise RuntimeError(f"{len(waiting)} requests are not served after {_MOST_STEPS} steps")

    def _step(self, waiting: dict[str, Served]) -> None:
        deltas = self.engine.step()
        now = self.engine.now()
        for delta in deltas:
            waiting[delta.request_id].receive(delta, now)

    # Rows -----------------------------------------------------------------------------------------------------------

    def _problems(self, case: Case | None, served: Served, expected_hit: int | None) -> Iterator[str]:
        """What a request's answer gets wrong. ``case``: one whose answers must always be the same."""
        if served.finish_reason != "length":
            yield f"finish_reason is {served.finish_reason!r}, expected 'length'"
        if len(served.token_ids) != served.num_output_tokens:
            yield f"{len(served.token_ids)} output tokens, expected {served.num_output_tokens}"
        if expected_hit is not None and served.num_cached_tokens != expected_hit:
            yield f"{served.num_cached_tokens} cached tokens reported, expected {expected_hit}"
        if case is not None and self._answers.setdefault(case.key, served.token_ids) != served.token_ids:
            yield "output token ids differ from those of an earlier take of the same prompt"

    def _step_rows(self, steps: Sequence[Step], regime: str) -> list[Fields]:
        """Step rows; a step without prefill is of regime ``decode`` in any take."""
        return [
            step.fields(regime=regime if step.prefills else "decode", index=index, graph_sizes=self.graph_sizes)
            for index, step in enumerate(steps)
        ]


def marked(rows: list[Fields], case: Case, interface: str, problems: Sequence[str]) -> list[Fields]:
    """The rows of one take with what they share: its case, where it was seen from, and the checks that failed."""
    for row in rows:
        row["case"] = case.key
        row["interface"] = interface
        if problems:
            row["failed"] = "; ".join(problems)
    return rows


def request_fields(served: Served, steps: Sequence[Step], expected_hit: int, regime: str) -> Fields:
    """The fields of a ``request`` row of a request served alone; ``steps`` are all of its steps."""
    token_s = served.token_s
    fields: Fields = {
        "kind": "request",
        "regime": regime,
        "num_prompt_tokens": served.num_prompt_tokens,
        "num_cached_tokens": served.num_cached_tokens or 0,
        "expected_cached_tokens": expected_hit,
        "num_output_tokens": max(len(token_s), 1),
        "submit_s": served.submit_s,
        "output_token_ids": served.token_ids,
        "finish_reason": served.finish_reason,
    }
    if token_s:
        fields |= {"ttft_s": token_s[0], "total_s": token_s[-1], "token_s": token_s}
        before = [step for step in steps if step.ended_s - served.begun_s <= token_s[0]]
        if before:
            steps_s = sum(step.duration_s for step in before) + sum(step.gap_s for step in before[1:])
            fields |= {"num_steps": len(before), "steps_s": steps_s, "overhead_s": token_s[0] - steps_s}
    if len(token_s) > 1:
        fields["tpot_s"] = (token_s[-1] - token_s[0]) / (len(token_s) - 1)
    return fields
