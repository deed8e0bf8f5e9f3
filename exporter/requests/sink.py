"""Where records of one target end up, whoever brings them."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from exporter.requests.record import Drop, RejectedRecord, RequestRecord, Source
from exporter.requests.tiers import Tiers, TierTotals

# Best first.  A probe measures requests of its own and competes with nobody.
BEST_FIRST = (Source.TRACE, Source.LOG, Source.PLUGIN)
# A lesser source takes over once it has reported alone for this long (seconds).
TAKEOVER_S = 600.0
# Ids remembered, twice at most: a minute of 2,000 requests a second, longer than any exporter retries.
REMEMBERED = 2**16
REMEMBERED_REQUESTS = 2**12


class Seen:
    """The last ids, between ``size`` and twice as many; about 100 bytes each."""

    def __init__(self, size: int = REMEMBERED) -> None:
        self._size = size
        self._new: set[int] = set()
        self._old: set[int] = set()

    def __contains__(self, key: Hashable) -> bool:
        hashed = hash(key)
        return hashed in self._new or hashed in self._old

    def add(self, key: Hashable) -> None:
        self._new.add(hash(key))
        if len(self._new) >= self._size:
            self._old, self._new = self._new, set()

    def forget(self, key: Hashable) -> None:
        self._new.discard(hash(key))
        self._old.discard(hash(key))


class RecordSink:
    """Counts the records of one target, each request once.

    ``route``: the route of all requests of this target that name none;
    ``seen``: memory of ids, to be shared by all targets of a process.
    """

    def __init__(
        self,
        target: str,
        contexts: Sequence[int],
        *,
        routes: Sequence[str] = (),
        route: str = "",
        seen: Seen | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.target = target
        self.probe_mark = f"kvcache-probe-{secrets.token_hex(4)}"
        """In the request id of every probe of ours: the engine reports those like any other request."""
        self.probes_sent = 0
        self.probes_failed = 0
        self.totals = TierTotals(Tiers(contexts), (*routes, route) if routes and route else routes)
        self.received: Counter[Source] = Counter()
        self.dropped: Counter[tuple[Source, Drop]] = Counter()
        self.duplicates: Counter[Source] = Counter()
        self.model_name = ""
        """The engine's last known model; it outlives the engine."""
        self.dollars_per_token_second: float | None = None
        """What holding one token for a second costs now; None: no price, or the pool is unknown."""
        self.held_dollars: Counter[tuple[str, str]] = Counter()
        self._route = route
        self._clock = clock
        self._seen = Seen() if seen is None else seen
        self._lesser_requests = Seen(REMEMBERED_REQUESTS)
        self._best: Source | None = None
        self._alone_since: float | None = None

    def accept(self, record: RequestRecord, key: Hashable = None) -> bool:
        """Count a record; False where it was a duplicate or a better source reports this target.

        ``key`` tells deliveries of the same report (a span id); by default the
        request's id and finish time, because clients may choose ids and repeat them.
        """
        source = record.source
        self.received[source] += 1
        if source is not Source.PROBE and self.probe_mark in record.request_id:
            self.dropped[source, Drop.OWN_PROBE] += 1
            return False
        told = (self.target, source, (record.request_id, record.finished_at_seconds) if key is None else key)
        if told in self._seen:
            self.duplicates[source] += 1
            return False
        if source is not Source.PROBE and not self._may_report(record):
            return False
        self._seen.add(told)
        cell_route = self.totals.route_of(record.route or self._route)
        self.totals.add(record, self._route)
        if self.dollars_per_token_second is not None and source is not Source.PROBE:
            tier = self.totals.tiers.label_of(record.context_tokens)
            self.held_dollars[tier, cell_route] += (  # type: ignore[assignment]  # a Counter may hold floats
                (record.held_token_seconds or 0.0) * self.dollars_per_token_second
            )
        return True

    def reject(self, rejected: RejectedRecord | Drop, source: Source) -> None:
        """Count a report that was no record."""
        reason = rejected.reason if isinstance(rejected, RejectedRecord) else rejected
        self.received[source] += 1
        self.dropped[source, reason] += 1

    def _may_report(self, record: RequestRecord) -> bool:
        """Whether this record's source is the one in use.

        A better source takes over at once; requests that the lesser one had just
        reported are recognised by their id.  The other way round, the lesser
        source must have been alone for a while, or one quiet minute would make
        both count.
        """
        source = record.source
        if self._best is not None and BEST_FIRST.index(source) > BEST_FIRST.index(self._best):
            now = self._clock()
            if self._alone_since is None:
                self._alone_since = now
            if now - self._alone_since < TAKEOVER_S:
                self.dropped[source, Drop.LESSER_SOURCE] += 1
                return False
        self._best, self._alone_since = source, None
        for lesser in BEST_FIRST[BEST_FIRST.index(source) + 1 :]:
            if (lesser, record.request_id) in self._lesser_requests:
                self._lesser_requests.forget((lesser, record.request_id))
                self.duplicates[source] += 1
                return False
        if source is not BEST_FIRST[0] and record.request_id:
            self._lesser_requests.add((source, record.request_id))
        return True
