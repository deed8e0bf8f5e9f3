"""Records -> totals by context tier: what a fleet of any size fits into a fixed memory."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from exporter.requests.record import RequestRecord, Source

# Upper bounds in seconds; with +Inf 24 buckets.  Finest where chat is felt: 11 ms and 22 ms
# lie in different buckets, and so do 40, 50, 60 and 75.
ITL_BOUNDS = (
    0.002, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.0175, 0.02, 0.025, 0.03, 0.035, 0.04,
    0.05, 0.06, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5, 5.0,
)  # fmt: skip
# A first token may wait for minutes when the pool is full.
TTFT_BOUNDS = (
    0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5,
    0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip
# Tokens: powers of two, one million being the longest context in wide use.
CONTEXT_BOUNDS = tuple(float(2**n) for n in range(6, 21))
OTHER_ROUTE = "other"


class Tiers:
    """Context tiers: upper bounds in tokens, inclusive, and ``+Inf`` above the last."""

    def __init__(self, bounds: Sequence[int]) -> None:
        self.bounds = tuple(sorted(set(bounds)))
        self.labels = (*map(str, self.bounds), "+Inf")

    def label_of(self, context_tokens: float) -> str:
        """The tier of a context, as the label ``context`` spells it."""
        return self.labels[bisect_left(self.bounds, context_tokens)]


class Histogram:
    """Counts by upper bound (inclusive), as Prometheus has them."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def add(self, other: Histogram) -> None:
        """Take in another histogram with the same bounds."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """(le, count) of every bucket, the last one ``+Inf``."""
        so_far = 0
        for bound, count in zip(self.bounds, self.counts, strict=False):
            so_far += count
            yield f"{bound:g}" if bound < 1e6 else str(bound), so_far
        yield "+Inf", so_far + self.counts[-1]


@dataclass(slots=True)
class Cell:
    """Totals of one source, tier and route."""

    itl: Histogram = field(default_factory=lambda: Histogram(ITL_BOUNDS))
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_BOUNDS))
    context_tokens: Histogram = field(default_factory=lambda: Histogram(CONTEXT_BOUNDS))
    requests: int = 0
    held_token_seconds: float = 0.0
    prompt_tokens: int = 0
    preempted_requests: int | None = None
    """None: the source does not tell."""
    cached_tokens: int | None = None


class TierTotals:
    """All records of one target, added up.

    Memory: one cell per (source, tier, route), and routes come from
    ``routes`` alone; without them no record has a route.
    """

    def __init__(self, tiers: Tiers, routes: Sequence[str] = ()) -> None:
        self.tiers = tiers
        self.routes = frozenset(routes)
        self.cells: dict[tuple[Source, str, str], Cell] = {}

    def add(self, record: RequestRecord, route: str = "") -> Cell:
        """Count one record; ``route``: what it has where it names none itself."""
        key = (
            record.source,
            self.tiers.label_of(record.context_tokens),
            self.route_of(record.route or route),
        )
        cell = self.cells.get(key)
        if cell is None:
            self._start(record.source, key[2])
            cell = self.cells[key]
        cell.requests += 1
        cell.context_tokens.observe(record.context_tokens)
        cell.prompt_tokens += record.prompt_tokens
        if (itl := record.itl_seconds) is not None:
            cell.itl.observe(itl)
        if record.ttft_seconds is not None:
            cell.ttft.observe(record.ttft_seconds)
        if (held := record.held_token_seconds) is not None:
            cell.held_token_seconds += held
        if record.preemptions is not None:
            cell.preempted_requests = (cell.preempted_requests or 0) + (record.preemptions > 0)
        if record.cached_tokens is not None:
            cell.cached_tokens = (cell.cached_tokens or 0) + record.cached_tokens
        return cell

    def route_of(self, route: str) -> str:
        """The label for a route: itself where it is listed, else "other"; "" where routes are off."""
        if not self.routes or not route:
            return ""
        return route if route in self.routes else OTHER_ROUTE

    def _start(self, source: Source, route: str) -> None:
        # All tiers at once: a counter that begins at 0 shows its first increase to rate().
        for label in self.tiers.labels:
            self.cells.setdefault((source, label, route), Cell())
