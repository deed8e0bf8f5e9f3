"""Recurrent states: formulas by hand, and hybrids that were really started."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from exporter.kvmath import states
from exporter.kvmath.capacity import blocks_in, concurrency
from exporter.kvmath.formats import state_bytes
from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.layers import Kind, LayerCache, recurrent
from exporter.kvmath.model import ModelShape, read_model
from exporter.kvmath.parallel import Parallelism
from exporter.kvmath.vllm import BlockLayout, block_layout

RECORDINGS = Path(__file__).parents[2] / "recordings"


def shape_of(config: dict[str, Any]) -> ModelShape:
    shape = read_model(config)
    assert isinstance(shape, ModelShape), shape
    return shape


def recorded(name: str) -> tuple[BlockLayout, dict[str, str]]:
    """A recorded engine's layout, and the labels it reported."""
    folder = RECORDINGS / f"vllm-0.32.0-{name}"
    page = (folder / "idle.prom").read_text()
    line = next(line for line in page.splitlines() if line.startswith("vllm:cache_config_info{"))
    labels = dict(re.findall(r'(\w+)="([^"]*)"', line))
    layout = block_layout(
        shape_of(json.loads((folder / "config.json").read_text())),
        "bfloat16",
        int(labels["block_size"]),
        Parallelism(),
        prefix_caching=labels["enable_prefix_caching"] == "True",
        max_model_len=4096,
        state_dtype=labels["mamba_ssm_cache_dtype"],
    )
    assert isinstance(layout, BlockLayout), layout
    return layout, labels


@pytest.mark.parametrize("name", ["mamba2", "nemotron_h_nopc"])
def test_started_engines(name: str) -> None:
    """Blocks from the bytes given, concurrency and tokens at max_model_len 4,096, as reported."""
    layout, labels = recorded(name)
    blocks = int(labels["num_gpu_blocks"])
    assert blocks_in(int(labels["kv_cache_memory_bytes"]), layout.block_bytes) == blocks
    ours = concurrency(blocks, layout.admission_blocks(4096, 2048))
    assert ours == float(labels["kv_cache_max_concurrency"])
    assert int(ours * 4096) == int(labels["kv_cache_size_tokens"])
    assert layout.block_tokens == int(labels["block_size"])


def test_nemotron_h_log() -> None:
    """Block 640, padding 21.44 %, 83,558 tokens, 20.40 requests; the log file has these very words."""
    said = (RECORDINGS / "vllm-0.32.0-nemotron_h_nopc" / "engine-said.txt").read_text()
    layout, _ = recorded("nemotron_h_nopc")
    state = layout.groups[0].parts[0]
    padding = 100 * (state.page_bytes - state.data_bytes) / state.data_bytes
    assert f"block size to {layout.block_tokens} tokens" in said
    assert f"mamba page size by {padding:.2f}%" in said
    ours = concurrency(204, layout.admission_blocks(4096, 2048))
    assert f"{int(ours * 4096):,} tokens" in said
    assert f"{ours:.2f}x" in said
    # 3 layers x (3 x (512 + 2 x 64) x 2 bytes + 16 x 32 x 64 x 4 bytes)
    assert layout.state_bytes_per_sequence == 3 * (3840 + 131072) == 404_736


def test_prefix_caching_is_off_by_default_for_states_alone() -> None:
    """vLLM 0.32.0 has it on for hybrids, off where the model keeps nothing but states: one block, not two."""
    config = json.loads((RECORDINGS / "vllm-0.32.0-mamba2" / "config.json").read_text())
    alone = block_layout(shape_of(config), "bfloat16", 16, Parallelism())
    cached = block_layout(shape_of(config), "bfloat16", 16, Parallelism(), prefix_caching=True)
    assert isinstance(alone, BlockLayout)
    assert isinstance(cached, BlockLayout)
    assert alone.admission_blocks(4096, 2048) == 1
    assert cached.admission_blocks(4096, 2048) == 3  # two states and Mamba 2's prefill checkpoint


def test_the_block_is_raised_from_the_default_too() -> None:
    """From vLLM's default of 128 on a CPU: 134,912 / 256 = 527 tokens, 5 blocks of 128."""
    config = json.loads((RECORDINGS / "vllm-0.32.0-nemotron_h_nopc" / "config.json").read_text())
    layout = block_layout(shape_of(config), "bfloat16", 128, Parallelism(), prefix_caching=False)
    assert isinstance(layout, BlockLayout)
    assert layout.block_tokens == 640


