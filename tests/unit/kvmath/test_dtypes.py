"""Cache dtypes: names, sizes, and what "auto" means."""

import pytest

from exporter.kvmath.dtypes import element_bytes, resolve_cache_dtype
from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.layers import Kind, LayerCache
from exporter.kvmath.model import ModelShape


def shape(dtype: str = "bfloat16", checkpoint: str = "") -> ModelShape:
    return ModelShape("llama", (), (LayerCache(Kind.FULL, 1, 64, 64),), 4096, dtype, checkpoint, 1)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("bfloat16", 2),
        ("torch.bfloat16", 2),
        ("bf16", 2),
        ("float16", 2),
        ("half", 2),
        ("fp16", 2),
        ("float32", 4),
        ("fp32", 4),
        ("fp8", 1),
        ("FP8", 1),
        ("fp8_e4m3", 1),
        ("fp8_e5m2", 1),
        ("fp8_inc", 1),
        ("float8_e4m3fn", 1),
        ("torch.float8_e5m2", 1),
        ("float8_e4m3fnuz", 1),
    ],
)
def test_element_bytes(name: str, size: int) -> None:
    """Formats whose vectors are nothing but elements."""
    assert element_bytes(name) == size


@pytest.mark.parametrize(
    "name", ["auto", "", "nvfp4", "fp8_ds_mla", "fp8_per_token_head", "int8", "mxfp8", "float8", "x" * 10_000]
)
def test_formats_with_scales_and_unknown_names_are_withheld(name: str) -> None:
    """fp8_per_token_head starts like fp8 and takes 4 bytes more per vector: no matching by prefix."""
    size = element_bytes(name)
    assert isinstance(size, Unavailable)
    assert size.reason is Reason.KV_CACHE_DTYPE
    assert len(size.detail) < 100


@pytest.mark.parametrize(
    ("requested", "model_dtype", "config", "checkpoint", "expected"),
    [
        ("fp8_e5m2", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"),  # an explicit choice wins over all
        ("bf16", "auto", "float16", "", "bfloat16"),  # SGLang's spelling
        ("auto", "float16", "bfloat16", "fp8_e4m3", "fp8_e4m3"),  # the checkpoint's own scheme
        ("auto", "half", "bfloat16", "", "float16"),
        ("auto", "auto", "float16", "", "float16"),
        ("", "", "bfloat16", "", "bfloat16"),
        ("auto", "auto", "float32", "", "bfloat16"),  # Gemma 2 publishes float32; engines load 16 bits
        ("auto", "auto", "", "", "bfloat16"),
        ("auto", "float32", "bfloat16", "", "float32"),  # asked for: 4 bytes
        ("nvfp4", "auto", "bfloat16", "", "nvfp4"),  # a name to show; its bytes are withheld later
    ],
)
def test_auto(requested: str, model_dtype: str, config: str, checkpoint: str, expected: str) -> None:
    """The order in which the engines decide."""
    assert resolve_cache_dtype(requested, model_dtype, shape(config, checkpoint)) == expected


@pytest.mark.parametrize(
    ("requested", "model_dtype", "config"),
    [("int3", "auto", "bfloat16"), ("auto", "int3", "bfloat16"), ("auto", "auto", "int3")],
)
def test_names_no_engine_uses(requested: str, model_dtype: str, config: str) -> None:
    """Whoever decides must decide in words an engine knows."""
    found = resolve_cache_dtype(requested, model_dtype, shape(config))
    assert isinstance(found, Unavailable)
    assert found.reason is Reason.KV_CACHE_DTYPE
