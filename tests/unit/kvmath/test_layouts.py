"""Splits, groupings and pools by hand, where no recording reaches."""

import pytest

from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.layers import Kind, LayerCache
from exporter.kvmath.model import ModelShape
from exporter.kvmath.parallel import (
    Parallelism,
    kv_heads_per_rank,
    pipeline_stages,
    sglang_pipeline_stages,
)
from exporter.kvmath.sglang import TokenPools, token_pools
from exporter.kvmath.vllm import BlockLayout, block_layout

FULL = LayerCache(Kind.FULL, 8, 64, 64)  # 1,024 elements per token
WINDOW = LayerCache(Kind.WINDOW, 8, 64, 64, 128)
LATENT = LayerCache(Kind.MLA, 1, 576, 0)


def shape(*layers: LayerCache, arch: str = "GptOssForCausalLM", model_type: str = "test") -> ModelShape:
    return ModelShape(model_type, (arch,), layers, 4096, "bfloat16", "", 64)


def blocks(of: ModelShape, parallelism: Parallelism = Parallelism(), hybrid: bool = True) -> BlockLayout:  # noqa: B008
    layout = block_layout(of, "bfloat16", 16, parallelism, hybrid)
    assert isinstance(layout, BlockLayout), layout
    return layout


def pools(of: ModelShape, parallelism: Parallelism = Parallelism(), window_pool: bool = True) -> TokenPools:  # noqa: B008
    found = token_pools(of, "bfloat16", 1, parallelism, window_pool)
    assert isinstance(found, TokenPools), found
    return found


def test_pipeline_remainders_go_to_different_stages() -> None:
    """vLLM spares the last stage, SGLang the first ones.

    Outputs of both engines' own get_pp_indices for 80 and 61 layers.
    """
    assert [len(stage) for stage in pipeline_stages(61, 4)] == [15, 15, 16, 15]
    assert [len(stage) for stage in pipeline_stages(62, 4)] == [15, 16, 16, 15]
    assert [len(stage) for stage in pipeline_stages(63, 4)] == [16, 16, 16, 15]
    assert [len(stage) for stage in pipeline_stages(61, 2)] == [31, 30]
    assert [len(stage) for stage in sglang_pipeline_stages(61, 4)] == [15, 15, 15, 16]
    assert [len(stage) for stage in sglang_pipeline_stages(62, 4)] == [15, 15, 16, 16]
    assert [len(stage) for stage in sglang_pipeline_stages(61, 2)] == [30, 31]
    assert pipeline_stages(4, 2) == sglang_pipeline_stages(4, 2) == [range(2), range(2, 4)]


@pytest.mark.parametrize(("heads", "ranks", "here"), [(8, 1, 8), (8, 4, 2), (8, 8, 1), (8, 16, 1), (1, 4, 1)])
def test_heads_on_a_rank(heads: int, ranks: int, here: int) -> None:
    """Divided while there are enough, copied after that."""
    assert kv_heads_per_rank(heads, ranks) == here


@pytest.mark.parametrize(("heads", "ranks"), [(5, 8), (8, 3), (8, 12), (8, 0), (8, -1)])
def test_heads_that_do_not_spread(heads: int, ranks: int) -> None:
    """Engines refuse these splits."""
    found = kv_heads_per_rank(heads, ranks)
    assert isinstance(found, Unavailable)
    assert found.reason is Reason.TENSOR_PARALLEL_SIZE


def test_groups_are_padded_when_counts_are_close() -> None:
    """12 window + 13 full layers (vLLM's own example): two groups, blocks sized for 13, one page wasted."""
    layout = blocks(shape(*[WINDOW, FULL] * 12, FULL))
    assert [(group.kind, group.layers) for group in layout.groups] == [(Kind.WINDOW, 12), (Kind.FULL, 13)]
    assert layout.block_bytes == 13 * 1024 * 2 * 16
    assert layout.bytes_per_token == 13 * 2048


