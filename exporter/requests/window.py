"""ITL by context from the scrape alone: an interval's gaps go to the tier of the mean live context.

The engine's histogram says how many gaps between tokens were how long, not at
which context.  Between two polls they are all given to one tier: that of the
used tokens per running sequence, averaged over the two polls.  This is
approximate, and only good where the sequences of an engine are alike: short
chats beside one long document all land in the tier of their mean.  Therefore
a metric of its own, ``kvcache_itl_window_seconds``, on the engine's own bucket
bounds, one observation per token; never added to what records say.

How wrong it is, on a recorded vLLM run of short and long requests side by side
(tiers of 64, 256, 1,024 and more tokens), against the same run's traces: the
two short tiers, 4 % of the tokens, got nothing; the mean ITL of the two long
ones was off by up to 13 % with polls 1 or 2 s apart and up to 19 % at 3 to 5 s,
depending on where the polls fell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from exporter.kvmath.known import Unavailable, known
from exporter.requests.tiers import Tiers


class Gaps(Protocol):
    """An engine's histogram of gaps since its start.

    ``bounds``: rising, in seconds, the last one infinite; ``counts``: cumulative.
    """

    @property
    def bounds(self) -> tuple[float, ...]: ...
    @property
    def counts(self) -> tuple[float, ...]: ...
    @property
    def sum_seconds(self) -> float: ...


@dataclass(slots=True)
class WindowTier:
    """The gaps given to one tier; ``counts`` per bucket, not cumulative."""

    counts: list[float]
    sum_seconds: float = 0.0

    @property
    def count(self) -> float:
        return sum(self.counts)


@dataclass(frozen=True, slots=True)
class _Reading:
    gaps: Gaps
    used_tokens: float | Unavailable
    running: float | Unavailable


@dataclass(slots=True)
class WindowItl:
    """One engine rank's gaps by tier, filled poll by poll."""

    tiers: Tiers
    bounds: tuple[float, ...] = ()
    unattributed: float = 0.0
    """Gaps that no tier got: nothing ran at either poll, or the engine does not tell used tokens."""
    mean_itl_seconds: float | None = None
    """Mean gap of the last interval, all contexts together; None where no token came."""
    _by_tier: dict[str, WindowTier] = field(default_factory=dict)
    _last: _Reading | None = None

    def observe(
        self, gaps: Gaps | Unavailable, used_tokens: float | Unavailable, running: float | Unavailable
    ) -> None:
        """Take one poll.

        ``used_tokens``: tokens of the pool in use; ``running``: running sequences.
        The first poll only sets the mark: what came before it came at contexts
        nobody saw.  A histogram that went back is a restarted engine's: all it
        holds is new.
        """
        if isinstance(gaps, Unavailable):
            self.mean_itl_seconds = None
            return
        now, before = _Reading(gaps, used_tokens, running), self._last
        self._last = now
        if gaps.bounds != self.bounds:
            # Other buckets (a restart with other settings): sums of the two would have no meaning.
            self.bounds = gaps.bounds
            self._by_tier = {label: WindowTier([0.0] * len(gaps.bounds)) for label in self.tiers.labels}
            if before is not None:
                before = None if before.gaps.bounds == gaps.bounds else _Reading(_none(gaps), 0, 0)
        if before is None:
            return
        restarted = _went_back(before.gaps, gaps)
        start = _none(gaps) if restarted else before.gaps
        added = [0.0, *(n - b for n, b in zip(gaps.counts, start.counts, strict=True))]
        new = [later - earlier for earlier, later in pairwise(added)]
        total, seconds = added[-1], max(0.0, gaps.sum_seconds - start.sum_seconds)
        self.mean_itl_seconds = seconds / total if total else None
        if not total:
            return
        context = _mean_context((now,) if restarted else (before, now))
        if context is None or any(many < 0 for many in new):
            self.unattributed += total
            return
        tier = self._by_tier[self.tiers.label_of(context)]
        tier.counts = [mine + many for mine, many in zip(tier.counts, new, strict=True)]
        tier.sum_seconds += seconds

    def tiers_seen(self) -> Iterator[tuple[str, WindowTier]]:
        """(tier label, its gaps), every tier once the engine has shown its buckets."""
        yield from self._by_tier.items()

    def cumulative(self, tier: WindowTier) -> Iterator[tuple[str, float]]:
        """(le, gaps up to it), as Prometheus has them, ``+Inf`` last."""
        running = 0.0
        for bound, count in zip(self.bounds, tier.counts, strict=True):
            running += count
            yield "+Inf" if bound == math.inf else f"{bound:g}", running


@dataclass(frozen=True, slots=True)
class _NoGaps:
    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    sum_seconds: float = 0.0


def _none(gaps: Gaps) -> _NoGaps:
    return _NoGaps(gaps.bounds, (0.0,) * len(gaps.bounds))


def _went_back(before: Gaps, now: Gaps) -> bool:
    return any(n < b for b, n in zip(before.counts, now.counts, strict=True))


def _mean_context(readings: tuple[_Reading, ...]) -> float | None:
    """Used tokens per running sequence; an idle poll has neither and so no say."""
    told = [(r.used_tokens, r.running) for r in readings if known(r.used_tokens) and known(r.running)]
    running = sum(many for _, many in told)
    return sum(tokens for tokens, many in told if many) / running if running else None
