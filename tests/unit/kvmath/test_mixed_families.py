"""Families read layer by layer: those without a config in the corpus, and configs that are wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from exporter.kvmath import states
from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.layers import Kind, LayerCache, recurrent
from exporter.kvmath.model import ModelShape, read_model

CONFIGS = Path(__file__).parents[2] / "data" / "kv" / "configs"
BASE: dict[str, Any] = {
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "hidden_size": 256,
}
FULL = LayerCache(Kind.FULL, 2, 32, 32)


def read(config: dict[str, Any]) -> ModelShape:
    shape = read_model(config)
    assert isinstance(shape, ModelShape), shape
    return shape


def corpus(name: str, **changed: Any) -> dict[str, Any]:
    """A published config with some fields of its text model changed."""
    config: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    inner = config.get("text_config", config)
    inner.update(changed)
    return config


BAMBA = recurrent(states.mamba2(16, 32, 1, 64, 4, 512))
MAMBA2 = {"mamba_n_heads": 16, "mamba_d_head": 32, "mamba_d_state": 64}


@pytest.mark.parametrize(
    ("fields", "layers"),
    [
        # Jamba: attention where i % 2 == 1; d_inner = 2 x 256
        (
            {"model_type": "jamba", "attn_layer_period": 2, "attn_layer_offset": 1},
            (recurrent(states.mamba1(512, 16, 4)), FULL) * 2,
        ),
        (
            {"model_type": "bamba", "attn_layer_indices": [2], **MAMBA2},
            (BAMBA, BAMBA, FULL, BAMBA),
        ),
        # Granite 4 without a single Mamba layer needs no Mamba fields; mamba_d_head may say "auto"
        ({"model_type": "granitemoehybrid", "layer_types": ["attention"] * 4}, (FULL,) * 4),
        (
            {
                "model_type": "granitemoehybrid",
                "layers_block_type": ["mamba", "attention"] * 2,
                **MAMBA2,
                "mamba_d_head": "auto",
            },
            (recurrent(states.mamba2(16, 32, 1, 64, 4, 512)), FULL) * 2,
        ),
        # Zamba 2: K and V per query head of 2 x 256 / 8 in hybrid layers, beside the state
        (
            {
                "model_type": "zamba2",
                "num_hidden_layers": 2,
                "layers_block_type": ["mamba", "hybrid"],
                "attention_head_dim": 64,
                "n_mamba_heads": 8,
                "mamba_d_state": 64,
            },
            (
                recurrent(states.mamba2(8, 64, 1, 64, 4, 512)),
                LayerCache(Kind.FULL, 8, 64, 64),
                recurrent(states.mamba2(8, 64, 1, 64, 4, 512)),
            ),
        ),
        (
            {"model_type": "mamba", "intermediate_size": 1024, "state_size": 8},
            (recurrent(states.mamba1(1024, 8, 4)),) * 4,
        ),
        ({"model_type": "falcon_mamba", "expand": 4}, (recurrent(states.mamba1(1024, 16, 4)),) * 4),
        (
            {"model_type": "minimax_text_01", "attn_type_list": [0, 0, 0, 1]},
            (recurrent(states.lightning(8, 32)),) * 3 + (FULL,),
        ),
        # RecurrentGemma: recurrent, recurrent, attention, and again
        (
            {"model_type": "recurrent_gemma", "attention_window_size": 64, "lru_width": 512},
            (
                *(recurrent(states.linear_recurrent_unit(512, 4)),) * 2,
                LayerCache(Kind.WINDOW, 2, 32, 32, 64),
                recurrent(states.linear_recurrent_unit(512, 4)),
            ),
        ),
        # LFM2 by indices, and without conv_dim
        (
            {"model_type": "lfm2_moe", "full_attn_idxs": [0, 3]},
            (FULL, *(recurrent(states.short_convolution(256, 3)),) * 2, FULL),
        ),
        # Qwen3-Next without layer_types: every fourth layer is full; heads are 256 wide by class default
        (
            {
                "model_type": "qwen3_next",
                "linear_num_key_heads": 2,
                "linear_key_head_dim": 16,
                "linear_num_value_heads": 4,
                "linear_value_head_dim": 16,
                "linear_conv_kernel_dim": 4,
                "mamba_ssm_dtype": "float32",  # Qwen 3.5's field, not read here
            },
            (
                *(recurrent(states.gated_delta_net(2, 16, 4, 16, 4, "")),) * 3,
                LayerCache(Kind.FULL, 2, 256, 256),
            ),
        ),
        # Nemotron-H by words; the MLP keeps nothing
        (
            {
                "model_type": "nemotron_h",
                "num_hidden_layers": None,
                "layers_block_type": ["mamba", "mlp", "attention"],
                "mamba_num_heads": 4,
                "mamba_head_dim": 16,
                "n_groups": 2,
                "ssm_state_size": 8,
                "conv_kernel": 4,
            },
            (recurrent(states.mamba2(4, 16, 2, 8, 4, 64, "float32")), FULL),
        ),
        # Llama 4: null turns chunks off, absent means 8,192
        ({"model_type": "llama4_text", "attention_chunk_size": None}, (FULL,) * 4),
        (
            {"model_type": "llama4_text", "no_rope_layers": [1, 0, 1, 0]},
            (LayerCache(Kind.CHUNK, 2, 32, 32, 8192), FULL) * 2,
        ),
        (
            {
                "model_type": "openelm",
                "num_transformer_layers": 2,
                "head_dim": 64,
                "num_query_heads": [12, 16],
                "num_kv_heads": [3, 4],
            },
            (LayerCache(Kind.FULL, 3, 64, 64), LayerCache(Kind.FULL, 4, 64, 64)),
        ),
        (
            {
                "model_type": "step3p5",
                "sliding_window": 64,
                "layer_types": ["full_attention", "sliding_attention"] * 2,
                "attention_other_setting": {"attention_type": "sliding_attention", "num_attention_groups": 4},
            },
            (FULL, LayerCache(Kind.WINDOW, 4, 32, 32, 64)) * 2,
        ),
        # Whisper large: 20 heads of 64, 1,500 frames
        (
            {
                "model_type": "whisper",
                "is_encoder_decoder": True,
                "decoder_layers": 2,
                "decoder_attention_heads": 20,
                "d_model": 1280,
                "max_source_positions": 1500,
            },
            (LayerCache(Kind.FULL, 20, 64, 64), LayerCache(Kind.CROSS, 20, 64, 64, 1500)) * 2,
        ),
        # Gemma 3n: every fifth layer full, the last ones share
        (
            {"model_type": "gemma3n_text", "num_hidden_layers": 6, "num_kv_shared_layers": 1},
            (
                *(LayerCache(Kind.WINDOW, 2, 256, 256, 512),) * 4,
                LayerCache(Kind.FULL, 2, 256, 256),
            ),
        ),
    ],
)
def test_families_by_hand(fields: dict[str, Any], layers: tuple[LayerCache, ...]) -> None:
    """Every cache in order, as the family's own code builds its layers."""
    assert read({**BASE, **fields}).layers == layers


