"""The shape of a decoder: the numbers that its config.json states, and what follows for one device."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from calibration.geometry.rank import Rank
from simulator.profile import Strict

Size = Annotated[int, Field(ge=1)]
Arithmetic = Literal["16-bit", "int8", "fp8"]


class Latent(Strict):
    """Multi-head latent attention (DeepSeek): of a token only a latent and one rotated key are kept, for all heads.

    ``query_rank`` is None where queries are not compressed. A head's query and key have ``Geometry.head_size``
    elements, ``rope_head_size`` of them rotated; its value has ``value_head_size``.
    """

    query_rank: Size | None
    kv_rank: Size
    rope_head_size: Size
    value_head_size: Size


class Experts(Strict):
    """The mixture of experts in ``num_layers`` of the layers: a token uses ``num_active`` of ``num_experts``.

    ``shared_intermediate_size`` is that of the experts which every token uses, all together; 0 is none.
    """

    num_layers: Size
    num_experts: Size
    num_active: Size
    intermediate_size: Size
    shared_intermediate_size: Annotated[int, Field(ge=0)] = 0

    @property
    def share(self) -> float:
        """Active experts over experts, k / E."""
        return self.num_active / self.num_experts


class Geometry(Strict):
    """Shape of a decoder with gated feed-forward parts, dense or a mixture of experts, and the bytes of its numbers.

    Attention is grouped-query, or latent where ``latent`` is given (``num_kv_heads`` then says nothing). Counted are
    matrices; norms and biases (also those of Qwen2's queries, keys and values), under 0.02 % of the whole, are not,
    nor are layers that only speculation uses. ``bytes_per_weight`` is that of embeddings and output head, and of the
    layers too unless ``bytes_per_layer_weight`` says that they are quantised (scales, 0.1 to 3 %, left out);
    ``arithmetic`` is what the layers' matrices then compute in. ``max_position_embeddings`` is the longest sequence
    that the model is made for, in tokens; None: not known.

    The properties without a rank are those of the whole model on one device.
    """

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
    bytes_per_layer_weight: Annotated[float, Field(gt=0)] | None = None
    arithmetic: Arithmetic = "16-bit"
    latent: Latent | None = None
    experts: Experts | None = None
    max_position_embeddings: Size | None = None

    @model_validator(mode="after")
    def _parts_fit(self) -> Geometry:
        experts, latent = self.experts, self.latent
        if latent is None and self.num_attention_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads: {self.num_kv_heads}, expected a divisor of {self.num_attention_heads}")
        if experts is not None and experts.num_active > experts.num_experts:
            raise ValueError(f"experts.num_active: {experts.num_active} of {experts.num_experts} experts")
        if experts is not None and experts.num_layers > self.num_layers:
            raise ValueError(f"experts.num_layers: {experts.num_layers} of {self.num_layers} layers")
        if latent is not None and latent.rope_head_size >= self.head_size:
            raise ValueError(f"latent.rope_head_size: {latent.rope_head_size} of a head of {self.head_size}")
        return self

    def rank(
        self, tensor_parallel_size: int = 1, *, expert_parallel: bool = False, data_parallel_size: int = 1
    ) -> Rank:
        """The share of one rank. Raises InputError where the heads cannot be split so."""
        return Rank(self, tensor_parallel_size, expert_parallel, data_parallel_size)

    @property
    def layer_weight_bytes(self) -> float:
        """Bytes of a weight of the layers' matrices."""
        return self.bytes_per_weight if self.bytes_per_layer_weight is None else self.bytes_per_layer_weight

    @property
    def num_layer_parameters(self) -> int:
        """Matrix parameters of all layers, all experts included."""
        whole = self.rank()
        return whole.num_common_parameters + whole.num_expert_parameters

    @property
    def num_parameters(self) -> int:
        """All matrix parameters, embeddings included."""
        return self.num_layer_parameters + self.rank().num_head_parameters * (1 if self.tied_embeddings else 2)

    @property
    def num_active_parameters(self) -> int:
        """Matrix parameters that a token is multiplied with: layers with its experts, and output head."""
        return self.decode_token_flops // 2

    @property
    def expert_share(self) -> float:
        """Active experts over experts, k / E; 0 where there are none."""
        return 0.0 if self.experts is None else self.experts.share

    def experts_read(self, num_tokens: float) -> float:
        """Expected share of the experts that a step of so many tokens reads, 1 - (1 - k / E)^tokens.

        Each token is taken to choose by itself and any expert equally often. Real routers prefer some, and tokens of
        one text agree, so that fewer are read: an upper estimate.
        """
        return float(1.0 - (1.0 - self.expert_share) ** num_tokens)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in device memory."""
        return self.rank().weight_bytes

    @property
    def step_read_bytes(self) -> int:
        """Bytes of weights that every step reads: see ``Rank``."""
        return self.rank().step_read_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that attention keeps of one token over all layers."""
        return self.rank().kv_bytes_per_token

    @property
    def prefill_token_flops(self) -> int:
        """Operations of the layers' matrices for a token; its logits are not computed."""
        return self.rank().layer_token_flops

    @property
    def decode_token_flops(self) -> int:
        """Operations of the layers' matrices and the output head for a token."""
        return self.rank().layer_token_flops + self.rank().head_token_flops

    @property
    def pair_flops(self) -> int:
        """Operations of a prefill's attention for a query-key pair over all layers."""
        return self.rank().pair_flops
