"""Bytes of what one token leaves in a layer, by cache dtype: a layout, not a number per element.

Most dtypes take the same bytes per element; the others keep scales beside the
values, so their size depends on the vector.  vLLM 0.32.0: per-token-and-head
scales v1/attention/backends/triton_attn.py and
model_executor/layers/attention/mla_attention.py, nvfp4
v1/attention/backends/flashinfer.py, the ds_mla records
v1/attention/backends/mla/flashmla_sparse.py.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from exporter.kvmath.dtypes import element_bytes, spelled
from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.layers import Kind, LayerCache
from exporter.kvmath.parallel import kv_heads_per_rank
from exporter.kvmath.states import RecurrentState

# Bits of one value where a float32 scale follows every vector of a head.
_PER_TOKEN_HEAD_BITS: Final = {"fp8_per_token_head": 8, "int8_per_token_head": 8, "int4_per_token_head": 4}
_SCALE_BYTES: Final = 4
_NVFP4: Final = frozenset({"nvfp4", "nvfp4_4over6"})
# Opaque records of a 512 + 64 latent: values, rotary part in 16 bits, scales.
_LATENT_RECORD_BYTES: Final = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
_LATENT_ELEMENTS: Final = 576


def pair_bytes(cache_dtype: str, k_dim: int, v_dim: int) -> int | Unavailable:
    """Bytes of one head's K and V of one token.

    Plain: (k + v) x size.  Per token and head: values and a 4-byte scale for K
    and for V.  nvfp4: half a byte per value and a byte of scale for every 16.
    ``Unavailable(KV_CACHE_DTYPE)`` for dtypes that hold no K and V (ds_mla) or
    whose layout is not covered (turboquant: its boundary layers stay in 16 bits).
    """
    word = spelled(cache_dtype)
    if (bits := _PER_TOKEN_HEAD_BITS.get(word)) is not None:
        return k_dim * bits // 8 + v_dim * bits // 8 + 2 * _SCALE_BYTES
    if word in _NVFP4:
        if k_dim != v_dim or k_dim % 16:
            return Unavailable(Reason.KV_CACHE_DTYPE, f"{word}: needs K and V of one width, a multiple of 16")
        return 2 * (k_dim // 2 + k_dim // 16)
    size = element_bytes(word)
    return size if isinstance(size, Unavailable) else (k_dim + v_dim) * size


def latent_bytes(cache_dtype: str, elements: int) -> int | Unavailable:
    """Bytes of one MLA latent of ``elements`` (kv_lora_rank + qk_rope_head_dim).

    Plain: elements x size.  fp8_ds_mla 656 and nvfp4_ds_mla 352 for 576
    elements.  Per token and head: values and two 4-byte scales.
    """
    word = spelled(cache_dtype)
    if word in _LATENT_RECORD_BYTES:
        if elements != _LATENT_ELEMENTS:
            return Unavailable(Reason.KV_CACHE_DTYPE, f"{word}: made for a latent of 512 + 64 elements")
        return _LATENT_RECORD_BYTES[word]
    if (bits := _PER_TOKEN_HEAD_BITS.get(word)) is not None:
        return elements * bits // 8 + 2 * _SCALE_BYTES
    size = element_bytes(word)
    return size if isinstance(size, Unavailable) else elements * size


def record_bytes(layer: LayerCache, cache_dtype: str, tensor: int = 1) -> int | Unavailable:
    """Bytes of what one token (or one group of ``tokens_per_record``) leaves in ``layer`` on one rank.

    Heads are divided over the ranks and copied where there are too few; one-vector
    caches (latents, indexers, records) are whole on every rank.  0 for a state.
    """
    if layer.kind is Kind.STATE:
        return 0
    if layer.record_bytes:
        return layer.record_bytes
    if layer.kind is Kind.MLA:
        return latent_bytes(cache_dtype, layer.k_dim)
    heads = kv_heads_per_rank(layer.kv_heads, tensor)
    pair = pair_bytes(cache_dtype, layer.k_dim, layer.v_dim)
    if isinstance(heads, Unavailable):
        return heads
    return pair if isinstance(pair, Unavailable) else heads * pair


def token_bytes(layer: LayerCache, cache_dtype: str, tensor: int = 1) -> Fraction | Unavailable:
    """Bytes per token on one rank, exact: a compressed record is shared by its tokens."""
    record = record_bytes(layer, cache_dtype, tensor)
    return record if isinstance(record, Unavailable) else Fraction(record, layer.tokens_per_record)


def state_bytes(
    state: RecurrentState,
    model_dtype: str = "bfloat16",
    tensor: int = 1,
    draft_tokens: int = 0,
    temporal_dtype: str = "auto",
) -> int | Unavailable:
    """Bytes of one sequence's state in one layer on one rank.

    ``model_dtype`` is resolved (16 bits unless the engine was told otherwise);
    ``temporal_dtype`` overrides the state's own (--mamba-ssm-cache-dtype), "auto"
    does not.
    """
    asked = spelled(temporal_dtype)
    wide = asked if asked not in ("", "auto") else state.temporal_dtype or model_dtype
    total = 0
    for elements, dtype in (
        (state.conv_elements(tensor, draft_tokens), model_dtype),
        (state.temporal_elements(tensor), wide),
    ):
        size = element_bytes(dtype)
        if isinstance(elements, Unavailable):
            return elements
        if isinstance(size, Unavailable):
            return size
        total += elements * size
    return total
