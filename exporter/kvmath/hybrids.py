"""Families that keep a recurrent state in some layers, beside attention in others or in the same ones.

Which layer is which, and the state's sizes; the state itself is in ``states.py``.
Formulas as in vLLM 0.32.0 model_executor/models/<family>.py
(``get_mamba_state_shape_from_config``); defaults are the classes'.
"""

from __future__ import annotations

from exporter.kvmath import states
from exporter.kvmath.fields import LAYER_LIMIT, Fields, bad
from exporter.kvmath.heads import Names, grouped, latent
from exporter.kvmath.layers import recurrent
from exporter.kvmath.stack import Stack, StackRule, attention, depth

_STATE_DTYPES = ("float32", "bfloat16", "float16")


def _state_dtype(fields: Fields, name: str, otherwise: str) -> str:
    word = fields.text(name)
    if word not in ("", *_STATE_DTYPES):
        raise bad(f"{name}: expected one of {', '.join(_STATE_DTYPES)}")
    return word or otherwise


def gated_delta(reads_state_dtype: bool) -> StackRule:
    """Qwen3-Next and Qwen 3.5: gated delta net, full attention every ``full_attention_interval`` layers.

    ``reads_state_dtype``: Qwen 3.5's ``mamba_ssm_dtype`` counts, Qwen3-Next has no such field
    (vLLM 0.32.0 models/config.py ``Qwen3_5ForConditionalGenerationConfig``).
    """

    def rule(fields: Fields, names: Names) -> Stack:
        layers = depth(fields, names)
        heads = grouped(fields, names)
        state = states.gated_delta_net(
            fields.count(("linear_num_key_heads",)),
            fields.count(("linear_key_head_dim",)),
            fields.count(("linear_num_value_heads",)),
            fields.count(("linear_value_head_dim",)),
            fields.count(("linear_conv_kernel_dim",)),
            _state_dtype(fields, "mamba_ssm_dtype", "") if reads_state_dtype else "",
        )
        kinds = fields.words("layer_types", layers, ("linear_attention", "full_attention"))
        interval = fields.count_or(("full_attention_interval",), 4)
        regular = ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers)]
        if kinds is not None and fields.given("full_attention_interval") and kinds != regular:
            raise bad("full_attention_interval: contradicts layer_types")
        linear, full = recurrent(state), attention(heads)
        chosen = regular if kinds is None else kinds
        return Stack(tuple((full if k == "full_attention" else linear,) for k in chosen), heads.query)

    return rule


def kimi_linear(fields: Fields, names: Names) -> Stack:
    """Kimi Linear: ``linear_attn_config.full_attn_layers`` counts from 1 and names the MLA layers, the
    rest is KDA.  The ``head_dim`` at the root says nothing about either."""
    layers = depth(fields, names)
    heads = latent(fields, names)
    inner = fields.section("linear_attn_config")
    full = inner.numbers("full_attn_layers")
    if full is None:
        raise bad("linear_attn_config.full_attn_layers: missing")
    linear = inner.numbers("kda_layers")
    if not all(1 <= number <= layers for number in full):
        raise bad(f"linear_attn_config.full_attn_layers: expected numbers from 1 to {layers}")
    if linear is not None and sorted([*full, *linear]) != list(range(1, layers + 1)):
        raise bad("linear_attn_config.kda_layers: does not complement full_attn_layers")
    state = recurrent(
        states.kimi_delta(
            inner.count(("num_heads",)),
            inner.count(("head_dim",)),
            inner.count(("short_conv_kernel_size",)),
        )
    )
    chosen = set(full)
    return Stack(tuple((attention(heads) if i + 1 in chosen else state,) for i in range(layers)), heads.query)


def nemotron_h(fields: Fields, names: Names) -> Stack:
    """Nemotron-H: ``hybrid_override_pattern``, a letter a layer (M Mamba 2, * attention, - MLP, E experts),
    or ``layers_block_type``, a word a layer.  Either is the number of layers."""
    kinds = nemotron_pattern(fields, "hybrid_override_pattern", "layers_block_type")
    if kinds is None:
        raise bad("hybrid_override_pattern: missing")
    if fields.count_or(names.layers, len(kinds)) != len(kinds):
        raise bad(f"num_hidden_layers: the pattern has {len(kinds)} layers")
    heads = grouped(fields, names)
    for name in names.head_dim:
        if fields.raw(name) not in (None, heads.k_dim):
            raise bad(f"{name}: contradicts {names.head_dim[0]}")
    mamba_heads, head_dim = fields.count(("mamba_num_heads",)), fields.count(("mamba_head_dim",))
    state = states.mamba2(
        mamba_heads,
        head_dim,
        fields.count(("n_groups",)),
        fields.count(("ssm_state_size",)),
        fields.count(("conv_kernel",)),
        mamba_heads * head_dim,
        _state_dtype(fields, "mamba_ssm_cache_dtype", "float32"),
    )
    owned = {"mamba": (recurrent(state),), "attention": (attention(heads),)}
    return Stack(tuple(owned.get(kind, ()) for kind in kinds), heads.query)


