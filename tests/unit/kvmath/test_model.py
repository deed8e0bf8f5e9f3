"""config.json in, shape out: families without a config in the corpus, and configs that are wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.kvmath.families import FAMILIES, UNCOVERED, WRAPPERS
from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.layers import Kind, LayerCache
from exporter.kvmath.model import ModelShape, read_model

CONFIGS = Path(__file__).parents[2] / "data" / "kv" / "configs"
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


def read(config: Any) -> ModelShape:
    shape = read_model(config)
    assert isinstance(shape, ModelShape), shape
    return shape


def refused(config: Any, reason: Reason, field: str) -> None:
    shape = read_model(config)
    assert isinstance(shape, Unavailable), shape
    assert shape.reason is reason
    assert field in shape.detail
    assert len(shape.detail) < 200


def corpus(name: str) -> ModelShape:
    return read(json.loads((CONFIGS / f"{name}.json").read_text()))


def windows(shape: ModelShape) -> list[int]:
    return [layer.window_tokens for layer in shape.layers]


def test_everything_a_shape_holds() -> None:
    """A small Llama, field by field."""
    assert read(LLAMA) == ModelShape(
        model_type="llama",
        architectures=("LlamaForCausalLM",),
        layers=(LayerCache(Kind.FULL, 2, 32, 32),) * 4,
        max_position_tokens=8192,
        dtype="bfloat16",
        checkpoint_cache_dtype="",
        attention_heads=8,
    )


@pytest.mark.parametrize(
    ("config", "layers", "kv_heads", "head_dim"),
    [
        ({"model_type": "gptj", "n_layer": 28, "n_head": 16, "n_embd": 4096}, 28, 16, 256),
        # StarCoder 1: multi_query is the class default
        ({"model_type": "gpt_bigcode", "n_layer": 40, "n_head": 48, "n_embd": 6144}, 40, 1, 128),
        (
            {"model_type": "gpt_bigcode", "n_layer": 40, "n_head": 48, "n_embd": 6144, "multi_query": False},
            40,
            48,
            128,
        ),
        ({"model_type": "bloom", "n_layer": 30, "n_head": 32, "hidden_size": 4096}, 30, 32, 128),
        (
            {"model_type": "opt", "num_hidden_layers": 24, "num_attention_heads": 32, "hidden_size": 2048},
            24,
            32,
            64,
        ),
        # Falcon-7B: num_kv_heads is a decoy in the old architecture
        (
            {
                "model_type": "falcon",
                "num_hidden_layers": 32,
                "num_attention_heads": 71,
                "hidden_size": 4544,
                "num_kv_heads": 71,
                "multi_query": True,
                "new_decoder_architecture": False,
            },
            32,
            1,
            64,
        ),
        (
            {
                "model_type": "RefinedWebModel",
                "n_layer": 32,
                "n_head": 71,
                "hidden_size": 4544,
                "multi_query": True,
            },
            32,
            1,
            64,
        ),
        (
            {
                "model_type": "mpt",
                "n_layers": 8,
                "n_heads": 16,
                "d_model": 1024,
                "attn_config": {"kv_n_heads": 4},
            },
            8,
            4,
            64,
        ),
        (
            {
                "model_type": "chatglm",
                "num_layers": 28,
                "num_attention_heads": 32,
                "kv_channels": 128,
                "multi_query_attention": False,
                "multi_query_group_num": 2,
            },
            28,
            32,
            128,
        ),
        (
            {
                "model_type": "step3_text",
                "num_hidden_layers": 61,
                "num_attention_heads": 64,
                "num_attention_groups": 1,
                "head_dim": 256,
            },
            61,
            1,
            256,
        ),
        # hunyuan: attention_head_dim wins over hidden / heads
        ({**LLAMA, "model_type": "hunyuan_v1_dense", "attention_head_dim": 128}, 4, 2, 128),
        # class defaults that are not hidden / heads
        ({**LLAMA, "model_type": "gemma"}, 4, 2, 256),
        ({**LLAMA, "model_type": "qwen3"}, 4, 2, 128),
        ({**LLAMA, "num_key_value_heads": None}, 4, 8, 32),
    ],
)
def test_families_by_hand(config: dict[str, Any], layers: int, kv_heads: int, head_dim: int) -> None:
    """Layers, K/V heads and head size as the family's own model code takes them from the config."""
    assert read(config).layers == (LayerCache(Kind.FULL, kv_heads, head_dim, head_dim),) * layers


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"model_type": "mixtral", "sliding_window": 4096}, [4096] * 4),
        ({"model_type": "mixtral", "sliding_window": None}, [0] * 4),
        ({"model_type": "mistral", "sliding_window": None}, [0] * 4),
        ({"model_type": "mistral"}, [4096] * 4),  # absent is not null: the class default is a window
        ({"model_type": "starcoder2", "sliding_window": 0}, [0] * 4),  # 0 turns it off
        (
            {
                "model_type": "llama",
                "sliding_window": 64,
                "layer_types": ["full_attention", "sliding_attention"] * 2,
            },
            [0, 64, 0, 64],
        ),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 64,
                "use_sliding_window": False,
                "max_window_layers": 0,
            },
            [0] * 4,
        ),
        (
            {"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3},
            [0, 0, 0, 64],
        ),
        (
            {"model_type": "qwen3", "sliding_window": 64, "use_sliding_window": True, "max_window_layers": 0},
            [64] * 4,
        ),
        ({"model_type": "qwen3_moe", "sliding_window": 64, "use_sliding_window": False}, [0] * 4),
        ({"model_type": "gemma2", "sliding_window": 64}, [64, 0, 64, 0]),
        ({"model_type": "gemma2"}, [4096, 0, 4096, 0]),
        ({"model_type": "gemma3_text", "sliding_window": 64, "sliding_window_pattern": 3}, [64, 64, 0, 64]),
        ({"model_type": "gemma3_text", "sliding_window": 64, "num_hidden_layers": 7}, [64] * 5 + [0, 64]),
        ({"model_type": "cohere2", "sliding_window": 64}, [65, 65, 65, 0]),  # sees one token more
        ({"model_type": "exaone4", "sliding_window": 64, "sliding_window_pattern": "LG"}, [64, 0, 64, 0]),
        ({"model_type": "exaone4", "sliding_window": 64, "sliding_window_pattern": 2}, [64, 0, 64, 0]),
        ({"model_type": "exaone4", "sliding_window": None, "sliding_window_pattern": None}, [0] * 4),
        ({"model_type": "olmo3", "sliding_window": 64}, [64, 64, 64, 0]),
        ({"model_type": "cwm", "sliding_window": 64}, [0, 64, 64, 64]),
        ({"model_type": "gpt_oss", "sliding_window": 64}, [64, 0, 64, 0]),
        (
            {
                "model_type": "step3p5",
                "sliding_window": 64,
                "num_attention_groups": 2,
                # five entries: the last is the draft layer's
                "layer_types": ["full_attention"] + ["sliding_attention"] * 4,
                "attention_other_setting": {"num_attention_groups": 2, "head_dim": 32},
            },
            [0, 64, 64, 64],
        ),
    ],
)
def test_windows_by_hand(fields: dict[str, Any], expected: list[int]) -> None:
    """Which of four layers are windowed, 0 for a full one."""
    assert windows(read({**LLAMA, **fields})) == expected


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("meta-llama__Llama-3.1-8B-Instruct", "gqa"),
        ("allenai__OLMo-2-1124-7B", "mha"),
        ("google__gemma-2b", "mqa"),
        ("deepseek-ai__DeepSeek-V3", "mla"),
        ("mistralai__Mistral-7B-v0.1", "window"),
        ("openai__gpt-oss-120b", "window_mix"),
        ("meta-llama__Llama-4-Scout-17B-16E-Instruct", "window_mix"),
        ("zai-org__GLM-5", "mla"),
        ("MiniMaxAI__MiniMax-M3", "gqa"),
        ("deepseek-ai__DeepSeek-V4-Flash", "compressed"),
        ("Qwen__Qwen3.5-9B", "hybrid"),
        ("RWKV__rwkv-5-world-3b", "state"),
    ],
)
def test_attention_in_one_word(name: str, word: str) -> None:
    """The label of the info metric."""
    assert corpus(name).attention == word


