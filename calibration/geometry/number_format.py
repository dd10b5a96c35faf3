"""Words for number formats -> bytes. A format says how the layers' matrices are kept; the rest stays in 16 bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from calibration.geometry.shape import Arithmetic
from simulator.errors import InputError, nearest


@dataclass(frozen=True)
class NumberFormat:
    """Bytes of a weight of embeddings and head, of a weight of the layers, and what the layers compute in."""

    bytes_per_weight: int
    bytes_per_layer_weight: float
    arithmetic: Arithmetic = "16-bit"

    @property
    def is_quantised(self) -> bool:
        """Whether the layers' weights have fewer bytes than the rest."""
        return self.bytes_per_layer_weight < self.bytes_per_weight


# wXaY: weights of X bits, activations of Y bits. With activations of 16 bits the weights are widened and computed so.
FORMATS: Mapping[str, NumberFormat] = {
    "float32": NumberFormat(4, 4),
    "bfloat16": NumberFormat(2, 2),
    "float16": NumberFormat(2, 2),
    "fp8": NumberFormat(2, 1, "fp8"),
    "w8a8": NumberFormat(2, 1, "int8"),
    "w8a16": NumberFormat(2, 1),
    "w4a8": NumberFormat(2, 0.5, "int8"),
    "w4a16": NumberFormat(2, 0.5),
}
# vLLM's words for dtype and usual short ones. Published models and vLLM's "auto" are of 16 bits.
_ALSO = {
    "half": "float16",
    "float": "float32",
    "auto": "bfloat16",
    "not known": "bfloat16",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp32": "float32",
}
# vLLM's words for kv_cache_dtype; "auto" is that of the model.
_KV_BYTES = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "int8": 1, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}


def number_format(word: str) -> NumberFormat:
    """The format that this word names. Raises InputError for another word."""
    name = _ALSO.get(word.lower(), word.lower())
    if name not in FORMATS:
        raise InputError(f"dtype: unknown {word!r}{nearest(name, FORMATS)}")
    return FORMATS[name]


def kv_element_bytes(word: str, weights: NumberFormat) -> int:
    """Bytes of an element of the KV cache in the ``kv_cache_dtype`` of this name. Raises InputError for another."""
    if word == "auto":
        return weights.bytes_per_weight
    if word not in _KV_BYTES:
        raise InputError(f"kv_cache_dtype: unknown {word!r}{nearest(word, ['auto', *_KV_BYTES])}")
    return _KV_BYTES[word]
