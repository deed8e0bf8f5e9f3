"""What of an engine's answers may be shown to somebody else: an allow-list.

An engine's info endpoints carry keys, paths, host names and, in vLLM's developer
mode, the process's environment.  So only what is named here is public; whatever
a later release adds is private until somebody has looked at it.  Everything that
:mod:`exporter.engines.info` and the page readers use is among it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from exporter.engines.info import ENDPOINTS

ENGINES = frozenset(ENDPOINTS)


class Kind(StrEnum):
    """What a public field holds."""

    VALUE = "value"  # a number, a flag, one word, or a list of those
    MODEL = "model"  # a model's name, path or hub id
    LOCATION = "location"  # the same, as the place to look for its files
    ADAPTER = "adapter"  # a LoRA adapter's name, or several with commas
    ROUTE = "route"
    ENGINE = "engine"  # an engine's name
    API_PATH = "api_path"  # a path of the HTTP interface
    INDEX = "index"  # a number: a rank, a process


# A field is a kind, a mapping of fields, or a list of such mappings (a tuple of one).
Fields = Mapping[str, "Kind | Fields | tuple[Fields]"]


def _values(*names: str) -> dict[str, Kind]:
    return dict.fromkeys(names, Kind.VALUE)


_MODELS_ENTRY: Fields = {
    "id": Kind.MODEL,
    "root": Kind.LOCATION,
    "parent": Kind.MODEL,
    "owned_by": Kind.ENGINE,
    **_values("object", "max_model_len"),
}

_VLLM_CONFIG: Fields = {
    "model_config": {
        "model": Kind.LOCATION,
        "served_model_name": Kind.MODEL,
        **_values("dtype", "max_model_len", "quantization", "enforce_eager", "disable_sliding_window"),
    },
    "cache_config": _values(
        "block_size", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization", "is_attention_free",
        "kv_cache_max_concurrency", "kv_cache_memory_bytes", "kv_cache_size_tokens", "mamba_block_size",
        "mamba_cache_dtype", "mamba_cache_mode", "mamba_page_size_padded", "mamba_ssm_cache_dtype",
        "num_cpu_blocks", "num_gpu_blocks", "num_gpu_blocks_override", "sliding_window", "swap_space",
    ),
    "parallel_config": _values(
        "data_parallel_size", "decode_context_parallel_size", "enable_expert_parallel",
        "pipeline_parallel_size", "prefill_context_parallel_size", "tensor_parallel_size", "world_size",
    ),
    "scheduler_config": _values(
        "async_scheduling", "disable_hybrid_kv_cache_manager", "enable_chunked_prefill",
        "max_num_batched_tokens", "max_num_seqs", "policy",
    ),
    "speculative_config": _values("method", "num_speculative_tokens"),
}  # fmt: skip

INFO_FIELDS: Fields = {
    # /v1/models of both, /version of vLLM
    "data": (_MODELS_ENTRY,),
    # /server_info of vLLM
    "vllm_config": _VLLM_CONFIG,
    # /server_info and /model_info of SGLang
    "model_path": Kind.LOCATION,
    "served_model_name": Kind.MODEL,
    "speculative_draft_model_path": Kind.LOCATION,
    **_values(
        "object", "version", "enable_trace", "export_metrics_to_file",
        "tokenizer_metrics_allowed_custom_labels", "attention_backend", "chunked_prefill_size",
        "context_length", "cpu_offload_gb",
        "dcp_size", "device", "disable_cuda_graph", "disable_hybrid_swa_memory", "disable_overlap_schedule",
        "disable_radix_cache", "disaggregation_mode", "dp_size", "dtype", "enable_dp_attention",
        "enable_hierarchical_cache", "enable_metrics", "ep_size", "hicache_ratio", "hicache_size",
        "is_generation", "kv_cache_dtype", "mamba_full_memory_ratio",
        "mamba_radix_cache_strategy", "mamba_ssm_dtype",
        "max_mamba_cache_size", "max_prefill_tokens", "max_req_input_len", "max_running_requests",
        "max_total_num_tokens", "mem_fraction_static", "model_type", "page_size", "pp_size", "quantization",
        "radix_eviction_policy", "schedule_conservativeness", "schedule_policy", "speculative_algorithm",
        "speculative_eagle_topk", "speculative_num_draft_tokens", "speculative_num_steps",
        "swa_full_tokens_ratio", "tp_size",
    ),
}  # fmt: skip

# Routes of both engines' servers.  Any other path that a page counts is a client's own words.
API_PATHS = frozenset({
    "/abort_request", "/classify", "/clear_hicache_storage_backend", "/collective_rpc",
    "/continue_generation", "/detokenize", "/docs", "/encode", "/flush_cache", "/freeze_gc", "/generate",
    "/get_load", "/get_model_info", "/get_server_info", "/get_weights_by_name", "/health",
    "/health_generate", "/inference/v1/generate", "/init_weights_update_group", "/invocations",
    "/is_paused", "/is_scaling_elastic_ep", "/is_sleeping", "/load", "/load_lora_adapter", "/metrics",
    "/model_info", "/openapi.json", "/pause", "/pause_generation", "/ping", "/pooling",
    "/release_memory_occupation", "/rerank", "/reset_mm_cache", "/reset_prefix_cache", "/resume",
    "/resume_memory_occupation", "/scale_elastic_ep", "/score", "/server_info", "/set_internal_state",
    "/sleep", "/start_profile", "/stop_profile", "/tokenize", "/tokenizer_info", "/unload_lora_adapter",
    "/update_weights_from_disk", "/v1/audio/transcriptions", "/v1/audio/translations",
    "/v1/chat/completions", "/v1/chat/completions/render", "/v1/classify", "/v1/completions",
    "/v1/completions/render", "/v1/detokenize", "/v1/embeddings", "/v1/load_lora_adapter", "/v1/loads",
    "/v1/messages", "/v1/messages/count_tokens", "/v1/models", "/v1/realtime", "/v1/rerank",
    "/v1/responses", "/v1/score", "/v1/tokenize", "/v1/unload_lora_adapter", "/v2/embed", "/v2/rerank",
    "/version", "/wake_up", "none",
})  # fmt: skip

# Labels by what their values are.  Of any other only flags are public, and numbers on info metrics.
LABELS: Mapping[str, Kind] = {
    # "name" is the model in SGLang before 0.4.3.
    **dict.fromkeys(("model_name", "served_model_name", "name", "model"), Kind.MODEL),
    **dict.fromkeys(
        ("lora_name", "running_lora_adapters", "waiting_lora_adapters", "lora_adapter"), Kind.ADAPTER
    ),
    "route": Kind.ROUTE,
    **dict.fromkeys(("endpoint", "handler", "path"), Kind.API_PATH),
    **dict.fromkeys(
        (
            "attn_cp_rank", "attn_cp_size", "dp_rank", "engine", "generation", "le", "max_lora",
            "moe_ep_rank", "pid", "pp_rank", "pp_size", "quantile", "status_code", "tp_rank",
        ),
        Kind.INDEX,
    ),
    **_values(
        "ReplicaId", "cache_dtype", "cache_source",
        "cache_type", "category", "component",
        "engine_type", "finished_reason", "forward_mode", "forward_overlap", "gt",
        "implementation", "is_streaming", "kind", "kv_cache_dtype_skip_layers", "kv_cache_layout",
        "kv_offloading_backend", "mamba_cache_dtype", "mamba_cache_mode", "mamba_ssm_cache_dtype",
        "method", "mode", "outcome", "phase", "pool", "prefix_caching_hash_algo",
        "rank_state", "reason", "sleep_state", "source", "stage", "status", "storage_backend", "version",
    ),
}  # fmt: skip