def test_groups_are_split_when_one_kind_prevails() -> None:
    """10 full + 20 window: three groups of 10.  15 against 10 is 1.5 times: split, into 8 and 7."""
    assert [group.layers for group in blocks(shape(*[FULL, WINDOW, WINDOW] * 10)).groups] == [10, 10, 10]
    assert [group.layers for group in blocks(shape(*[FULL] * 10, *[WINDOW] * 15)).groups] == [10, 8, 7]
    assert [group.layers for group in blocks(shape(*[FULL] * 10, *[WINDOW] * 14)).groups] == [10, 14]


def test_two_window_sizes_are_two_groups() -> None:
    """Windows of different sizes free blocks at different times and cannot share a table."""
    other = LayerCache(Kind.WINDOW, 8, 64, 64, 512)
    assert [group.window_tokens for group in blocks(shape(WINDOW, other, FULL)).groups] == [128, 512, 0]


def test_pipeline_block_is_the_largest_group_of_the_stage() -> None:
    """Stages of [f w w f w w] and [f w w f]: two groups' worth of layers, one group dealt out in turn.

    4 full, 6 window: most = 6 is not below 1.5 x 4, so window splits into 3 + 3 (even and odd ones).
    Stage 0 (5 layers): full 0, 3 -> 2 pages; windows 1, 4 and 2 -> 2 and 1.  Stage 1 (5 layers: 5..9):
    full 6, 9 -> 2; windows 5, 7, 8 -> group A has 1, 4, 7 and group B 2, 5, 8: 1 and 2.  Block: 2 pages each.
    """
    layers = [FULL, WINDOW, WINDOW, FULL, WINDOW, WINDOW, FULL, WINDOW, WINDOW, FULL]
    layout = blocks(shape(*layers), Parallelism(tensor=2, pipeline=2))
    page = 4 * 128 * 2 * 16  # 4 heads on a rank
    assert [group.layers for group in layout.groups] == [4, 3, 3]
    assert layout.block_bytes == 2 * page
    assert layout.replica_block_bytes == 4 * 2 * page
    assert layout.bytes_per_token == 4 * 2048
    assert layout.device_bytes_per_token == 2 * 1024


def test_uneven_stages_of_a_plain_model() -> None:
    """61 MLA layers on 4 stages of vLLM (15, 15, 16, 15): the third GPU sets the block."""
    layout = blocks(shape(*[LATENT] * 61), Parallelism(tensor=2, pipeline=4))
    assert layout.device_bytes_per_token == 16 * 1152
    assert layout.bytes_per_token == 2 * 61 * 1152
    assert layout.block_bytes == 16 * 16 * 1152
    assert layout.replica_block_bytes == 2 * 61 * 16 * 1152


def test_without_the_hybrid_manager() -> None:
    """Windows beside full layers are stored whole; a model of windows only keeps giving blocks back."""
    mix = blocks(shape(FULL, WINDOW, WINDOW), hybrid=False)
    assert [(group.kind, group.layers, group.window_tokens) for group in mix.groups] == [(Kind.FULL, 3, 0)]
    assert mix.single_full_group
    assert mix.bytes_per_token == 3 * 2048
    windows = blocks(shape(WINDOW, WINDOW), hybrid=False)
    assert windows.groups[0].kind is Kind.WINDOW
    assert windows.bytes_per_token == 0
    assert not windows.single_full_group


def test_sglang_separates_windows_only_where_it_does() -> None:
    """gpt-oss has a window pool; any other architecture stores windows in full; a flag turns it off."""
    oss = pools(shape(*[WINDOW, FULL] * 18), Parallelism(tensor=2))
    assert not oss.uniform
    assert (oss.full_token_bytes, oss.window_token_bytes, oss.window_tokens) == (18 * 1024, 18 * 1024, 128)
    assert oss.replica_full_token_bytes == oss.bytes_per_token == 18 * 2048
    assert oss.replica_window_token_bytes == 18 * 2048
    for uniform in (
        pools(shape(*[WINDOW, FULL] * 18), window_pool=False),
        pools(shape(*[WINDOW, FULL] * 18, arch="Gemma2ForCausalLM")),
    ):
        assert uniform.uniform
        assert uniform.bytes_per_token == uniform.device_bytes_per_token == 36 * 2048
        assert uniform.window_tokens == 0


