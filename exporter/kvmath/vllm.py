"""How vLLM lays the caches of a model out: pages, groups of layers, blocks.

Follows vLLM 0.32.0 ``v1/core/kv_cache_utils.py`` and ``v1/kv_cache_interface.py``.
A block holds ``block_tokens`` tokens in every layer of one group; all groups
draw block ids from one pool, so every group's block takes the bytes of the
largest group.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Final

from exporter.kvmath.blocks import BlockLayout, CacheGroup, GroupPart
from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.layers import RECENT_TOKENS, Kind, LayerCache
from exporter.kvmath.model import ModelShape
from exporter.kvmath.parallel import Parallelism, pipeline_stages, split_problem
from exporter.kvmath.vllm_groups import Grouping, grouped
from exporter.kvmath.vllm_pages import Page, StateOptions, default_block_tokens, pages

__all__ = ["BlockLayout", "CacheGroup", "block_layout", "default_block_tokens"]

# Methods of speculative decoding that keep no cache of their own.
_WITHOUT_DRAFT_LAYERS: Final = frozenset({"ngram", "ngram_gpu", "suffix"})
_SHARED_BY_CONTEXT_RANKS: Final = frozenset({Kind.FULL, Kind.MLA, Kind.INDEXER})


def block_layout(
    shape: ModelShape,
    cache_dtype: str,
    block_tokens: int,
    parallelism: Parallelism,
    hybrid_manager: bool = True,
    *,
    prefix_caching: bool | None = None,
    speculative: str = "",
    speculative_tokens: int = 1,
    max_model_len: int = 0,
    model_dtype: str = "auto",
    state_dtype: str = "auto",
    encoder_tokens: int | None = None,
) -> BlockLayout | Unavailable:
    """The layout of ``shape`` under vLLM.

    ``cache_dtype`` is resolved (not "auto"); ``block_tokens`` is what the engine
    reports or was asked for (``default_block_tokens``): hybrids raise it;
    ``hybrid_manager`` is off under --disable-hybrid-kv-cache-manager.
    ``prefix_caching`` None: the engine's default, on unless the model keeps nothing but states.
    ``speculative``: "" for none, "mtp" for the checkpoint's own draft layers, or a
    method without any ("ngram", "suffix"), with ``speculative_tokens`` a step.
    ``state_dtype`` is --mamba-ssm-cache-dtype.  ``max_model_len`` only names the
    block size of states without prefix caching.  ``encoder_tokens``: the encoder's
    length of one request, else what the config fixes, else none.

    ``Unavailable``: KV_CACHE_DTYPE, BLOCK_SIZE, TENSOR_PARALLEL_SIZE and
    PIPELINE_PARALLEL_SIZE for values that fit no engine, UNSUPPORTED_PARALLELISM
    for decode context parallelism the engine refuses, SPECULATIVE_DECODING for
    drafts whose layers the config does not tell, UNSUPPORTED_ATTENTION for
    layers the engine cannot put into groups.
    """
    if (problem := split_problem(shape, parallelism)) is not None:
        return problem
    if block_tokens < 1:
        return Unavailable(Reason.BLOCK_SIZE, "block size below 1 token")
    if shape.attention_heads % parallelism.tensor:
        return Unavailable(
            Reason.TENSOR_PARALLEL_SIZE,
            f"{shape.attention_heads} query heads do not spread over {parallelism.tensor} ranks",
        )
    if (problem := _context_problem(shape, parallelism)) is not None:
        return problem
    drafts = _drafts(shape, speculative)
    if isinstance(drafts, Unavailable):
        return drafts
    draft_tokens = speculative_tokens if speculative else 0
    if prefix_caching is None:
        prefix_caching = any(layer.kind is not Kind.STATE for layer in shape.layers)
    layers = tuple(_encoder(layer, encoder_tokens) for layer in (*shape.layers, *drafts))
    found = pages(
        shape,
        layers,
        cache_dtype,
        block_tokens,
        parallelism.tensor,
        StateOptions(prefix_caching, draft_tokens, model_dtype, state_dtype, max_model_len),
    )
    if isinstance(found, Unavailable):
        return found
    grouping = grouped(found, hybrid_manager)
    if isinstance(grouping, Unavailable):
        return grouping
    # A chain of draft modules reads back further than the window (config/vllm.py).
    retained = min(len(drafts), draft_tokens) - 1 if len(drafts) > 1 and draft_tokens > 1 else 0
    groups = tuple(
        _group(
            [grouping.pages[number] for number in members],
            mixed,
            ranks=parallelism.decode_context,
            draft_tokens=draft_tokens,
            prefix_caching=prefix_caching,
            retained_tokens=retained,
        )
        for members, mixed in zip(grouping.members, grouping.mixed, strict=True)
    )
    asked = next((page.block_tokens for page in found if page.kind not in RECENT_TOKENS | {Kind.STATE}), 0)
    return _laid_out(shape, grouping, groups, parallelism, asked or block_tokens)


def _drafts(shape: ModelShape, speculative: str) -> tuple[LayerCache, ...] | Unavailable:
    """Caches speculative decoding adds to the model's own."""
    if not speculative or speculative in _WITHOUT_DRAFT_LAYERS:
        return ()
    if speculative != "mtp":
        return Unavailable(Reason.SPECULATIVE_DECODING, f"{speculative[:40]}: the draft model's layers")
    if not shape.draft_layers:
        return Unavailable(Reason.SPECULATIVE_DECODING, f"{shape.model_type}: no draft layers known")
    return shape.draft_layers


