"""Engine arguments that a result states, by vLLM's names, as a scenario would state them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from simulator.errors import InputError
from simulator.units import count, positive_count, share, size_bytes

_SWITCH = {"true": True, "on": True, "yes": True, "1": True, "false": False, "off": False, "no": False, "0": False}


def switch(value: object) -> bool:
    """On or off, as files write it. Raises InputError."""
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word not in _SWITCH:
        raise InputError(f"got {value!r}, expected true or false")
    return _SWITCH[word]


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"got {value!r}, expected a name")
    return value.strip()


# What a result may state. Kernels, graphs and number formats are not here: a profile belongs to one choice of them.
_READ: dict[str, Callable[[object], Any]] = {
    "tensor_parallel_size": positive_count,
    "pipeline_parallel_size": positive_count,
    "data_parallel_size": positive_count,
    "enable_expert_parallel": switch,
    "max_model_len": positive_count,
    "block_size": positive_count,
    "max_num_batched_tokens": positive_count,
    "max_num_seqs": positive_count,
    "max_num_active_seqs": positive_count,
    "num_gpu_blocks_override": positive_count,
    "kv_cache_memory_bytes": size_bytes,
    "gpu_memory_utilization": share,
    "watermark": share,
    "enable_prefix_caching": switch,
    "enable_chunked_prefill": switch,
    "long_prefill_token_threshold": count,
    "long_prefill_token_threshold_adaptive": switch,
    "async_scheduling": switch,
    "scheduling_policy": _text,
    "scheduler_reserve_full_isl": switch,
    "dialect": _text,
}
ENGINE_ARGUMENTS = frozenset(_READ)


def engine_argument(name: str, value: object, where: str) -> Any:
    """The value of one of ``ENGINE_ARGUMENTS``. Raises InputError, naming ``where`` and the argument."""
    try:
        return _READ[name](value)
    except InputError as error:
        raise InputError(f"{where}: {name}: {error}") from None


def engine_arguments(values: Mapping[str, object], where: str) -> dict[str, Any]:
    """Those of the values that are engine arguments; null and empty ones state nothing."""
    return {
        name: engine_argument(name, value, where)
        for name, value in values.items()
        if name in ENGINE_ARGUMENTS and value not in (None, "")
    }


def command_arguments(options: Mapping[str, object], where: str) -> dict[str, Any]:
    """The same of a server's command line: ``{"--max-num-seqs": 64, "--no-enable-prefix-caching": None}``."""
    return engine_arguments(dict(_options(options)), where)


def _options(options: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for option, value in options.items():
        name = str(option).lstrip("-").replace("-", "_")
        if value is None and name.startswith("no_"):
            yield name.removeprefix("no_"), False
        else:
            yield name, True if value is None else value