def test_sglang_stages() -> None:
    """61 MLA layers on 4 stages of SGLang (15, 15, 15, 16), the latent on both ranks."""
    found = pools(shape(*[LATENT] * 61, arch="DeepseekV3ForCausalLM"), Parallelism(tensor=2, pipeline=4))
    assert found.full_token_bytes == 16 * 1152
    assert found.bytes_per_token == 2 * 61 * 1152


@pytest.mark.parametrize(
    "of",
    [
        shape(LATENT, arch="AXK1ForCausalLM"),  # SGLang does not list it as MLA
        shape(FULL, model_type="minicpm3"),  # SGLang stores the latent where vLLM stores K and V
        shape(WINDOW, WINDOW),  # no full pool for max_total_num_tokens to count
    ],
)
def test_sglang_withholds_what_it_stores_differently(of: ModelShape) -> None:
    """The config says one thing, SGLang's memory holds another."""
    found = token_pools(of, "bfloat16", 1, Parallelism())
    assert isinstance(found, Unavailable)
    assert found.reason is Reason.UNSUPPORTED_ATTENTION


@pytest.mark.parametrize(
    ("dtype", "unit", "parallelism", "reason"),
    [
        ("turboquant_4bit_nc", 16, Parallelism(), Reason.KV_CACHE_DTYPE),
        ("fp4_mx_block16", 16, Parallelism(), Reason.KV_CACHE_DTYPE),
        ("auto", 16, Parallelism(), Reason.KV_CACHE_DTYPE),
        ("bfloat16", 0, Parallelism(), Reason.BLOCK_SIZE),
        ("bfloat16", 16, Parallelism(decode_context=2), Reason.UNSUPPORTED_PARALLELISM),
        ("bfloat16", 16, Parallelism(tensor=0), Reason.TENSOR_PARALLEL_SIZE),
        ("bfloat16", 16, Parallelism(tensor=3), Reason.TENSOR_PARALLEL_SIZE),
        ("bfloat16", 16, Parallelism(pipeline=5), Reason.PIPELINE_PARALLEL_SIZE),
        ("bfloat16", 16, Parallelism(pipeline=0), Reason.PIPELINE_PARALLEL_SIZE),
    ],
)
def test_settings_no_engine_runs_with(
    dtype: str, unit: int, parallelism: Parallelism, reason: Reason
) -> None:
    """Both layouts name the setting that is wrong."""
    four = shape(FULL, FULL, FULL, FULL)
    for found in (block_layout(four, dtype, unit, parallelism), token_pools(four, dtype, unit, parallelism)):
        assert isinstance(found, Unavailable)
        assert found.reason is reason


def test_layers_that_all_keep_every_token_share_one_table() -> None:
    """K and V beside a latent: one group, and a block is the sum of both pages."""
    layout = blocks(shape(FULL, LATENT))
    (group,) = layout.groups
    assert (group.mixed, group.layers, group.page_bytes) == (True, 2, 16 * (1024 * 2 + 576 * 2))
    assert layout.block_bytes == 16 * 3200
    assert layout.bytes_per_token == 3200
    assert layout.single_full_group


def test_windows_whose_page_divides_get_longer_blocks() -> None:
    """A window layer of half the page holds 32 tokens a block where the full one holds 16."""
    half = LayerCache(Kind.WINDOW, 4, 64, 64, 128)
    layout = blocks(shape(FULL, half))
    assert [(g.kind, g.block_tokens, g.page_bytes) for g in layout.groups] == [
        (Kind.FULL, 16, 32768),
        (Kind.WINDOW, 32, 32768),
    ]