def _encoder(layer: LayerCache, encoder_tokens: int | None) -> LayerCache:
    if layer.kind is not Kind.CROSS or encoder_tokens is None:
        return layer
    return LayerCache(layer.kind, layer.kv_heads, layer.k_dim, layer.v_dim, encoder_tokens)


def _context_problem(shape: ModelShape, parallelism: Parallelism) -> Unavailable | None:
    """Why decode context parallelism cannot be had, or None (0.32.0 config/model.py, config/parallel.py)."""
    ranks = parallelism.decode_context
    if ranks == 1:
        return None
    refused = ""
    if ranks < 1 or parallelism.tensor % ranks:
        refused = f"{parallelism.tensor} tensor-parallel ranks do not divide by {ranks}"
    elif not {layer.kind for layer in shape.layers} <= _SHARED_BY_CONTEXT_RANKS | {Kind.STATE}:
        refused = "windows, chunks and encoders cannot be shared out"
    else:
        heads = {layer.kv_heads for layer in shape.layers if layer.kind is Kind.FULL}
        if heads and (
            ranks > parallelism.tensor // max(heads) or shape.attention_heads // max(heads) % ranks
        ):
            refused = f"{max(heads)} KV heads leave no {ranks} copies on {parallelism.tensor} ranks"
    if refused:
        return Unavailable(Reason.UNSUPPORTED_PARALLELISM, f"decode context parallelism: {refused}")
    return None


def _group(
    pages: Sequence[Page],
    mixed: bool,
    *,
    ranks: int,
    draft_tokens: int,
    prefix_caching: bool,
    retained_tokens: int,
) -> CacheGroup:
    """One group as the block manager sees it: it counts like its largest page."""
    lead = max(pages, key=lambda page: page.page_bytes)
    alike: dict[Page, int] = {}
    for page in pages:
        alike[page] = alike.get(page, 0) + 1
    state, recent = lead.kind is Kind.STATE, lead.kind in RECENT_TOKENS
    return CacheGroup(
        kind=lead.kind,
        layers=len(pages),
        window_tokens=lead.window_tokens,
        block_tokens=lead.block_tokens,
        page_bytes=sum(page.page_bytes for page in pages) if mixed else lead.page_bytes,
        mixed=mixed,
        ranks_per_block=ranks if lead.kind in _SHARED_BY_CONTEXT_RANKS else 1,
        spare_blocks=draft_tokens if state else 0,
        checkpoint_blocks=lead.checkpoint_blocks,
        prefix_cached=prefix_caching,
        retained_tokens=retained_tokens if recent else 0,
        parts=tuple(
            GroupPart(page.kind, count, page.page_bytes, page.data_bytes) for page, count in alike.items()
        ),
    )


def _laid_out(
    shape: ModelShape,
    grouping: Grouping,
    groups: tuple[CacheGroup, ...],
    parallelism: Parallelism,
    block_tokens: int,
) -> BlockLayout:
    stages = pipeline_stages(shape.decoder_depth, parallelism.pipeline)
    # Draft layers run behind the last decoder layer.
    last = shape.decoder_depth - 1
    own = len(shape.layers)
    depths = [shape.depth(n) if n < own else last for n in range(len(grouping.pages))]
    here = [[n for n, depth in enumerate(depths) if depth in stage] for stage in stages]
    blocks = [_block_bytes(grouping, set(numbers)) for numbers in here]
    tokens = [
        sum((grouping.pages[n].token_bytes for n in numbers), Fraction(0)) / parallelism.decode_context
        for numbers in here
    ]
    states = [sum(grouping.pages[n].state_bytes for n in numbers) for numbers in here]
    return BlockLayout(
        groups=groups,
        block_bytes=max(blocks),
        replica_block_bytes=sum(blocks) * parallelism.tensor,
        bytes_per_token=_number(sum(tokens, Fraction(0)) * parallelism.tensor),
        device_bytes_per_token=_number(max(tokens)),
        block_tokens=block_tokens,
        state_bytes_per_sequence=sum(states) * parallelism.tensor,
        device_state_bytes_per_sequence=max(states),
    )


def _number(value: Fraction) -> float:
    """An int where ``value`` is whole: nearly always, and exact then however large."""
    return value.numerator if value.denominator == 1 else float(value)


def _block_bytes(grouping: Grouping, here: set[int]) -> int:
    """One block on one GPU: the largest group, of whose layers only the stage's are there."""
    return max(
        sum(grouping.pages[number].page_bytes for number in members if number in here)
        for members in grouping.members
    )
