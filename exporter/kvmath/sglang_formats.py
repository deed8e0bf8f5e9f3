"""Bytes of what one token leaves in an SGLang pool, by cache dtype.

SGLang 0.5.23 ``srt/model_executor/pool_configurator.py`` (``_compute_cell_size``)
and ``srt/mem_cache/kv_cache_configurator.py`` (``calculate_mla_kv_cache_dim``).
A few formats round once for all layers of a pool, so bytes are those of several
layers together, never of one times a count.
"""

from __future__ import annotations

from typing import Final

from exporter.kvmath.dtypes import element_bytes, spelled
from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.layers import Kind, LayerCache
from exporter.kvmath.parallel import kv_heads_per_rank
from exporter.kvmath.states import RecurrentState

_FP4: Final = frozenset({"nvfp4", "fp4_mx_block16"})
_FP4_BLOCK: Final = 16  # values per byte of scale
_MXFP8_BLOCK: Final = 32  # likewise
# A sparse attention's fp8 latent keeps float32 scales of 128 values, and its rotary part in 16 bits.
_LATENT_BLOCK: Final = 128
_ROTARY: Final = 64
# Only this family's config field names the state's dtype as SGLang reads it (mamba_ssm_dtype); another
# family's own field (Nemotron-H: mamba_ssm_cache_dtype) SGLang 0.5.23 does not look at.
_READS_STATE_DTYPE: Final = frozenset({"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"})


def stored_in(cache_dtype: str) -> int | Unavailable:
    """Bytes of one element SGLang stores plainly: mxfp8's values are fp8, its scales come on top."""
    return 1 if spelled(cache_dtype) == "mxfp8" else element_bytes(cache_dtype)


def heads_bytes(layer: LayerCache, layers: int, cache_dtype: str, ranks: int) -> int | Unavailable:
    """K and V of one token in ``layers`` layers like ``layer``, on one of ``ranks`` that share its heads.

    heads x (k_dim + v_dim) x element x layers; mxfp8: a byte of scale more per 32 values, rounded down.
    ``Unavailable``: KV_CACHE_DTYPE for 4-bit caches, whose number of scale layouts and
    whose workspace depend on the attention backends
    (``layers/quantization/fp4_kv_cache_quant_method.py``), TENSOR_PARALLEL_SIZE.
    """
    heads = kv_heads_per_rank(layer.kv_heads, ranks)
    if isinstance(heads, Unavailable):
        return heads
    if spelled(cache_dtype) in _FP4:
        return Unavailable(
            Reason.KV_CACHE_DTYPE, f"{spelled(cache_dtype)}: its scales depend on SGLang's attention backend"
        )
    size = stored_in(cache_dtype)
    if isinstance(size, Unavailable):
        return size
    elements = layer.elements_per_token(heads) * layers
    scales = elements // _MXFP8_BLOCK if spelled(cache_dtype) == "mxfp8" else 0
    return elements * size + scales


def latent_bytes(
    elements: int, layers: int, cache_dtype: str, sparse: bool, raw_latent: bool
) -> int | Unavailable:
    """The latent of one token (kv_lora_rank + qk_rope_head_dim ``elements``) in ``layers`` layers.

    Plain: elements x size.  4 bits: half a byte an element and a byte for every
    whole 16.  ``sparse`` (an indexer chooses the tokens): 16 bits, or e4m3 with scales
    and a 16-bit rotary part, 656 bytes of 512 + 64; with ``raw_latent`` (TRT-LLM and
    TileLang kernels) plain fp8.
    """
    word = spelled(cache_dtype)
    if sparse and word not in ("bfloat16", "float16", "fp8", "fp8_e4m3", "float8_e4m3fn"):
        return Unavailable(
            Reason.KV_CACHE_DTYPE, f"{word}: SGLang's sparse attention takes bfloat16 or fp8_e4m3"
        )
    if word in _FP4:
        return elements * layers // 2 + elements // _FP4_BLOCK * layers
    size = stored_in(word)
    if isinstance(size, Unavailable):
        return size
    if sparse and size == 1 and not raw_latent:
        values = elements - _ROTARY
        if values < _LATENT_BLOCK or values % _LATENT_BLOCK:
            return Unavailable(
                Reason.KV_CACHE_DTYPE, f"{word}: a latent of {elements} elements has no such record"
            )
        return layers * (values + values // _LATENT_BLOCK * 4 + _ROTARY * 2)
    return elements * size * layers


def pool_bytes(
    layers: list[LayerCache], cache_dtype: str, ranks: int, sparse: bool = False, raw_latent: bool = False
) -> int | Unavailable:
    """One token in all of ``layers``, which are alike, on one of ``ranks`` ranks; 0 for none."""
    if not layers:
        return 0
    first = layers[0]
    if first.kind is Kind.MLA:
        return latent_bytes(first.k_dim, len(layers), cache_dtype, sparse, raw_latent)
    return heads_bytes(first, len(layers), cache_dtype, ranks)


def state_bytes(
    state: RecurrentState, model_type: str, tensor: int, state_dtype: str = "auto"
) -> int | Unavailable:
    """One layer's recurrent state in one slot on one rank.

    The convolution in 16 bits whatever the model's dtype; the temporal part in
    float32 unless the config says otherwise in a field SGLang reads, or
    ``state_dtype`` (--mamba-ssm-dtype) does
    (0.5.23 ``srt/configs/mamba_utils.py`` ``mamba2_state_dtype``).
    """
    asked = spelled(state_dtype)
    if asked in ("", "auto"):
        asked = (state.temporal_dtype if model_type in _READS_STATE_DTYPE else "") or "float32"
    conv, temporal = state.conv_elements(tensor), state.temporal_elements(tensor)
    size = element_bytes(asked)
    if isinstance(conv, Unavailable):
        return conv
    if isinstance(temporal, Unavailable):
        return temporal
    return size if isinstance(size, Unavailable) else conv * 2 + temporal * size
