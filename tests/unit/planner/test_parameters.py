"""Parameters counted from a config against those vLLM builds (0.32.0, without weights)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.quantized import loaded_bytes, weight_bytes_per_parameter
from exporter.kvmath.weights import ModelWeights, model_weights

DATA = Path(__file__).parents[2] / "data" / "kv"
BUILT: dict[str, int] = json.loads((DATA / "params.json").read_text())


def config_of(name: str) -> dict[str, object]:
    loaded = json.loads((DATA / "configs" / name).read_text())
    assert isinstance(loaded, dict)
    return loaded


def counted(name: str) -> ModelWeights:
    found = model_weights(config_of(name))
    assert isinstance(found, ModelWeights), found
    return found


COUNTED = [name for name in sorted(BUILT) if isinstance(model_weights(config_of(name)), ModelWeights)]


@pytest.mark.parametrize("name", COUNTED)
def test_within_one_per_cent(name: str) -> None:
    """A plan whose weights are off by more would be wrong about the pool."""
    assert counted(name).total == pytest.approx(BUILT[name], rel=0.01)


def test_how_many_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """The rest is withheld: it must not silently become most of them."""
    with capsys.disabled():
        print(f"\nparameters within 1 %: {len(COUNTED)} counted, {len(BUILT) - len(COUNTED)} withheld")
    assert len(COUNTED) >= 123
    for name in BUILT.keys() - set(COUNTED):
        found = model_weights(config_of(name))
        assert isinstance(found, Unavailable)
        assert found.reason is Reason.MODEL_WEIGHTS


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("deepseek-ai__DeepSeek-V3.json", 37.6),  # its paper: 671B in all, 37B active
        ("Qwen__Qwen3-235B-A22B.json", 22.2),  # the name
        ("MiniMaxAI__MiniMax-M2.7.json", 11.0),  # 10B without embedding and output, 2 x 0.6
        ("mistralai__Mixtral-8x7B-v0.1.json", 12.9),  # its paper: 12.9B
        ("databricks__dbrx-instruct.json", 36.5),  # its model card: 36B
        ("meta-llama__Llama-3.1-8B-Instruct.json", 8.0),  # dense: all of them
        ("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.json", 3.6),  # its model card: 3.6B with embeddings
        ("Qwen__Qwen3-Next-80B-A3B-Instruct.json", 3.9),  # 3B and 0.9 for embedding, output and gates
    ],
)
def test_active_parameters(name: str, billions: float) -> None:
    """Published active sizes: what one token of a mixture of experts touches."""
    assert counted(name).active / 1e9 == pytest.approx(billions, abs=0.06)


def bytes_of(name: str) -> int:
    loaded = loaded_bytes(counted(name), config_of(name))
    assert not isinstance(loaded, Unavailable), loaded
    return loaded[0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("meta-llama__Llama-3.1-8B-Instruct.json", 16_060_522_496),  # the index of the published checkpoint
        ("meta-llama__Llama-3.1-70B-Instruct.json", 141_107_412_992),  # likewise
        ("openai__gpt-oss-120b.json", 65.25e9),  # likewise: mxfp4 experts, the rest in 16 bits
        # 60 x 384 x 3 x 7168 x 2048 = 1,014.7 billion in experts of 4 bits and a 16-bit scale per 32,
        # 570.8 GB, and 12.2 billion others in 16 bits, 24.4 GB.
        ("moonshotai__Kimi-K2.6.json", 595.1e9),
        # Gemma 3's class default of 262,208 tokens: 27,432,406,640 parameters as vLLM builds it, in 16 bits.
        ("google__gemma-3-27b-it.json", 54.86e9),
        # nvfp4 (9/16 of a byte): MLPs 64 x 3 x 5120 x 17408, head 248320 x 5120: 9,626 + 715 million bytes.
        # fp8: 16 x 104,857,600 of attention and 48 x 115,875,840 of delta nets: 7,240 million.
        # 16 bits: the embedding, 2,543 million, and the vision tower of 458.6 million parameters, 917.
        ("nvidia__Qwen3.6-27B-NVFP4.json", 21.041e9),
        ("Qwen__Qwen3-8B-FP8.json", 9.44e9),  # 6.95B matrices in fp8, 1.24B embedding and output in 16 bits
    ],
)
def test_bytes_in_memory(name: str, expected: float) -> None:
    """Published sizes, quantized ones among them, within half a per cent."""
    assert bytes_of(name) == pytest.approx(expected, rel=0.005)


def test_an_ignore_list_keeps_modules_in_16_bits() -> None:
    """MiniMax-M2.7-NVFP4 leaves attention alone: 2 x (all but experts) + 0.5625 x experts."""
    name = "nvidia__MiniMax-M2.7-NVFP4.json"
    weights = counted(name)
    experts = sum(layer.experts for layer in weights.layers)
    assert bytes_of(name) == pytest.approx(2 * (weights.total - experts) + 0.5625 * experts, rel=1e-6)


@pytest.mark.parametrize(
    ("quantization", "bytes_each"),
    [
        # 4 bits, and per group of 128 a 16-bit scale and a 4-bit zero point: 0.5 + 2.5 / 128.
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 0.5 + 2.5 / 128),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, 0.5 + 2.5 / 64),
        ({"quant_method": "fp8"}, 1),
        # DeepSeek: a float32 scale per block of 128 x 128.
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 1 + 4 / 16384),
        ({"quant_method": "modelopt", "quantization": {"quant_algo": "FP8"}}, 1),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.5625),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 32}}},
            },
            0.5 + 2 / 32,
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            1,
        ),
    ],
)
def test_schemes(quantization: dict[str, object], bytes_each: float) -> None:
    """Bytes per parameter of the matrices; Llama 8B's embedding and output stay at 2 x 525 million x 2."""
    name = "meta-llama__Llama-3.1-8B-Instruct.json"
    weights = counted(name)
    loaded = loaded_bytes(weights, {**config_of(name), "quantization_config": quantization})
    assert not isinstance(loaded, Unavailable), loaded
    embedding = 2 * 128256 * 4096
    assert loaded[0] == pytest.approx(2 * embedding + bytes_each * (weights.total - embedding), rel=1e-9)


