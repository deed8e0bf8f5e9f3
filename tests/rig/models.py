"""Tiny model directories for the real engine: a config.json and a tokenizer, no weights.

Run by the engine's own python, which has `tokenizers`: `python models.py DIRECTORY`. The engine invents the
weights (`--load-format dummy`); the text they produce is noise, the cache they fill is real.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

_VOCABULARY = 1024

# What they have in common: small enough for a few milliseconds per step on one core.
_COMMON: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 8,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "vocab_size": _VOCABULARY,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.02,
    "max_position_embeddings": 8192,
    "attention_bias": False,
}

CONFIGS: dict[str, dict[str, Any]] = {
    # Full attention in every layer: 2 x 2 KV heads x 32 x 2 bytes x 4 layers = 1,024 bytes per token.
    "llama": {
        **_COMMON,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "tie_word_embeddings": False,
        "mlp_bias": False,
    },
    # Every other layer sees the last 256 tokens only: two cache groups of three layers draw on one pool.
    "gemma2": {
        **_COMMON,
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "num_hidden_layers": 6,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "tie_word_embeddings": True,
        "sliding_window": 256,
        "query_pre_attn_scalar": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
    },
    # One latent of 512 + 64 elements per token and layer: 576 x 2 bytes x 4 layers = 4,608 bytes per token.
    "deepseek_v2": {
        **_COMMON,
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "num_hidden_layers": 4,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "tie_word_embeddings": False,
        "kv_lora_rank": 512,
        "q_lora_rank": None,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
    },
    # Three of four layers keep a state of fixed size (gated delta net), the fourth keeps every token.
    "qwen3_next": {
        **_COMMON,
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_hidden_layers": 8,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "partial_rotary_factor": 0.5,
        "tie_word_embeddings": False,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 128,
        "linear_num_value_heads": 2,
        "linear_value_head_dim": 128,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128,
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "mlp_only_layers": [],
    },
}

# The rope of an MLA model on a CPU is YaRN or nothing in SGLang 0.5.23 (layers/rotary_embedding/factory.py,
# get_rope_cpu), as in the published DeepSeek V2. The cache is the same.
CONFIGS["deepseek_v2_yarn"] = {
    **CONFIGS["deepseek_v2"],
    "rope_scaling": {
        "type": "yarn",
        "factor": 2,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
    },
}


def _write_tokenizer(directory: Path) -> None:
    """A byte-level BPE of exactly the vocabulary's size, so that every id the model can emit has a text."""
    # Only the engine's environment has this library.
    from tokenizers import (  # type: ignore[import-not-found]
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        trainers,
    )

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=["<s>", "</s>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Any text will do; this module of the standard library is on every machine.
    tokenizer.train([str(argparse.__file__)], trainer)
    if tokenizer.get_vocab_size() != _VOCABULARY:
        sys.exit(f"the tokenizer has {tokenizer.get_vocab_size()} tokens, not {_VOCABULARY}")
    tokenizer.save(str(directory / "tokenizer.json"))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "model_max_length": 8192,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(about, indent=1))


def main() -> None:
    """Write one directory per model below the directory named on the command line."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("directory", type=Path)
    base: Path = parser.parse_args().directory
    for name, config in CONFIGS.items():
        directory = base / name
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").write_text(json.dumps(config, indent=1))
        _write_tokenizer(directory)


if __name__ == "__main__":
    main()
