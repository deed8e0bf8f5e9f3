"""Figures people know or published in issue trackers."""

import json
from pathlib import Path

import pytest

from exporter.kvmath.capacity import blocks_in, pool_bytes
from exporter.kvmath.model import ModelShape, read_model
from exporter.kvmath.parallel import Parallelism
from exporter.kvmath.vllm import BlockLayout, block_layout

CONFIGS = Path(__file__).parents[2] / "data" / "kv" / "configs"
GIB = 2**30


def layout(name: str, dtype: str = "bfloat16", block_tokens: int = 16, tensor: int = 1) -> BlockLayout:
    shape = read_model(json.loads((CONFIGS / f"{name}.json").read_text()))
    assert isinstance(shape, ModelShape), shape
    found = block_layout(shape, dtype, block_tokens, Parallelism(tensor))
    assert isinstance(found, BlockLayout), found
    return found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("meta-llama__Llama-3.1-8B-Instruct", 131_072),  # 32 layers x 8 heads x 128 x (K and V) x 2 bytes
        ("meta-llama__Llama-3.1-70B-Instruct", 327_680),  # 80 x 8 x 128 x 2 x 2
        ("meta-llama__Meta-Llama-3.1-405B", 516_096),  # 126 x 8 x 128 x 2 x 2
        ("Qwen__Qwen3-8B", 147_456),  # 36 x 8 x 128 x 2 x 2
        ("deepseek-ai__DeepSeek-V3", 70_272),  # 61 x 576 x 2
        ("openai__gpt-oss-120b", 36_864),  # 18 full layers x 8 x 64 x 2 x 2
        ("Qwen__Qwen3-30B-A3B", 98_304),  # 48 x 4 x 128 x 2 x 2; Qwen3-Coder-30B-A3B has the same shape
    ],
)
def test_bytes_per_token(name: str, expected: int) -> None:
    """Bytes one token takes at 16 bits; hand products in the comments."""
    assert layout(name).bytes_per_token == expected


def test_gpt_oss_has_18_windows_of_128_tokens() -> None:
    """Half of gpt-oss-120b's layers keep 128 tokens only: a window group of 18 beside a full one of 18."""
    window, full = layout("openai__gpt-oss-120b").groups
    assert (window.layers, window.window_tokens, full.layers, full.window_tokens) == (18, 128, 18, 0)


def test_deepseek_latent_is_copied_to_every_rank() -> None:
    """The MLA latent has no heads to split: TP 8 stores it 8 times."""
    eight = layout("deepseek-ai__DeepSeek-V3", tensor=8)
    assert eight.device_bytes_per_token == 70_272
    assert eight.bytes_per_token == 562_176  # 8 x 70,272


def test_heads_are_copied_when_ranks_outnumber_them() -> None:
    """Llama 70B has 8 KV heads; on 16 ranks each is stored twice, 80 x 1 x 128 x 2 x 2 = 40,960 on a GPU."""
    sixteen = layout("meta-llama__Llama-3.1-70B-Instruct", tensor=16)
    assert sixteen.device_bytes_per_token == 40_960
    assert sixteen.bytes_per_token == 655_360


def test_llama_3_8b_pool_of_a_public_report() -> None:
    """5,691 blocks of 16 are 91,056 tokens, 11.115 GiB, and 11.115 sequences of 8,192 (a GiB each)."""
    llama = layout("meta-llama__Meta-Llama-3.1-8B")
    size = pool_bytes(5691, llama.block_bytes)
    assert 5691 * 16 == 91_056
    assert size / GIB == 11.115234375
    assert 5691 / llama.admission_blocks(8192, 8192) == 11.115234375
    assert blocks_in(size, llama.block_bytes) == 5691
    assert blocks_in(size - 1, llama.block_bytes) == 5690


def test_llama_3_1_8b_pools_too_small_for_long_sequences() -> None:
    """Two reports: 1,952 blocks hold 1.56 sequences of 20,000 tokens, 1,478 blocks 0.815 of 29,000."""
    llama = layout("meta-llama__Llama-3.1-8B-Instruct")
    assert pool_bytes(1952, llama.block_bytes) / GIB == 3.8125
    assert 1952 / llama.admission_blocks(20_000, 2048) == pytest.approx(1.5616)  # 20,000 / 16 = 1,250 blocks
    # 29,000 tokens are 1,812.5 blocks; the engine rounds up: 1,478 / 1,813, the report's 0.81545 is per token
    assert llama.admission_blocks(29_000, 2048) == 1813
    tokens = 1478 * 16
    assert tokens / 29_000 == pytest.approx(0.81545, abs=1e-5)


def test_qwen3_coder_262144_tokens_take_24_gib() -> None:
    """262,144 tokens x 98,304 bytes = 25,769,803,776 bytes = 24 GiB."""
    coder = layout("Qwen__Qwen3-30B-A3B")
    assert pool_bytes(262_144 // 16, coder.block_bytes) == 25_769_803_776 == 24 * GIB


def test_qwen3_235b_on_four_gpus() -> None:
    """4 KV heads on 4 GPUs: 94 x 1 x 128 x 2 x 2 = 48,128 bytes per GPU; 367,404 tokens take 16.468 GiB."""
    qwen = layout("Qwen__Qwen3-235B-A22B", tensor=4)
    assert qwen.device_bytes_per_token == 48_128
    assert 367_404 * qwen.device_bytes_per_token / GIB == pytest.approx(16.468, abs=5e-4)


def test_a_window_mix_follows_a_straight_line_with_a_knee() -> None:
    """9 full + 27 windowed layers of 4 heads x 128 at fp8: 9,216 L + 27,648 min(L, W); doubled at 16 bits."""
    config = {
        "model_type": "gemma3_text",
        "num_hidden_layers": 36,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "sliding_window": 1024,
        "sliding_window_pattern": 4,
    }
    shape = read_model(config)
    assert isinstance(shape, ModelShape)
    mix = block_layout(shape, "bfloat16", 16, Parallelism())
    assert isinstance(mix, BlockLayout)
    for length in (512, 1024, 4096, 65_536):  # multiples of the block: no rounding
        assert mix.resident_blocks(length) * mix.block_bytes == 18_432 * length + 55_296 * min(length, 1024)
