"""A value that may be missing, and the bounded words that say why.

Absence travels as :class:`Unavailable` from the place where it was noticed to
the exposition, where it becomes an absent series and one
``{signal, reason}`` entry.  The ``reason`` ends up in a label, so it is an
enum; the ``detail`` is for people (``explain``, log) and never a label.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from typing_extensions import TypeIs

T = TypeVar("T")


class Reason(StrEnum):
    """Why a value is missing.  Where an input is missing, the input's name."""

    NOT_REPORTED = "not_reported"  # the engine's page does not carry it (old release, other engine)
    NO_TRAFFIC = "no_traffic"  # the engine reports it only once requests ran
    NUM_GPU_BLOCKS = "num_gpu_blocks"
    BLOCK_SIZE = "block_size"
    KV_CACHE_SIZE_TOKENS = "kv_cache_size_tokens"
    MAX_TOTAL_NUM_TOKENS = "max_total_num_tokens"
    MAX_MODEL_LEN = "max_model_len"
    MAX_NUM_BATCHED_TOKENS = "max_num_batched_tokens"
    KV_CACHE_DTYPE = "kv_cache_dtype"
    TENSOR_PARALLEL_SIZE = "tensor_parallel_size"
    PIPELINE_PARALLEL_SIZE = "pipeline_parallel_size"
    ENGINE_VERSION = "engine_version"  # the meaning depends on a release nobody told us
    MODEL_CONFIG = "model_config"  # no config.json found
    BAD_MODEL_CONFIG = "bad_model_config"  # found, but a field is missing, malformed or contradicts another
    MODEL_WEIGHTS = "model_weights"
    GPU_BANDWIDTH = "gpu_bandwidth"
    UNSUPPORTED_ATTENTION = "unsupported_attention"
    UNSUPPORTED_PARALLELISM = "unsupported_parallelism"
    SPECULATIVE_DECODING = "speculative_decoding"  # draft layers share the pool; their share is unknown
    ATTENTION_FREE = "attention_free"
    SEVERAL_CACHE_GROUPS = "several_cache_groups"  # no single tokens figure is true
    WINDOW_POOL = "window_pool"  # SGLang's separate window pool would be the limit
    SET_BY_HAND = "set_by_hand"  # the layout is the user's own figures, which hold for one dtype
    CONTRADICTION = "contradiction"  # two sources disagree and neither is trusted
    OUT_OF_RANGE = "out_of_range"  # the engine's own figure is impossible
    PREFIX_CACHING_OFF = "prefix_caching_off"
    IDLE = "idle"  # a ratio over running sequences, and none runs
    NO_ENGINE_FAMILIES = "no_engine_families"  # reachable, but not an engine's page


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A missing value: why (bounded, a label) and the particulars (for people)."""

    reason: Reason
    detail: str = ""


def known(value: T | Unavailable) -> TypeIs[T]:
    """True where ``value`` is a value, narrowing its type."""
    return not isinstance(value, Unavailable)
