"""Parameters of layers that differ: recurrent mixers beside attention, windows with heads of their own.

Projections as the reference implementations have them; convolutions count,
gates' biases and norms do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from exporter.kvmath.parameters import (
    HEADS,
    LAYER_LIMIT,
    Config,
    LayerWeights,
    MlpRule,
    Refused,
    dense,
    experts,
    grouped,
    latent,
    qwen_dense,
    width,
)


def words(c: Config, *names: str) -> list[object]:
    """A list with an entry per layer, or a text with a letter per layer."""
    for name in names:
        value = c.fields.get(name)
        if isinstance(value, list) or (isinstance(value, str) and value):
            return list(value)[:LAYER_LIMIT]
    return []


def word_at(c: Config, layer: int, *names: str) -> object:
    """The entry for ``layer``; Refused where there is none."""
    found = words(c, *names)
    if layer >= len(found):
        raise Refused(f"{names[0]}: no entry for layer {layer}")
    return found[layer]


def mamba2(c: Config) -> int:
    """Mamba 2 (arXiv 2405.21060): input projection to z, x, B, C and dt, convolution, output projection."""
    hidden = width(c)
    heads = c.size("mamba_n_heads", "mamba_num_heads")
    inner = heads * c.size("mamba_d_head", "mamba_head_dim")
    groups = 2 * c.size("mamba_n_groups", "n_groups") * c.size("mamba_d_state", "ssm_state_size")
    kernel = c.size("mamba_d_conv", "conv_kernel")
    return hidden * (2 * inner + groups + heads) + kernel * (inner + groups) + inner * hidden


def gated_delta_net(c: Config) -> int:
    """Gated delta net as in Qwen3-Next: projections to q, k, v, z and to beta, alpha; convolution; output."""
    key = c.size("linear_num_key_heads") * c.size("linear_key_head_dim")
    heads = c.size("linear_num_value_heads")
    value = heads * c.size("linear_value_head_dim")
    projections = width(c) * (2 * key + 2 * value + 2 * heads)
    return projections + c.size("linear_conv_kernel_dim") * (2 * key + value) + value * width(c)


def qwen_mixer_name(c: Config, layer: int) -> str:
    """self_attn for the full layers, linear_attn for the others."""
    kinds = words(c, "layer_types")
    interval = c.size("full_attention_interval", default=4)
    full = kinds[layer] == "full_attention" if layer < len(kinds) else (layer + 1) % max(1, interval) == 0
    return "self_attn" if full else "linear_attn"


def qwen_hybrid(c: Config, layer: int) -> int:
    """Gated delta nets, and every nth layer attention whose output is gated by as many more queries."""
    if qwen_mixer_name(c, layer) == "linear_attn":
        return gated_delta_net(c)
    dim = c.size("head_dim", default=256)
    return width(c) * dim * (3 * c.size(*HEADS) + 2 * c.size("num_key_value_heads"))


def qwen_hybrid_experts() -> MlpRule:
    """Routed experts and one shared expert behind a gate."""
    return experts(
        ("num_experts",),
        ("moe_intermediate_size",),
        lambda c: c.size("shared_expert_intermediate_size", default=0),
        qwen_dense,
    )


def granite_hybrid(c: Config, layer: int) -> int:
    """Mamba 2 or attention, layer by layer."""
    if word_at(c, layer, "layer_types", "layers_block_type") == "attention":
        return grouped()(c, layer)
    return mamba2(c)


def granite_mlp(c: Config, layer: int, attention: int) -> LayerWeights:
    """A shared MLP in every layer, and experts where there are any."""
    hidden, shared = width(c), 3 * width(c) * c.size("shared_intermediate_size")
    count = c.size("num_local_experts", default=0)
    routed = 3 * hidden * c.size("intermediate_size", default=0) * count
    return LayerWeights(attention, shared, routed, hidden * count)


def nemotron_mixer(c: Config, layer: int) -> int:
    """One mixer per layer: Mamba 2 (M) or attention (*); the others are MLPs."""
    match word_at(c, layer, "hybrid_override_pattern", "layers_block_type"):
        case "M" | "mamba":
            return mamba2(c)
        case "*" | "attention":
            return grouped()(c, layer)
        case _:
            return 0


def nemotron_mlp(c: Config, layer: int, attention: int) -> LayerWeights:
    """Two matrices (squared ReLU, no gate); experts may work in a narrower latent."""
    hidden = width(c)
    match word_at(c, layer, "hybrid_override_pattern", "layers_block_type"):
        case "-" | "mlp":
            return LayerWeights(attention, 2 * hidden * c.size("intermediate_size"))
        case "E" | "moe":
            count = c.size("n_routed_experts")
            narrow = c.size("moe_latent_size", default=0)
            shared = 2 * hidden * c.size("moe_shared_expert_intermediate_size", default=0)
            routed = 2 * (narrow or hidden) * c.size("moe_intermediate_size") * count
            return LayerWeights(attention, shared + 2 * hidden * narrow, routed, hidden * count)
        case _:
            return LayerWeights(attention)


def kimi_linear(c: Config, layer: int) -> int:
    """Kimi delta attention (arXiv 2510.26692): q, k, v, output; decay and gate of low rank; beta.

    The lists of layers count from 1.
    """
    inner = c.fields.get("linear_attn_config")
    kda = Config(inner if isinstance(inner, Mapping) else {})
    if layer + 1 in words(kda, "full_attn_layers"):
        return latent(c, layer)
    hidden, heads, dim = width(c), kda.size("num_heads"), kda.size("head_dim")
    wide = heads * dim
    low_rank = 2 * (hidden * dim + dim * wide)
    return 4 * hidden * wide + low_rank + hidden * heads + 3 * kda.size("short_conv_kernel_size") * wide


def mimo_attention(c: Config, layer: int) -> int:
    """MiMo V2: windows have heads of their own, and V is narrower than K."""
    prefix = "swa_" if word_at(c, layer, "hybrid_layer_pattern") == 1 else ""
    heads = c.size(f"{prefix}num_attention_heads", "num_attention_heads")
    kv, k_dim, v_dim = (c.size(f"{prefix}{n}") for n in ("num_key_value_heads", "head_dim", "v_head_dim"))
    return width(c) * (heads * (k_dim + v_dim) + kv * (k_dim + v_dim))


def listed_dense(c: Config, layer: int) -> bool:
    """moe_layer_freq as a list: 0 for a dense layer."""
    return word_at(c, layer, "moe_layer_freq") == 0


def gemma4_attention(c: Config, layer: int) -> int:
    """Gemma 4: full layers have their own head size and may use K for V."""
    if c.size("hidden_size_per_layer_input", default=0) or c.size("num_kv_shared_layers", default=0):
        raise Refused("hidden_size_per_layer_input: embeddings per layer are not counted")
    heads, kv, dim, matrices = c.size(*HEADS), c.size("num_key_value_heads"), c.size("head_dim"), 2
    if word_at(c, layer, "layer_types") == "full_attention":
        dim = c.size("global_head_dim", default=dim)
        if c.flag("attention_k_eq_v", False):
            kv, matrices = c.size("num_global_key_value_heads", default=kv), 1
    return width(c) * dim * (2 * heads + matrices * kv)


def gemma4_mlp(c: Config, layer: int, attention: int) -> LayerWeights:
    """A dense MLP in every layer, experts beside it in the 26B."""
    found = dense()(c, layer, attention)
    if not c.flag("enable_moe_block", False):
        return found
    count = c.size("num_experts")
    routed = 3 * width(c) * c.size("moe_intermediate_size") * count
    return LayerWeights(attention, found.mlp, routed, width(c) * count)


def llama4_mlp(c: Config, layer: int, attention: int) -> LayerWeights:
    """Llama 4: every nth layer has experts and a shared one, the others a wider dense MLP."""
    hidden = width(c)
    if (layer + 1) % max(1, c.size("interleave_moe_layer_step", default=1)):
        return LayerWeights(attention, 3 * hidden * c.size("intermediate_size_mlp"))
    one, count = 3 * hidden * c.size("intermediate_size"), c.size("num_local_experts")
    return LayerWeights(attention, one, one * count, hidden * count)


def _block(c: Config, layer: int, part: str) -> Mapping[str, object]:
    entry = word_at(c, layer, "block_configs")
    inner = entry.get(part) if isinstance(entry, Mapping) else None
    if not isinstance(inner, Mapping):
        raise Refused(f"block_configs: layer {layer} has no {part}")
    return inner


def nas_attention(c: Config, layer: int) -> int:
    """Nemotron-NAS: attention, a linear map in its place, or nothing."""
    block, hidden, heads = _block(c, layer, "attention"), width(c), c.size(*HEADS)
    if block.get("no_op"):
        return 0
    if block.get("replace_with_linear"):
        return hidden * hidden
    kv = heads // max(1, Config(block).size("n_heads_in_group"))
    return hidden * (hidden // max(1, heads)) * (2 * heads + 2 * kv)


def nas_mlp(c: Config, layer: int, attention: int) -> LayerWeights:
    """Inner size 2/3 of ffn_mult times the width, rounded up to a multiple of 256."""
    block, hidden = _block(c, layer, "ffn"), width(c)
    if block.get("no_op"):
        return LayerWeights(attention)
    if block.get("replace_with_linear"):
        return LayerWeights(attention, hidden * hidden)
    multiple = block.get("ffn_mult")
    if isinstance(multiple, bool) or not isinstance(multiple, int | float) or not 0 < multiple < 1000:
        raise Refused("block_configs: ffn_mult is not a multiple")
    inner = -(-int(2 * multiple * hidden / 3) // 256) * 256
    return LayerWeights(attention, 3 * hidden * inner)


def short_convolution(c: Config, layer: int) -> int:
    """LFM2: a gated short convolution (three projections in, one out) or attention."""
    if word_at(c, layer, "layer_types") == "full_attention":
        return grouped()(c, layer)
    return 4 * width(c) ** 2 + c.size("conv_L_cache") * width(c)


def lfm2_mlp(c: Config, _layer: int, attention: int) -> LayerWeights:
    """LFM2: 2/3 of the size in the config, rounded up to a multiple, unless told not to."""
    inner = c.size("intermediate_size", "block_ff_dim")
    if c.flag("block_auto_adjust_ff_dim", True):
        multiple = max(1, c.size("block_multiple_of", default=256))
        inner = math.ceil(2 * inner // 3 / multiple) * multiple
    return LayerWeights(attention, 3 * width(c) * inner)
