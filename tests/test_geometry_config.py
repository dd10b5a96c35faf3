"""config.json -> geometry: families of models, number formats, names, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from calibration.geometry import Experts, Geometry, from_config, load_geometry
from calibration.geometry.shipped import shipped_models
from simulator.errors import InputError
from simulator.profile import load_profile, shipped_profiles

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "vocab_size": 1000,
}
MIXTURE = {**LLAMA, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
GLM = {**MIXTURE, "model_type": "glm4_moe"}


def read(config: Any, dtype: str = "bfloat16", kv_cache_dtype: str = "auto") -> Geometry:
    content = config if isinstance(config, str) else json.dumps(config)
    return from_config(content, "org/model", dtype, "config.json", kv_cache_dtype)


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in LLAMA.items() if name != key}


def test_what_a_config_may_leave_out() -> None:
    geometry = read(LLAMA)
    assert geometry.head_size == 64 // 8
    assert not geometry.tied_embeddings
    assert geometry.experts is None
    assert read(without("num_key_value_heads")).num_kv_heads == 8
    assert read({**LLAMA, "head_dim": None}).head_size == 8
    assert read({**LLAMA, "head_dim": 32}).head_size == 32


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        ({}, 131_072),
        ({"rope_scaling": None}, 131_072),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 131_072),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131_072),  # Llama 3.1: counted in already
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, None),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, None),
        ({"max_position_embeddings": None}, None),
    ],
)
def test_the_longest_sequence_is_as_stated_where_positions_are_not_scaled(
    scaling: dict[str, Any], expected: int | None
) -> None:
    assert read({**LLAMA, "max_position_embeddings": 131_072, **scaling}).max_position_embeddings == expected


def test_shipped_profiles_know_the_length_that_the_shipped_models_state() -> None:
    known = {}
    for name in shipped_profiles():
        profile = load_profile(name)
        if profile.provenance.rows:  # not of the synthetic one
            own = load_geometry(profile.identity.model, dtype=profile.identity.dtype).max_position_embeddings
            assert profile.max_model_len == own, name
            known[profile.identity.model.rpartition("/")[2]] = own
    # From the models' published config.json; one shape of Llama and of Qwen3-30B-A3B has several lengths.
    assert {model: own for model, own in known.items() if own} == dict.fromkeys(
        ("Qwen3-0.6B", "Qwen3-8B", "Qwen3-32B"), 40_960
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {**MIXTURE, "model_type": "qwen3_moe", "num_experts": 6},
            Experts(num_layers=4, num_experts=6, num_active=2, intermediate_size=16),
        ),
        (
            {**MIXTURE, "model_type": "qwen3_moe", "num_experts": 6, "decoder_sparse_step": 2, "mlp_only_layers": [1]},
            Experts(num_layers=1, num_experts=6, num_active=2, intermediate_size=16),
        ),
        (
            {**MIXTURE, "model_type": "qwen2_moe", "num_experts": 6, "shared_expert_intermediate_size": 40},
            Experts(num_layers=4, num_experts=6, num_active=2, intermediate_size=16, shared_intermediate_size=40),
        ),
        (
            {**GLM, "n_routed_experts": 6, "n_shared_experts": 2, "first_k_dense_replace": 1},
            Experts(num_layers=3, num_experts=6, num_active=2, intermediate_size=16, shared_intermediate_size=32),
        ),
        (
            {**MIXTURE, "model_type": "mixtral", "num_local_experts": 8},
            Experts(num_layers=4, num_experts=8, num_active=2, intermediate_size=96),
        ),
    ],
)
def test_mixtures_of_each_family(config: dict[str, Any], expected: Experts) -> None:
    assert read(config).experts == expected


# Published sizes of models that do not ship, in billions: a check of the families on other shapes.
@pytest.mark.parametrize(
    ("config", "billions"),
    [
        pytest.param(
            {
                "model_type": "mixtral",
                "num_hidden_layers": 32,
                "num_attention_heads": 32,
                "num_key_value_heads": 8,
                "hidden_size": 4096,
                "intermediate_size": 14336,
                "num_local_experts": 8,
                "num_experts_per_tok": 2,
                "sliding_window": None,
                "vocab_size": 32000,
            },
            46.7,
            id="Mixtral-8x7B",
        ),
        pytest.param(
            {
                "model_type": "deepseek_v2",
                "num_hidden_layers": 27,
                "num_attention_heads": 16,
                "hidden_size": 2048,
                "intermediate_size": 10944,
                "q_lora_rank": None,
                "kv_lora_rank": 512,
                "qk_nope_head_dim": 128,
                "qk_rope_head_dim": 64,
                "v_head_dim": 128,
                "n_routed_experts": 64,
                "n_shared_experts": 2,
                "num_experts_per_tok": 6,
                "moe_intermediate_size": 1408,
                "first_k_dense_replace": 1,
                "vocab_size": 102400,
            },
            15.7,
            id="DeepSeek-V2-Lite",
        ),
    ],
)
def test_published_sizes_of_other_models(config: dict[str, Any], billions: float) -> None:
    assert read(config).num_parameters == pytest.approx(billions * 1e9, rel=0.005)


@pytest.mark.parametrize(
    ("dtype", "layer_bytes", "arithmetic"),
    [
        ("bfloat16", 2, "16-bit"),
        ("float16", 2, "16-bit"),
        ("fp8", 1, "fp8"),
        ("W8A8", 1, "int8"),
        ("w8a16", 1, "16-bit"),
        ("w4a8", 0.5, "int8"),
        ("w4a16", 0.5, "16-bit"),
    ],
)
def test_quantised_weights_are_those_of_the_layers(dtype: str, layer_bytes: float, arithmetic: str) -> None:
    """Embeddings and head, 2 x 1000 x 64, stay in 16 bits, and so does the KV cache."""
    plain, quantised = read(LLAMA), read(LLAMA, dtype)
    assert quantised.weight_bytes == plain.num_layer_parameters * layer_bytes + 2 * 1000 * 64 * 2
    assert quantised.step_read_bytes == plain.num_layer_parameters * layer_bytes + 1000 * 64 * 2
    assert quantised.kv_bytes_per_token == plain.kv_bytes_per_token
    assert quantised.arithmetic == arithmetic


def test_32_bits_are_4_bytes_throughout() -> None:
    plain, wide = read(LLAMA), read(LLAMA, "float32")
    assert wide.weight_bytes == 2 * plain.weight_bytes
    assert wide.kv_bytes_per_token == 2 * plain.kv_bytes_per_token


@pytest.mark.parametrize(("kv_cache_dtype", "element_bytes"), [("auto", 2), ("bfloat16", 2), ("fp8", 1), ("int8", 1)])
def test_kv_cache_has_its_own_format(kv_cache_dtype: str, element_bytes: int) -> None:
    geometry = read(LLAMA, kv_cache_dtype=kv_cache_dtype)
    assert geometry.kv_bytes_per_token == 2 * 4 * 2 * 8 * element_bytes
    assert load_geometry("Qwen3-8B", kv_cache_dtype=kv_cache_dtype).bytes_per_kv_element == element_bytes


@pytest.mark.parametrize(
    ("stated", "dtype", "layer_bytes"),
    [
        ({"quant_method": "fp8"}, "bfloat16", 1),
        ({"quant_method": "gptq", "bits": 4}, "float16", 0.5),
        ({"quant_method": "awq", "bits": 8}, "auto", 1),
        ({"quant_method": "fp8"}, "w4a8", 0.5),
        ({"quant_method": "made up"}, "w8a8", 1),
    ],
)
def test_config_states_its_quantisation_unless_the_caller_does(
    stated: dict[str, Any], dtype: str, layer_bytes: float
) -> None:
    assert read({**LLAMA, "quantization_config": stated}, dtype).layer_weight_bytes == layer_bytes


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "config.json: not JSON"),
        ([1], "config.json: expected an object"),
        (without("vocab_size"), "config.json: vocab_size: missing"),
        ({**LLAMA, "hidden_size": "64"}, "config.json: hidden_size: expected a whole number of at least 1 [(]got '64'"),
        ({**LLAMA, "num_hidden_layers": 0}, "config.json: num_hidden_layers: expected a whole number"),
        ({**LLAMA, "num_hidden_layers": True}, "config.json: num_hidden_layers: expected a whole number"),
        (without("model_type"), "config.json: model_type: None is not understood"),
        ({**LLAMA, "model_type": "qwen3moe"}, "model_type: 'qwen3moe' is not understood [(]did you mean 'qwen3_moe'"),
        ({**LLAMA, "model_type": "deepseek_v32"}, "model_type: 'deepseek_v32' is not understood"),
        ({**LLAMA, "num_local_experts": 8}, "num_local_experts: a 'llama' model has no experts"),
        ({**LLAMA, "model_type": "mistral", "sliding_window": 4096}, "sliding_window: attention over a window"),
        ({**LLAMA, "layer_types": ["full_attention", "sliding_attention"]}, "config.json: layer_types: only"),
        ({**LLAMA, "index_topk": 2048}, "config.json: index_topk: this kind of attention"),
        ({**MIXTURE, "model_type": "qwen3_moe"}, "config.json: num_experts: missing"),
        ({**MIXTURE, "model_type": "qwen3_moe", "num_experts": 1}, "num_experts_per_tok: 2 of 1 experts"),
        ({**LLAMA, "quantization_config": {"quant_method": "bitsandbytes"}}, "'bitsandbytes' is not understood; pass"),
    ],
)
def test_what_is_not_understood_is_refused_in_one_line(config: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        read(config)
    assert "\n" not in str(error.value)


def test_unknown_formats_are_refused() -> None:
    with pytest.raises(InputError, match="dtype: unknown 'w8a9'.*did you mean"):
        read(LLAMA, "w8a9")
    with pytest.raises(InputError, match="kv_cache_dtype: unknown 'int4'.*did you mean 'int8'"):
        read(LLAMA, kv_cache_dtype="int4")


def test_window_that_is_off_is_no_window() -> None:
    """Qwen2.5's config states a window and that it is not used."""
    config = {**LLAMA, "model_type": "qwen2", "sliding_window": 131072, "use_sliding_window": False}
    assert read(config).num_layers == 4