def test_latent_layers() -> None:
    """512 + 64 elements; LongCat runs attention twice per layer; a null rank means ordinary heads."""
    assert corpus("deepseek-ai__DeepSeek-V3").layers[0] == LayerCache(Kind.MLA, 1, 576, 0)
    longcat = corpus("meituan-longcat__LongCat-Flash-Chat")
    assert (len(longcat.layers), longcat.decoder_depth, longcat.depths[:4]) == (56, 28, (0, 0, 1, 1))
    assert corpus("deepseek-ai__deepseek-vl2-tiny").layers[0] == LayerCache(Kind.FULL, 10, 128, 128)


def test_nested_text_configs() -> None:
    """The decoder of a multimodal model, with the class defaults its config leaves out."""
    llava = read({"model_type": "llava", "text_config": {"model_type": "llama"}, "torch_dtype": "float16"})
    assert llava.layers == (LayerCache(Kind.FULL, 32, 128, 128),) * 32  # LLaVA 1.5 names nothing at all
    assert llava.dtype == "float16"
    mistral = read(
        {"model_type": "llava_next", "text_config": {"model_type": "mistral", "sliding_window": None}}
    )
    assert mistral.layers == (LayerCache(Kind.FULL, 8, 128, 128),) * 32
    gemma = read(  # Gemma 3 4B: no heads, no head size
        {
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text",
                "hidden_size": 2560,
                "num_hidden_layers": 34,
                "sliding_window": 1024,
            },
        }
    )
    assert gemma.layers[0] == LayerCache(Kind.WINDOW, 4, 256, 256, 1024)
    assert windows(gemma).count(0) == 5  # layers 6, 12, 18, 24, 30
    omni = read(
        {
            "model_type": "qwen3_omni_moe",
            "thinker_config": {"text_config": {**LLAMA, "model_type": "qwen3_omni_moe_text"}},
        }
    )
    assert len(omni.layers) == 4
    nameless = read({"model_type": "qwen2_5_vl", "text_config": {**LLAMA, "model_type": None}})
    assert nameless.model_type == "qwen2_5_vl_text"


