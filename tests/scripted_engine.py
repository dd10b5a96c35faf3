"""An engine with a scripted clock: vLLM's behaviour as far as measuring sees it, in microseconds of real time."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Literal

from calibration.engines import Description
from calibration.play import Delta, Player
from calibration.probes import Case, Limits
from calibration.steps import Step
from simulator.errors import InputError

LIMITS = Limits(block_size=16, max_model_len=300, max_num_batched_tokens=64, max_num_seqs=4, num_gpu_blocks=400)
IDENTITY = {
    "device": "scripted", "vllm": "0", "model": "none", "dtype": "none", "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1, "graph_mode": "eager", "block_size": 16,
}  # fmt: skip
STEP_S, TOKEN_S, CONTEXT_S, GAP_S, SUBMIT_S = 0.010, 1e-4, 1e-6, 0.001, 0.0005


@dataclass
class Asked:
    """A request in the engine."""

    name: str
    prompt: list[int]
    max_tokens: int
    computed: int = 0
    hit: int = 0
    output: list[int] = field(default_factory=list)


class ScriptedSteps:
    """Chunked prefill, first come first served, full-block prefix hits; a step takes a linear time, times noise."""

    def __init__(self, limits: Limits, noise: Any = None) -> None:
        self.limits = limits
        self.noise = noise or (lambda: 1.0)
        self.clock_s = 100.0
        self.cached: set[tuple[int, ...]] = set()
        self.asked: deque[Asked] = deque()
        self.done: list[Step] = []
        self.previous_s: float | None = None
        self.reset_works = True
        self.hits_are_right = True
        self.answers = random.Random(3)
        self.answers_repeat = True

    def now(self) -> float:
        return self.clock_s

    def reset_prefix_cache(self) -> bool:
        self.cached.clear()
        return self.reset_works

    def add_request(self, request_id: str, prompt: list[int], max_tokens: int) -> None:
        self.clock_s += SUBMIT_S
        asked = Asked(request_id, prompt, max_tokens)
        self.asked.append(asked)

    def _look_up(self, asked: Asked) -> int:
        size, hit = self.limits.block_size, 0
        while hit + size < len(asked.prompt) and tuple(asked.prompt[: hit + size]) in self.cached:
            hit += size
        return hit

    def step(self) -> list[Delta]:
        budget, pieces, batch = self.limits.max_num_batched_tokens, [], []
        for asked in list(self.asked)[: self.limits.max_num_seqs]:
            if asked.computed == 0:
                asked.hit = asked.computed = self._look_up(asked)
            new = min(len(asked.prompt) + len(asked.output) - asked.computed, budget)
            if new <= 0:
                continue
            pieces.append((new, asked.computed))
            asked.computed += new
            budget -= new
            batch.append(asked)
        started = self.clock_s = self.clock_s + GAP_S
        work = sum(TOKEN_S * new + CONTEXT_S * computed for new, computed in pieces)
        self.clock_s += (STEP_S + work) * self.noise()
        self.done.append(Step(tuple(pieces), started, self.clock_s, self.previous_s))
        self.previous_s = self.clock_s
        return [delta for asked in batch for delta in self._deliver(asked)]

    def _deliver(self, asked: Asked) -> list[Delta]:
        size = self.limits.block_size
        for end in range(size, asked.computed + 1, size):
            self.cached.add(tuple(asked.prompt[:end]))
        if asked.computed < len(asked.prompt) + len(asked.output):
            return []
        salt = 0 if self.answers_repeat else self.answers.randrange(1000)
        token = (sum(asked.prompt) + len(asked.output) + salt) % 1000
        asked.output.append(token)
        reason = "length" if len(asked.output) == asked.max_tokens else None
        if reason:
            self.asked.remove(asked)
        return [Delta(asked.name, (token,), asked.hit if self.hits_are_right else asked.hit + 1, reason)]

    def recorded(self) -> list[Step]:
        done, self.done = self.done, []
        return done


class ScriptedEngine:
    """Launches ``ScriptedSteps``; ``drift`` is the factor by which a launch is slower than the one before."""

    name: Literal["vllm", "openai"] = "vllm"
    relaunches = True

    def __init__(self, noise: Any = None, drift: float = 1.0, startup_s: float = 20.0, limits: Limits = LIMITS) -> None:
        self.probes = frozenset(("ttft", "chunk", "decode", "mixed"))
        self.noise = noise or (lambda: 1.0)
        self.drift = drift
        self.startup_s = startup_s
        self.limits = limits
        self.engine_args = {"max_num_seqs": limits.max_num_seqs}
        self.clock_s = 0.0
        self.num_launches = 0
        self.identity: dict[str, Any] = dict(IDENTITY)
        self.prepare: Any = lambda steps: None
        self.breaks_at: int | None = None
        self.breaks_with: BaseException = InputError("the engine ended: broken")
        self.taken: list[tuple[int, str]] = []

    def now(self) -> float:
        """The session's clock: all launches one after the other."""
        return self.clock_s

    def launch(self) -> ScriptedLaunch:
        self.clock_s += self.startup_s
        self.num_launches += 1
        return ScriptedLaunch(self)


class ScriptedLaunch:
    """One launch."""

    def __init__(self, engine: ScriptedEngine) -> None:
        slower = engine.drift ** (engine.num_launches - 1)
        self.engine = engine
        self.steps = ScriptedSteps(engine.limits, lambda: slower * engine.noise())
        engine.prepare(self.steps)
        self.player = Player(self.steps, engine.limits.block_size, 5000)
        self.closed = False

    def describe(self) -> Description:
        limits = self.engine.limits
        return Description(
            identity=self.engine.identity,
            covariates={
                "max_num_batched_tokens": limits.max_num_batched_tokens,
                "max_model_len": limits.max_model_len,
                "max_num_seqs": limits.max_num_seqs,
            },
            capacity={"num_gpu_blocks": limits.num_gpu_blocks, "block_size": limits.block_size},
            limits=limits,
            engine_args=self.engine.engine_args,
        )

    def take(self, case: Case, repeat: int) -> list[dict[str, Any]]:
        engine = self.engine
        if engine.breaks_at is not None and len(engine.taken) >= engine.breaks_at:
            raise engine.breaks_with
        engine.taken.append((engine.num_launches, case.key))
        begun = self.steps.clock_s
        rows = self.player.take(case, repeat)
        engine.clock_s += self.steps.clock_s - begun
        return rows

    def close(self) -> None:
        self.closed = True


class Watched:
    """What a session said."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.lefts: list[tuple[int, int, float]] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def left(self, num_done: int, num_left: int, seconds_left: float) -> None:
        self.lefts.append((num_done, num_left, seconds_left))
