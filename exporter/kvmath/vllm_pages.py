"""Every layer's cache as vLLM stores it: its page, the block of tokens it holds, its padding.

vLLM 0.32.0: ``get_kv_cache_spec`` of the attention layers,
v1/kv_cache_interface.py, platforms/interface.py ``_align_hybrid_block_size``,
models/deepseek_v4.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Final

from exporter.kvmath.dtypes import spelled
from exporter.kvmath.formats import record_bytes, state_bytes
from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.layers import EVERY_TOKEN, Kind, LayerCache
from exporter.kvmath.model import ModelShape
from exporter.kvmath.parallel import kv_heads_per_rank

# Kernels take blocks of whole multiples of this; MLA beside states needs 128.
_KERNEL_TOKENS: Final = 16
_LATENT_KERNEL_TOKENS: Final = 128
# DeepSeek V4 (models/deepseek_v4): block sizes that give every kind the page of 64 records, by window
# for the rings, and pages in whole multiples of 576 bytes.
_V4_BLOCK_TOKENS: Final = 256
_V4_WINDOW_BLOCK_TOKENS: Final = 64
_V4_RING_BLOCK_TOKENS: Final = {8: 4, 128: 8}
_V4_PAGE_MULTIPLE: Final = 576
# Mamba 2 mixers reserve a block for a prefill checkpoint (layers/mamba/mamba_mixer2.py).
_CHECKPOINT_BLOCKS: Final = {"mamba2": 1}
_FP8: Final = frozenset({"fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc"})
# The attention layers of models/falcon.py are built without the cache settings and
# stay at the model's dtype whatever --kv-cache-dtype says.
_DEAF_TO_CACHE_DTYPE: Final = frozenset({"falcon", "RefinedWeb", "RefinedWebModel"})


@dataclass(frozen=True, slots=True)
class Page:
    """One layer's cache on one rank; what vLLM calls a spec.

    ``page_bytes`` holds ``block_tokens`` tokens and includes padding,
    ``data_bytes`` does not.  ``vector`` (heads here, widths) keeps layers apart
    that take the same bytes in different shapes.
    """

    kind: Kind
    window_tokens: int
    block_tokens: int
    page_bytes: int
    data_bytes: int
    vector: tuple[int, ...] = ()
    checkpoint_blocks: int = 0

    @property
    def token_bytes(self) -> Fraction:
        """Bytes one more token of a long context takes, 0 for a layer that does not keep every token."""
        return Fraction(self.data_bytes, self.block_tokens) if self.kind in EVERY_TOKEN else Fraction(0)

    @property
    def state_bytes(self) -> int:
        """Bytes of a sequence's state, 0 for a layer without."""
        return self.data_bytes if self.kind is Kind.STATE else 0

    def of_tokens(self, block_tokens: int) -> Page:
        """The same layer with another block size."""
        return replace(
            self,
            block_tokens=block_tokens,
            page_bytes=self.page_bytes * block_tokens // self.block_tokens,
            data_bytes=self.data_bytes * block_tokens // self.block_tokens,
        )


@dataclass(frozen=True, slots=True)
class StateOptions:
    """How the engine stores recurrent states.

    ``model_dtype`` and ``temporal_dtype`` (--mamba-ssm-cache-dtype): "auto" for the
    model's own.  ``block_tokens`` of a state block without prefix caching
    (max_model_len).
    """

    prefix_caching: bool = True
    draft_tokens: int = 0
    model_dtype: str = "auto"
    temporal_dtype: str = "auto"
    max_model_len: int = 0


def stored_dtype(shape: ModelShape, cache_dtype: str) -> str | Unavailable:
    """The dtype vLLM stores this model's cache in when asked for ``cache_dtype`` (resolved, not "auto").

    Sparse MLA turns fp8 into its own records, DeepSeek V4 knows nothing else,
    Falcon ignores the setting.
    """
    word = spelled(cache_dtype)
    if word.startswith(("turboquant", "ultraquant")):
        return Unavailable(Reason.KV_CACHE_DTYPE, f"{word}: its boundary layers stay in 16 bits, not covered")
    if shape.has(Kind.RECORD_WINDOW):
        if word in _FP8 or word == "fp8_ds_mla":
            return "fp8_ds_mla"
        return Unavailable(Reason.KV_CACHE_DTYPE, f"{shape.model_type}: stores fp8_ds_mla only")
    if shape.has(Kind.MLA) and shape.has(Kind.INDEXER) and word in _FP8:
        return "fp8_ds_mla"
    if shape.model_type in _DEAF_TO_CACHE_DTYPE and word in _FP8:
        return model_dtype(shape, "auto")
    return word


