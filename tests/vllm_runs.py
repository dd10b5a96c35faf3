"""The two recorded vLLM runs (data/vllm_runs), request by request and second by second, and their simulation."""

from __future__ import annotations

import csv
import gzip
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibration.operators.origin import StepTables
from calibration.operators.step import Step
from simulator.cluster import simulate
from simulator.engine_args import EngineConfig
from simulator.metrics import Metrics
from simulator.profile import Profile
from simulator.request import Prompt, Request
from simulator.routing import make_router, parse_routing

DATA = Path(__file__).parent / "data" / "vllm_runs"
BLOCK_SIZE = 16
# By so much the seconds' clock is behind that of the requests: with it, both have equally many running in each second.
SECONDS_LATE_S = 0.08
Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Recorded:
    """A run: one element a request, seconds and tokens; ``seconds`` are (end, prompt tokens, output tokens)."""

    prompt_tokens: Array
    output_tokens: Array
    arrival_s: Array
    first_token_s: Array
    last_token_s: Array
    prompts: tuple[Prompt, ...]
    seconds: tuple[tuple[float, int, int], ...]

    @property
    def figures(self) -> dict[str, float]:
        """Mean and 90th percentile of the times (s), and when the last answer ended."""
        return figures(self.arrival_s, self.first_token_s, self.last_token_s, self.output_tokens)

    def requests(self) -> list[Request]:
        """What to simulate, in order of arrival."""
        rows = zip(self.prompts, self.prompt_tokens, self.output_tokens, self.arrival_s, strict=True)
        found = [
            Request(
                request_id=number, arrival_s=max(0.0, float(arrival_s)), prompt=prompt,
                num_prompt_tokens=int(num_tokens), max_tokens=int(num_output), oracle_num_output_tokens=int(num_output),
            )
            for number, (prompt, num_tokens, num_output, arrival_s) in enumerate(rows)
        ]  # fmt: skip
        return sorted(found, key=lambda request: request.arrival_s)

    def beyond_tables_s(self, tables: StepTables) -> list[tuple[float, float]]:
        """(Mean batch, seconds that a step took beyond its operators) of each second in which only decodes ran.

        A second's steps follow from its output tokens and from how many requests were running, known from their times.
        """
        found = []
        for end_s, num_prompt, num_output in self.seconds:
            moments = end_s - SECONDS_LATE_S - np.linspace(0.975, 0.025, 20)
            states = [self._running(moment) for moment in moments]
            if num_prompt or not num_output or min(len(contexts) for contexts in states) == 0:
                continue
            batch = float(np.mean([len(contexts) for contexts in states]))
            operators_s = float(np.mean([tables.step_s(_decodes(contexts, tables)) for contexts in states]))
            found.append((batch, batch / num_output - operators_s))
        return found

    def _running(self, moment_s: float) -> Array:
        """Contexts of the requests that decode at this moment, each taken to grow evenly."""
        running = (self.first_token_s <= moment_s) & (moment_s < self.last_token_s)
        share = (moment_s - self.first_token_s) / (self.last_token_s - self.first_token_s)
        contexts: Array = (self.prompt_tokens + share * self.output_tokens)[running]
        return contexts


def _decodes(contexts: Array, tables: StepTables) -> Step:
    num_replicas = tables.rank.data_parallel_size
    each = max(1, round(len(contexts) / num_replicas))
    return Step(num_decodes=each, decode_context=round(float(contexts.mean())), num_replicas=num_replicas)


def figures(arrival_s: Array, first_token_s: Array, last_token_s: Array, output_tokens: Array) -> dict[str, float]:
    """Mean and 90th percentile of TTFT, TPOT and total time, and when the last answer ended; seconds."""
    times = {
        "TTFT": first_token_s - arrival_s,
        "TPOT": (last_token_s - first_token_s) / (output_tokens - 1),
        "total": last_token_s - arrival_s,
    }
    found = {f"{name} mean": float(values.mean()) for name, values in times.items()}
    found |= {f"{name} p90": float(np.percentile(values, 90)) for name, values in times.items()}
    return found | {"end": float(last_token_s.max())}


def recorded(name: str) -> Recorded:
    """The run of this name in ``data/vllm_runs``."""
    with gzip.open(DATA / f"{name}_requests.csv.gz", "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with (DATA / f"{name}_seconds.csv").open(encoding="utf-8") as file:
        read = csv.DictReader(file)
        seconds = [(float(row["second"]), int(row["prompt_tokens"]), int(row["output_tokens"])) for row in read]
    columns = {key: np.array([float(row[key]) for row in rows]) for key in rows[0] if key != "blocks"}
    return Recorded(
        prompt_tokens=columns["prompt_tokens"],
        output_tokens=columns["output_tokens"],
        arrival_s=columns["arrival_s"],
        first_token_s=columns["first_token_s"],
        last_token_s=columns["last_token_s"],
        prompts=tuple(_prompt(row["blocks"], int(row["prompt_tokens"])) for row in rows),
        seconds=tuple(seconds),
    )


def _prompt(blocks: str, num_tokens: int) -> Prompt:
    """``3+2`` are blocks 3 and 4, each a text of its own after those before it; the rest of a prompt is private."""
    runs: list[tuple[int | None, int, int]] = []
    for run in blocks.split():
        first, count = map(int, run.split("+"))
        runs += [(block, 0, BLOCK_SIZE) for block in range(first, first + count)]
    rest = num_tokens - BLOCK_SIZE * len(runs)
    return tuple(runs) + (((None, 0, rest),) if rest else ())


def simulated(run: Recorded, profile: Profile, **changes: Any) -> tuple[dict[str, float], int]:
    """Figures of the same requests on one simulated engine, and the prompt tokens that it found in its cache."""
    arguments: dict[str, Any] = {
        "dialect": "vllm-0.23", "block_size": BLOCK_SIZE, "num_gpu_blocks": profile.num_gpu_blocks(BLOCK_SIZE, 0.9),
        "max_model_len": 131_072, "max_num_batched_tokens": 2048, "max_num_seqs": 128, "max_num_active_seqs": 128,
        "enable_prefix_caching": True, "enable_chunked_prefill": True, "long_prefill_token_threshold": 0,
        "scheduler_reserve_full_isl": True, "watermark": 0.0, "policy": "fcfs", "async_scheduling": True,
    }  # fmt: skip
    config = EngineConfig(**(arguments | changes))
    metrics = Metrics(1, ("run",), num_blocks=config.num_gpu_blocks - 1)
    requests = run.requests()
    router = make_router(parse_routing("round_robin"), 1, random.Random(0))
    simulate(config, profile, router, requests, 1, metrics)
    requests.sort(key=lambda request: request.request_id)
    first, last = (np.array([getattr(one, name) for one in requests]) for name in ("first_token_s", "finish_s"))
    return figures(run.arrival_s, first, last, run.output_tokens), sum(one.num_cached_tokens for one in requests)
