"""Flags of ``plan``: names and spellings are the engines' own wherever they have one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic_settings import CliPositionalArg, CliToggleFlag, NoDecode

from exporter.settings import DEFAULT_CONTEXTS, CommandSettings, words_of

_DTYPE = r"^[A-Za-z0-9_.]{1,40}$"


class PlanSettings(CommandSettings):
    """kvcache-exporter plan: what a model's cache takes and how many sequences fit, before deploying."""

    config: CliPositionalArg[Path] = Field(description="config.json, or the directory of a checkpoint")
    engine: Literal["vllm", "sglang"] = Field(default="vllm", description="vllm or sglang")
    gpu: str | None = Field(
        default=None, max_length=80, description="GPU by name: H100, A100-40GB, MI300X, ... (default: H100)"
    )
    gpu_memory_gb: PositiveFloat | None = Field(
        default=None, le=1e5, description="memory of one GPU in GB (10^9 bytes), instead of the GPU's own"
    )
    gpus: PositiveInt | None = Field(default=None, le=100_000, description="GPUs in all")
    gpu_memory_utilization: float = Field(
        default=0.92, gt=0, le=1, description="share of a GPU's memory the engine may use"
    )
    overhead_gb: NonNegativeFloat = Field(
        default=0, le=1e5, description="GB (10^9 bytes) per GPU beside weights and cache: activations, graphs"
    )
    weights_dtype: str | None = Field(
        default=None,
        pattern=_DTYPE,
        description="every weight in this format: bfloat16, fp8, int4, nvfp4, ...",
    )
    weights_gb: NonNegativeFloat | None = Field(
        default=None, le=1e6, description="weights of the whole model in GB (10^9 bytes)"
    )
    kv_cache_dtype: str = Field(
        default="auto",
        pattern=_DTYPE,
        description="as the engine spells it: auto, bfloat16, fp8, fp8_ds_mla, ...",
    )
    tensor_parallel_size: PositiveInt | None = Field(
        default=None, le=4096, description="GPUs that share each layer (default: what --gpus leaves)"
    )
    pipeline_parallel_size: PositiveInt = Field(default=1, le=4096, description="pipeline stages")
    data_parallel_size: PositiveInt = Field(default=1, le=100_000, description="replicas")
    decode_context_parallel_size: PositiveInt = Field(
        default=1, le=4096, description="ranks among which the tokens of a sequence are split"
    )
    block_size: PositiveInt | None = Field(
        default=None, le=2**20, description="tokens per block or page (default: the engine's)"
    )
    max_model_len: PositiveInt | None = Field(
        default=None, le=10**9, description="longest context served, in tokens (default: the config's)"
    )
    max_num_batched_tokens: PositiveInt | None = Field(
        default=None,
        le=10**9,
        description="tokens in flight at once, for the admission size (two batches under async scheduling)",
    )
    bytes_per_token: NonNegativeFloat | None = Field(
        default=None, le=1e12, description="set by hand: cache bytes of a token, all GPUs of a replica"
    )
    state_bytes_per_sequence: NonNegativeInt | None = Field(
        default=None, le=10**15, description="set by hand: state bytes of a sequence, all GPUs of a replica"
    )
    window_tokens: PositiveInt | None = Field(
        default=None, le=10**9, description="set by hand: how many tokens of a sequence are kept"
    )
    no_prefix_caching: CliToggleFlag[bool] = Field(default=False, description="prefix caching off")
    no_hybrid_manager: CliToggleFlag[bool] = Field(
        default=False, description="vLLM's hybrid KV cache manager off: windows are stored in full"
    )
    speculative: str = Field(
        default="", pattern=r"^[A-Za-z0-9_.-]{0,40}$", description="draft method: mtp, eagle, ..."
    )
    context: Annotated[list[PositiveInt], NoDecode, BeforeValidator(words_of)] = Field(
        default=list(DEFAULT_CONTEXTS), max_length=50, description="context lengths in tokens"
    )
    sequences: PositiveInt | None = Field(
        default=None, le=10**9, description="sequences at once, over all replicas: do they fit?"
    )
    shared_prefix: NonNegativeInt = Field(
        default=0, le=10**9, description="tokens at the start that all sequences have in common"
    )
    price_per_hour: NonNegativeFloat | None = Field(
        default=None, le=1e9, description="dollars per hour for all GPUs together"
    )
    strict: CliToggleFlag[bool] = Field(
        default=False, description="exit with 1 where they don't fit, or where that can't be known"
    )
    output: Literal["text", "json"] = Field(default="text", description="text or json")


def ordered(words: Sequence[str]) -> list[str]:
    """``words`` with a CONFIG that follows ``--context 4096 8192`` moved to the front.

    A list takes what follows it; a path is no number, so it can't be meant.
    """
    rest: list[str] = []
    front: list[str] = []
    in_context = False
    for word in words:
        if word.startswith("-"):
            in_context = word == "--context"
        elif in_context and not word.replace(",", "").isdecimal():
            in_context = False
            front.append(word)
            continue
        rest.append(word)
    return front + rest