def test_mixed_precision_goes_by_module() -> None:
    """Only the matrices named are narrower: layer 0's MLP in fp8 (1 byte less each), a whole MLP in nvfp4.

    Llama 8B: an MLP has 3 x 4096 x 14336 parameters; nothing is said about attention.
    """
    name = "meta-llama__Llama-3.1-8B-Instruct.json"
    named = {f"model.layers.0.mlp.{part}_proj": {"quant_algo": "FP8"} for part in ("gate", "up", "down")}
    quantization = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {**named, "model.layers.1.mlp": {"quant_algo": "NVFP4"}},
    }
    weights, one = counted(name), 3 * 4096 * 14336
    loaded = loaded_bytes(weights, {**config_of(name), "quantization_config": quantization})
    assert loaded == (2 * weights.total - one - (2 * 16 - 9) * one // 16, "mixed precision")


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"},
        {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": ["lm_head"]},
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {"lm_head": {"quant_algo": "INT3"}},
        },
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {
                "model.layers.0.mlp.up_proj": {"quant_algo": "FP8"},
                "model.layers.0.mlp.down_proj": {"quant_algo": "NVFP4"},
            },
        },
        {"quant_method": "fp8", "quant_algo": "MIXED_PRECISION"},
        {"quant_method": "compressed-tensors", "config_groups": {}},
        {"quant_method": "gptq", "bits": "4"},
        {"quant_method": ["fp8"]},
    ],
)
def test_schemes_not_known_are_not_guessed(quantization: dict[str, object]) -> None:
    """A wrong weight size is worse than none: the user is asked for it."""
    name = "meta-llama__Llama-3.1-8B-Instruct.json"
    loaded = loaded_bytes(counted(name), {**config_of(name), "quantization_config": quantization})
    assert isinstance(loaded, Unavailable)
    assert loaded.reason is Reason.MODEL_WEIGHTS


@pytest.mark.parametrize(
    "broken",
    [
        {"vocab_size": "128256"},
        {"hidden_size": -1},
        {"num_hidden_layers": 10**9},
        {"intermediate_size": True},
        {"num_attention_heads": 0, "head_dim": None},
        {"model_type": None},
        {"model_type": 7},
    ],
)
def test_broken_fields(broken: dict[str, object]) -> None:
    """Whatever a config holds, the answer is a number or a reason."""
    found = model_weights({**config_of("meta-llama__Llama-3.1-8B-Instruct.json"), **broken})
    if broken.get("num_attention_heads") == 0:
        assert isinstance(
            found, ModelWeights
        )  # no heads, no attention weights: read_model refuses the config
    else:
        assert isinstance(found, Unavailable)


def test_dtype_names() -> None:
    """--weights-dtype takes the engines' spellings, and says what it takes otherwise."""
    assert weight_bytes_per_parameter("BF16") == 2
    assert weight_bytes_per_parameter("fp8") == 1
    refused = weight_bytes_per_parameter("fp9")
    assert isinstance(refused, Unavailable)
    assert "bfloat16" in refused.detail
