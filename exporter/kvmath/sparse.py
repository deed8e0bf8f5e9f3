"""Sparse attention: caches beside the attention's own (indexers), and DeepSeek V4's compressed records.

vLLM 0.32.0: models/deepseek_v32/attention.py, model_executor/models/deepseek_v2.py (``Indexer``),
models/deepseek_v4/attention.py and compressor.py, models/minimax_m3.
"""

from __future__ import annotations

from typing import Final

from exporter.kvmath.fields import Fields, bad, unsupported
from exporter.kvmath.heads import Names, grouped, latent
from exporter.kvmath.layers import Kind, LayerCache
from exporter.kvmath.stack import Stack, attention, depth

_SCALE_BLOCK: Final = 128  # fp8 values per float32 scale in an indexer's key
# DeepSeek V4's record of one token: 448 fp8 values, 64 rotary values in 16 bits, 8 bytes of scales.
V4_RECORD_BYTES: Final = 448 + 128 + 8
_V4_HEAD_DIM: Final = 512


def index_key(head_dim: int, tokens_per_record: int = 1) -> LayerCache:
    """An indexer's key: head_dim fp8 values and a 4-byte scale per 128, whatever the cache dtype."""
    size = head_dim + 4 * -(-head_dim // _SCALE_BLOCK)
    return LayerCache(Kind.INDEXER, 1, head_dim, 0, tokens_per_record=tokens_per_record, record_bytes=size)


def sparse_mla(fields: Fields, names: Names) -> Stack:
    """DeepSeek V3.2 and GLM 5: MLA, with an indexer in every layer or in those that do not share one."""
    layers = depth(fields, names)
    if fields.raw("kv_lora_rank") is None:
        raise bad("kv_lora_rank: missing beside an indexer")
    heads = latent(fields, names)
    key, own = index_key(fields.count(("index_head_dim",))), attention(heads)
    return Stack(
        tuple((key, own) if indexed else (own,) for indexed in _own_indexers(fields, layers)), heads.query
    )


def _own_indexers(fields: Fields, layers: int) -> list[bool]:
    """Per layer, whether it has an indexer of its own: GLM's ``indexer_types``, ``index_topk_pattern``
    ("F" full, "S" shared) or every ``index_topk_freq``-th layer from ``index_skip_topk_offset``."""
    types = fields.words("indexer_types", layers, ("full", "shared"))
    if pattern := fields.text("index_topk_pattern"):
        ruled = [i >= len(pattern) or pattern[i] != "S" for i in range(layers)]
    else:
        every, offset = fields.count_or(("index_topk_freq",), 1), fields.whole("index_skip_topk_offset", 2)
        ruled = [max(i - offset + 1, 0) % every == 0 for i in range(layers)]
    if types is None:
        return ruled
    said = [kind == "full" for kind in types]
    if fields.raw("index_topk_freq") is not None and said != ruled:
        raise bad("indexer_types: contradicts index_topk_freq")
    return said


def deepseek_v4(fields: Fields, names: Names) -> Stack:
    """DeepSeek V4: a window of records in every layer, and by ``compress_ratios`` compressed ones.

    4: a record and an indexer key for every 4 tokens, with rings that hold the
    compressors' inputs of the last 8 tokens; 128: a record for every 128, a ring
    of 128; 0: the window alone.  Entries beyond the decoder are draft layers'.
    """
    layers = depth(fields, names)
    ratios = fields.numbers("compress_ratios")
    if ratios is None or len(ratios) < layers:
        raise bad(f"compress_ratios: expected at least {layers} entries")
    if not set(ratios[:layers]) <= {0, 4, 128}:
        raise unsupported("compress_ratios: a ratio that is none of 0, 4, 128")
    if (head_dim := fields.count(names.head_dim)) != _V4_HEAD_DIM:
        raise unsupported("head_dim: records of 512 elements only")
    window = v4_window(fields)
    index_dim = fields.count(("index_head_dim",)) if 4 in ratios[:layers] else 0

    def record(ratio: int) -> LayerCache:
        return LayerCache(
            Kind.COMPRESSED, 1, head_dim, 0, tokens_per_record=ratio, record_bytes=V4_RECORD_BYTES
        )

    def ring(vectors: int, width: int, tokens: int) -> LayerCache:
        return LayerCache(Kind.RING, 1, vectors * width, 0, tokens, record_bytes=4 * vectors * width)

    # A compressor keeps values and scores (2 vectors), overlapping (2 x) where the ratio is 4.
    owned = {
        0: (window,),
        4: (window, index_key(index_dim, 4), ring(4, index_dim, 8), record(4), ring(4, head_dim, 8)),
        128: (window, record(128), ring(2, head_dim, 128)),
    }
    return Stack(tuple(owned[ratio] for ratio in ratios[:layers]), fields.count(names.heads))


def v4_window(fields: Fields) -> LayerCache:
    """The window of records every layer of DeepSeek V4 has, draft layers included."""
    window = fields.window(128)
    if not window:
        raise bad("sliding_window: missing")
    return LayerCache(Kind.RECORD_WINDOW, 1, _V4_HEAD_DIM, 0, window, record_bytes=V4_RECORD_BYTES)


def minimax_m3(fields: Fields, names: Names) -> Stack:
    """MiniMax M3: GQA, and a 16-bit index key in layers where ``sparse_attention_freq`` (else
    ``moe_layer_freq``) is 1.  The key stays in 16 bits under an fp8 cache and is copied to every rank."""
    layers = depth(fields, names)
    heads = grouped(fields, names)
    inner = fields.section("sparse_attention_config")
    where = inner.numbers("sparse_attention_freq")
    if where is None:
        where = fields.numbers("moe_layer_freq")
    if where is None or len(where) != layers or not set(where) <= {0, 1}:
        raise bad(f"sparse_attention_config.sparse_attention_freq: expected {layers} entries of 0 or 1")
    width = inner.count(("sparse_index_dim",))
    key = LayerCache(Kind.INDEXER, 1, width, 0, record_bytes=2 * width)
    own = attention(heads)
    return Stack(tuple((own, key) if here else (own,) for here in where), heads.query)
