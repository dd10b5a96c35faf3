"""The parts of vLLM that the harness drives: its scheduler and KV cache manager without a model.

The vLLM configuration is validated once, on a directory with a tiny model configuration; each case then puts its own
(validated) scheduler configuration and cache sizes into a copy.
"""

from __future__ import annotations

import copy
import importlib
import json
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

SEGMENT_BITS = 24  # positions within a segment; tokens are Python integers, so nothing overflows

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES": "0",  # events carry the hash itself
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}
TINY_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 1_048_576,
    "torch_dtype": "float32",
}
ONLY_IN_032 = {"watermark": 0.0, "max_num_active_seqs": None, "long_prefill_token_threshold_adaptive": False}


def version() -> str:
    """vLLM's version, without loading the rest of it."""
    os.environ.update(ENVIRONMENT)
    return str(importlib.import_module("vllm").__version__)


class Vllm:
    """The parts of vLLM used here, and one validated configuration to copy from."""

    def __init__(self) -> None:
        load = importlib.import_module
        self.version = version()
        logging.disable(logging.WARNING)
        self.config = load("vllm.config")
        self.scheduler = load("vllm.v1.core.sched.scheduler").Scheduler
        self.async_scheduler = load("vllm.v1.core.sched.async_scheduler").AsyncScheduler
        self.cache_utils = load("vllm.v1.core.kv_cache_utils")
        self.interface = load("vllm.v1.kv_cache_interface")
        self.outputs = load("vllm.v1.outputs")
        self.request = load("vllm.v1.request")
        self.sampling_params = load("vllm.sampling_params").SamplingParams
        self.lora_request = load("vllm.lora.request").LoRARequest
        self.events = load("vllm.distributed.kv_events")
        self.hash_function = load("vllm.utils.hashing").sha256
        self.cache_utils.init_none_hash(self.hash_function)
        self.template = self._validated_config()
        self.structured_output = load("vllm.v1.structured_output").StructuredOutputManager(self.template)
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
        self.options = set(vars(self.template.scheduler_config))

    def _validated_config(self) -> Any:
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "config.json").write_text(json.dumps(TINY_MODEL), encoding="utf-8")
            model = self.config.ModelConfig(
                model=directory, skip_tokenizer_init=True, dtype="float32", max_model_len=65_536
            )
            return self.config.VllmConfig(
                model_config=model,
                cache_config=self.config.CacheConfig(block_size=16, enable_prefix_caching=True),
                scheduler_config=self.config.SchedulerConfig(
                    max_model_len=65_536, is_encoder_decoder=False, async_scheduling=False
                ),
                kv_events_config=self.config.KVEventsConfig(enable_kv_cache_events=True, publisher="null"),
            )

    def configure(self, engine: dict[str, Any], events: bool) -> Any:
        """A vLLM configuration for one case."""
        config = copy.copy(self.template)
        if not events:
            config.kv_events_config = None
        config.model_config = copy.copy(config.model_config)
        config.model_config.max_model_len = engine["max_model_len"]
        config.cache_config = copy.copy(config.cache_config)
        config.cache_config.block_size = engine["block_size"]
        config.cache_config.num_gpu_blocks = engine["num_gpu_blocks"]
        config.cache_config.enable_prefix_caching = engine["enable_prefix_caching"]
        config.scheduler_config = self._scheduler_config(engine)
        config.lora_config = SimpleNamespace(max_loras=engine["max_loras"]) if engine["max_loras"] else None
        config.speculative_config = self._speculative_config(engine["speculative"])
        config._set_max_num_scheduled_tokens()
        return config

    def _scheduler_config(self, engine: dict[str, Any]) -> Any:
        names = (
            "max_model_len", "max_num_batched_tokens", "max_num_seqs", "long_prefill_token_threshold",
            "enable_chunked_prefill", "scheduler_reserve_full_isl", "policy",
        )  # fmt: skip
        options = {name: engine[name] for name in names}
        for name, neutral in ONLY_IN_032.items():
            if name in self.options:
                options[name] = engine[name]
            elif engine[name] != neutral:
                raise ValueError(f"vLLM {self.version} has no option {name}")
        scheduler_config = self.config.SchedulerConfig(is_encoder_decoder=False, async_scheduling=False, **options)
        scheduler_config.async_scheduling = engine["async_scheduling"]
        return scheduler_config

    def _speculative_config(self, speculative: dict[str, Any] | None) -> Any:
        if speculative is None:
            return None
        # Its checks want real draft weights; the scheduler only asks the methods, which read these members.
        config = object.__new__(self.config.SpeculativeConfig)
        members = {
            "method": speculative["method"],
            "num_speculative_tokens": speculative["num_speculative_tokens"],
            "num_speculative_tokens_per_batch_size": None,
            "parallel_drafting": False,
            "disable_eagle_block_drop": False,
            "draft_model_config": None,
        }
        for name, value in members.items():
            object.__setattr__(config, name, value)
        return config

    def make_scheduler(self, engine: dict[str, Any], events: bool) -> Any:
        """vLLM's scheduler for one case, with one full-attention KV group."""
        spec = self.interface.FullAttentionSpec(
            block_size=engine["block_size"], num_kv_heads=1, head_size=1, dtype=importlib.import_module("torch").float32
        )
        kv_cache_config = self.interface.KVCacheConfig(
            num_blocks=engine["num_gpu_blocks"],
            kv_cache_tensors=[],
            kv_cache_groups=[self.interface.KVCacheGroupSpec(["layer"], spec)],
        )
        scheduler_class = self.async_scheduler if engine["async_scheduling"] else self.scheduler
        return scheduler_class(
            vllm_config=self.configure(engine, events),
            kv_cache_config=kv_cache_config,
            structured_output_manager=self.structured_output,
            block_size=engine["block_size"],
            log_stats=True,
        )

    def block_hasher(self, engine: dict[str, Any]) -> Any:
        """The function that hashes a request's blocks, as the engine core chooses it."""
        if not engine["enable_prefix_caching"]:
            return None
        return self.cache_utils.get_request_block_hasher(engine["block_size"], self.hash_function)


class Texts:
    """Token ids: equal (segment, position), equal token; a fresh segment equals no other."""

    def __init__(self) -> None:
        self.num_fresh = 0

    def segment(self, segment: int | None) -> int:
        """A number for a segment; named ones are even, fresh ones odd."""
        if segment is not None:
            return 2 * segment
        self.num_fresh += 1
        return 2 * self.num_fresh - 1

    @staticmethod
    def tokens(segment: int, start: int, length: int) -> list[int]:
        """The token ids of a run."""
        first = (segment << SEGMENT_BITS) + start
        return list(range(first, first + length))

    def prompt(self, runs: list[list[Any]]) -> list[int]:
        """The token ids of a prompt."""
        return [token for segment, start, length in runs for token in self.tokens(self.segment(segment), start, length)]


class Labels:
    """Block hashes numbered in the order of their first appearance."""

    def __init__(self, get_block_hash: Callable[[bytes], bytes]) -> None:
        self.get_block_hash = get_block_hash
        self.numbers: dict[bytes, int] = {}

    def of_event(self, block_hash: bytes) -> int:
        """The number of a hash as KV events carry it."""
        return self.numbers.setdefault(block_hash, len(self.numbers))

    def of_block(self, key: bytes | None) -> int | None:
        """The number of a block's key (hash and KV group), or None without one."""
        return None if key is None else self.numbers[self.get_block_hash(key)]
