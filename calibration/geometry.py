"""A dense decoder's shape -> parameters, bytes and floating-point operations."""

from __future__ import annotations

import importlib.resources
import json
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from simulator.errors import InputError, nearest
from simulator.profile import Strict, first_problem

Size = Annotated[int, Field(ge=1)]

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class Geometry(Strict):
    """Shape of a dense decoder with grouped-query attention and a gated feed-forward part, on one device."""

    model: str
    source: str
    num_layers: Size
    num_attention_heads: Size
    num_kv_heads: Size
    head_size: Size
    hidden_size: Size
    intermediate_size: Size
    vocabulary_size: Size
    tied_embeddings: bool
    bytes_per_weight: Size
    bytes_per_kv_element: Size

    @property
    def num_layer_parameters(self) -> int:
        """Matrix parameters of all layers. Norms, under 0.01 % of the whole, are left out."""
        attention = 2 * self.hidden_size * self.head_size * (self.num_attention_heads + self.num_kv_heads)
        return self.num_layers * (attention + 3 * self.hidden_size * self.intermediate_size)

    @property
    def num_parameters(self) -> int:
        """All matrix parameters, embeddings included."""
        embeddings = self.vocabulary_size * self.hidden_size
        return self.num_layer_parameters + embeddings * (1 if self.tied_embeddings else 2)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in device memory."""
        return self.num_parameters * self.bytes_per_weight

    @property
    def step_read_bytes(self) -> int:
        """Bytes of weights that every step reads: layers and output head (the input table is indexed, not read)."""
        return (self.num_layer_parameters + self.vocabulary_size * self.hidden_size) * self.bytes_per_weight

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values of one token over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_size * self.bytes_per_kv_element

    @property
    def prefill_token_flops(self) -> int:
        """Operations of the layers' matrices for a token; its logits are not computed."""
        return 2 * self.num_layer_parameters

    @property
    def decode_token_flops(self) -> int:
        """Operations of the layers' matrices and the output head for a token."""
        return 2 * (self.num_layer_parameters + self.vocabulary_size * self.hidden_size)

    @property
    def pair_flops(self) -> int:
        """Operations of attention for a query-key pair over all layers: a product with the key, one with the value."""
        return 4 * self.num_layers * self.num_attention_heads * self.head_size


def load_geometry(model: str, path: Path | None = None, dtype: str = "bfloat16") -> Geometry:
    """The geometry in this file, or the shipped one of this model. Raises InputError naming file and key.

    The file is a geometry, or the model's own Hugging Face ``config.json``; its sizes then hold for ``dtype``.
    """
    if path is not None:
        content = path.read_text(encoding="utf-8")
        of_model = '"model_type"' in content
        return from_config(content, model, dtype, path.name) if of_model else _parse(content, path.name)
    written = importlib.resources.files("calibration") / "models" / model / "config.json"
    if "/" not in model and written.is_file():
        return from_config(written.read_text(encoding="utf-8"), model, dtype, f"models/{model}/config.json")
    folder = importlib.resources.files("calibration") / "data" / "models"
    known = {}
    for entry in folder.iterdir():
        geometry = _parse(entry.read_text(encoding="utf-8"), entry.name)
        known[geometry.model] = geometry
    if model not in known:
        raise InputError(f"model: no shipped geometry of {model!r}{nearest(model, known)}; pass --geometry FILE")
    return known[model]


def from_config(content: str, model: str, dtype: str, file: str) -> Geometry:
    """The geometry that a Hugging Face ``config.json`` of a dense decoder states.

    Raises InputError for a mixture of experts, whose shape is another, and where a size is missing.
    """
    try:
        config = json.loads(content)
        if any(key in config for key in ("num_experts", "n_routed_experts", "num_local_experts")):
            raise InputError(f"{file}: a mixture of experts has another geometry: pass --geometry")
        heads = config["num_attention_heads"]
        return Geometry(
            model=model,
            source=f"{file} of the model",
            num_layers=config["num_hidden_layers"],
            num_attention_heads=heads,
            num_kv_heads=config.get("num_key_value_heads", heads),
            head_size=config.get("head_dim") or config["hidden_size"] // heads,
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            vocabulary_size=config["vocab_size"],
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            bytes_per_weight=_BYTES.get(dtype, 2),
            bytes_per_kv_element=_BYTES.get(dtype, 2),
        )
    except KeyError as missing:
        raise InputError(f"{file}: {missing.args[0]}: missing") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{file}: not JSON ({error.msg})") from None


def _parse(content: str, file: str) -> Geometry:
    try:
        return Geometry.model_validate_json(content)
    except ValidationError as error:
        raise InputError(f"{file}: {first_problem(error)}") from None