def test_every_wrapper_leads_to_a_family() -> None:
    """A wrapper whose decoder type is not on the list would be refused for every model."""
    assert set(WRAPPERS.values()) <= set(FAMILIES)


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 8}}, ""),  # only the two formats carry one
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": None}, ""),
        ({"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "float"}}, "fp8"),
        (
            {
                "quant_method": "modelopt",
                "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": False},
            },
            "fp8_e4m3",
        ),
        ({"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 4, "type": "float"}}, "nvfp4"),
        ({"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 8, "type": "int"}}, ""),
        ({"quant_method": "modelopt_fp4", "kv_cache_quant_algo": "FP8"}, "fp8_e4m3"),
        ({"quant_method": "modelopt", "quantization": {"kv_cache_quant_algo": "NVFP4"}}, "nvfp4"),
        ({"quant_method": "modelopt", "kv_cache_quant_algo": "SOMETHING"}, ""),
        ({"quant_method": None}, ""),
        (None, ""),
    ],
)
def test_checkpoint_cache_dtype(quantization: object, expected: str) -> None:
    """A quantized checkpoint may make the cache fp8 while the engine's flag says auto."""
    assert read({**LLAMA, "quantization_config": quantization}).checkpoint_cache_dtype == expected


def test_checkpoint_cache_dtype_of_published_models() -> None:
    """Kimi K2.5 NVFP4 brings an fp8 cache (in its config, beside a nested text config)."""
    assert corpus("nvidia__Kimi-K2.5-NVFP4").checkpoint_cache_dtype == "fp8_e4m3"
    assert corpus("moonshotai__Kimi-K2.6").checkpoint_cache_dtype == ""


def test_length_and_dtype_are_optional() -> None:
    """Neither decides what a token costs, so their absence costs only themselves."""
    config = {
        key: value for key, value in LLAMA.items() if key not in ("max_position_embeddings", "torch_dtype")
    }
    shape = read(config)
    assert isinstance(shape.max_position_tokens, Unavailable)
    assert shape.dtype == ""
    assert read({**config, "dtype": "torch.float16"}).dtype == "float16"
    # "auto" and a null name none; the tokenizer's 10^30 is no length.
    assert read({**config, "dtype": None, "torch_dtype": "auto"}).dtype == "auto"
    assert isinstance(read({**config, "model_max_length": 10**30}).max_position_tokens, Unavailable)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"model_type": None}, "model_type"),
        ({"model_type": 7}, "model_type"),
        ({"torch_dtype": 5}, "torch_dtype"),
        ({"torch_dtype": "float99"}, "torch_dtype"),
        ({"dtype": {"text": "bfloat16"}}, "dtype"),
        ({"max_position_embeddings": "a"}, "max_position_embeddings"),
        ({"max_position_embeddings": -1}, "max_position_embeddings"),
        ({"max_position_embeddings": 0}, "max_position_embeddings"),
        ({"max_position_embeddings": 4096.5}, "max_position_embeddings"),
        ({"max_position_embeddings": float("nan")}, "max_position_embeddings"),
        ({"max_position_embeddings": [4096]}, "max_position_embeddings"),
        ({"quantization_config": [1]}, "quantization_config"),
        ({"quantization_config": "fp8"}, "quantization_config"),
        ({"quantization_config": {"quant_method": 3}}, "quant_method"),
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers"),
        ({"num_hidden_layers": 32.0}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"num_hidden_layers": 10_001}, "num_hidden_layers"),
        ({"num_attention_heads": None}, "num_attention_heads"),
        ({"num_attention_heads": {"a": 1}}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_key_value_heads": 16}, "num_key_value_heads"),
        ({"head_dim": 10**7}, "head_dim"),
        ({"hidden_size": None}, "hidden_size"),
        ({"hidden_size": 4}, "hidden_size"),
        ({"sliding_window": -4096}, "sliding_window"),
        ({"sliding_window": "4096"}, "sliding_window"),
        ({"sliding_window": True}, "sliding_window"),
        ({"sliding_window": False}, "sliding_window"),
        ({"layer_types": "full_attention"}, "layer_types"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention"] * 5}, "layer_types"),
        ({"text_config": [1]}, "text_config"),
        ({"model_type": "qwen2", "use_sliding_window": "yes"}, "use_sliding_window"),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": -1}, "max_window_layers"),
        ({"model_type": "qwen2", "layer_types": ["sliding_attention"] * 4}, "layer_types"),
        ({"model_type": "dbrx", "n_layers": 2, "n_heads": 4, "d_model": 64}, "kv_n_heads"),
        ({"model_type": "mpt", "n_layers": 2, "n_heads": 4, "d_model": 64, "attn_config": 3}, "attn_config"),
        (
            {
                "model_type": "mpt",
                "n_layers": 2,
                "n_heads": 4,
                "attn_config": {"attn_type": "multiquery_attention"},
            },
            "kv_n_heads",
        ),
        ({"model_type": "deepseek_v3"}, "kv_lora_rank"),
        ({"model_type": "deepseek_v3", "kv_lora_rank": 512}, "qk_rope_head_dim"),
        ({"model_type": "step3p5"}, "layer_types"),
    ],
)
def test_bad_configs(fields: dict[str, Any], named: str) -> None:
    """Missing, malformed or contradicting: refused, and the field is named."""
    refused({**LLAMA, **fields}, Reason.BAD_MODEL_CONFIG, named)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"model_type": "brand_new"}, "brand_new"),
        ({"model_type": "x" * 100_000}, "xxx"),
        ({"model_type": "mllama", "text_config": dict(LLAMA)}, "mllama"),
        ({"model_type": "llava", "text_config": {**LLAMA, "model_type": "brand_new"}}, "brand_new"),
        ({"model_type": "gemma4", "text_config": {**LLAMA, "model_type": "gemma3_text"}}, "gemma3_text"),
        ({"layer_types": ["chunked_attention"] * 4}, "layer_types"),
        ({"layer_types": [["full_attention"]] * 4}, "layer_types"),
        ({"num_key_value_heads": [1, 2, 2, 2]}, "num_key_value_heads"),
        ({"v_head_dim": 64}, "v_head_dim"),
        ({"use_sliding_window": False, "sliding_window": 64}, "use_sliding_window"),
        ({"model_type": "qwen3_moe", "use_sliding_window": True}, "use_sliding_window"),
        ({"model_type": "glm4_moe", "sliding_window": 64}, "sliding_window"),
        ({"model_type": "gpt_oss", "layer_types": ["full_attention"] * 4}, "layer_types"),
        (
            {"model_type": "exaone4", "sliding_window_pattern": "LLLG", "num_hidden_layers": 6},
            "sliding_window_pattern",
        ),
        ({"model_type": "exaone4", "sliding_window_pattern": "LGLG"}, "sliding_window_pattern"),
        ({"model_type": "minimax_m2", "attn_type_list": [1, 0, 1, 1]}, "attn_type_list"),
        (
            {"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "use_mla": False},
            "use_mla",
        ),
        (
            {"model_type": "deepseek_v3", "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_topk": 2048},
            "index_topk",
        ),
        (
            {
                "model_type": "step3p5",
                "layer_types": ["full_attention"] * 4,
                "attention_other_setting": {"attention_type": "full_attention"},
            },
            "attention_other_setting",
        ),
    ],
)
def test_unsupported_configs(fields: dict[str, Any], named: str) -> None:
    """A cache this arithmetic does not know is withheld, never approximated."""
    refused({**LLAMA, **fields}, Reason.UNSUPPORTED_ATTENTION, named)


