"""What one token takes by cache dtype: layouts with scales beside the values."""

from fractions import Fraction

import pytest

from exporter.kvmath.formats import latent_bytes, pair_bytes, token_bytes
from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.layers import Kind, LayerCache
from exporter.kvmath.model import ModelShape
from exporter.kvmath.parallel import Parallelism
from exporter.kvmath.sparse import index_key
from exporter.kvmath.vllm import BlockLayout, block_layout, default_block_tokens
from exporter.kvmath.vllm_pages import stored_dtype

LATENT = LayerCache(Kind.MLA, 1, 576, 0)
FULL = LayerCache(Kind.FULL, 8, 128, 128)


def shape(*layers: LayerCache, dtype: str = "bfloat16", model_type: str = "test") -> ModelShape:
    return ModelShape(model_type, (), layers, 4096, dtype, "", 64)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("bfloat16", 512),  # 2 x 128 x 2
        ("float32", 1024),
        ("fp8", 256),
        ("fp8_per_token_head", 264),  # (128 + 4) for K and for V
        ("int8_per_token_head", 264),
        ("int4_per_token_head", 136),  # (64 + 4) twice
        ("nvfp4", 144),  # (64 + 8) twice
        ("nvfp4_4over6", 144),
    ],
)
def test_a_head_of_128(dtype: str, expected: int) -> None:
    """K and V of one head and token."""
    assert pair_bytes(dtype, 128, 128) == expected


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("bfloat16", 1152),
        ("fp8_e4m3", 576),
        ("fp8_ds_mla", 656),  # 512 + 4 scales x 4 + 64 x 2
        ("nvfp4_ds_mla", 352),
        ("fp8_per_token_head", 584),  # one vector, two scales
        ("int4_per_token_head", 296),
    ],
)
def test_a_latent_of_576(dtype: str, expected: int) -> None:
    """The record of one token, shared by all heads."""
    assert latent_bytes(dtype, 576) == expected


@pytest.mark.parametrize(
    "found",
    [
        pair_bytes("fp8_ds_mla", 128, 128),  # a record of latents
        pair_bytes("nvfp4", 192, 128),  # K and V of one width only
        pair_bytes("nvfp4", 72, 72),  # scales per 16 values
        pair_bytes("turboquant_k8v4", 128, 128),
        pair_bytes("auto", 128, 128),
        latent_bytes("nvfp4", 576),  # vLLM refuses it for MLA
        latent_bytes("fp8_ds_mla", 320),
    ],
)
def test_what_a_dtype_cannot_hold(found: object) -> None:
    """Withheld, with the dtype in the words."""
    assert isinstance(found, Unavailable)
    assert found.reason is Reason.KV_CACHE_DTYPE


def test_index_keys_ignore_the_cache_dtype() -> None:
    """128 fp8 values and one float32 scale; 192 need two.  A quarter of that where 4 tokens share one."""
    assert token_bytes(index_key(128), "bfloat16") == token_bytes(index_key(128), "fp8") == 132
    assert token_bytes(index_key(192), "fp8") == 200
    assert token_bytes(index_key(128, 4), "fp8") == Fraction(33)
    assert token_bytes(index_key(128), "fp8", tensor=8) == 132  # a whole copy on every rank


@pytest.mark.parametrize(
    ("of", "asked", "stored"),
    [
        (shape(LATENT), "fp8", "fp8"),
        (shape(index_key(128), LATENT), "fp8", "fp8_ds_mla"),  # sparse MLA makes records of it
        (shape(index_key(128), LATENT), "bfloat16", "bfloat16"),
        (shape(FULL, index_key(128)), "fp8", "fp8"),  # MiniMax M3: K and V beside the index
        (shape(LayerCache(Kind.RECORD_WINDOW, 1, 512, 0, 128, record_bytes=584)), "fp8", "fp8_ds_mla"),
        (shape(FULL, model_type="falcon"), "fp8", "bfloat16"),  # its attention never hears of the setting
        (shape(FULL, model_type="falcon", dtype="float16"), "fp8_e5m2", "float16"),
    ],
)
def test_what_the_engine_makes_of_a_dtype(of: ModelShape, asked: str, stored: str) -> None:
    """vLLM 0.32.0 on an H100-class GPU."""
    assert stored_dtype(of, asked) == stored


def test_records_know_one_dtype() -> None:
    """DeepSeek V4's Hopper kernels read fp8_ds_mla records only, and blocks of 256."""
    records = shape(LayerCache(Kind.RECORD_WINDOW, 1, 512, 0, 128, record_bytes=584))
    wide = block_layout(records, "bfloat16", 256, Parallelism())
    short = block_layout(records, "fp8_ds_mla", 64, Parallelism())
    assert isinstance(wide, Unavailable)
    assert wide.reason is Reason.KV_CACHE_DTYPE
    assert isinstance(short, Unavailable)
    assert short.reason is Reason.BLOCK_SIZE
    assert default_block_tokens(records, "fp8_ds_mla") == 256


@pytest.mark.parametrize(
    ("of", "dtype", "tokens"),
    [
        (shape(FULL), "bfloat16", 16),
        (shape(FULL), "fp8", 16),
        (shape(LATENT), "bfloat16", 16),
        (shape(LATENT), "fp8", 64),
        (shape(LATENT), "fp8_per_token_head", 16),
        (shape(index_key(128), LATENT), "bfloat16", 64),
    ],
)
def test_default_blocks(of: ModelShape, dtype: str, tokens: int) -> None:
    """What vLLM 0.32.0 chose for such models when asked on the meta device."""
    assert default_block_tokens(of, dtype) == tokens


def test_scales_are_in_the_block() -> None:
    """8 heads of 128 in int4 per token and head: 16 tokens x 8 x 136 bytes a layer."""
    layout = block_layout(shape(FULL, FULL), "int4_per_token_head", 16, Parallelism())
    assert isinstance(layout, BlockLayout)
    assert layout.block_bytes == 2 * 16 * 8 * 136
    assert layout.bytes_per_token == 2 * 8 * 136
