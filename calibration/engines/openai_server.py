"""A vLLM server, or any OpenAI-compatible one, measured from a client.

What a client sees holds more than the engine's steps: HTTP, tokenisation, transport between processes. Where the server
offers ``/metrics``, its own view of each request (served alone, so that the counters move by it) is subtracted:
``http_s`` is what the client waited beyond the server, ``frontend_s`` what the server waited beyond its engine.

A server is restarted by whoever runs it: one launch is one life of it, told by its start time where that is shown.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from calibration.engines import Description, Fields
from calibration.engines.streaming import Server
from calibration.play import Served, Texts, marked, request_fields
from calibration.probes import NUM_DECODE_STEPS, Case, Limits
from simulator.errors import InputError

_NUM_PRIMING_TOKENS = 3
_IDENTITY = ("device", "driver", "cann", "cuda", "torch", "torch_npu", "vllm_ascend", "model_sha256", "weights")
_VOCABULARY = 32_000  # of which the prompts draw; every model that is served has as many
_HITS = ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits")
_SERVER_TTFT = "vllm:time_to_first_token_seconds"
_ENGINE_TTFT = ("vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds")


class OpenAiEngine:
    """The server at ``url``. ``told`` is what it does not say of itself: device, token budget, parallelism, ..."""

    name: Literal["vllm", "openai"] = "openai"
    probes = frozenset(("ttft", "decode"))
    relaunches = False

    def __init__(self, url: str, model: str, told: Fields) -> None:
        """Raises InputError if the device or the token budget is not told."""
        for name, example in (("device", "Ascend910B3"), ("max_num_batched_tokens", "2048")):
            if name not in told:
                raise InputError(f"a server does not tell its {name}: pass --engine-arg {name}={example}")
        self.server = Server(url, model, os.environ.get("OPENAI_API_KEY"))
        self.engine_args = told

    def launch(self) -> OpenAiLaunch:
        """Look at the server. Raises InputError if it does not answer or does not serve the model."""
        return OpenAiLaunch(self.server, self.engine_args)


class OpenAiLaunch:
    """One life of a server."""

    def __init__(self, server: Server, told: Fields) -> None:
        self._server = server
        self._told = told
        self._can_reset = server.post("/reset_prefix_cache")
        self._metrics = server.metrics()
        self._texts = Texts(_VOCABULARY)
        self._answers: dict[str, list[int]] = {}
        self._num_fresh = 0
        # Without a reset, what an earlier session asked may still be cached: no two sessions use the same texts.
        self._salt = "" if self._can_reset else f"{time.time_ns()} "
        self._description = self._describe()

    def describe(self) -> Description:
        """What is served."""
        return self._description

    def close(self) -> None:
        """The server lives on."""

    def take(self, case: Case, repeat: int) -> list[Fields]:
        """The rows of one take. A failed check marks all of them."""
        rows, problems = (self._ttft if case.probe == "ttft" else self._decode)(case, repeat)
        return marked(rows, case, "http", problems)

    def _ttft(self, case: Case, repeat: int) -> tuple[list[Fields], list[str]]:
        """Cold and warm in turn, as the in-process engine does; without a reset, cold is a text never sent before."""
        rows: list[Fields] = []
        problems: list[str] = []
        block_size = self._description.limits.block_size
        for warm in (False, True) if repeat % 2 == 0 else (True, False):
            first, second = self._pair(case)
            self._reset(problems)
            if warm or self._can_reset:
                self._server.complete(first, _NUM_PRIMING_TOKENS)
            if not warm:
                self._reset(problems)
            served, seen = self._complete_alone(second)
            expected = case.expected_hit(block_size) if warm else 0
            problems += self._problems(case, served, expected)
            row = request_fields(served, [], expected, "warm_prefill" if expected else "cold_prefill")
            rows.append(row | seen)
        return rows, problems

    def _decode(self, case: Case, _repeat: int) -> tuple[list[Fields], list[str]]:
        """Known texts decode together; a step is the time between two tokens of the first while all decode."""
        prompts = [self._texts.text(f"{self._salt}known {i}", case.num_prompt_tokens) for i in range(case.num_requests)]
        for prompt in prompts:
            self._server.complete(prompt, 1)
        with ThreadPoolExecutor(case.num_requests) as pool:
            served = list(pool.map(lambda prompt: self._server.complete(prompt, 2 * NUM_DECODE_STEPS), prompts))
        problems = [problem for request in served for problem in self._problems(None, request, None)]
        rows = list(_intervals(served, case))
        return rows, problems if rows else [*problems, "no step decoded all requests together"]

    def _pair(self, case: Case) -> tuple[list[int], list[int]]:
        if self._can_reset:
            return self._texts.pair(case)
        self._num_fresh += 1
        shared = self._texts.text(f"{self._salt}{self._num_fresh}", case.num_shared_tokens)
        rest = [
            self._texts.text(f"{self._salt}{self._num_fresh} {part}", case.num_prompt_tokens - len(shared))
            for part in ("first", "second")
        ]
        return shared + rest[0], shared + rest[1]

    def _reset(self, problems: list[str]) -> None:
        if self._can_reset and not self._server.post("/reset_prefix_cache"):
            problems.append("reset_prefix_cache was refused")

    def _complete_alone(self, prompt: list[int]) -> tuple[Served, Fields]:
        """A request, and what the server's counters say of it."""
        before = self._server.metrics() if self._metrics else {}
        served = self._server.complete(prompt, 1 + NUM_DECODE_STEPS)
        if not self._metrics or not served.token_s:
            return served, {}
        after = self._server.metrics()
        moved = {name: value - before.get(name, 0.0) for name, value in after.items()}
        if served.num_cached_tokens is None:
            hits = next((moved[name] for name in _HITS if name in moved), None)
            served.num_cached_tokens = None if hits is None else int(hits)
        seen: Fields = {}
        if moved.get(f"{_SERVER_TTFT}_count") == 1:
            server_s = moved[f"{_SERVER_TTFT}_sum"]
            seen["http_s"] = served.token_s[0] - server_s
            if all(moved.get(f"{name}_count") == 1 for name in _ENGINE_TTFT):
                seen["frontend_s"] = server_s - sum(moved[f"{name}_sum"] for name in _ENGINE_TTFT)
        return served, seen

    def _problems(self, case: Case | None, served: Served, expected_hit: int | None) -> Iterator[str]:
        if served.finish_reason != "length":
            yield f"finish_reason is {served.finish_reason!r}, expected 'length'"
        if len(served.token_s) != served.num_output_tokens:
            yield f"{len(served.token_s)} output tokens, expected {served.num_output_tokens}"
        if expected_hit is not None and served.num_cached_tokens is None:
            yield "the server reports no cached tokens: start it with --enable-prompt-tokens-details"
        elif expected_hit is not None and served.num_cached_tokens != expected_hit:
            yield f"{served.num_cached_tokens} cached tokens reported, expected {expected_hit}"
        if case is None or not self._can_reset or not served.token_ids:
            return  # without a reset no prompt is put twice
        if self._answers.setdefault(case.key, served.token_ids) != served.token_ids:
            yield "output token ids differ from those of an earlier take of the same prompt"

    def _describe(self) -> Description:
        server, told = self._server, self._told
        card = _card(server)
        cache = server.labels("vllm:cache_config_info")
        block_size = _whole(told.get("block_size") or cache.get("block_size"), "block_size")
        max_model_len = _whole(told.get("max_model_len") or card.get("max_model_len"), "max_model_len")
        num_blocks = told.get("num_gpu_blocks") or cache.get("num_gpu_blocks")
        capacity = {"num_gpu_blocks": _whole(num_blocks, "num_gpu_blocks"), "block_size": block_size}
        covariates = {
            "max_num_batched_tokens": _whole(told["max_num_batched_tokens"], "max_num_batched_tokens"),
            "max_model_len": max_model_len,
            "max_num_seqs": _whole(told.get("max_num_seqs", 256), "max_num_seqs"),
        }
        version = json.loads(server.get("/version") or "{}").get("version")
        identity: Fields = {name: told.get(name) for name in _IDENTITY} | {
            "vllm": version or told.get("vllm", "not known"),
            "model": server.model,
            "dtype": told.get("dtype", "not known"),
            "tensor_parallel_size": told.get("tensor_parallel_size", 1),
            "pipeline_parallel_size": told.get("pipeline_parallel_size", 1),
            "graph_mode": told.get("graph_mode", "not known"),
            "async_scheduling": told.get("async_scheduling"),
            "block_size": block_size,
        }
        started = self._metrics.get("process_start_time_seconds")
        return Description(
            identity=identity,
            covariates=covariates,
            capacity=capacity,
            limits=Limits(**covariates, **capacity, graph_sizes=()),
            environment={
                "device_type": told.get("device_type", "not known"),
                "url": server.url,
                "can_reset": self._can_reset,
                "has_metrics": bool(self._metrics),
            },
            engine_args=told,
            launch_id=None if started is None else f"{started:.3f}",
        )


