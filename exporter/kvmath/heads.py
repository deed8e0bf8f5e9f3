"""Rules for the heads of a layer: how many K/V heads, how wide, or one latent.

Each rule reads a config's fields and returns the :class:`Heads` every layer
of the model has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from exporter.kvmath.fields import Fields, bad, unsupported
from exporter.kvmath.layers import Kind


@dataclass(frozen=True, slots=True)
class Names:
    """The field names a family uses, each tuple in order of preference.

    ``kv_heads`` empty: K and V per query head.  ``head_dim_default``: the class
    default where the config names no head size, 0 for hidden size / heads.
    """

    layers: tuple[str, ...] = ("num_hidden_layers",)
    heads: tuple[str, ...] = ("num_attention_heads",)
    kv_heads: tuple[str, ...] = ("num_key_value_heads",)
    head_dim: tuple[str, ...] = ("head_dim",)
    hidden: tuple[str, ...] = ("hidden_size",)
    head_dim_default: int = 0


@dataclass(frozen=True, slots=True)
class Heads:
    """One layer's heads: query heads, K/V heads, elements per K and per V vector."""

    query: int
    kv: int
    k_dim: int
    v_dim: int
    kind: Kind = Kind.FULL  # FULL (K and V; a window rule may narrow it) or MLA


HeadRule = Callable[[Fields, Names], Heads]


def grouped(fields: Fields, names: Names) -> Heads:
    """MHA, GQA and MQA with the K/V head count in a field of its own, else one per query head."""
    query = fields.count(names.heads)
    return _key_value(fields, names, query, fields.count_or(names.kv_heads, query))


def multi_query_switch(fields: Fields, names: Names) -> Heads:
    """gpt_bigcode: one K/V head unless ``multi_query`` is false (class default true)."""
    query = fields.count(names.heads)
    return _key_value(fields, names, query, 1 if fields.flag("multi_query", True) else query)


def falcon(fields: Fields, names: Names) -> Heads:
    """Falcon: ``num_kv_heads`` counts only in the new decoder architecture, it is a decoy in the old one."""
    if fields.flag("new_decoder_architecture", False):
        return grouped(fields, names)
    return multi_query_switch(fields, names)


def attn_config(fields: Fields, names: Names) -> Heads:
    """MPT and DBRX: ``attn_config.kv_n_heads``, else one per query head."""
    query = fields.count(names.heads)
    inner = fields.section("attn_config")
    kv = inner.count_or(("kv_n_heads",), 0)
    if not kv:
        if inner.raw("attn_type") not in (None, "multihead_attention"):
            raise bad("attn_config.kv_n_heads: missing, and attn_type is not multihead_attention")
        if fields.raw("model_type") == "dbrx":
            raise bad("attn_config.kv_n_heads: missing")
        kv = query
    return _key_value(fields, names, query, kv)


def chatglm(fields: Fields, names: Names) -> Heads:
    """ChatGLM: ``multi_query_group_num`` heads under ``multi_query_attention``, else one per query head."""
    query = fields.count(names.heads)
    grouped_heads = fields.flag("multi_query_attention", False)
    return _key_value(
        fields, names, query, fields.count(("multi_query_group_num",)) if grouped_heads else query
    )


def latent(fields: Fields, names: Names) -> Heads:
    """MLA: kv_lora_rank + qk_rope_head_dim elements once per layer, neither K and V nor heads.

    ``kv_lora_rank`` null means ordinary K and V (deepseek-vl2-tiny).
    """
    if fields.given("kv_lora_rank") and fields.raw("kv_lora_rank") is None:
        return grouped(fields, names)
    if fields.raw("use_mla") is False:
        raise unsupported("use_mla: false beside a kv_lora_rank")
    rank = fields.count(("kv_lora_rank",))
    rotary = fields.count(("qk_rope_head_dim",))
    return Heads(fields.count(names.heads), 1, rank + rotary, 0, Kind.MLA)


def expanded_latent(fields: Fields, names: Names) -> Heads:
    """MiniCPM3: MLA fields, but vLLM caches K and V per head, V padded to K's width.

    (vLLM 0.32.0 models/minicpm3.py.  SGLang 0.5.23 caches the latent instead, see ``sglang.py``.)
    """
    query = fields.count(names.heads)
    width = fields.count(("qk_nope_head_dim",)) + fields.count(("qk_rope_head_dim",))
    return Heads(query, query, width, width)


def _key_value(fields: Fields, names: Names, query: int, kv: int) -> Heads:
    if kv > query or query % kv:
        raise bad(f"{next(iter(names.kv_heads), 'heads')}: {kv} K/V heads do not divide {query} query heads")
    if fields.first(names.head_dim) is not None:
        width = fields.count(names.head_dim)
    else:
        width = names.head_dim_default or fields.count(names.hidden) // query
    if width < 1:
        raise bad(f"{names.hidden[0]}: smaller than the number of heads")
    if fields.raw("v_head_dim") not in (None, 0, width):
        raise unsupported("v_head_dim: V vectors of another width than K")
    return Heads(query, kv, width, width)
