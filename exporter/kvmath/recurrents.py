"""Families of recurrent layers alone, and of linear attention: Mamba, Mamba 2, RWKV, Griffin, MiniMax.

MiniMax M1, RWKV and RecurrentGemma are no longer loaded by vLLM 0.32.0: the formula is the
papers' and transformers' own (states in float32).
"""

from __future__ import annotations

from exporter.kvmath import states
from exporter.kvmath.fields import Fields, bad
from exporter.kvmath.heads import Names, grouped
from exporter.kvmath.layers import recurrent
from exporter.kvmath.stack import Stack, attention, depth


def mamba(fields: Fields, names: Names) -> Stack:
    """Mamba and FalconMamba: a Mamba state in every layer, d_inner = intermediate_size."""
    hidden = fields.count(names.hidden)
    inner = fields.count_or(("intermediate_size",), fields.count_or(("expand",), 2) * hidden)
    state = states.mamba1(inner, fields.count_or(("state_size",), 16), fields.count_or(("conv_kernel",), 4))
    return Stack(((recurrent(state),),) * depth(fields, names), 0)


def mamba2(fields: Fields, names: Names) -> Stack:
    """Mamba 2: expand x hidden_size channels in num_heads heads, a state in every layer."""
    inner = fields.count_or(("expand",), 2) * fields.count(names.hidden)
    heads = fields.count(("num_heads",))
    head_dim = fields.count(("head_dim",))
    if heads * head_dim != inner:
        raise bad("num_heads: times head_dim is not expand times hidden_size")
    state = states.mamba2(
        heads,
        head_dim,
        fields.count_or(("n_groups",), 1),
        fields.count(("state_size",)),
        fields.count_or(("conv_kernel",), 4),
        inner,
    )
    return Stack(((recurrent(state),),) * depth(fields, names), 0)


def minimax(fields: Fields, names: Names) -> Stack:
    """MiniMax M1 and Text 01: ``attn_type_list`` 1 is softmax attention, 0 lightning attention."""
    layers = depth(fields, names)
    heads = grouped(fields, names)
    kinds = fields.numbers("attn_type_list")
    if kinds is None or len(kinds) != layers or not set(kinds) <= {0, 1}:
        raise bad(f"attn_type_list: expected {layers} entries of 0 or 1")
    state = recurrent(states.lightning(heads.query, heads.k_dim))
    return Stack(tuple((attention(heads) if kind else state,) for kind in kinds), heads.query)


def recurrent_gemma(fields: Fields, names: Names) -> Stack:
    """RecurrentGemma: ``block_types`` repeated over the layers, attention in a window."""
    layers = depth(fields, names)
    heads = grouped(fields, names)
    pattern = fields.raw("block_types") or ["recurrent", "recurrent", "attention"]
    if not isinstance(pattern, list) or not all(kind in ("recurrent", "attention") for kind in pattern):
        raise bad("block_types: expected a list of recurrent and attention")
    state = recurrent(
        states.linear_recurrent_unit(
            fields.count_or(("lru_width",), fields.count(names.hidden)),
            fields.count_or(("conv1d_width",), 4),
        )
    )
    window = attention(heads, fields.count_or(("attention_window_size",), 2048))
    kinds = [pattern[i % len(pattern)] for i in range(layers)]
    return Stack(tuple((window if kind == "attention" else state,) for kind in kinds), heads.query)


def rwkv5(fields: Fields, names: Names) -> Stack:
    """RWKV 5: a state in every layer, heads of ``head_size``."""
    width = fields.count_or(("attention_hidden_size",), fields.count(names.hidden))
    head_size = fields.count_or(("head_size",), 64)
    if width % head_size:
        raise bad("head_size: does not divide the hidden size")
    return Stack(((recurrent(states.rwkv5(width, head_size)),),) * depth(fields, names), 0)
