"""Small models that were really started: pools, capacities and blocks as the engines reported them."""

import json
from pathlib import Path
from typing import Any

import pytest

from exporter.kvmath.capacity import blocks_in, concurrency, max_model_len_from
from exporter.kvmath.dtypes import resolve_cache_dtype
from exporter.kvmath.model import ModelShape, read_model
from exporter.kvmath.parallel import Parallelism
from exporter.kvmath.sglang import TokenPools, sequence_tokens, token_pools
from exporter.kvmath.vllm import BlockLayout, block_layout

DATA = Path(__file__).parents[2] / "data" / "kv"
VLLM: dict[str, Any] = json.loads((DATA / "recorded_vllm.json").read_text())
SGLANG: dict[str, Any] = json.loads((DATA / "recorded_sglang.json").read_text())


def shape_of(config: dict[str, Any]) -> ModelShape:
    shape = read_model(config)
    assert isinstance(shape, ModelShape), shape
    return shape


def vllm_layout(name: str) -> BlockLayout:
    run = VLLM[name]
    labels = run["cache_config_info"]
    block = int(labels["block_size"])
    shape = shape_of(run["config"])
    dtype = resolve_cache_dtype(labels["cache_dtype"], "auto", shape)
    assert isinstance(dtype, str)
    layout = block_layout(shape, dtype, block, Parallelism(run["tensor"]))
    assert isinstance(layout, BlockLayout)
    return layout


@pytest.mark.parametrize("name", sorted(VLLM))
def test_blocks_are_the_bytes_given_over_block_bytes(name: str) -> None:
    """kv_cache_memory_bytes is what one GPU was given; the engine made num_gpu_blocks of it."""
    labels = VLLM[name]["cache_config_info"]
    given = int(labels["kv_cache_memory_bytes"])
    assert blocks_in(given, vllm_layout(name).block_bytes) == int(labels["num_gpu_blocks"])


@pytest.mark.parametrize("name", sorted(VLLM))
def test_capacity_labels(name: str) -> None:
    """Concurrency and size as the engine computed them at max_model_len 4096, 2048 batched tokens."""
    labels = VLLM[name]["cache_config_info"]
    ours = concurrency(int(labels["num_gpu_blocks"]), vllm_layout(name).admission_blocks(4096, 2048))
    assert ours == float(labels["kv_cache_max_concurrency"])
    assert int(ours * 4096) == int(labels["kv_cache_size_tokens"])
    assert max_model_len_from(int(labels["kv_cache_size_tokens"]), ours) == 4096


@pytest.mark.parametrize(
    ("tokens", "window", "full"),
    # Computed tokens and blocks per group, read from a Gemma 2 with windows of 256 and blocks of 32 while
    # vLLM was stepped by hand.  Taken after the step that ended prefill.
    [
        (79, 3, 3),
        (100, 4, 4),
        (128, 4, 4),
        (129, 5, 5),
        (196, 7, 7),
        (301, 9, 10),
        (318, 9, 10),
        (319, 9, 10),
        (320, 8, 10),
        (340, 9, 11),
        (350, 9, 11),
        (359, 9, 12),
        (360, 9, 12),
    ],
)
def test_blocks_held_step_by_step(tokens: int, window: int, full: int) -> None:
    """A window group gives blocks back as the window moves; the peak is reached one block earlier."""
    held = {group.kind.value: group.resident_blocks(tokens) for group in vllm_layout("gemma2").groups}
    assert held == {"window": window, "full": full}
    peaks = {group.kind.value: group.peak_blocks(tokens) for group in vllm_layout("gemma2").groups}
    assert peaks["window"] == min(9, full)  # ceil((256 + 32 - 1) / 32) = 9 is the most a window ever touches


def test_admission_counts_the_batch_in_flight() -> None:
    """Window 256, blocks of 32: 2,303 tokens in flight are 72 blocks, plus one for misalignment."""
    window = next(group for group in vllm_layout("gemma2").groups if group.window_tokens)
    assert window.admission_blocks(4096, 2048) == 73
    assert window.admission_blocks(4096, 2049) == 73  # 255 + 2,049 = 2,304 = 72 whole blocks
    assert window.admission_blocks(4096, 2050) == 74
    assert window.admission_blocks(100, 2048) == 5
    assert window.admission_blocks(4096, 4096) == 129  # capped by the length: 4096 / 32 + 1


@pytest.mark.parametrize("name", sorted(SGLANG))
def test_sglang_pool_bytes(name: str) -> None:
    """kv_cache_memory_usage_gb is GiB of one rank; one padding page is in it, recurrent states are not."""
    run = SGLANG[name]
    page = int(run["page_size"])
    pools = token_pools(shape_of(run["config"]), "bfloat16", page, Parallelism(run["tensor"]))
    assert isinstance(pools, TokenPools)
    assert pools.uniform == (name != "gdn")
    assert not pools.window_token_bytes
    slots = int(run["max_total_num_tokens"]) + page
    assert run["kv_cache_memory_usage_gb"] * 2**30 == pytest.approx(pools.full_token_bytes * slots, abs=1e-6)


def test_sglang_sequences_take_whole_pages() -> None:
    """65 tokens on pages of 64 take two pages."""
    assert [sequence_tokens(tokens, 64) for tokens in (1, 64, 65, 128)] == [64, 64, 128, 128]
