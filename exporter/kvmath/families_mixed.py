"""Families read layer by layer: states, sparse attention, layers of different heads, encoders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from exporter.kvmath import drafts, encoders, hybrids, mixed, recurrents, sparse
from exporter.kvmath.family import Family
from exporter.kvmath.heads import Names

_INDEXER: Final = frozenset({"index_head_dim", "index_topk"})
_SPARSE_MLA: Final = Family(stack=sparse.sparse_mla, drafts=drafts.like_the_widest, reads=_INDEXER)
_V4: Final = Family(
    stack=sparse.deepseek_v4,
    drafts=drafts.deepseek_v4,
    reads=_INDEXER | {"compress_ratios"},
    # vLLM 0.32.0 models/deepseek_v4/attention.py: the only layout its Hopper kernels read.
    cache_dtype="fp8_ds_mla",
)
_QWEN_HYBRID: Final = Family(
    stack=hybrids.gated_delta(reads_state_dtype=True),
    drafts=drafts.full_layers("mtp_num_hidden_layers"),
    names=Names(head_dim_default=256),
    reads=frozenset({"full_attention_interval"}),
)
_STEP: Final = Family(
    stack=mixed.step,
    drafts=drafts.step,
    names=Names(kv_heads=("num_attention_groups", "num_key_value_heads")),
)
_MAMBA_NAMES: Final = Names(layers=("num_hidden_layers", "n_layer"), hidden=("hidden_size", "d_model"))
_MINIMAX: Final = Family(stack=recurrents.minimax, reads=frozenset({"attn_type_list"}))
_DECODER: Final = Names(hidden=("d_model",))

MIXED: Final[Mapping[str, Family]] = {
    # Sparse attention.
    "deepseek_v32": _SPARSE_MLA,
    "glm_moe_dsa": _SPARSE_MLA,
    "deepseek_v4": _V4,
    "deepseek_ref": _V4,  # as an SGLang checkpoint of V4 names it; other models would lack compress_ratios
    "minimax_m3": Family(stack=sparse.minimax_m3, reads=frozenset({"sparse_attention_config"})),
    # Recurrent state beside attention.
    "qwen3_next": Family(
        stack=hybrids.gated_delta(reads_state_dtype=False),
        drafts=drafts.full_layers("num_nextn_predict_layers"),
        names=Names(head_dim_default=256),
        reads=frozenset({"full_attention_interval"}),
    ),
    "qwen3_5": _QWEN_HYBRID,
    "qwen3_5_text": _QWEN_HYBRID,
    "qwen3_5_moe": _QWEN_HYBRID,
    "qwen3_5_moe_text": _QWEN_HYBRID,
    "kimi_linear": Family(stack=hybrids.kimi_linear, reads=frozenset({"linear_attn_config"})),
    "nemotron_h": Family(
        stack=hybrids.nemotron_h,
        drafts=drafts.nemotron_h,
        names=Names(head_dim=("head_dim", "attention_head_dim")),
        reads=frozenset({"hybrid_override_pattern", "layers_block_type"}),
    ),
    "granitemoehybrid": Family(stack=hybrids.granite_hybrid, reads=frozenset({"layers_block_type"})),
    "bamba": Family(stack=hybrids.bamba),
    "falcon_h1": Family(stack=hybrids.falcon_h1),
    "zamba2": Family(
        stack=hybrids.zamba2,
        names=Names(head_dim=("attention_head_dim",), kv_heads=()),
        reads=frozenset({"layers_block_type"}),
    ),
    "jamba": Family(stack=hybrids.jamba, reads=frozenset({"layers_block_type"})),
    "lfm2": Family(stack=hybrids.lfm2),
    "lfm2_moe": Family(stack=hybrids.lfm2),
    "minimax_m1": _MINIMAX,
    "minimax_text_01": _MINIMAX,
    "recurrent_gemma": Family(stack=recurrents.recurrent_gemma),
    # Recurrent state alone.
    "mamba": Family(stack=recurrents.mamba, names=_MAMBA_NAMES),
    "falcon_mamba": Family(stack=recurrents.mamba, names=_MAMBA_NAMES),
    "mamba2": Family(stack=recurrents.mamba2, names=_MAMBA_NAMES),
    "rwkv5": Family(stack=recurrents.rwkv5),
    # Layers of different heads, width or reach.
    "llama4_text": Family(stack=mixed.llama4, reads=frozenset({"attention_chunk_size"})),
    "mimo_v2_flash": Family(
        stack=mixed.mimo_v2,
        drafts=drafts.mimo_v2,
        reads=frozenset(
            {
                "attention_chunk_size",
                "hybrid_layer_pattern",
                "is_hybrid_swa",
                "swa_head_dim",
                "swa_num_key_value_heads",
            }
        ),
    ),
    "gemma3n_text": Family(stack=mixed.gemma3n, reads=frozenset({"num_kv_shared_layers"})),
    "gemma4_text": Family(
        stack=mixed.gemma4,
        # Bidirectional attention within an image changes what is computed, not what is kept.
        reads=frozenset({"num_kv_shared_layers", "global_head_dim", "use_bidirectional_attention"}),
    ),
    "nemotron-nas": Family(stack=mixed.nemotron_nas, reads=frozenset({"block_configs"})),
    "openelm": Family(stack=mixed.openelm),
    "step3p5": _STEP,
    "step3p7": _STEP,
    # Encoder and decoder.
    "t5": Family(
        stack=encoders.t5,
        names=Names(layers=("num_decoder_layers", "num_layers"), heads=("num_heads",)),
        reads=frozenset({"is_encoder_decoder"}),
    ),
    "whisper": Family(
        stack=encoders.whisper,
        names=replace(_DECODER, layers=("decoder_layers",), heads=("decoder_attention_heads",)),
        reads=frozenset({"is_encoder_decoder"}),
    ),
    "mllama_text_model": Family(stack=encoders.mllama, reads=frozenset({"cross_attention_layers"})),
}
