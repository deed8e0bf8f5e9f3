"""Identity, the cost of a token, and the pool."""

from __future__ import annotations

from exporter.catalogue.metric import Group, metric

ENGINE_INFO = metric(
    "gauge",
    "engine_info",
    Group.IDENTITY,
    (
        *("software", "version", "kv_cache_dtype", "kv_cache_dtype_source", "block_size", "attention"),
        *("config_source", "tensor_parallel_size", "pipeline_parallel_size", "parallel_source"),
    ),
    "1; what the engine is, and where its configuration was learned: config_source for config.json, "
    "*_source for the other inputs (engine, setting, command_line, config, default).",
    "engine, config",
)
ENGINE_UP = metric(
    "gauge",
    "engine_up",
    Group.IDENTITY,
    (),
    "1 while a page of a known engine was read recently, else 0.",
    "exporter",
    rank=False,
)

BYTES_PER_TOKEN = metric(
    "gauge",
    "bytes_per_token",
    Group.COST,
    (),
    "KV cache bytes that one more token takes at long context, all GPUs of the replica together, "
    "replicated copies counted.",
    "arithmetic",
)
DEVICE_BYTES_PER_TOKEN = metric(
    "gauge",
    "device_bytes_per_token",
    Group.COST,
    (),
    "KV cache bytes that one more token takes on one GPU (with pipeline stages, the one with most layers).",
    "arithmetic",
)
STATE_BYTES_PER_SEQUENCE = metric(
    "gauge",
    "state_bytes_per_sequence",
    Group.COST,
    (),
    "Recurrent state bytes of one sequence at any length, all GPUs of the replica; 0 for attention only.",
    "arithmetic",
)
# Known together or not at all: all three need the layout.
TOKEN_COST = (BYTES_PER_TOKEN, DEVICE_BYTES_PER_TOKEN, STATE_BYTES_PER_SEQUENCE)
SEQUENCE_BYTES = metric(
    "gauge",
    "sequence_bytes",
    Group.COST,
    ("context",),
    "Most bytes that one sequence holds on its way to this many tokens once prefill is over, "
    "all GPUs of the replica.",
    "arithmetic",
)
MODEL_WEIGHTS_BYTES = metric(
    "gauge",
    "model_weights_bytes",
    Group.COST,
    (),
    "Bytes of the checkpoint's tensors as stored (safetensors).",
    "checkpoint",
)

USAGE_RATIO = metric(
    "gauge",
    "usage_ratio",
    Group.POOL,
    (),
    "Share of the KV cache pool in use, 0..1. Cached but reclaimable blocks count as free.",
    "engine",
)
CAPACITY_TOKENS = metric(
    "gauge",
    "capacity_tokens",
    Group.POOL,
    (),
    "Tokens that the pool holds; with several cache groups the engine's figure at max_model_len.",
    "engine, else arithmetic",
)
USED_TOKENS = metric(
    "gauge",
    "used_tokens",
    Group.POOL,
    (),
    "Tokens' worth of blocks in use: an upper bound on live tokens, shared prefixes counted once. "
    "Absent with several cache groups.",
    "engine",
)
CACHED_TOKENS = metric(
    "gauge",
    "cached_tokens",
    Group.POOL,
    (),
    "Tokens cached for reuse and held by nobody: resident, but reclaimable at once.",
    "engine (SGLang)",
)
CAPACITY_BYTES = metric(
    "gauge",
    "capacity_bytes",
    Group.POOL,
    (),
    "Bytes of the KV cache pool, all GPUs of the replica (SGLang without a config: no states).",
    "engine, else arithmetic",
)
USED_BYTES = metric(
    "gauge", "used_bytes", Group.POOL, (), "Bytes of the pool in use, all GPUs of the replica.", "arithmetic"
)
CAPACITY_BLOCKS = metric(
    "gauge",
    "capacity_blocks",
    Group.POOL,
    (),
    "Blocks (vLLM, null block included) or pages (SGLang).",
    "engine",
)
USED_BLOCKS = metric("gauge", "used_blocks", Group.POOL, (), "Blocks or pages in use.", "engine")
SAMPLED_USAGE_RATIO = metric(
    "histogram",
    "sampled_usage_ratio",
    Group.POOL,
    (),
    "usage_ratio as seen at every poll, weighted by poll intervals; the share above the 0.85 boundary "
    "is the share of time above 85 %.",
    "exporter",
)
