"""A model's Hugging Face ``config.json`` -> its geometry, or a refusal that names what is not understood."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from calibration.geometry.number_format import FORMATS, NumberFormat, kv_element_bytes, number_format
from calibration.geometry.shape import Experts, Geometry, Latent
from simulator.errors import InputError, nearest
from simulator.profile import first_problem

_DENSE = ("llama", "mistral", "qwen2", "qwen3")
_MIXED_BY_STEP = ("qwen2_moe", "qwen3_moe")
_MIXED_AFTER_DENSE = ("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe")
_MODEL_TYPES = (*_DENSE, "mixtral", *_MIXED_BY_STEP, *_MIXED_AFTER_DENSE)
_EXPERT_KEYS = ("num_experts", "n_routed_experts", "num_local_experts")
_LENGTH_AS_STATED = ("default", "llama3")  # kinds of rotary positions
_OTHER_ATTENTION = ("index_topk", "use_cla", "attention_chunk_size")


class _Config:
    """The keys of a config, each read with its check."""

    def __init__(self, values: Mapping[str, Any], file: str) -> None:
        self.values = values
        self.file = file

    def refuse(self, key: str, why: str) -> InputError:
        """The error that this key's value is."""
        return InputError(f"{self.file}: {key}: {why}")

    def size(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least ``least``; ``default`` where the key is missing or null."""
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.refuse(key, "missing")
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.refuse(key, f"expected a whole number of at least {least} (got {value!r})")
        return value


def from_config(content: str, model: str, dtype: str, file: str, kv_cache_dtype: str = "auto") -> Geometry:
    """The geometry that a Hugging Face ``config.json`` states.

    ``dtype`` is the number format of the weights (see ``number_format``); where it is not a quantised one, the
    config's own ``quantization_config`` goes before it. Raises InputError naming file and key where something is
    missing, or not understood: other model types, attention over a window, other kinds of quantisation.
    """
    try:
        values = json.loads(content)
    except json.JSONDecodeError as error:
        raise InputError(f"{file}: not JSON ({error.msg})") from None
    if not isinstance(values, dict):
        raise InputError(f"{file}: expected an object with the keys of a config.json")
    return geometry_of(values, model, f"{file} of the model", weights_of(values, dtype, file), kv_cache_dtype, file)


def weights_of(values: Mapping[str, Any], dtype: str, file: str) -> NumberFormat:
    """The number format of the weights: ``dtype`` if quantised, else the config's own if quantised, else ``dtype``."""
    named = number_format(dtype)
    stated = values.get("quantization_config")
    if named.is_quantised or stated is None:
        return named
    method, bits = (stated.get("quant_method"), stated.get("bits")) if isinstance(stated, dict) else (stated, None)
    if method == "fp8":
        return FORMATS["fp8"]
    if method in ("gptq", "awq") and bits in (4, 8):
        return FORMATS[f"w{bits}a16"]
    quantised = ", ".join(word for word, known in FORMATS.items() if known.is_quantised)
    raise InputError(f"{file}: quantization_config: {method!r} is not understood; pass its number format: {quantised}")


def geometry_of(
    values: Mapping[str, Any], model: str, source: str, weights: NumberFormat, kv_cache_dtype: str, file: str
) -> Geometry:
    """The geometry of a config whose number format is known. Raises InputError as ``from_config`` does."""
    config = _Config(values, file)
    _check_understood(config)
    latent = _latent(config) if "kv_lora_rank" in values else None
    num_heads, hidden_size = config.size("num_attention_heads"), config.size("hidden_size")
    if latent is None:
        head_size = config.size("head_dim", hidden_size // num_heads)
    else:
        head_size = config.size("qk_nope_head_dim") + latent.rope_head_size
    try:
        return Geometry(
            model=model,
            source=source,
            num_layers=config.size("num_hidden_layers"),
            num_attention_heads=num_heads,
            num_kv_heads=config.size("num_key_value_heads", num_heads),
            head_size=head_size,
            hidden_size=hidden_size,
            intermediate_size=config.size("intermediate_size"),
            vocabulary_size=config.size("vocab_size"),
            tied_embeddings=bool(values.get("tie_word_embeddings", False)),
            bytes_per_weight=weights.bytes_per_weight,
            bytes_per_kv_element=kv_element_bytes(kv_cache_dtype, weights),
            bytes_per_layer_weight=weights.bytes_per_layer_weight if weights.is_quantised else None,
            arithmetic=weights.arithmetic,
            latent=latent,
            experts=_experts(config),
            max_position_embeddings=_longest(config),
        )
    except ValidationError as error:
        raise InputError(f"{file}: {first_problem(error)}") from None


def _check_understood(config: _Config) -> None:
    """Raise InputError for a model whose memory or work would come out wrong."""
    values, model_type = config.values, config.values.get("model_type")
    if model_type not in _MODEL_TYPES:
        hint = nearest(str(model_type), _MODEL_TYPES)
        raise config.refuse("model_type", f"{model_type!r} is not understood{hint}; write its geometry")
    if model_type in _DENSE:
        for key in _EXPERT_KEYS:
            if values.get(key):
                raise config.refuse(key, f"a {model_type!r} model has no experts")
    if values.get("sliding_window") is not None and values.get("use_sliding_window", True):
        raise config.refuse("sliding_window", "attention over a window keeps other amounts of KV: not understood")
    if any(kind != "full_attention" for kind in values.get("layer_types") or ()):
        raise config.refuse("layer_types", "only 'full_attention' is understood")
    for key in _OTHER_ATTENTION:
        if values.get(key):
            raise config.refuse(key, "this kind of attention is not understood")


def _longest(config: _Config) -> int | None:
    """The longest sequence; None where it is not stated, or positions are scaled in a way that versions of vLLM count
    differently.
    """
    scaling = config.values.get("rope_scaling") or config.values.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default")) if isinstance(scaling, dict) else None
    if kind not in _LENGTH_AS_STATED or config.values.get("max_position_embeddings") is None:
        return None
    return config.size("max_position_embeddings")


def _latent(config: _Config) -> Latent:
    compressed = config.values.get("q_lora_rank") is not None
    return Latent(
        query_rank=config.size("q_lora_rank") if compressed else None,
        kv_rank=config.size("kv_lora_rank"),
        rope_head_size=config.size("qk_rope_head_dim"),
        value_head_size=config.size("v_head_dim"),
    )


def _experts(config: _Config) -> Experts | None:
    """The mixture of experts, which each family of models writes in its own keys."""
    model_type, num_layers = config.values["model_type"], config.size("num_hidden_layers")
    if model_type in _DENSE:
        return None
    if model_type == "mixtral":
        return _mixture(config, num_layers, "num_local_experts", "intermediate_size", 0)
    if model_type in _MIXED_BY_STEP:
        step, dense = config.size("decoder_sparse_step", 1), config.values.get("mlp_only_layers") or ()
        num_mixed = sum((layer + 1) % step == 0 and layer not in dense for layer in range(num_layers))
        shared = config.size("shared_expert_intermediate_size", 0, least=0)
        return _mixture(config, num_mixed, "num_experts", "moe_intermediate_size", shared)
    first, step = config.size("first_k_dense_replace", 0, least=0), config.size("moe_layer_freq", 1)
    num_mixed = sum(layer % step == 0 for layer in range(first, num_layers))
    shared = config.size("n_shared_experts", 0, least=0) * config.size("moe_intermediate_size")
    return _mixture(config, num_mixed, "n_routed_experts", "moe_intermediate_size", shared)


def _mixture(config: _Config, num_layers: int, number: str, size: str, shared: int) -> Experts | None:
    """``number`` and ``size`` are the keys of how many experts there are and of their intermediate size."""
    if num_layers == 0:
        return None
    num_experts, num_active = config.size(number), config.size("num_experts_per_tok")
    if num_active > num_experts:
        raise config.refuse("num_experts_per_tok", f"{num_active} of {num_experts} experts")
    return Experts(
        num_layers=num_layers,
        num_experts=num_experts,
        num_active=num_active,
        intermediate_size=config.size(size),
        shared_intermediate_size=shared,
    )
