"""KV usage as our own polls saw it, between two scrapes of ours."""

from __future__ import annotations

from collections.abc import Iterator

# 0.85 is the alert's threshold: the share above it must be readable exactly.
BOUNDS = (0.1, 0.25, 0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99, 1.0)


class UsageHistogram:
    """A cumulative histogram with whole-number weights (poll intervals)."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def observe(self, ratio: float, weight: int = 1) -> None:
        """Count ``ratio`` (0..1) as ``weight`` samples."""
        at = next((n for n, bound in enumerate(BOUNDS) if ratio <= bound), len(BOUNDS))
        self._counts[at] += weight
        self.sum += ratio * weight

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """(``le``, samples up to it), ``+Inf`` last."""
        running = 0
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), self._counts, strict=True):
            running += count
            yield bound, running
