"""Blocks, bytes, sequences: what a pool holds.

Pure functions on numbers.  What fits is rounded down, what is taken is
rounded up.  Callers pass figures already checked (counts >= 0, divisors >= 1,
finite ratios).
"""

from __future__ import annotations

import math

from exporter.kvmath.known import Reason, Unavailable


def used_blocks(usage_ratio: float, usable_blocks: int) -> int:
    """Blocks in use = round(usage_ratio * usable_blocks).

    ``usage_ratio`` is 0..1.  vLLM divides an integer by ``num_gpu_blocks - 1``
    (one null block), so with that as ``usable_blocks`` rounding undoes the
    division exactly.
    """
    return round(usage_ratio * usable_blocks)


def sequences_that_fit(usable: int, per_sequence: int) -> int:
    """Whole sequences = floor(usable / per_sequence); both in blocks, or both in tokens or bytes."""
    return usable // per_sequence


def concurrency(num_blocks: int, admission_blocks: int) -> float:
    """vLLM's own "maximum concurrency" = num_blocks / admission_blocks, null block included.

    (vLLM 0.32.0 v1/core/kv_cache_utils.py ``get_max_concurrency_for_kv_cache_config``.)
    """
    return num_blocks / admission_blocks


def pool_bytes(num_blocks: int, block_bytes: int) -> int:
    """Bytes of a pool = num_blocks * block_bytes."""
    return num_blocks * block_bytes


def blocks_in(pool_bytes: int, block_bytes: int) -> int:
    """Whole blocks a pool of ``pool_bytes`` holds = floor(pool_bytes / block_bytes)."""
    return pool_bytes // block_bytes


def max_model_len_from(kv_cache_size_tokens: int, max_concurrency: float) -> int | Unavailable:
    """The ``max_model_len`` (tokens) behind vLLM's two capacity labels.

    The engine computes ``size = int(concurrency * max_model_len)``, so this is
    the one integer m with ``int(concurrency * m) == size``.
    ``Unavailable(CONTRADICTION)`` where no integer fits (a rounded
    concurrency), ``Unavailable(MAX_MODEL_LEN)`` where several do.
    """
    if kv_cache_size_tokens < 1 or not (math.isfinite(max_concurrency) and max_concurrency > 0):
        return Unavailable(Reason.MAX_MODEL_LEN, "size or concurrency is not positive")
    nearest = kv_cache_size_tokens / max_concurrency
    if not nearest < 1e12:
        return Unavailable(Reason.OUT_OF_RANGE, "size over concurrency is no length a model has")
    # A token more adds max_concurrency to the size: the fits are neighbours, near size / concurrency.
    first = max(1, math.floor(nearest) - 1)
    fits = [m for m in range(first, first + 4) if int(max_concurrency * m) == kv_cache_size_tokens]
    if not fits:
        return Unavailable(Reason.CONTRADICTION, "no max_model_len gives this size at this concurrency")
    if len(fits) > 1:
        return Unavailable(Reason.MAX_MODEL_LEN, "several lengths give this size at this concurrency")
    return fits[0]