@pytest.mark.parametrize(
    ("name", "changed", "named"),
    [
        ("Qwen__Qwen3.5-9B", {"full_attention_interval": 3}, "full_attention_interval"),
        ("Qwen__Qwen3.5-9B", {"mamba_ssm_dtype": "fp4"}, "mamba_ssm_dtype"),
        ("Qwen__Qwen3.5-9B", {"linear_num_key_heads": "16"}, "linear_num_key_heads"),
        ("Qwen__Qwen3.5-9B", {"layer_types": ["full_attention"]}, "layer_types"),
        (
            "moonshotai__Kimi-Linear-48B-A3B-Instruct",
            {"linear_attn_config": {"full_attn_layers": [0]}},
            "full_attn_layers",
        ),
        (
            "moonshotai__Kimi-Linear-48B-A3B-Instruct",
            {"linear_attn_config": {"full_attn_layers": [1], "kda_layers": [1, 2]}},
            "kda_layers",
        ),
        ("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"num_hidden_layers": 51}, "num_hidden_layers"),
        (
            "nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
            {"hybrid_override_pattern": "MX"},
            "hybrid_override_pattern",
        ),
        ("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", {"attention_head_dim": 64}, "attention_head_dim"),
        ("ibm-granite__granite-4.0-h-small", {"mamba_n_heads": 100}, "mamba_n_heads"),
        ("zai-org__GLM-5.2", {"index_topk_freq": 3}, "indexer_types"),
        ("zai-org__GLM-5.2", {"indexer_types": ["full"]}, "indexer_types"),
        ("deepseek-ai__DeepSeek-V3.2", {"index_head_dim": None}, "index_head_dim"),
        ("deepseek-ai__DeepSeek-V3.2", {"kv_lora_rank": None}, "kv_lora_rank"),
        ("deepseek-ai__DeepSeek-V4-Flash", {"compress_ratios": [0, 4]}, "compress_ratios"),
        ("deepseek-ai__DeepSeek-V4-Flash", {"sliding_window": None}, "sliding_window"),
        ("MiniMaxAI__MiniMax-M3", {"sparse_attention_config": {"sparse_index_dim": 0}}, "sparse_index_dim"),
        ("MiniMaxAI__MiniMax-M1-80k", {"attn_type_list": [1]}, "attn_type_list"),
        ("meta-llama__Llama-4-Scout-17B-16E-Instruct", {"no_rope_layers": [2] * 48}, "no_rope_layers"),
        ("XiaomiMiMo__MiMo-V2-Flash", {"hybrid_layer_pattern": [0] * 47}, "hybrid_layer_pattern"),
        ("google__gemma-4-26B-A4B", {"num_kv_shared_layers": 30}, "num_kv_shared_layers"),
        ("google__gemma-4-26B-A4B", {"layer_types": None}, "layer_types"),
        (
            "meta-llama__Llama-3.2-11B-Vision-Instruct",
            {"cross_attention_layers": [40]},
            "cross_attention_layers",
        ),
        ("nvidia__Llama-3_3-Nemotron-Super-49B-v1", {"block_configs": [{}]}, "block_configs"),
        ("RWKV__rwkv-5-world-3b", {"head_size": 7}, "head_size"),
    ],
)
def test_contradictions_are_named(name: str, changed: dict[str, Any], named: str) -> None:
    """A field that is missing, malformed or contradicts another ends the reading, never in a guess."""
    shape = read_model(corpus(name, **changed))
    assert isinstance(shape, Unavailable), shape
    assert shape.reason is Reason.BAD_MODEL_CONFIG
    assert named in shape.detail
    assert len(shape.detail) < 200


@pytest.mark.parametrize(
    ("name", "changed", "named"),
    [
        ("Qwen__Qwen3.5-9B", {"layer_types": ["sliding_attention"] * 32}, "layer_types"),
        ("deepseek-ai__DeepSeek-V4-Flash", {"compress_ratios": [8] * 44}, "compress_ratios"),
        ("deepseek-ai__DeepSeek-V4-Flash", {"head_dim": 256}, "head_dim"),
        ("Qwen__Qwen3.5-9B", {"swa_head_dim": 64}, "swa_head_dim"),
        (
            "nvidia__Llama-3_3-Nemotron-Super-49B-v1",
            {"block_configs": [{"attention": {"n_heads_in_group": 8, "window_length": 64}}] * 80},
            "window_length",
        ),
    ],
)
def test_what_the_rules_do_not_cover_is_withheld(name: str, changed: dict[str, Any], named: str) -> None:
    """A value the family's code might mean something new by."""
    shape = read_model(corpus(name, **changed))
    assert isinstance(shape, Unavailable), shape
    assert shape.reason is Reason.UNSUPPORTED_ATTENTION
    assert named in shape.detail


@pytest.mark.parametrize(
    ("name", "draft"),
    [
        ("deepseek-ai__DeepSeek-V3", [(Kind.MLA, 0)]),
        ("deepseek-ai__DeepSeek-V3.2", [(Kind.INDEXER, 0), (Kind.MLA, 0)]),
        ("zai-org__GLM-5.2", [(Kind.INDEXER, 0), (Kind.MLA, 0)]),  # though the last layers share theirs
        ("deepseek-ai__DeepSeek-V4-Flash", [(Kind.RECORD_WINDOW, 128)]),
        ("Qwen__Qwen3.5-9B", [(Kind.FULL, 0)]),
        ("XiaomiMiMo__MiMo-V2-Flash", [(Kind.WINDOW, 128)]),
        ("nvidia__NVIDIA-Nemotron-3-Super-120B-A12B-FP8", [(Kind.FULL, 0)]),
        ("nvidia__NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16", [(Kind.FULL, 0)]),  # by words
        ("stepfun-ai__Step-3.7-Flash", []),  # layer_types ends with the decoder: unknown
        ("moonshotai__Kimi-K2-Instruct", []),  # num_nextn_predict_layers 0
        ("meta-llama__Llama-3.1-8B-Instruct", []),
    ],
)
def test_draft_layers(name: str, draft: list[tuple[Kind, int]]) -> None:
    """What multi-token prediction adds; nothing where the config does not tell."""
    assert [(layer.kind, layer.window_tokens) for layer in read(corpus(name)).draft_layers] == draft


def test_every_layer_knows_its_depth() -> None:
    """Falcon-H1 keeps two caches per layer, Nemotron NAS none in 31 of 80."""
    falcon = read(corpus("tiiuae__Falcon-H1-3B-Instruct"))
    assert (falcon.decoder_depth, falcon.depths[:4]) == (32, (0, 0, 1, 1))
    nas = read(corpus("nvidia__Llama-3_3-Nemotron-Super-49B-v1"))
    assert (nas.decoder_depth, len(nas.layers)) == (80, 49)
    assert [nas.depth(number) for number in (5, 6)] == [5, 8]  # block_configs 6 and 7 are no_op
    llama = read(corpus("meta-llama__Llama-3.1-8B-Instruct"))
    assert (llama.decoder_depth, llama.depth(31)) == (32, 31)
