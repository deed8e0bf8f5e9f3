"""How many parameters a config.json describes: an estimate, for checkpoints whose files are elsewhere.

The engine's own count (vLLM 0.32.0 building every model without weights) is the
yardstick: within 1 % for each family listed here, and no figure for any other.
Biases and norms are left out unless they matter (they are below 0.1 %).
Vision and audio towers are not estimated, so multimodal wrappers have no figure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from exporter.kvmath import parameters as parts
from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.parameters import LayerWeights


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """Parameters of a model.  ``head`` is 0 where the output shares the embedding's matrix."""

    embedding: int
    head: int
    layers: tuple[LayerWeights, ...]
    experts_per_token: int = 0
    experts_per_layer: int = 0

    @property
    def total(self) -> int:
        """All parameters."""
        return self.embedding + self.head + sum(layer.total for layer in self.layers)

    @property
    def active(self) -> int:
        """Parameters one token's decode step multiplies: of the experts only those it is sent to."""
        idle = 0
        if self.experts_per_layer:
            for layer in self.layers:
                per_expert = layer.experts // self.experts_per_layer
                idle += layer.experts - per_expert * min(self.experts_per_token, self.experts_per_layer)
        return self.total - idle


@dataclass(frozen=True, slots=True)
class _Rule:
    """How to count one family: attention per layer, what else a layer has, and whether the head is tied."""

    attention: parts.AttentionRule
    mlp: parts.MlpRule
    tied: bool = False  # class default of tie_word_embeddings
    layers: tuple[str, ...] = ("num_hidden_layers", "n_layer", "n_layers")
    vocabulary: tuple[str, ...] = ("vocab_size",)
    positions: bool = False  # learned position embeddings
    tied_always: bool = False
    attention_per_layer: int = 1


_PLAIN: Final = _Rule(parts.grouped(), parts.dense())
_DIM_128: Final = _Rule(parts.grouped(128), parts.dense())
_DIM_256: Final = _Rule(parts.grouped(256), parts.dense(), tied=True)
_MIXTRAL: Final = _Rule(parts.grouped(), parts.experts(("num_local_experts",), ("intermediate_size",)))
_DEEPSEEK_MOE: Final = parts.experts(
    ("n_routed_experts",),
    ("moe_intermediate_size",),
    parts.shared_count("n_shared_experts"),
    parts.first_dense,
)
_DEEPSEEK: Final = _Rule(parts.latent, _DEEPSEEK_MOE)
_DEEPSEEK_INDEXED: Final = _Rule(parts.indexed, _DEEPSEEK_MOE)

_RULES: Final[Mapping[str, _Rule]] = {
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
    "smollm3": _Rule(parts.grouped(), parts.dense(), tied=True),
    "mimo": _PLAIN,
    "ministral3": _DIM_128,
    "internlm": _PLAIN,
    "internlm2": _PLAIN,
    "baichuan": _PLAIN,
    "xverse": _PLAIN,
    "orion": _PLAIN,
    "stablelm": _PLAIN,
    "ernie4_5": _Rule(parts.grouped(128), parts.dense(), tied=True),
    "hunyuan_v1_dense": _PLAIN,
    "gemma": _DIM_256,
    "gemma2": _DIM_256,
    "gemma3_text": _DIM_256,
    "gpt2": _Rule(
        parts.grouped(kv_names=()),
        parts.dense(("n_inner",), matrices=2),
        tied=True,
        tied_always=True,
        positions=True,
    ),
    "gpt_neox": _Rule(parts.grouped(kv_names=()), parts.dense(matrices=2)),
    "starcoder2": _Rule(parts.grouped(), parts.dense(matrices=2), tied=True),
    "falcon": _Rule(parts.falcon_attention, parts.dense(("ffn_hidden_size",), matrices=2), tied=True),
    "chatglm": _Rule(
        parts.chatglm_attention,
        parts.dense(("ffn_hidden_size",)),
        layers=("num_layers",),
        vocabulary=("padded_vocab_size", "vocab_size"),
    ),
    "minicpm3": _Rule(parts.latent, parts.dense(), tied=True),
    # Mixtures of experts.
    "mixtral": _MIXTRAL,
    "phimoe": _MIXTRAL,
    "granitemoe": _MIXTRAL,
    "minimax_m2": _MIXTRAL,
    "gpt_oss": _Rule(parts.grouped(64), parts.experts(("num_local_experts",), ("intermediate_size",))),
    "dbrx": _Rule(parts.dbrx_attention, parts.dbrx_experts),
    "qwen3_moe": _Rule(
        parts.grouped(),
        parts.experts(
            ("num_experts", "num_local_experts"), ("moe_intermediate_size",), stays_dense=parts.qwen_dense
        ),
    ),
    "deepseek": _Rule(parts.grouped(), _DEEPSEEK_MOE),
    "glm4_moe": _Rule(parts.grouped(), _DEEPSEEK_MOE),
    "bailing_moe": _Rule(
        parts.grouped(),
        parts.experts(
            ("num_experts",),
            ("moe_intermediate_size",),
            parts.shared_count("num_shared_experts"),
            parts.first_dense,
        ),
    ),
    "ernie4_5_moe": _Rule(
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
    "longcat_flash": _Rule(parts.latent, parts.longcat_mlp, layers=("num_layers",), attention_per_layer=2),
}


def model_weights(config: Mapping[str, object]) -> ModelWeights | Unavailable:
    """The parameters ``config`` describes, draft and MTP layers left out.

    Never raises.  ``Unavailable(MODEL_WEIGHTS)`` for families that are not
    counted here and for configs that lack a size.
    """
    model_type = config.get("model_type")
    rule = _RULES.get(model_type) if isinstance(model_type, str) else None
    if rule is None:
        return Unavailable(
            Reason.MODEL_WEIGHTS, f"model_type {str(model_type)[:60]!r}: parameters are not estimated"
        )
    c = parts.Config(config)
    try:
        count = c.size(*rule.layers)
        if not 1 <= count <= parts.LAYER_LIMIT:
            return Unavailable(Reason.MODEL_WEIGHTS, f"{rule.layers[0]}: not a layer count")
        embedding = c.size(*rule.vocabulary) * parts.width(c)
        tied = rule.tied_always or c.flag("tie_word_embeddings", rule.tied)
        layers = tuple(
            rule.mlp(c, layer, rule.attention_per_layer * rule.attention(c, layer)) for layer in range(count)
        )
        sparse = any(layer.experts for layer in layers)
        return ModelWeights(
            embedding=embedding
            + (c.size("n_positions", default=0) * parts.width(c) if rule.positions else 0),
            head=0 if tied else embedding,
            layers=layers,
            experts_per_token=_expert_count(c, parts.EXPERTS_PER_TOKEN) if sparse else 0,
            experts_per_layer=_expert_count(c, parts.EXPERTS) if sparse else 0,
        )
    except parts.Refused as problem:
        return Unavailable(Reason.MODEL_WEIGHTS, problem.detail)


def _expert_count(c: parts.Config, names: tuple[str, ...]) -> int:
    inner = c.fields.get("ffn_config")
    nested = parts.Config(inner if isinstance(inner, Mapping) else {}).size(*names, default=0)
    return c.size(*names, default=nested)