def _card(server: Server) -> Fields:
    """What the server says of the model."""
    cards = json.loads(server.get("/v1/models") or "{}").get("data", [])
    for card in cards:
        if card.get("id") == server.model:
            found: Fields = card
            return found
    names = ", ".join(str(card.get("id")) for card in cards) or "nothing"
    raise InputError(f"--model {server.model}: {server.url} serves {names}")


def _whole(value: Any, name: str) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = 0
    if number < 1:
        raise InputError(f"the server does not tell its {name}: pass --engine-arg {name}=NUMBER")
    return number


def _intervals(served: list[Served], case: Case) -> Iterator[Fields]:
    """Step rows of the stretch in which every request decodes."""
    if any(len(request.token_s) < 3 for request in served):
        return
    begin_s = max(request.begun_s + request.token_s[1] for request in served)
    end_s = min(request.begun_s + request.token_s[-1] for request in served)
    first = served[0]
    times = [first.begun_s + second for second in first.token_s]
    for index in range(1, len(times) - 1):
        # Tokens that came together tell of no single step.
        alone = times.count(times[index]) == times.count(times[index + 1]) == 1
        if alone and begin_s <= times[index] and times[index + 1] <= end_s:
            contexts = [
                case.num_prompt_tokens + sum(request.begun_s + at <= times[index] for at in request.token_s)
                for request in served
            ]
            yield {
                "kind": "step", "regime": "decode", "num_decodes": len(served), "decode_context": sum(contexts),
                "num_prefills": 0, "num_prefill_tokens": 0, "prefill_pairs": 0, "max_context": max(contexts),
                "duration_s": times[index + 1] - times[index], "index": index,
            }  # fmt: skip
