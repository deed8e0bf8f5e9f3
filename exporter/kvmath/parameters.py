"""Parameters of the parts of a decoder layer, as config.json names their sizes.

Biases and norms are left out: below 0.1 % of any model here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

_LIMIT: Final = 10**9  # no size in a config is larger; keeps sums finite
LAYER_LIMIT: Final = 10_000


class Refused(Exception):
    """A field that is missing or ``malformed``; becomes the ``Unavailable`` of ``model_weights``."""

    def __init__(self, detail: str, malformed: bool = False) -> None:
        super().__init__(detail)
        self.detail = detail
        self.malformed = malformed


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Parameters of one decoder layer, by what quantizers tell apart."""

    attention: int  # or the recurrent mixer in its place
    mlp: int = 0  # the dense part, shared experts included
    experts: int = 0  # all routed experts
    router: int = 0

    @property
    def total(self) -> int:
        """Parameters of the layer."""
        return self.attention + self.mlp + self.experts + self.router


class Config:
    """Field access with the checks that keep nonsense out of the sums."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        self.fields = fields

    def size(self, *names: str, default: int | None = None) -> int:
        """The first of ``names`` that is there, a whole number of at least 0."""
        for name in names:
            value = self.fields.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LIMIT:
                # A list may well be meant: one value per layer, which is not counted here.
                raise Refused(f"{name}: not a size", malformed=not isinstance(value, list))
            return value
        if default is None:
            raise Refused(f"{names[0]}: missing")
        return default

    def flag(self, name: str, default: bool) -> bool:
        value = self.fields.get(name)
        return value if isinstance(value, bool) else default


AttentionRule = Callable[[Config, int], int]
MlpRule = Callable[[Config, int, int], LayerWeights]

HIDDEN: Final = ("hidden_size", "n_embd", "d_model")
EXPERTS: Final = ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
EXPERTS_PER_TOKEN: Final = (
    "num_experts_per_tok",
    "moe_k",
    "moe_topk",
    "moe_top_k",
    "num_experts_per_token",
    "top_k_experts",
)
HEADS: Final = ("num_attention_heads", "n_head", "n_heads")


def width(c: Config) -> int:
    return c.size(*HIDDEN)


def grouped(head_dim: int = 0, kv_names: tuple[str, ...] = ("num_key_value_heads",)) -> AttentionRule:
    """Q, K, V and output of grouped-query attention: h x d x (2 q + 2 kv)."""

    def count(c: Config, _layer: int) -> int:
        hidden, heads = width(c), c.size(*HEADS)
        dim = c.size(
            "head_dim", "kv_channels", "attention_head_dim", default=head_dim or hidden // max(1, heads)
        )
        kv_heads = c.size(*kv_names, default=heads) if kv_names else heads
        return hidden * dim * (2 * heads + 2 * kv_heads)

    return count


def dbrx_attention(c: Config, _layer: int) -> int:
    inner = c.fields.get("attn_config")
    kv = Config(inner if isinstance(inner, Mapping) else {}).size("kv_n_heads", default=c.size(*HEADS))
    hidden, heads = width(c), c.size(*HEADS)
    return hidden * (hidden // max(1, heads)) * (2 * heads + 2 * kv)


def chatglm_attention(c: Config, _layer: int) -> int:
    hidden, heads, dim = width(c), c.size(*HEADS), c.size("kv_channels")
    kv = c.size("multi_query_group_num") if c.flag("multi_query_attention", False) else heads
    return hidden * dim * (2 * heads + 2 * kv)


def falcon_attention(c: Config, _layer: int) -> int:
    hidden, heads = width(c), c.size(*HEADS)
    if c.flag("new_decoder_architecture", False):
        kv = c.size("num_kv_heads", "n_head_kv")
    else:
        kv = 1 if c.flag("multi_query", True) else heads
    return hidden * (hidden // max(1, heads)) * (2 * heads + 2 * kv)


def latent(c: Config, layer: int) -> int:
    """Latent attention (DeepSeek-V2, arXiv 2405.04434): down- and up-projections of Q and of K and V."""
    if c.fields.get("kv_lora_rank") is None:
        return grouped()(c, layer)
    hidden, heads = width(c), c.size(*HEADS)
    rank, rope = c.size("kv_lora_rank"), c.size("qk_rope_head_dim")
    nope = c.size("qk_nope_head_dim")
    value = c.size("v_head_dim", default=hidden // max(1, heads))
    q_rank = c.size("q_lora_rank", default=0)
    query = (hidden * q_rank + q_rank * heads * (nope + rope)) if q_rank else hidden * heads * (nope + rope)
    return query + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden


def indexed(c: Config, layer: int) -> int:
    """Latent attention with DeepSeek V3.2's indexer: its queries from the Q latent, its key, its weights.

    GLM shares indexers: only layers marked "full" own one.
    """
    own = c.fields.get("indexer_types")
    attention = latent(c, layer)
    if isinstance(own, list) and layer < len(own) and own[layer] != "full":
        return attention
    heads, dim = c.size("index_n_heads"), c.size("index_head_dim")
    return attention + c.size("q_lora_rank") * heads * dim + width(c) * (dim + heads)


def dense(names: tuple[str, ...] = ("intermediate_size",), matrices: int = 3) -> MlpRule:
    """Gate, up and down (3 matrices), or up and down (2)."""

    def count(c: Config, _layer: int, attention: int) -> LayerWeights:
        # Four times the width is the convention of the configs that name no inner size.
        inner = c.size(*names, default=4 * width(c))
        return LayerWeights(attention, mlp=matrices * width(c) * inner)

    return count


def experts(
    count_names: tuple[str, ...],
    size_names: tuple[str, ...],
    shared_width: Callable[[Config], int] = lambda _c: 0,
    stays_dense: Callable[[Config, int], bool] = lambda _c, _layer: False,
) -> MlpRule:
    """Routed experts of three matrices each, a router, perhaps shared experts; some layers stay dense."""

    def count(c: Config, layer: int, attention: int) -> LayerWeights:
        hidden = width(c)
        if stays_dense(c, layer):
            return LayerWeights(attention, mlp=3 * hidden * c.size("intermediate_size", "ffn_hidden_size"))
        experts, inner = c.size(*count_names), c.size(*size_names)
        return LayerWeights(
            attention,
            mlp=3 * hidden * shared_width(c),
            experts=3 * hidden * inner * experts,
            router=hidden * experts,
        )

    return count


def first_dense(c: Config, layer: int) -> bool:
    if layer < c.size("first_k_dense_replace", default=0):
        return True
    return layer % max(1, c.size("moe_layer_freq", default=1)) != 0


def qwen_dense(c: Config, layer: int) -> bool:
    named = c.fields.get("mlp_only_layers")
    if isinstance(named, list) and layer in named:
        return True
    return (layer + 1) % max(1, c.size("decoder_sparse_step", default=1)) != 0


def ernie_dense(c: Config, layer: int) -> bool:
    first = c.size("moe_layer_start_index", default=0)
    last = c.size("moe_layer_end_index", default=LAYER_LIMIT)
    interval = max(1, c.size("moe_layer_interval", default=1))
    return not first <= layer <= last or (layer + 1) % interval != 0


def shared_count(name: str) -> Callable[[Config], int]:
    def size(c: Config) -> int:
        return c.size(name, default=0) * c.size("moe_intermediate_size")

    return size


def dbrx_experts(c: Config, _layer: int, attention: int) -> LayerWeights:
    inner = c.fields.get("ffn_config")
    f = Config(inner if isinstance(inner, Mapping) else {})
    experts = f.size("moe_num_experts")
    return LayerWeights(
        attention,
        experts=3 * width(c) * f.size("ffn_hidden_size") * experts,
        router=width(c) * experts,
    )


def longcat_mlp(c: Config, _layer: int, attention: int) -> LayerWeights:
    """LongCat-Flash: two attentions, two dense MLPs and one expert block in every layer.

    The zero experts are identities: they have a row in the router, no weights.
    """
    hidden, experts = width(c), c.size("n_routed_experts")
    return LayerWeights(
        attention,
        mlp=2 * 3 * hidden * c.size("ffn_hidden_size"),
        experts=3 * hidden * c.size("expert_ffn_hidden_size") * experts,
        router=hidden * (experts + c.size("zero_expert_num", default=0)),
    )
