"""vLLM in this process, on whatever device it runs: Ascend (vllm-ascend), CUDA or CPU. JSON lines in, JSON lines out.

Run by an interpreter that has vLLM, which needs of this package the few files that ``engines.process`` copies::

    python -m calibration.engines.vllm '{"model": DIR, "engine_args": {...}}'

It says ``{"ready": ...}``, then answers every ``{"case": ..., "repeat": n}`` with ``{"rows": [...]}``, or with
``{"error": ...}`` and ends. The only file that touches device libraries, and only once it runs.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from calibration.engines.recording import path_of
from calibration.environment import Host, describe
from calibration.play import Delta, Player
from calibration.probes import Case
from calibration.steps import Step

# Where the engine lives in this process (else nothing could be recorded) and asks nobody outside.
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


class Vllm:
    """One engine behind the interface that ``play`` uses."""

    def __init__(self, model: str, engine_args: dict[str, Any]) -> None:
        os.environ.update(ENVIRONMENT)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        load = importlib.import_module
        arguments = defaults(model) | engine_args
        engine_class = load("vllm.v1.engine.llm_engine").LLMEngine
        args_class = load("vllm.engine.arg_utils").EngineArgs
        # A first configuration tells which scheduler would be picked: platforms and options have a say in it.
        picked = args_class(model=model, **arguments).create_engine_config().scheduler_config.get_scheduler_cls()
        self.arguments = arguments
        self.engine = engine_class.from_engine_args(
            args_class(model=model, scheduler_cls=path_of(picked), **arguments)
        )
        self.config = self.engine.vllm_config
        self._scheduler = self.engine.engine_core.engine_core.scheduler
        self._sampling = load("vllm.sampling_params")

    def now(self) -> float:
        """The clock of ``recording``."""
        return time.perf_counter()

    def reset_prefix_cache(self) -> bool:
        """Forget every cached block; whether that succeeded."""
        return bool(self.engine.reset_prefix_cache())

    def add_request(self, request_id: str, prompt: list[int], max_tokens: int) -> None:
        """Submit token ids, greedy, without early end."""
        parameters = self._sampling.SamplingParams(
            max_tokens=max_tokens,
            temperature=0.0,
            ignore_eos=True,
            detokenize=False,
            output_kind=self._sampling.RequestOutputKind.DELTA,
        )
        self.engine.add_request(request_id, {"prompt_token_ids": prompt}, parameters)

    def step(self) -> list[Delta]:
        """One step of the engine."""
        return [
            Delta(
                output.request_id,
                tuple(output.outputs[0].token_ids),
                output.num_cached_tokens,
                output.outputs[0].finish_reason,
            )
            for output in self.engine.step()
        ]

    def recorded(self) -> list[Step]:
        """The steps since the last call."""
        steps: list[Step] = self._scheduler.recorder.take()
        return steps

    @property
    def graph_sizes(self) -> tuple[int, ...]:
        """Batch sizes of captured graphs, ascending; none when eager."""
        if self.config.model_config.enforce_eager or graph_mode(self.config) == "none":
            return ()
        return tuple(sorted(self.config.compilation_config.cudagraph_capture_sizes or ()))


def defaults(model: str) -> dict[str, Any]:
    """Engine arguments that measuring implies; weights are random where the directory has none."""
    arguments: dict[str, Any] = {
        "skip_tokenizer_init": True,
        "enable_prefix_caching": True,
        "disable_log_stats": True,
    }
    folder = Path(model)
    if folder.is_dir() and not any(any(folder.glob(pattern)) for pattern in _WEIGHTS):
        arguments["load_format"] = "dummy"
    return arguments


def graph_mode(config: Any) -> str:
    """``eager``, or the name of the graph mode in small letters."""
    if config.model_config.enforce_eager:
        return "eager"
    mode = config.compilation_config.cudagraph_mode
    return str(getattr(mode, "name", mode)).lower()


def ready(engine: Vllm) -> dict[str, Any]:
    """What this launch is, in the words of ``engines.Description``."""
    config = engine.config
    cache, scheduler, parallel = config.cache_config, config.scheduler_config, config.parallel_config
    capacity = {"num_gpu_blocks": cache.num_gpu_blocks, "block_size": cache.block_size}
    covariates = {
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_model_len": config.model_config.max_model_len,
        "max_num_seqs": scheduler.max_num_seqs,
    }
    platform = importlib.import_module("vllm.platforms").current_platform
    identity, environment = describe(
        Host(platform.device_type), config.model_config.model, str(engine.arguments.get("load_format", "auto"))
    )
    identity |= {
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "tensor_parallel_size": parallel.tensor_parallel_size,
        "pipeline_parallel_size": parallel.pipeline_parallel_size,
        "graph_mode": graph_mode(config),
        "async_scheduling": bool(scheduler.async_scheduling),
        "block_size": cache.block_size,
    }
    return {
        "identity": identity,
        "covariates": covariates,
        "capacity": capacity,
        "limits": {**covariates, **capacity, "graph_sizes": engine.graph_sizes},
        "environment": environment,
        "engine_args": engine.arguments,
    }


def serve(engine: Vllm, source: TextIO, sink: TextIO) -> None:
    """Answer every line until the last."""
    _say(sink, {"ready": ready(engine)})
    config = engine.config
    vocabulary = config.model_config.get_vocab_size()
    player = Player(engine, config.cache_config.block_size, vocabulary, engine.graph_sizes)
    for line in source:
        asked = json.loads(line)
        try:
            rows = player.take(Case(**asked["case"]), asked["repeat"])
        except Exception as error:  # noqa: BLE001 (whatever the engine raises is reported and ends the launch)
            _say(sink, {"error": f"{type(error).__name__}: {error}"})
            return
        _say(sink, {"rows": rows})


def _say(sink: TextIO, message: dict[str, Any]) -> None:
    sink.write(json.dumps(message, default=_plain) + "\n")
    sink.flush()


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else str(value)


def main() -> None:
    """The command line. Whatever the engine prints goes to standard error; the answers have standard output alone."""
    sink = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asked = json.loads(sys.argv[1])
    try:
        engine = Vllm(asked["model"], asked["engine_args"])
    except Exception as error:
        _say(sink, {"error": f"{type(error).__name__}: {error}"})
        raise
    serve(engine, sys.stdin, sink)


if __name__ == "__main__":
    main()
