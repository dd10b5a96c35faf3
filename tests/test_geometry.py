"""Sizes of models against published counts and hand-computed cases; the share of one rank against the whole."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from calibration.geometry import Experts, Geometry, Latent, from_config, load_geometry
from calibration.geometry.shipped import shipped_models
from simulator.errors import InputError

GIB = 1024**3
ALL_SHIPPED = [one.model for one in shipped_models()]
# Weights of the model cards, in billions: all, and without embeddings. DeepSeek's is of README_WEIGHTS.md.
CARDS = {
    "Qwen/Qwen3-0.6B": (0.6, 0.44),
    "Qwen/Qwen3-8B": (8.2, 6.95),
    "Qwen/Qwen3-32B": (32.8, 31.2),
    "Qwen/Qwen3-30B-A3B": (30.5, 29.9),
    "Qwen/Qwen2.5-7B-Instruct": (7.61, 6.53),
    "Qwen/Qwen2.5-14B-Instruct": (14.7, 13.1),
    "Qwen/Qwen2.5-72B-Instruct": (72.7, 70.0),
    "meta-llama/Llama-3.1-8B": (8.03, None),
    "meta-llama/Llama-3.1-70B": (70.6, None),
    "deepseek-ai/DeepSeek-V3": (671.0, None),
    "moonshotai/Kimi-K2-Instruct": (1026.4, None),
}
# "total_size" of the published model.safetensors.index.json, bfloat16.
WEIGHT_FILES = {
    "Qwen/Qwen3-8B": 16_381_470_720,
    "Qwen/Qwen3-32B": 65_524_246_528,
    "Qwen/Qwen3-30B-A3B": 61_064_245_248,
    "Qwen/Qwen2.5-7B-Instruct": 15_231_233_024,
    "meta-llama/Llama-3.1-8B": 16_060_522_496,
    "meta-llama/Llama-3.1-70B": 141_107_412_992,
}
# Two layers, one of them a mixture: small enough to count by hand.
TINY = Geometry(
    model="tiny",
    source="made up",
    num_layers=2,
    num_attention_heads=4,
    num_kv_heads=2,
    head_size=8,
    hidden_size=16,
    intermediate_size=20,
    vocabulary_size=100,
    tied_embeddings=False,
    bytes_per_weight=2,
    bytes_per_kv_element=2,
    experts=Experts(num_layers=1, num_experts=6, num_active=2, intermediate_size=12, shared_intermediate_size=8),
)
ATTENTION = 2 * 16 * 8 * (4 + 2)
# A latent of 10 and a rotated key of 4, of heads of 8 = 4 + 4 elements with values of 6; queries through a rank of 12.
TINY_LATENT = TINY.model_copy(
    update={"latent": Latent(query_rank=12, kv_rank=10, rope_head_size=4, value_head_size=6), "experts": None}
)


def test_every_shipped_model_is_checked() -> None:
    assert set(CARDS) == set(ALL_SHIPPED)


@pytest.mark.parametrize("model", CARDS)
def test_parameters_are_those_of_the_model_card(model: str) -> None:
    geometry = load_geometry(model)
    whole, layers = CARDS[model]
    assert geometry.num_parameters == pytest.approx(whole * 1e9, rel=0.01)
    if layers is not None:
        assert geometry.num_layer_parameters == pytest.approx(layers * 1e9, rel=0.01)


@pytest.mark.parametrize("model", WEIGHT_FILES)
def test_weight_bytes_are_those_of_the_weight_files(model: str) -> None:
    """What is left out (norms, Qwen2.5's biases) is under 0.02 %."""
    weight_bytes = load_geometry(model).weight_bytes
    assert weight_bytes < WEIGHT_FILES[model]
    assert weight_bytes == pytest.approx(WEIGHT_FILES[model], rel=2e-4)


def test_active_parameters_are_the_published_ones() -> None:
    """DeepSeek counts layers and output head, 36.6 B; Qwen's 3.3 B, cut to two digits, has the input table too."""
    assert load_geometry("deepseek-ai/DeepSeek-V3").num_active_parameters == pytest.approx(36.6e9, rel=0.005)
    qwen = load_geometry("Qwen/Qwen3-30B-A3B")
    assert qwen.num_active_parameters + 151_936 * 2048 == pytest.approx(3.35e9, abs=0.05e9)
    dense = load_geometry("Qwen/Qwen3-8B")
    assert dense.num_active_parameters == dense.num_parameters - 151_936 * 4096


def test_mixture_by_hand() -> None:
    rank = TINY.rank()
    common = 2 * ATTENTION + 3 * 16 * 20 + (3 * 16 * 8 + 16 * 6)  # a dense part; shared experts and router
    expert = 3 * 16 * 12
    assert rank.num_common_parameters == common
    assert rank.num_expert_parameters == 6 * expert
    assert TINY.num_parameters == common + 6 * expert + 2 * 100 * 16
    assert rank.weight_bytes == 2 * TINY.num_parameters
    assert rank.step_read_bytes == 2 * (common + 100 * 16)
    assert rank.expert_bytes == 2 * 6 * expert
    assert rank.layer_token_flops == 2 * (common + 2 * expert)
    assert rank.head_token_flops == 2 * 100 * 16
    assert rank.kv_bytes_per_token == 2 * 2 * 2 * 8 * 2
    assert rank.pair_flops == rank.context_flops == 2 * 4 * 8 * 2 * 2
    assert (rank.num_collectives, rank.all_reduce_bytes_per_token, rank.dispatch_bytes_per_token) == (0, 0, 0)


def test_latent_attention_by_hand() -> None:
    rank = TINY_LATENT.rank()
    attention = 16 * 12 + 12 * 4 * 8 + 16 * (10 + 4) + 10 * 4 * (4 + 6) + 4 * 6 * 16
    assert rank.num_attention_parameters == 2 * attention
    assert rank.kv_bytes_per_token == 2 * (10 + 4) * 2
    assert rank.pair_flops == 2 * 2 * 4 * (8 + 6)
    assert rank.context_flops == 2 * 2 * 4 * ((10 + 4) + 10)
    plain = TINY_LATENT.latent.model_copy(update={"query_rank": None})  # type: ignore[union-attr]
    queries_saved = 16 * 12 + 12 * 4 * 8 - 16 * 4 * 8
    uncompressed = TINY_LATENT.model_copy(update={"latent": plain})
    assert uncompressed.rank().num_attention_parameters == 2 * (attention - queries_saved)


def test_latent_of_deepseek_v3() -> None:
    """576 elements a token and layer, on every rank: what makes its KV cache 70 KB a token."""
    geometry = load_geometry("deepseek-ai/DeepSeek-V3")
    assert geometry.kv_bytes_per_token == geometry.rank(16).kv_bytes_per_token == 61 * (512 + 64) * 2


# vllm-ascend commit 2fe9c6f2 (#11380), 2026-07-06: Qwen3-30B-A3B, bfloat16, 2 devices, 25.53 GiB left for KV a worker,
# 557,696 tokens.
def test_kv_capacity_of_a_start_up_log() -> None:
    kv_bytes = load_geometry("Qwen/Qwen3-30B-A3B").rank(2).kv_bytes_per_token
    assert kv_bytes == 49_152
    lowest, highest = (int(gib * GIB) // (128 * kv_bytes) * 128 for gib in (25.525, 25.535))
    assert lowest <= 557_696 <= highest
    assert highest - lowest <= 2 * 128


# vllm-ascend docs, Hunyuan-A13B-Instruct.md, 2026-04: bfloat16, 4 devices of 64 GB (61.27 GiB visible), weights
# 37.46 GiB a device, 529,152 KV tokens at a utilization of 0.90. Shape: config.json of tencent/Hunyuan-A13B-Instruct.
def test_memory_of_hunyuan_a13b() -> None:
    rank = Geometry(
        model="tencent/Hunyuan-A13B-Instruct",
        source="config.json",
        num_layers=32,
        num_attention_heads=32,
        num_kv_heads=8,
        head_size=128,
        hidden_size=4096,
        intermediate_size=3072,
        vocabulary_size=128_167,
        tied_embeddings=True,
        bytes_per_weight=2,
        bytes_per_kv_element=2,
        experts=Experts(
            num_layers=32, num_experts=64, num_active=8, intermediate_size=3072, shared_intermediate_size=3072
        ),
    ).rank(4)
    assert rank.weight_bytes == pytest.approx(37.46 * GIB, rel=0.002)
    left = 61.27 * 0.90 * GIB - rank.weight_bytes - 529_152 * rank.kv_bytes_per_token
    assert 0.5 * GIB < left < 3 * GIB  # activations and communication


def test_experts_read_follows_its_law() -> None:
    geometry = load_geometry("Qwen/Qwen3-30B-A3B")
    assert geometry.experts_read(0) == 0
    assert geometry.experts_read(1) == pytest.approx(8 / 128, rel=1e-12)
    read = [geometry.experts_read(tokens) for tokens in range(200)]
    assert all(before < after < 1 for before, after in pairwise(read))
    assert load_geometry("Qwen/Qwen3-8B").experts_read(100) == 0


@pytest.mark.parametrize("num_tokens", [2, 8, 32])
def test_experts_read_is_the_mean_of_random_choices(num_tokens: int) -> None:
    """Tokens that each choose 8 distinct of 128 experts at random: the mean share chosen by any, within 1 %."""
    draw = np.random.default_rng(num_tokens)
    shares = []
    for _ in range(400):
        ranks = draw.random((num_tokens, 128)).argpartition(8, axis=1)[:, :8]
        shares.append(len(np.unique(ranks)) / 128)
    expected = load_geometry("Qwen/Qwen3-30B-A3B").experts_read(num_tokens)
    assert np.mean(shares) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("model", ALL_SHIPPED)
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_ranks_sum_to_the_whole(model: str, num_ranks: int) -> None:
    """What is split adds up to the whole; what is not (routers, latents) is counted on every rank."""
    geometry = load_geometry(model)
    whole, rank = geometry.rank(), geometry.rank(num_ranks)
    experts, latent = geometry.experts, geometry.latent
    kept = 0 if experts is None else experts.num_layers * geometry.hidden_size * experts.num_experts
    if latent is not None:
        latents = (latent.query_rank or 0) + latent.kv_rank + latent.rope_head_size
        kept += geometry.num_layers * geometry.hidden_size * latents
    assert num_ranks * (rank.num_common_parameters - kept) + kept == whole.num_common_parameters
    assert num_ranks * rank.num_expert_parameters == whole.num_expert_parameters
    assert num_ranks * rank.num_head_parameters == whole.num_head_parameters
    assert num_ranks * rank.pair_flops == whole.pair_flops
    assert num_ranks * rank.context_flops == whole.context_flops
    replicas = 1 if latent is None else num_ranks
    assert num_ranks * rank.kv_bytes_per_token == replicas * whole.kv_bytes_per_token


def test_more_ranks_than_key_value_heads_keep_a_head_each() -> None:
    """vLLM: a rank never has less than one key-value head."""
    geometry = load_geometry("Qwen/Qwen3-30B-A3B")
    assert geometry.rank(4).kv_bytes_per_token == geometry.rank(8).kv_bytes_per_token
    assert geometry.rank(8).num_attention_parameters > geometry.num_layers * 2 * 2048 * 128 * 36 // 8


def test_expert_parallel_ranks_have_whole_experts() -> None:
    geometry = load_geometry("Qwen/Qwen3-30B-A3B")
    spread = geometry.rank(2, expert_parallel=True)
    assert spread.expert_bytes == geometry.rank(2).expert_bytes == geometry.rank().expert_bytes // 2
    # Two replicas of one rank: attention whole on each, experts halved.
    replica = geometry.rank(1, expert_parallel=True, data_parallel_size=2)
    assert replica.step_read_bytes == geometry.rank().step_read_bytes
    assert replica.expert_bytes == geometry.rank().expert_bytes // 2
    assert replica.layer_token_flops == geometry.rank().layer_token_flops  # its tokens' work, wherever it is done
    uneven = TINY.rank(4, expert_parallel=True)
    assert uneven.num_expert_parameters == 2 * 3 * 16 * 12  # 6 experts on 4 ranks: two on the fullest


def test_communication_by_hand() -> None:
    """Two all-reduces a layer of hidden_size elements of 2 bytes; a ring sends 2 (n - 1) / n of them."""
    geometry = load_geometry("Qwen/Qwen3-32B")
    assert geometry.rank(4).num_collectives == 2 * 64
    assert geometry.rank(4).all_reduce_bytes_per_token == 2 * 64 * 5120 * 2 * 6 // 4
    assert geometry.rank(4).dispatch_bytes_per_token == 0
    # Experts over two replicas of one rank: each of a token's 8 experts is elsewhere half of the time, there and back.
    replica = load_geometry("Qwen/Qwen3-30B-A3B").rank(1, expert_parallel=True, data_parallel_size=2)
    assert replica.all_reduce_bytes_per_token == 0
    assert replica.dispatch_bytes_per_token == 48 * 2 * 8 * 2048 * 2 // 2
    assert replica.num_collectives == 48 * 2
    # Over two replicas of four ranks: attention still all-reduces, the first three layers (dense) all through.
    wide = load_geometry("deepseek-ai/DeepSeek-V3").rank(4, expert_parallel=True, data_parallel_size=2)
    assert wide.num_collectives == 61 + 3 + 2 * 58
    assert wide.all_reduce_bytes_per_token == (61 + 3) * 7168 * 2 * 6 // 4
    assert wide.dispatch_bytes_per_token == 58 * 2 * 8 * 7168 * 2 * 7 // (8 * 4)


@pytest.mark.parametrize("model", ALL_SHIPPED)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_twice_the_ranks_hold_and_compute_less_each(model: str, num_ranks: int) -> None:
    few, many = load_geometry(model).rank(num_ranks), load_geometry(model).rank(2 * num_ranks)
    assert many.weight_bytes < few.weight_bytes
    assert many.layer_token_flops < few.layer_token_flops
    assert many.kv_bytes_per_token <= few.kv_bytes_per_token


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", {"tensor_parallel_size": 8}, "does not divide the 28 attention heads of Qwen"),
        ("Qwen/Qwen3-8B", {"tensor_parallel_size": 0}, "expected at least 1"),
        ("Qwen/Qwen3-30B-A3B", {"data_parallel_size": 2}, "expected 1 without expert_parallel"),
    ],
)
def test_impossible_splits_are_refused(model: str, arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_geometry(model).rank(**arguments)  # type: ignore[arg-type]


def test_key_value_heads_that_cannot_be_split_are_refused() -> None:
    odd = {"num_attention_heads": 12, "num_key_value_heads": 4, "hidden_size": 96, "num_hidden_layers": 1}
    config = {"model_type": "llama", "intermediate_size": 8, "vocab_size": 8, **odd}
    geometry = from_config(json.dumps(config), "odd", "bfloat16", "config.json")
    with pytest.raises(InputError, match="a divisor or a multiple of the 4 key-value heads of odd"):
        geometry.rank(6)