@pytest.mark.parametrize("name", UNCOVERED)
def test_fields_that_change_the_cache(name: str) -> None:
    """Set, the field refuses a known family, at the root and inside a wrapper; empty, it is harmless."""
    refused({**LLAMA, name: 1}, Reason.UNSUPPORTED_ATTENTION, name)
    refused({"model_type": "llava", "text_config": {**LLAMA, name: 1}}, Reason.UNSUPPORTED_ATTENTION, name)
    assert read({**LLAMA, name: None}) == read({**LLAMA, name: False}) == read(LLAMA)


@pytest.mark.parametrize("config", [None, [], "llama", 7, {}])
def test_what_is_not_a_config(config: Any) -> None:
    """JSON that is no object, or an empty one."""
    shape = read_model(config)
    assert isinstance(shape, Unavailable)
    assert shape.reason is Reason.BAD_MODEL_CONFIG


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
WORDS = {"mha", "gqa", "mqa", "mla", "window", "window_mix", "hybrid", "state", "compressed"}
NAMES = sorted(
    {
        *LLAMA,
        *UNCOVERED,
        "attn_config",
        "attn_type_list",
        "attention_other_setting",
        "head_dim",
        "index_topk_freq",
        "indexer_types",
        "kv_lora_rank",
        "layer_types",
        "linear_num_key_heads",
        "mamba_d_head",
        "mamba_n_heads",
        "no_rope_layers",
        "num_kv_heads",
        "num_nextn_predict_layers",
        "max_window_layers",
        "multi_query",
        "n_layer",
        "quantization_config",
        "sliding_window",
        "sliding_window_pattern",
        "text_config",
        "thinker_config",
        "use_sliding_window",
    }
)


@settings(deadline=None)
@given(
    model_type=st.sampled_from(sorted(FAMILIES)),
    fields=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=5),
)
def test_no_json_makes_it_raise(model_type: str, fields: dict[str, Any]) -> None:
    """Any values under the very names the readers look at, in every family."""
    shape = read_model({**LLAMA, **fields, "model_type": model_type})
    assert isinstance(shape, ModelShape | Unavailable)
    if isinstance(shape, ModelShape):
        assert shape.layers
        assert shape.attention in WORDS


def test_deep_nesting_is_not_followed() -> None:
    """Only named fields are looked at, so depth costs nothing."""
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"text_config": deep}
    shape = read_model({"model_type": "llava", "text_config": {**LLAMA, "other": deep}})
    assert isinstance(shape, ModelShape)