def test_pages_that_do_not_divide_are_padded_or_stored_in_full() -> None:
    """640 elements into 1,024: padded.  Beside a latent that doesn't divide: windows in full."""
    odd = LayerCache(Kind.WINDOW, 5, 64, 64, 128)
    (full, window) = blocks(shape(FULL, odd)).groups
    assert (full.page_bytes, window.page_bytes, window.block_tokens) == (32768, 32768, 16)
    assert window.parts[0].data_bytes == 640 * 2 * 16
    assert "12,288 padding" in window.description
    (mixed,) = blocks(shape(LATENT, odd)).groups
    assert (mixed.kind, mixed.layers, mixed.window_tokens) == (Kind.FULL, 2, 0)
    assert mixed.page_bytes == 16 * 2 * (576 + 640)


def test_decode_context_ranks_share_out_the_tokens() -> None:
    """MLA on 8 ranks, 4 sharing: a block of 16 stands for 64 tokens, a GPU holds 1,152 / 4 a token."""
    layout = blocks(shape(LATENT), Parallelism(tensor=8, decode_context=4))
    assert layout.block_bytes == 16 * 1152
    assert layout.device_bytes_per_token == 288
    assert layout.bytes_per_token == 8 * 288
    assert layout.resident_blocks(65) == layout.admission_blocks(65, 1) == 2


@pytest.mark.parametrize(
    ("of", "parallelism"),
    [
        (shape(LATENT), Parallelism(tensor=8, decode_context=3)),  # 3 does not divide 8
        (shape(FULL), Parallelism(tensor=8, decode_context=2)),  # 8 heads on 8 ranks: no copies to share
        (shape(FULL, WINDOW), Parallelism(tensor=16, decode_context=2)),  # windows
    ],
)
def test_context_splits_the_engine_refuses(of: ModelShape, parallelism: Parallelism) -> None:
    """vLLM 0.32.0 stops at start-up with these."""
    found = block_layout(of, "bfloat16", 16, parallelism)
    assert isinstance(found, Unavailable)
    assert found.reason is Reason.UNSUPPORTED_PARALLELISM


def test_cross_attention_is_held_once_per_request() -> None:
    """Whisper: 1,500 encoder tokens are 94 blocks of 16 whatever the text's length, in a group apart."""
    cross = LayerCache(Kind.CROSS, 8, 64, 64, 1500)
    layout = blocks(shape(FULL, cross))
    assert [group.resident_blocks(448) for group in layout.groups] == [28, 94]
    assert layout.peak_blocks(448) == layout.admission_blocks(448, 1) == 122
    assert layout.bytes_per_token == 2048
    longer = block_layout(shape(FULL, cross), "bfloat16", 16, Parallelism(), encoder_tokens=160)
    assert isinstance(longer, BlockLayout)
    assert longer.groups[1].resident_blocks(1) == 10


def test_pipeline_stages_count_layers_without_a_cache() -> None:
    """Six decoder layers, two with a cache, both in the first of two stages: nothing in the second."""
    uneven = ModelShape("test", (), (FULL, FULL), 4096, "bfloat16", "", 64, (0, 2), 6)
    layout = blocks(uneven, Parallelism(pipeline=2))
    assert layout.block_bytes == layout.replica_block_bytes == 2 * 32768
    assert layout.device_bytes_per_token == layout.bytes_per_token == 2 * 2048


@pytest.mark.parametrize("method", ["eagle", "draft_model", "mtp"])
def test_drafts_whose_layers_nobody_tells(method: str) -> None:
    """A draft model's config is another file; mtp needs draft layers in the checkpoint."""
    found = block_layout(shape(FULL), "bfloat16", 16, Parallelism(), speculative=method)
    assert isinstance(found, Unavailable)
    assert found.reason is Reason.SPECULATIVE_DECODING
    assert isinstance(
        block_layout(shape(FULL), "bfloat16", 16, Parallelism(), speculative="ngram"), BlockLayout
    )


def test_a_model_without_layers() -> None:
    """Attention-free models have no cache to lay out."""
    found = block_layout(shape(), "bfloat16", 16, Parallelism())
    assert isinstance(found, Unavailable)
    assert found.reason is Reason.ATTENTION_FREE


def test_gpus() -> None:
    """Decode context parallelism reuses the tensor-parallel GPUs."""
    assert Parallelism(tensor=8, pipeline=2, decode_context=4).gpus == 16
