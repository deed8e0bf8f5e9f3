"""Requests that were preempted at all, out of a histogram of preemptions per request."""

from __future__ import annotations

from exporter.engines.sample import Identity, Reader
from exporter.kvmath.known import Reason, Unavailable, known


def preempted_requests(reader: Reader, family: str, identity: Identity) -> tuple[float | Unavailable, bool]:
    """How many requests were preempted at least once, and whether that is exact.

    vLLM 0.32's buckets start at ``le="1"``, so no bucket tells zero from one;
    the sum does.  With n2..nk the differences of successive buckets and nothing
    above the last finite bound k, ``n1 = sum - 2*n2 - ... - k*nk`` and the
    answer is ``n1 + ... + nk``.  With requests above k their share of the sum
    is unknown, and counting n1 as 0 leaves a lower bound.
    """
    total = reader.value(f"{family}_sum", identity)
    count = reader.value(f"{family}_count", identity)
    buckets: dict[float, float] = {}
    for sample in reader.samples(f"{family}_bucket", identity):
        try:
            buckets[float(sample.labels.get("le", "nan"))] = sample.value
        except ValueError:
            return Unavailable(Reason.OUT_OF_RANGE, f"{family} has a bucket without a number"), True
    if not (known(total) and known(count)) or not buckets:
        return Unavailable(Reason.NOT_REPORTED, f"{family} is not on the page"), True
    bounds = sorted(bound for bound in buckets if bound < float("inf"))
    if bounds != [float(n) for n in range(1, len(bounds) + 1)]:
        return Unavailable(Reason.OUT_OF_RANGE, f"{family} has bounds other than 1, 2, 3, ..."), True
    several = {n: buckets[float(n)] - buckets[float(n - 1)] for n in range(2, len(bounds) + 1)}
    above = count - buckets[bounds[-1]]
    once = total - sum(n * many for n, many in several.items())
    if min([above, *several.values()], default=0.0) < 0 or (above == 0 and once < 0):
        return Unavailable(Reason.OUT_OF_RANGE, f"{family} does not add up"), True
    more = sum(several.values()) + above
    return (more + once, True) if above == 0 else (more, False)
