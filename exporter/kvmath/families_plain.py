"""Families whose layers all have the same heads, some of them windowed.

Adding one means adding an entry (and, where its fields mean something new, a
rule in ``heads.py`` or ``windows.py``).  Class defaults are those of
transformers 5 as vLLM 0.32.0 loads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from exporter.kvmath import drafts, heads, windows
from exporter.kvmath.family import Family
from exporter.kvmath.heads import Names

_PLAIN: Final = Family()
_HEAD_DIM_128: Final = Family(names=Names(head_dim_default=128))
_HEAD_DIM_256: Final = Family(names=Names(head_dim_default=256))
# Attention layers take sliding_window, and layer_types where given, from any config of these families.
_ANY_WINDOW: Final = Family(windows=windows.where_said)
_GPT: Final = Names(
    layers=("n_layer", "num_hidden_layers"),
    heads=("n_head", "num_attention_heads"),
    kv_heads=("n_head_kv",),
    hidden=("n_embd", "hidden_size"),
)
_FALCON: Final = Names(
    layers=("num_hidden_layers", "n_layer"),
    heads=("num_attention_heads", "n_head"),
    kv_heads=("num_kv_heads", "n_head_kv"),
)
_MPT: Final = Names(layers=("n_layers",), heads=("n_heads",), hidden=("d_model",))
_BLOOM: Final = Names(
    layers=("n_layer", "num_hidden_layers"),
    heads=("n_head", "num_attention_heads"),
    hidden=("hidden_size", "n_embed"),
)
_LATENT: Final = Family(heads=heads.latent, drafts=drafts.like_the_last)
_GEMMA_SIZES: Final = {
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_size": 2304,
}
_LLAMA_SIZES: Final = {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}
_QWEN3: Final = Family(windows=windows.qwen_tail, names=Names(head_dim_default=128))

PLAIN: Final[Mapping[str, Family]] = {
    # Llama and what shares its fields.
    "llama": replace(_ANY_WINDOW, nested_defaults=_LLAMA_SIZES),
    "mistral": Family(
        windows=windows.where_said_or(4096), nested_defaults={**_LLAMA_SIZES, "num_key_value_heads": 8}
    ),
    "ministral3": replace(_ANY_WINDOW, names=Names(head_dim_default=128)),
    "mixtral": _ANY_WINDOW,
    "phi3": _ANY_WINDOW,
    "phi3_v": _ANY_WINDOW,
    "phimoe": _ANY_WINDOW,
    "starcoder2": _ANY_WINDOW,
    "granite": _ANY_WINDOW,
    "granitemoe": _ANY_WINDOW,
    "bailing_moe": _PLAIN,
    "cohere": _PLAIN,
    "deepseek": _PLAIN,
    "ernie4_5": _HEAD_DIM_128,
    "ernie4_5_moe": _PLAIN,
    "gemma": _HEAD_DIM_256,
    "glm": _HEAD_DIM_128,
    "glm4": _HEAD_DIM_128,
    "glm4_moe": Family(drafts=drafts.like_the_last),
    "internlm2": _PLAIN,
    "internlm3": _PLAIN,
    "minimax_m2": _HEAD_DIM_128,
    "olmo": _PLAIN,
    "olmo2": _PLAIN,
    "olmoe": _PLAIN,
    "orion": _PLAIN,
    "phi3small": _PLAIN,  # block-sparse attention reads less than it stores: the cache is whole
    "seed_oss": _HEAD_DIM_128,
    "smollm3": Family(windows=windows.switched_off),
    "xverse": _PLAIN,
    "hunyuan_v1_dense": Family(names=Names(head_dim=("attention_head_dim", "head_dim"))),
    "hunyuan_v1_moe": Family(names=Names(head_dim=("attention_head_dim", "head_dim"))),
    # Qwen.  sliding_window is in every config and counts only under use_sliding_window.
    "qwen2": Family(windows=windows.qwen_tail),
    "qwen2_vl": Family(windows=windows.qwen_tail),
    "qwen2_vl_text": Family(windows=windows.qwen_tail),
    "qwen2_5_vl": Family(windows=windows.qwen_tail),
    "qwen2_5_vl_text": Family(windows=windows.qwen_tail),
    "mimo": Family(windows=windows.qwen_tail, drafts=drafts.like_the_last),
    "qwen3": _QWEN3,
    "qwen2_moe": Family(windows=windows.switched_off),
    "qwen3_moe": Family(windows=windows.switched_off),
    "qwen3_vl_text": _HEAD_DIM_128,
    "qwen3_vl_moe_text": _PLAIN,
    "qwen3_omni_moe_text": Family(windows=windows.switched_off),
    "qwen": Family(names=Names(kv_heads=(), head_dim=("kv_channels",))),
    # Older families with a head of K and V per query head.
    "gpt2": Family(names=_GPT),
    "gptj": Family(names=_GPT),
    "phi-msft": Family(names=_GPT),
    "gpt_bigcode": Family(heads=heads.multi_query_switch, names=replace(_GPT, kv_heads=())),
    "gpt_neox": Family(names=Names(kv_heads=())),
    "opt": Family(names=Names(kv_heads=())),
    "bloom": Family(names=replace(_BLOOM, kv_heads=())),
    "baichuan": _PLAIN,
    "internlm": _PLAIN,
    "phi": _PLAIN,
    "stablelm": _PLAIN,
    "falcon": Family(heads=heads.falcon, names=_FALCON),
    "RefinedWeb": Family(heads=heads.falcon, names=_FALCON),
    "RefinedWebModel": Family(heads=heads.falcon, names=_FALCON),
    "mpt": Family(heads=heads.attn_config, names=_MPT),
    "dbrx": Family(heads=heads.attn_config, names=_MPT),
    "chatglm": Family(heads=heads.chatglm, names=Names(layers=("num_layers",), head_dim=("kv_channels",))),
    # Latent attention.
    "deepseek_v2": replace(_LATENT, nested_defaults={"kv_lora_rank": 512, "qk_rope_head_dim": 64}),
    "deepseek_v3": _LATENT,
    "kimi_k2": _LATENT,
    "glm4_moe_lite": _LATENT,
    "axk1": _LATENT,
    "pangu_ultra_moe": _LATENT,
    "longcat_flash": Family(
        heads=heads.latent, names=Names(layers=("num_layers",)), caches_per_layer=2
    ),  # two attentions in each of the num_layers layers
    "minicpm3": Family(heads=heads.expanded_latent),
    # Window mixes.
    "gemma2": Family(
        windows=windows.every_nth_full(2, default_window=4096), names=Names(head_dim_default=256)
    ),
    "gemma3_text": Family(
        windows=windows.every_nth_full(6, default_window=4096),
        names=Names(head_dim_default=256),
        nested_defaults=_GEMMA_SIZES,
    ),
    # A layer sees sliding_window + 1 tokens (vLLM 0.32.0 models/commandr.py).
    "cohere2": Family(windows=windows.every_nth_full(4, default_window=4096, more_tokens=1)),
    "olmo3": Family(windows=windows.every_nth_full(4, default_window=4096)),
    "exaone4": Family(windows=windows.every_nth_full(4, default_window=4096)),
    # vLLM 0.32.0 models/gpt_oss.py goes by the layer number and never looks at layer_types.
    "gpt_oss": Family(
        windows=windows.every_nth_full(2, default_window=128, fixed=True), names=Names(head_dim_default=64)
    ),
    "cwm": Family(windows=windows.cwm, names=Names(head_dim_default=128)),
    "step3_text": Family(names=Names(kv_heads=("num_attention_groups",), head_dim_default=256)),
}