@pytest.mark.parametrize("name", [name for one in shipped_models() for name, _ in one.formats()])
def test_every_listed_name_is_found(name: str) -> None:
    geometry = load_geometry(name)
    assert geometry.source.startswith("config.json of ")
    if "W8A8" in name:
        assert (geometry.layer_weight_bytes, geometry.arithmetic) == (1, "int8")


def test_no_name_is_listed_twice() -> None:
    names = [name for one in shipped_models() for name in (one.model, *one.also)]
    assert len(names) == len(set(names))
    short = [name.rpartition("/")[2] for name in names]
    assert len(short) == len(set(short))


def test_name_says_the_format_unless_the_caller_does() -> None:
    """An engine reports bfloat16 for quantised weights too; DeepSeek-V3's own are fp8, one published copy is not."""
    assert load_geometry("Qwen3-32B").layer_weight_bytes == 2
    assert load_geometry("vllm-ascend/Qwen3-32B-W8A8", dtype="bfloat16").layer_weight_bytes == 1
    assert load_geometry("vllm-ascend/Qwen3-32B-W8A8", dtype="w4a8").layer_weight_bytes == 0.5
    assert load_geometry("Qwen3-32B", dtype="w8a8").weight_bytes == load_geometry("Qwen3-32B-W8A8").weight_bytes
    assert load_geometry("DeepSeek-R1").layer_weight_bytes == 1
    assert load_geometry("unsloth/DeepSeek-V3.1-BF16").layer_weight_bytes == 2
    assert load_geometry("DeepSeek-R1-0528-W8A8").arithmetic == "int8"


