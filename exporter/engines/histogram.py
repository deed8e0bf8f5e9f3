"""What is read off an engine's histograms: preempted requests, and the gaps between tokens."""

from __future__ import annotations

import math
from itertools import pairwise

from exporter.engines.sample import Identity, ItlHistogram, Reader
from exporter.kvmath.known import Reason, Unavailable, known


def preempted_requests(reader: Reader, family: str, identity: Identity) -> tuple[float | Unavailable, bool]:
    """How many requests were preempted at least once, and whether that is exact.

    vLLM 0.32's buckets are 1, 2, 3, 4, 5, 10, 20: none tells zero from one, but
    the sum does.  With n2..n5 the differences of successive buckets and nothing
    above 5, ``n1 = sum - 2*n2 - 3*n3 - 4*n4 - 5*n5`` and the answer is
    ``n1 + ... + n5``.  A request in a wider bucket has at most that bucket's
    bound of the sum, which leaves a lower bound for n1, and so for the answer.
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
    if not bounds or bounds[0] != 1.0:
        return Unavailable(Reason.OUT_OF_RANGE, f"{family} does not start with a bucket of 1"), True
    # (upper bound, requests) of every bucket above 1; the last one is open.
    above = [(hi, buckets[hi] - buckets[lo]) for lo, hi in pairwise(bounds)]
    above.append((float("inf"), count - buckets[bounds[-1]]))
    if any(many < 0 for _, many in above):
        return Unavailable(Reason.OUT_OF_RANGE, f"{family} has buckets that shrink"), True
    occupied = [(hi, many) for hi, many in above if many > 0]
    # Exact where nothing lies between a bound and the one before; the open bucket holds any number
    # (and infinity less one is itself, so it has to be named).
    exact = all(hi < float("inf") and hi - 1 in buckets for hi, _ in occupied)
    once = total - sum(hi * many for hi, many in occupied)
    if exact and once < 0:
        return Unavailable(Reason.OUT_OF_RANGE, f"{family} does not add up"), True
    return max(0.0, once) + sum(many for _, many in occupied), exact


def suffixed(family: str) -> tuple[str, str]:
    """The sample names of a histogram that :func:`itl_histogram` needs; the rest is in the last bucket."""
    return f"{family}_bucket", f"{family}_sum"


def itl_histogram(
    reader: Reader, families: tuple[str, ...], identity: Identity
) -> ItlHistogram | Unavailable:
    """The first of ``families`` that is on the page, its series (routes, streaming or not) added up."""
    for family in families:
        buckets, sums = (reader.samples(name, identity) for name in suffixed(family))
        if not buckets or not sums:
            continue
        counts: dict[float, float] = {}
        for sample in buckets:
            try:
                bound = float(sample.labels.get("le", "nan"))
            except ValueError:
                bound = math.nan
            if math.isnan(bound):
                return Unavailable(Reason.OUT_OF_RANGE, f"{family} has a bucket without a number")
            counts[bound] = counts.get(bound, 0.0) + sample.value
        bounds = tuple(sorted(counts))
        up_to = tuple(counts[bound] for bound in bounds)
        if bounds[-1] != math.inf or any(later < earlier for earlier, later in pairwise(up_to)):
            return Unavailable(Reason.OUT_OF_RANGE, f"{family} has buckets that do not add up")
        return ItlHistogram(bounds, up_to, sum(sample.value for sample in sums))
    return Unavailable(Reason.NOT_REPORTED, f"{families[0]} is not on the page")
