"""Which rules count the parameters of which family; adding one means adding an entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from exporter.kvmath import parameters as parts
from exporter.kvmath import parameters_mixed as mixed


def _self_attention(_c: parts.Config, _layer: int) -> str:
    return "self_attn"


@dataclass(frozen=True, slots=True)
class Modules:
    """What the checkpoint calls a layer's parts, for quantizers' ignore lists."""

    mixer: Callable[[parts.Config, int], str] = _self_attention
    shared: str = "mlp.shared_experts"  # the dense part of a layer with experts
    experts: str = "mlp.experts"


@dataclass(frozen=True, slots=True)
class Rule:
    """How to count one family: attention per layer, what else a layer has, and whether the head is tied."""

    attention: parts.AttentionRule
    mlp: parts.MlpRule
    tied: bool = False  # class default of tie_word_embeddings
    layers: tuple[str, ...] = ("num_hidden_layers", "n_layer", "n_layers")
    vocabulary: tuple[str, ...] = ("vocab_size",)
    positions: bool = False  # learned position embeddings
    tied_always: bool = False
    attention_per_layer: int = 1
    modules: Modules = field(default_factory=Modules)
    # What the configuration class takes where a multimodal model's config leaves a size out.
    nested_defaults: Mapping[str, int] = field(default_factory=dict)


_PLAIN: Final = Rule(parts.grouped(), parts.dense())
_DIM_128: Final = Rule(parts.grouped(128), parts.dense())
_DIM_256: Final = Rule(parts.grouped(256), parts.dense(), tied=True)
# transformers' Gemma3TextConfig; the published multimodal configs name only what differs.
_GEMMA3: Final = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
}
_MIXTRAL: Final = Rule(parts.grouped(), parts.experts(("num_local_experts",), ("intermediate_size",)))
_DEEPSEEK_MOE: Final = parts.experts(
    ("n_routed_experts",),
    ("moe_intermediate_size",),
    parts.shared_count("n_shared_experts"),
    parts.first_dense,
)
_DEEPSEEK: Final = Rule(parts.latent, _DEEPSEEK_MOE)
_DEEPSEEK_INDEXED: Final = Rule(parts.indexed, _DEEPSEEK_MOE)

_QWEN3_MOE: Final = Rule(
    parts.grouped(),
    parts.experts(
        ("num_experts", "num_local_experts"), ("moe_intermediate_size",), stays_dense=parts.qwen_dense
    ),
)

_QWEN: Final = Modules(mixer=mixed.qwen_mixer_name, shared="mlp.shared_expert")
_NEMOTRON: Final = Modules(lambda _c, _layer: "mixer", "mixer.shared_experts", "mixer.experts")

RULES: Final[Mapping[str, Rule]] = {
    "llama": _PLAIN,
    "mistral": _PLAIN,
    "qwen2": _PLAIN,
    "qwen3": _DIM_128,
    "phi3": _PLAIN,
    "olmo2": _PLAIN,
    "olmo3": _PLAIN,
    "granite": _PLAIN,
    "exaone4": _PLAIN,
    "seed_oss": _DIM_128,
    "smollm3": Rule(parts.grouped(), parts.dense(), tied=True),
    "mimo": _PLAIN,
    "ministral3": _DIM_128,
    "internlm": _PLAIN,
    "internlm2": _PLAIN,
    "baichuan": _PLAIN,
    "xverse": _PLAIN,
    "orion": _PLAIN,
    "stablelm": _PLAIN,
    "ernie4_5": Rule(parts.grouped(128), parts.dense(), tied=True),
    "hunyuan_v1_dense": _PLAIN,
    "gemma": _DIM_256,
    "gemma2": _DIM_256,
    "gemma3_text": replace(_DIM_256, nested_defaults=_GEMMA3),
    "gpt2": Rule(
        parts.grouped(kv_names=()),
        parts.dense(("n_inner",), matrices=2),
        tied=True,
        tied_always=True,
        positions=True,
    ),
    "gpt_neox": Rule(parts.grouped(kv_names=()), parts.dense(matrices=2)),
    "starcoder2": Rule(parts.grouped(), parts.dense(matrices=2), tied=True),
    "falcon": Rule(parts.falcon_attention, parts.dense(("ffn_hidden_size",), matrices=2), tied=True),
    "chatglm": Rule(
        parts.chatglm_attention,
        parts.dense(("ffn_hidden_size",)),
        layers=("num_layers",),
        vocabulary=("padded_vocab_size", "vocab_size"),
    ),
    "minicpm3": Rule(parts.latent, parts.dense(), tied=True),
    # Mixtures of experts.
    "mixtral": _MIXTRAL,
    "phimoe": _MIXTRAL,
    "granitemoe": _MIXTRAL,
    "minimax_m2": _MIXTRAL,
    "gpt_oss": Rule(parts.grouped(64), parts.experts(("num_local_experts",), ("intermediate_size",))),
    "dbrx": Rule(parts.dbrx_attention, parts.dbrx_experts),
    "qwen3_moe": _QWEN3_MOE,
    "deepseek": Rule(parts.grouped(), _DEEPSEEK_MOE),
    "glm4_moe": Rule(parts.grouped(), _DEEPSEEK_MOE),
    "bailing_moe": Rule(
        parts.grouped(),
        parts.experts(
            ("num_experts",),
            ("moe_intermediate_size",),
            parts.shared_count("num_shared_experts"),
            parts.first_dense,
        ),
    ),
    "ernie4_5_moe": Rule(
        parts.grouped(),
        parts.experts(
            ("moe_num_experts",),
            ("moe_intermediate_size",),
            parts.shared_count("moe_num_shared_experts"),
            parts.ernie_dense,
        ),
        tied=True,
    ),
    "deepseek_v3": _DEEPSEEK,
    "kimi_k2": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK_INDEXED,
    "glm_moe_dsa": _DEEPSEEK_INDEXED,
    "longcat_flash": Rule(parts.latent, parts.longcat_mlp, layers=("num_layers",), attention_per_layer=2),
    # Layers that differ.
    "qwen3_next": Rule(mixed.qwen_hybrid, mixed.qwen_hybrid_experts(), modules=_QWEN),
    "qwen3_5_text": Rule(mixed.qwen_hybrid, parts.dense(), modules=_QWEN),
    "qwen3_5_moe_text": Rule(mixed.qwen_hybrid, mixed.qwen_hybrid_experts(), modules=_QWEN),
    "granitemoehybrid": Rule(mixed.granite_hybrid, mixed.granite_mlp, tied=True),
    "nemotron_h": Rule(mixed.nemotron_mixer, mixed.nemotron_mlp, modules=_NEMOTRON),
    "nemotron-nas": Rule(mixed.nas_attention, mixed.nas_mlp),
    "kimi_linear": Rule(
        mixed.kimi_linear,
        parts.experts(
            ("num_experts",),
            ("moe_intermediate_size",),
            parts.shared_count("num_shared_experts"),
            parts.first_dense,
        ),
    ),
    "lfm2": Rule(mixed.short_convolution, mixed.lfm2_mlp, tied=True),
    "mimo_v2_flash": Rule(
        mixed.mimo_attention,
        parts.experts(("n_routed_experts",), ("moe_intermediate_size",), stays_dense=mixed.listed_dense),
    ),
    "gemma4_text": Rule(
        mixed.gemma4_attention, mixed.gemma4_mlp, tied=True, modules=Modules(shared="mlp", experts="experts")
    ),
    "llama4_text": Rule(
        parts.grouped(),
        mixed.llama4_mlp,
        modules=Modules(shared="feed_forward.shared_expert", experts="feed_forward.experts"),
    ),
    # Decoders of multimodal models.
    "qwen2_vl": _PLAIN,
    "qwen2_5_vl": _PLAIN,
    "qwen3_vl_text": _DIM_128,
    "qwen3_vl_moe_text": _QWEN3_MOE,
}
