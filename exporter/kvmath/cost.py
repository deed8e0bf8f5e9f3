"""Dollars: what a sequence's share of the cache costs."""

from __future__ import annotations


def share_per_hour(price_per_hour: float, sequence_bytes: int, pool_bytes: int) -> float:
    """Dollars per hour of a sequence = price x its bytes / the pool's bytes.

    ``price_per_hour`` buys all GPUs whose pool this is; both byte counts are of
    the same GPU, or both of all of them.  The pool is what is scarce: weights and
    idle memory are paid for by whoever holds the cache.  ``pool_bytes`` > 0.
    """
    return price_per_hour * sequence_bytes / pool_bytes
