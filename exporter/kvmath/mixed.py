"""Families whose layers differ in heads, width or reach, or read another layer's cache."""

from __future__ import annotations

from dataclasses import replace

from exporter.kvmath.fields import LAYER_LIMIT, Fields, bad, unsupported
from exporter.kvmath.heads import Heads, Names, grouped
from exporter.kvmath.layers import Kind, LayerCache
from exporter.kvmath.stack import Stack, attention, depth

_SLIDING_OR_FULL = ("sliding_attention", "full_attention")


def llama4(fields: Fields, names: Names) -> Stack:
    """Llama 4: layers with rotary positions (``no_rope_layers`` 1) see their own chunk only.

    The field empty or absent: every ``no_rope_layer_interval``-th layer (4) is full.
    (vLLM 0.32.0 models/llama4.py; without ``attention_chunk_size`` all are full.)
    """
    layers = depth(fields, names)
    heads = grouped(fields, names)
    interval = fields.count_or(("no_rope_layer_interval",), 4)
    rope = fields.numbers("no_rope_layers") or [int((i + 1) % interval != 0) for i in range(layers)]
    if len(rope) != layers or not set(rope) <= {0, 1}:
        raise bad(f"no_rope_layers: expected {layers} entries of 0 or 1")
    # Absent is not null: the class has chunks of 8,192 tokens, null turns them off.
    chunk = fields.count_or(("attention_chunk_size",), 0 if fields.given("attention_chunk_size") else 8192)
    local = attention(heads, chunk, Kind.CHUNK) if chunk else attention(heads)
    return Stack(tuple((local if here else attention(heads),) for here in rope), heads.query)


def mimo_v2(fields: Fields, names: Names) -> Stack:
    """MiMo V2 Flash: V narrower than K; window layers (``hybrid_layer_pattern`` 1) with own heads.

    ``attention_chunk_size`` is not used by the model.
    """
    layers = depth(fields, names)
    pattern = fields.numbers("hybrid_layer_pattern")
    if pattern is None or len(pattern) != layers or not set(pattern) <= {0, 1}:
        raise bad(f"hybrid_layer_pattern: expected {layers} entries of 0 or 1")
    query = fields.count(names.heads)
    full, window = mimo_v2_heads(fields, names)
    return Stack(tuple((window if here else full,) for here in pattern), query)


def mimo_v2_heads(fields: Fields, names: Names) -> tuple[LayerCache, LayerCache]:
    """The full and the window layer of MiMo V2."""

    def kind(prefix: str, window: int) -> LayerCache:
        k_dim = fields.count((f"{prefix}head_dim",))
        heads = Heads(
            fields.count(names.heads),
            fields.count((f"{prefix}num_key_value_heads",)),
            k_dim,
            fields.count_or((f"{prefix}v_head_dim",), k_dim),
        )
        return attention(heads, window)

    return kind("", 0), kind("swa_", fields.count(("sliding_window", "sliding_window_size")))


def _own(fields: Fields, layers: int, class_default: int) -> int:
    """Layers that own a cache: the last ``num_kv_shared_layers`` read an earlier layer's."""
    shared = fields.whole("num_kv_shared_layers", class_default)
    if shared >= layers:
        raise bad(f"num_kv_shared_layers: {shared} of {layers} layers")
    return layers - shared


def gemma4(fields: Fields, names: Names) -> Stack:
    """Gemma 4: full layers are ``global_head_dim`` wide and may have heads of their own.

    ``num_global_key_value_heads`` counts under ``attention_k_eq_v`` only; K and V
    are both stored even then (vLLM 0.32.0 models/gemma4.py).
    """
    layers = depth(fields, names)
    kinds = fields.words("layer_types", layers, _SLIDING_OR_FULL)
    if kinds is None:
        raise bad("layer_types: missing")
    query = fields.count(names.heads)
    sliding = fields.count_or(names.kv_heads, query)
    width = fields.count_or(names.head_dim, 256)
    wide = fields.count_or(("global_head_dim",), 512)
    full = sliding
    if fields.flag("attention_k_eq_v", False):
        full = fields.count_or(("num_global_key_value_heads",), sliding)
    here = {
        "sliding_attention": attention(Heads(query, sliding, width, width), fields.window(512)),
        "full_attention": attention(Heads(query, full, wide, wide)),
    }
    owners = _own(fields, layers, 0)
    return Stack(tuple((here[kind],) if i < owners else () for i, kind in enumerate(kinds)), query)


