"""A small engine for tests: a configuration, requests, and vLLM's engine loop over a scheduler, without a clock."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from math import inf

from simulator.block_pool import BlockPool
from simulator.engine_args.config import EngineConfig
from simulator.plan import Plan
from simulator.prefix import Prefixes
from simulator.request import Request, Run
from simulator.scheduler import Scheduler

V32, V23 = "vllm-0.32", "vllm-0.23"
DIALECTS = (V32, V23)


def engine_config(**changes) -> EngineConfig:
    """Blocks of 4 tokens, room for everything, synchronous; what a test is about it changes."""
    values = {
        "dialect": V32,
        "block_size": 4,
        "num_gpu_blocks": 101,
        "max_model_len": 400,
        "max_num_batched_tokens": 64,
        "max_num_seqs": 8,
        "enable_prefix_caching": True,
        "enable_chunked_prefill": True,
        "long_prefill_token_threshold": 0,
        "scheduler_reserve_full_isl": True,
        "watermark": 0.0,
        "policy": "fcfs",
        "async_scheduling": False,
        **changes,
    }
    values.setdefault("max_num_active_seqs", values["max_num_seqs"])
    return EngineConfig(**values)


def text(segment: int, length: int, start: int = 0) -> Run:
    """A run of a named text."""
    return (segment, start, length)


def ask(request_id: int, *runs: Run | int, answer: int = 1, accepted: int = 0, **fields) -> Request:
    """A request; a run given as a number is as many tokens that occur nowhere else. ``accepted``: drafts a step."""
    prompt = tuple((None, 0, run) if isinstance(run, int) else run for run in runs)
    values = {
        "arrival_s": float(request_id),
        "max_tokens": answer,
        "oracle_num_output_tokens": answer,
        "acceptance": itertools.repeat(accepted),
        **fields,
    }
    num_prompt_tokens = sum(length for _, _, length in prompt)
    return Request(request_id=request_id, prompt=prompt, num_prompt_tokens=num_prompt_tokens, **values)


def free_blocks(pool: BlockPool) -> list[int]:
    """Ids of the free blocks, next to be taken first."""
    return list(pool.free)


@dataclass
class Step:
    """What one schedule decided, by request id, in order; and who finished in the same iteration."""

    plan: Plan
    scheduled: dict[int, int]
    drafts: dict[int, int]
    admitted: dict[int, int]
    preempted: list[int]
    finished: list[int] = field(default_factory=list)


class Engine:
    """One scheduler with the plans it has in flight."""

    def __init__(self, *, grouping: bool = True, **changes) -> None:
        self.config = engine_config(**changes)
        self.prefixes = Prefixes(self.config.block_size)
        self.scheduler = Scheduler(self.config, self.prefixes, grouping=grouping, announce_below=inf)
        self.pool = self.scheduler.pool
        self.flights: deque[Plan] = deque()

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add(request)

    def schedule(self) -> Step:
        plan = self.scheduler.schedule()
        self.flights.append(plan)
        rows = self.scheduler.scheduled(plan)
        return Step(
            plan=plan,
            scheduled={request.request_id: num_tokens for request, num_tokens, _ in rows},
            drafts={request.request_id: num_drafts for request, _, num_drafts in rows if num_drafts},
            admitted={request.request_id: hit for request, hit in plan.admitted},
            preempted=[request.request_id for request in plan.preempted],
        )

    def complete(self) -> list[int]:
        """Process the oldest plan's output; the ids that finished."""
        self.flights.popleft()
        return [request.request_id for request in self.scheduler.complete()]

    def step(self) -> Step:
        """Schedule; then process the oldest output, unless there is room for another plan in flight first."""
        step = self.schedule()
        scheduler = self.scheduler
        if len(self.flights) == scheduler.depth or not (step.scheduled or scheduler.has_work()):
            step.finished = self.complete()
        return step

    def run(self, *requests: Request, limit: int = 2000) -> list[Step]:
        """Add requests and step until nothing is left."""
        self.add(*requests)
        steps = []
        while self.scheduler.has_work():
            assert len(steps) < limit, "requests wait and none can run"
            steps.append(self.step())
        while self.flights:
            self.complete()
        return steps

    def hit(self, *runs: Run) -> int:
        """Tokens which a prompt of these runs would find cached now."""
        probe = ask(-1, *runs)
        probe.block_keys, probe.prompt_end = self.prefixes.keys(probe.prompt)
        return len(self.scheduler.kv.longest_hit(probe, probe.num_prompt_tokens)) * self.config.block_size

    def free(self) -> list[int]:
        return free_blocks(self.pool)

    def waiting(self) -> list[int]:
        return [request.request_id for request in self.scheduler.waiting]

    def running(self) -> list[int]:
        return [request.request_id for request in self.scheduler.running]

    def num_delivered(self, request: Request) -> int:
        return self.scheduler.num_delivered(request)