def model_dtype(shape: ModelShape, told: str) -> str:
    """The dtype the model runs in: ``told``, else the config's; float32 checkpoints load in 16 bits."""
    if (word := spelled(told)) not in ("", "auto"):
        return word
    return "float16" if spelled(shape.dtype) == "float16" else "bfloat16"


def default_block_tokens(shape: ModelShape, cache_dtype: str) -> int:
    """Tokens of a block vLLM 0.32.0 chooses on an H100-class GPU, before hybrids raise it.

    16 (FlashAttention, Triton, and their MLA kernels); 64 for an fp8 latent (FlashMLA)
    and for sparse MLA; 256 for DeepSeek V4.
    """
    if shape.has(Kind.RECORD_WINDOW):
        return _V4_BLOCK_TOKENS
    if shape.has(Kind.MLA):
        word = spelled(cache_dtype)
        records = word in _FP8 or word.endswith("_ds_mla")
        return 64 if records or shape.has(Kind.INDEXER) else 16
    return 16


def pages(
    shape: ModelShape,
    layers: tuple[LayerCache, ...],
    cache_dtype: str,
    block_tokens: int,
    tensor: int,
    options: StateOptions,
) -> list[Page] | Unavailable:
    """Every cache of ``layers`` (the model's, drafts included) with its page on one rank."""
    dtype = stored_dtype(shape, cache_dtype)
    if isinstance(dtype, Unavailable):
        return dtype
    if shape.has(Kind.RECORD_WINDOW) and block_tokens != _V4_BLOCK_TOKENS:
        return Unavailable(Reason.BLOCK_SIZE, f"{shape.model_type}: blocks of {_V4_BLOCK_TOKENS} tokens only")
    plain: list[Page | None] = []
    for layer in layers:
        page = None if layer.state else _page(layer, dtype, block_tokens, tensor)
        if isinstance(page, Unavailable):
            return page
        plain.append(page)
    sizes: list[int] = []
    for layer in layers:
        size = _state_page(shape, layer, tensor, options)
        if isinstance(size, Unavailable):
            return size
        sizes.append(size)
    if not any(sizes):
        return [page for page in plain if page is not None]
    attention = next((page for page in plain if page is not None), None)
    block_tokens = _raised(attention, max(sizes), block_tokens)
    state_tokens = block_tokens if options.prefix_caching else options.max_model_len or block_tokens
    padded = attention.of_tokens(block_tokens).page_bytes if attention else 0
    return [
        page.of_tokens(block_tokens)
        if page
        else Page(
            Kind.STATE,
            0,
            state_tokens,
            max(size, padded),
            size,
            checkpoint_blocks=_CHECKPOINT_BLOCKS.get(layer.state.name, 0) if layer.state else 0,
        )
        for layer, page, size in zip(layers, plain, sizes, strict=True)
    ]


def _state_page(
    shape: ModelShape, layer: LayerCache, tensor: int, options: StateOptions
) -> int | Unavailable:
    if layer.state is None:
        return 0
    return state_bytes(
        layer.state,
        model_dtype(shape, options.model_dtype),
        tensor,
        options.draft_tokens,
        options.temporal_dtype,
    )


def _page(layer: LayerCache, dtype: str, block_tokens: int, tensor: int) -> Page | Unavailable:
    record = record_bytes(layer, dtype, tensor)
    if isinstance(record, Unavailable):
        return record
    heads = kv_heads_per_rank(layer.kv_heads, tensor)
    if isinstance(heads, Unavailable):
        return heads
    multiple = 1
    if layer.kind is Kind.RECORD_WINDOW:
        block_tokens = _V4_WINDOW_BLOCK_TOKENS
        multiple = _V4_PAGE_MULTIPLE
    elif layer.kind is Kind.RING:
        block_tokens = _V4_RING_BLOCK_TOKENS[layer.window_tokens]
        multiple = _V4_PAGE_MULTIPLE
    elif layer.tokens_per_record > 1:
        multiple = _V4_PAGE_MULTIPLE
    data = record * (block_tokens // layer.tokens_per_record)
    return Page(
        layer.kind,
        layer.window_tokens,
        block_tokens,
        -(-data // multiple) * multiple,
        data,
        (heads, layer.k_dim, layer.v_dim),
    )


def _raised(attention: Page | None, state_page: int, block_tokens: int) -> int:
    """The block size at which an attention page holds the largest state.

    Whole multiples of the block asked for, and of the kernel's (128 for MLA).
    """
    if attention is None:
        return block_tokens
    per_token = attention.page_bytes // attention.block_tokens
    step = max(block_tokens, _KERNEL_TOKENS)
    if attention.kind is Kind.MLA:
        step = max(step, _LATENT_KERNEL_TOKENS)
    raised = step * math.ceil(Fraction(state_page, step * per_token))
    raised = _KERNEL_TOKENS * math.ceil(Fraction(raised, _KERNEL_TOKENS))
    return max(block_tokens, raised)