@pytest.mark.parametrize(
    ("state", "tensor", "expected"),
    [
        # Qwen3-Next: 3 x 8,192 x 2 + 32 x 128 x 128 x 2; on 8 ranks an eighth
        (states.gated_delta_net(16, 128, 32, 128, 4, ""), 1, 49_152 + 1_048_576),
        (states.gated_delta_net(16, 128, 32, 128, 4, ""), 8, 137_216),
        (states.gated_delta_net(16, 128, 32, 128, 4, "float32"), 1, 49_152 + 2_097_152),
        # Granite 4 H small on 8 ranks, 1 group becomes 8: 3 x (8,192 + 8 x 256) / 8 x 2 + 16 x 64 x 128 x 2
        (states.mamba2(128, 64, 1, 128, 4, 8192), 8, 7_680 + 262_144),
        (states.mamba1(8192, 16, 4), 2, 3 * 4096 * 2 + 4096 * 16 * 2),
        (states.kimi_delta(32, 128, 4), 1, 3 * 12_288 * 2 + 32 * 16_384 * 4),
        (states.short_convolution(2048, 3), 8, 2 * 256 * 2),
        (states.lightning(64, 128), 1, 64 * 16_384 * 4),
        (states.linear_recurrent_unit(2560, 4), 1, 3 * 2560 * 2 + 2560 * 4),
        (states.rwkv5(2560, 64), 1, 2 * 2560 * 2 + 40 * 4096 * 4),
    ],
)
def test_bytes_by_hand(state: states.RecurrentState, tensor: int, expected: int) -> None:
    """One layer's state on one rank, products in the comments or the expression."""
    assert state_bytes(state, "bfloat16", tensor) == expected


@pytest.mark.parametrize(
    ("state", "tensor"),
    [
        (states.lightning(6, 128), 4),  # 6 heads
        (states.short_convolution(10, 3), 4),  # 10 channels
        (states.mamba2(48, 64, 1, 128, 4, 3072), 7),
    ],
)
def test_states_that_do_not_spread(state: states.RecurrentState, tensor: int) -> None:
    """Engines divide heads and channels whole."""
    found = state_bytes(state, "bfloat16", tensor)
    assert isinstance(found, Unavailable)
    assert found.reason is Reason.TENSOR_PARALLEL_SIZE


def test_dtypes_of_a_state() -> None:
    """A float32 model doubles the convolution; --mamba-ssm-cache-dtype overrides the temporal part alone."""
    state = states.mamba2(16, 32, 1, 64, 4, 512)
    assert state_bytes(state, "float32") == 2 * 3840 + 4 * 32_768
    assert state_bytes(state, "bfloat16", temporal_dtype="float32") == 3840 + 4 * 32_768
    assert isinstance(state_bytes(state, "int3"), Unavailable)
    wide = states.kimi_delta(1, 16, 4)
    assert state_bytes(wide, temporal_dtype="bfloat16") == 3 * 48 * 2 + 256 * 2


def test_drafts_add_a_row_and_a_block() -> None:
    """Two draft tokens: the convolution keeps two rows more, a sequence three states instead of one."""
    state = states.gated_delta_net(1, 16, 1, 16, 4, "")
    assert state_bytes(state, draft_tokens=2) == 5 * 48 * 2 + 256 * 2
    full = LayerCache(Kind.FULL, 1, 16, 16)
    shape = ModelShape("test", (), (recurrent(state), full), 4096, "bfloat16", "", 1)
    layout = block_layout(shape, "bfloat16", 16, Parallelism(), speculative="ngram", speculative_tokens=2)
    assert isinstance(layout, BlockLayout)
    linear = layout.groups[0]
    assert (linear.resident_blocks(1000), linear.peak_blocks(1000), linear.admission_blocks(1000, 1)) == (
        3,
        4,
        4,
    )


def test_a_state_crosses_a_block_boundary() -> None:
    """With prefix caching: 2 blocks while token kB + 1 is computed, 1 at the next.  Without: always 1."""
    state = recurrent(states.lightning(1, 16))
    shape = ModelShape("test", (), (state, LayerCache(Kind.FULL, 1, 16, 16)), 4096, "bfloat16", "", 1)
    cached = block_layout(shape, "bfloat16", 16, Parallelism())
    plain = block_layout(shape, "bfloat16", 16, Parallelism(), prefix_caching=False, max_model_len=999)
    assert isinstance(cached, BlockLayout)
    assert isinstance(plain, BlockLayout)
    assert [cached.groups[0].resident_blocks(n) for n in (1, 16, 17, 18, 33, 34)] == [1, 1, 2, 1, 2, 1]
    assert [plain.groups[0].resident_blocks(n) for n in (1, 17, 4096)] == [1, 1, 1]
    assert plain.groups[0].block_tokens == 999
