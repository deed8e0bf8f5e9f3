"""The options read from an engine's command line, in every spelling it takes.

vLLM 0.32.0: engine/arg_utils.py.  SGLang 0.5.23: srt/arg_groups/fields/*.py; its `--tp`,
`--pp`, `--dp` are argparse abbreviations, spelt out here because others now begin alike.
"""

from __future__ import annotations

from collections.abc import Mapping

DEFAULT_PORTS: Mapping[str, int] = {"vllm": 8000, "sglang": 30000}

# field of EngineFlags -> options that take a value
VALUES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "vllm": {
        "model": ("--model",),
        "served_model_name": ("--served-model-name",),
        "tensor_parallel_size": ("--tensor-parallel-size", "-tp"),
        "pipeline_parallel_size": ("--pipeline-parallel-size", "-pp"),
        "data_parallel_size": ("--data-parallel-size", "-dp"),
        "decode_context_parallel_size": ("--decode-context-parallel-size", "-dcp"),
        "block_size": ("--block-size",),
        "max_model_len": ("--max-model-len",),
        "max_num_batched_tokens": ("--max-num-batched-tokens",),
        "kv_cache_dtype": ("--kv-cache-dtype",),
        "dtype": ("--dtype",),
        "speculative": ("--speculative-config", "-sc"),
        "speculative_method": ("--spec-method",),
        # --speculative-model, --num-speculative-tokens: before one JSON option held all of it
        "speculative_model": ("--spec-model", "--speculative-model"),
        "num_speculative_tokens": ("--spec-tokens", "--num-speculative-tokens"),
        "port": ("--port",),
    },
    "sglang": {
        "model": ("--model-path", "--model"),
        "served_model_name": ("--served-model-name",),
        "tensor_parallel_size": ("--tp-size", "--tensor-parallel-size", "--tp"),
        "pipeline_parallel_size": ("--pp-size", "--pipeline-parallel-size", "--pp"),
        "data_parallel_size": ("--dp-size", "--data-parallel-size", "--dp"),
        "decode_context_parallel_size": ("--dcp-size", "--decode-context-parallel-size"),
        "block_size": ("--page-size",),
        "max_model_len": ("--context-length",),
        "kv_cache_dtype": ("--kv-cache-dtype",),
        "dtype": ("--dtype",),
        "speculative_method": ("--speculative-algorithm",),
        "speculative_model": ("--speculative-draft-model-path", "--speculative-draft-model"),
        "num_speculative_tokens": ("--speculative-num-draft-tokens",),
        "port": ("--port",),
    },
}

# keys of vLLM's JSON option that have an option of their own, too
SPECULATIVE_KEYS: Mapping[str, str] = {
    "method": "--spec-method",
    "model": "--spec-model",
    "num_speculative_tokens": "--spec-tokens",
}

# option without a value -> field of EngineFlags and what it says
SWITCHES: Mapping[str, Mapping[str, tuple[str, bool]]] = {
    "vllm": {
        "--enable-prefix-caching": ("enable_prefix_caching", True),
        "--no-enable-prefix-caching": ("enable_prefix_caching", False),
        "--disable-hybrid-kv-cache-manager": ("hybrid_kv_cache_manager", False),
        "--no-disable-hybrid-kv-cache-manager": ("hybrid_kv_cache_manager", True),
    },
    "sglang": {"--disable-radix-cache": ("enable_prefix_caching", False)},
}

# Common options without a value: knowing them tells a model after them from a value of theirs.
UNRELATED_SWITCHES: Mapping[str, tuple[str, ...]] = {
    "vllm": (
        "--async-scheduling",
        "--disable-log-requests",
        "--disable-log-stats",
        "--enable-auto-tool-choice",
        "--enable-chunked-prefill",
        "--enable-expert-parallel",
        "--enable-log-requests",
        "--enable-lora",
        "--enforce-eager",
        "--headless",
        "--kv-cache-metrics",
        "--trust-remote-code",
    ),
    "sglang": (),
}

# Options that would pass for the beginning of one of ours: -dc is --diffusion-config, not -dcp.
UNRELATED_VALUES: Mapping[str, tuple[str, ...]] = {"vllm": ("-dc",), "sglang": ()}