@pytest.mark.parametrize("model", ["someone/Qwen3-8B", "Qwen/Qwen3-8B-W4A8", "Qwen3-9B", "qwen3-8b"])
def test_no_name_is_guessed(model: str) -> None:
    with pytest.raises(InputError, match="model: no shipped geometry of .*pass --geometry FILE"):
        load_geometry(model)


def test_geometry_file_is_read_as_written(tmp_path: Path) -> None:
    shape = load_geometry("deepseek-ai/DeepSeek-V3")
    file = tmp_path / "shape.json"
    file.write_text(shape.model_dump_json(), encoding="utf-8")
    assert load_geometry("anything", file) == shape
    file.write_text(shape.model_dump_json().replace('"num_active":8', '"num_active":300'), encoding="utf-8")
    with pytest.raises(InputError, match="shape.json: .*300 of 256 experts"):
        load_geometry("anything", file)


def test_key_heads_that_do_not_divide_the_query_heads_are_refused(tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 7,
        "hidden_size": 4096, "intermediate_size": 100, "vocab_size": 100,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(InputError, match="num_kv_heads: 7, expected a divisor of 32"):
        load_geometry("odd", path)


def test_a_geometry_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe{")
    with pytest.raises(InputError, match="cannot be read as a JSON text"):
        load_geometry("odd", path)