_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def nemotron_pattern(fields: Fields, letters: str, words: str) -> list[str] | None:
    """A word per layer, from the field ``letters`` or the list ``words``; None where neither is there."""
    if text := fields.text(letters):
        if len(text) > LAYER_LIMIT or not set(text) <= set(_LETTERS):
            raise bad(f"{letters}: expected letters out of {''.join(_LETTERS)}")
        return [_LETTERS[letter] for letter in text]
    value = fields.raw(words)
    if not isinstance(value, list):
        if value is not None:
            raise bad(f"{words}: expected a list, found {type(value).__name__}")
        return None
    if len(value) > LAYER_LIMIT:
        raise bad(f"{words}: more than {LAYER_LIMIT} entries")
    return fields.words(words, len(value), _LETTERS.values())


def _mamba2_of(fields: Fields, intermediate_names: tuple[str, ...] = ()) -> states.RecurrentState:
    """Mamba 2 in the names Granite 4, Bamba and Falcon-H1 share."""
    inner = fields.count_or(("mamba_expand",), 2) * fields.count(("hidden_size",))
    if intermediate_names:
        inner = fields.count_or(intermediate_names, inner)
    heads = fields.count(("mamba_n_heads",))
    if fields.raw("mamba_d_head") in (None, "auto"):
        head_dim = inner // heads
    else:
        head_dim = fields.count(("mamba_d_head",))
    if heads * head_dim != inner:
        raise bad("mamba_n_heads: times mamba_d_head is not the inner size")
    return states.mamba2(
        heads,
        head_dim,
        fields.count_or(("mamba_n_groups",), 1),
        fields.count(("mamba_d_state",)),
        fields.count_or(("mamba_d_conv",), 4),
        inner,
    )


def granite_hybrid(fields: Fields, names: Names) -> Stack:
    """Granite 4 H: ``layer_types`` (or ``layers_block_type``) says mamba or attention."""
    layers = depth(fields, names)
    heads = grouped(fields, names)
    for name in ("layer_types", "layers_block_type"):
        if (kinds := fields.words(name, layers, ("mamba", "attention"))) is not None:
            break
    else:
        raise bad("layer_types: missing")
    state = recurrent(_mamba2_of(fields)) if "mamba" in kinds else None
    return Stack(
        tuple((state if state and kind == "mamba" else attention(heads),) for kind in kinds), heads.query
    )


def bamba(fields: Fields, names: Names) -> Stack:
    """Bamba: attention where ``attn_layer_indices`` says, Mamba 2 elsewhere."""
    layers = depth(fields, names)
    heads = grouped(fields, names)
    here = fields.numbers("attn_layer_indices") or []
    if not all(number < layers for number in here):
        raise bad(f"attn_layer_indices: expected numbers below {layers}")
    state = recurrent(_mamba2_of(fields))
    return Stack(tuple((attention(heads) if i in set(here) else state,) for i in range(layers)), heads.query)


def falcon_h1(fields: Fields, names: Names) -> Stack:
    """Falcon-H1: every layer has attention and Mamba 2 side by side."""
    heads = grouped(fields, names)
    state = recurrent(_mamba2_of(fields, ("mamba_d_ssm",)))
    return Stack(((attention(heads), state),) * depth(fields, names), heads.query)


def zamba2(fields: Fields, names: Names) -> Stack:
    """Zamba 2: Mamba 2 everywhere, and a shared attention block with a cache per use in hybrid layers."""
    layers = depth(fields, names)
    heads = grouped(fields, names)
    kinds = fields.words("layers_block_type", layers, ("mamba", "hybrid"))
    if kinds is None:
        raise bad("layers_block_type: missing")
    inner = fields.count_or(("mamba_expand",), 2) * fields.count(names.hidden)
    mamba_heads = fields.count(("n_mamba_heads",))
    state = states.mamba2(
        mamba_heads,
        fields.count_or(("mamba_headdim",), inner // mamba_heads),
        fields.count_or(("mamba_ngroups",), 1),
        fields.count(("mamba_d_state",)),
        fields.count_or(("mamba_d_conv",), 4),
        inner,
    )
    owned = {"mamba": (recurrent(state),), "hybrid": (attention(heads), recurrent(state))}
    return Stack(tuple(owned[kind] for kind in kinds), heads.query)


def jamba(fields: Fields, names: Names) -> Stack:
    """Jamba: attention every ``attn_layer_period`` layers from ``attn_layer_offset``, Mamba elsewhere."""
    period = fields.count_or(("attn_layer_period",), 8)
    offset = fields.whole("attn_layer_offset", 4)
    heads = grouped(fields, names)
    state = recurrent(
        states.mamba1(
            fields.count_or(("mamba_expand",), 2) * fields.count(names.hidden),
            fields.count_or(("mamba_d_state",), 16),
            fields.count_or(("mamba_d_conv",), 4),
        )
    )
    full = attention(heads)
    return Stack(
        tuple((full if i % period == offset else state,) for i in range(depth(fields, names))), heads.query
    )


def lfm2(fields: Fields, names: Names) -> Stack:
    """LFM2: a short convolution or full attention, by ``layer_types`` or ``full_attn_idxs``."""
    layers = depth(fields, names)
    heads = grouped(fields, names)
    kinds = fields.words("layer_types", layers, ("conv", "full_attention"))
    if kinds is None:
        here = fields.numbers("full_attn_idxs")
        if here is None:
            raise bad("layer_types: missing")
        kinds = ["full_attention" if i in set(here) else "conv" for i in range(layers)]
    width = fields.count_or(("conv_dim",), fields.count(names.hidden))
    state = recurrent(states.short_convolution(width, fields.count_or(("conv_L_cache",), 3)))
    return Stack(tuple((state if kind == "conv" else attention(heads),) for kind in kinds), heads.query)
