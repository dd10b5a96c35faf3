"""What one rank of a parallel engine holds, reads, computes and sends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator.errors import InputError

if TYPE_CHECKING:
    from calibration.geometry.shape import Geometry


@dataclass(frozen=True)
class Rank:
    """One of ``tensor_parallel_size`` ranks that share each matrix of a model, split as vLLM splits them.

    Heads, feed-forward parts and vocabulary are split. What cannot be split is on every rank: a key-value head where
    there are more ranks than heads, the latent and the matrices that make it, routers.

    ``expert_parallel``: whole experts are spread over the ranks of all ``data_parallel_size`` replicas, rather than
    each expert being split. Replicas beside this one then matter: their tokens use the experts here, and the experts
    here are fewer. Work is taken to be spread evenly.

    Raises InputError where the heads cannot be split so.
    """

    geometry: Geometry
    tensor_parallel_size: int = 1
    expert_parallel: bool = False
    data_parallel_size: int = 1

    def __post_init__(self) -> None:
        shape, num_ranks = self.geometry, self.tensor_parallel_size
        if num_ranks < 1 or self.data_parallel_size < 1:
            raise InputError(
                f"tensor_parallel_size {num_ranks}, data_parallel_size {self.data_parallel_size}: expected at least 1"
            )
        if self.data_parallel_size > 1 and not self.expert_parallel:
            raise InputError(
                f"data_parallel_size {self.data_parallel_size}: replicas share nothing but experts; expected 1 without "
                "expert_parallel"
            )
        if shape.num_attention_heads % num_ranks:
            raise InputError(
                f"tensor_parallel_size {num_ranks}: does not divide the {shape.num_attention_heads} attention heads of "
                f"{shape.model}"
            )
        if shape.latent is None and shape.num_kv_heads % num_ranks and num_ranks % shape.num_kv_heads:
            raise InputError(
                f"tensor_parallel_size {num_ranks}: expected a divisor or a multiple of the {shape.num_kv_heads} "
                f"key-value heads of {shape.model}"
            )

    def _split(self, size: int) -> int:
        """The largest share of ``size`` that a rank has."""
        return -(-size // self.tensor_parallel_size)

    # Parameters

    @property
    def num_attention_parameters(self) -> int:
        """Matrix parameters of attention, all layers."""
        shape, latent = self.geometry, self.geometry.latent
        hidden, heads = shape.hidden_size, self._split(shape.num_attention_heads)
        if latent is None:
            return shape.num_layers * 2 * hidden * shape.head_size * (heads + self._split(shape.num_kv_heads))
        queries = heads * shape.head_size * (latent.query_rank or hidden)
        if latent.query_rank is not None:
            queries += hidden * latent.query_rank
        latents = hidden * (latent.kv_rank + latent.rope_head_size)
        unrotated = shape.head_size - latent.rope_head_size
        keys_and_values = latent.kv_rank * heads * (unrotated + latent.value_head_size)
        output = heads * latent.value_head_size * hidden
        return shape.num_layers * (queries + latents + keys_and_values + output)

    @property
    def num_common_parameters(self) -> int:
        """Matrix parameters of the layers that every token uses: all but routed experts."""
        shape, experts = self.geometry, self.geometry.experts
        num_dense = shape.num_layers - (0 if experts is None else experts.num_layers)
        feed_forward = num_dense * 3 * shape.hidden_size * self._split(shape.intermediate_size)
        if experts is not None:
            shared = 3 * shape.hidden_size * self._split(experts.shared_intermediate_size)
            feed_forward += experts.num_layers * (shared + shape.hidden_size * experts.num_experts)
        return self.num_attention_parameters + feed_forward

    @property
    def num_expert_parameters(self) -> int:
        """Matrix parameters of the routed experts, all layers."""
        shape, experts = self.geometry, self.geometry.experts
        if experts is None:
            return 0
        if self.expert_parallel:
            num_ranks = self.tensor_parallel_size * self.data_parallel_size
            sizes = -(-experts.num_experts // num_ranks) * experts.intermediate_size
        else:
            sizes = experts.num_experts * self._split(experts.intermediate_size)
        return experts.num_layers * 3 * shape.hidden_size * sizes

    @property
    def num_head_parameters(self) -> int:
        """Parameters of the output head; the input table has as many."""
        return self._split(self.geometry.vocabulary_size) * self.geometry.hidden_size

    # Bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in device memory."""
        tables = 1 if self.geometry.tied_embeddings else 2
        layers = (self.num_common_parameters + self.num_expert_parameters) * self.geometry.layer_weight_bytes
        return int(layers) + tables * self.num_head_parameters * self.geometry.bytes_per_weight

    @property
    def step_read_bytes(self) -> int:
        """Bytes of weights that every step reads: layers without routed experts, and output head.

        The input table is indexed, not read.
        """
        layers = self.num_common_parameters * self.geometry.layer_weight_bytes
        return int(layers) + self.num_head_parameters * self.geometry.bytes_per_weight

    @property
    def expert_bytes(self) -> int:
        """Bytes of the routed experts; a step reads the share ``Geometry.experts_read`` (of all replicas' tokens)."""
        return int(self.num_expert_parameters * self.geometry.layer_weight_bytes)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values, or of the latent and the rotated key, of one token over all layers."""
        shape, latent = self.geometry, self.geometry.latent
        if latent is None:
            elements = 2 * self._split(shape.num_kv_heads) * shape.head_size
        else:
            elements = latent.kv_rank + latent.rope_head_size
        return shape.num_layers * elements * shape.bytes_per_kv_element

    # Operations

    @property
    def layer_token_flops(self) -> int:
        """Operations of the layers' matrices for a token, of its active experts only."""
        shape, experts = self.geometry, self.geometry.experts
        active = 0
        if experts is not None:
            sizes = experts.num_active * experts.intermediate_size
            active = experts.num_layers * 3 * shape.hidden_size * sizes // self.tensor_parallel_size
        return 2 * (self.num_common_parameters + active)

    @property
    def head_token_flops(self) -> int:
        """Operations of the output head for a token."""
        return 2 * self.num_head_parameters

    @property
    def pair_flops(self) -> int:
        """Operations of a prefill's attention for a query-key pair over all layers: one product with the key, one with
        the value.
        """
        shape, latent = self.geometry, self.geometry.latent
        value_size = shape.head_size if latent is None else latent.value_head_size
        heads = self._split(shape.num_attention_heads)
        return 2 * shape.num_layers * heads * (shape.head_size + value_size)

    @property
    def context_flops(self) -> int:
        """Operations of a decode's attention for a token of context over all layers.

        With latent attention a decode works on the latent itself, which is longer than a head: kv_rank + rope_head_size
        elements for the key, kv_rank for the value.
        """
        shape, latent = self.geometry, self.geometry.latent
        if latent is None:
            return self.pair_flops
        heads = self._split(shape.num_attention_heads)
        return 2 * shape.num_layers * heads * (2 * latent.kv_rank + latent.rope_head_size)

    # Communication

    @property
    def _num_dispatching_layers(self) -> int:
        """Layers whose experts are on other replicas too, so that tokens are sent to them."""
        experts = self.geometry.experts
        return experts.num_layers if experts is not None and self.data_parallel_size > 1 else 0

    @property
    def _num_all_reduces(self) -> int:
        if self.tensor_parallel_size == 1:
            return 0
        return 2 * self.geometry.num_layers - self._num_dispatching_layers

    @property
    def num_collectives(self) -> int:
        """Collective operations of a step over all layers.

        An all-reduce after attention and one after the feed-forward part; where experts are on other replicas too, a
        dispatch and a combination in the latter's place. Those of the embeddings and the logits are left out.
        """
        return self._num_all_reduces + 2 * self._num_dispatching_layers

    @property
    def all_reduce_bytes_per_token(self) -> int:
        """Bytes that this rank sends for a token in all-reduces over all layers.

        A ring moves 2 (n - 1) / n of the message, hidden_size activations of 16 bits, through each rank's link.
        """
        num_ranks = self.tensor_parallel_size
        message = self.geometry.hidden_size * _ACTIVATION_BYTES
        return self._num_all_reduces * 2 * (num_ranks - 1) * message // num_ranks

    @property
    def dispatch_bytes_per_token(self) -> int:
        """Bytes that this rank sends for a token of its replica to experts of other ranks and back, over all layers.

        The tensor-parallel ranks of a replica send a part of its tokens each, once to each active expert.
        """
        experts = self.geometry.experts
        if experts is None or not self._num_dispatching_layers:
            return 0
        num_ranks = self.tensor_parallel_size * self.data_parallel_size
        message = self.geometry.hidden_size * _ACTIVATION_BYTES * experts.num_active
        both_ways = 2 * self._num_dispatching_layers * message
        return both_ways * (num_ranks - 1) // (num_ranks * self.tensor_parallel_size)


_ACTIVATION_BYTES = 2