def gemma3n(fields: Fields, names: Names) -> Stack:
    """Gemma 3n: the last layers share; every fifth layer is full where ``layer_types`` is absent."""
    layers = depth(fields, names)
    heads = grouped(fields, replace(names, head_dim_default=256))
    kinds = fields.words("layer_types", layers, _SLIDING_OR_FULL)
    if kinds is None:
        kinds = ["sliding_attention" if (i + 1) % 5 else "full_attention" for i in range(layers)]
    owners = _own(fields, layers, 15)
    window = fields.window(512)
    return Stack(
        tuple(
            (attention(heads, window if kind == "sliding_attention" else 0),) if i < owners else ()
            for i, kind in enumerate(kinds)
        ),
        heads.query,
    )


def nemotron_nas(fields: Fields, names: Names) -> Stack:
    """Nemotron NAS (DeciLM): ``block_configs[i].attention`` per layer, ``no_op`` or linear keep nothing.

    K/V heads = query heads / ``n_heads_in_group``.
    """
    layers = depth(fields, names)
    query = fields.count(names.heads)
    width = fields.count_or(names.head_dim, fields.count(names.hidden) // query)
    stack: list[tuple[LayerCache, ...]] = []
    for number, block in enumerate(fields.objects("block_configs", layers)):
        inner = block.section("attention")
        if inner.flag("no_op", False) or inner.flag("replace_with_linear", False):
            stack.append(())
            continue
        for name in ("window_length", "sparsify", "num_sink_tokens"):
            if inner.raw(name):
                raise unsupported(f"block_configs[{number}].attention.{name}")
        group = inner.count(("n_heads_in_group",))
        if query % group:
            raise bad(f"block_configs[{number}].attention.n_heads_in_group: does not divide {query} heads")
        stack.append((attention(Heads(query, query // group, width, width)),))
    return Stack(tuple(stack), query)


def openelm(fields: Fields, names: Names) -> Stack:
    """OpenELM: ``num_kv_heads`` is a list, one number per layer."""
    layers = fields.count(("num_transformer_layers", "num_hidden_layers"), LAYER_LIMIT)
    width = fields.count(names.head_dim)
    kv = fields.numbers("num_kv_heads")
    query = fields.numbers("num_query_heads")
    if kv is None or len(kv) != layers or 0 in kv:
        raise bad(f"num_kv_heads: expected {layers} numbers of at least 1")
    if query is None or len(query) != layers or any(q % k for q, k in zip(query, kv, strict=True)):
        raise bad(f"num_query_heads: expected {layers} multiples of num_kv_heads")
    # Query heads differ by layer too; every count must spread over the ranks, which the K/V heads decide.
    return Stack(tuple((attention(Heads(q, k, width, width)),) for q, k in zip(query, kv, strict=True)), 0)


def step(fields: Fields, names: Names) -> Stack:
    """Step 3.5 and 3.7: window layers may have heads of their own (``attention_other_setting``).

    ``layer_types`` may go on beyond the decoder: the draft layers'.
    """
    layers = depth(fields, names)
    heads = grouped(fields, names)
    sliding = fields.layer_types(layers, longer=True)
    if sliding is None:
        raise bad("layer_types: missing")
    full, window = attention(heads), step_window(fields, heads)
    return Stack(tuple((window if here else full,) for here in sliding), heads.query)


def step_window(fields: Fields, heads: Heads) -> LayerCache:
    """Step's window layer: the same heads as the full ones unless ``attention_other_setting`` says so."""
    other = fields.section("attention_other_setting")
    if other.text("attention_type") not in ("", "sliding_attention"):
        raise unsupported("attention_other_setting.attention_type: expected sliding_attention")
    width = other.count_or(("head_dim",), heads.k_dim)
    kv = other.count_or(("num_attention_groups",), heads.kv)
    return attention(Heads(heads.query, kv, width, width), fields.window(0))
