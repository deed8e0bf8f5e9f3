"""One target's records: each request once, from the best source there is."""

from __future__ import annotations

import itertools

from exporter.requests.record import Drop, RejectedRecord, RequestRecord, Source
from exporter.requests.sink import TAKEOVER_S, RecordSink, Seen


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def record(number: int, source: Source = Source.TRACE) -> RequestRecord:
    return RequestRecord(f"r{number}", 100, 11, 1.0 + number, source, 0.1, 0.1, 0.2)


def counted(sink: RecordSink) -> dict[Source, int]:
    totals = dict.fromkeys((key[0] for key in sink.totals.cells), 0)
    for (source, _, _), cell in sink.totals.cells.items():
        totals[source] += cell.requests
    return totals


def test_a_report_delivered_twice_counts_once() -> None:
    """Exporters repeat a batch whose answer got lost."""
    sink = RecordSink("t", [128])
    assert sink.accept(record(1), b"span-1")
    assert not sink.accept(record(1), b"span-1")
    assert sink.accept(record(1), b"span-2"), "clients choose request ids and repeat them"
    assert counted(sink) == {Source.TRACE: 2}
    assert sink.duplicates[Source.TRACE] == 1
    assert sink.received[Source.TRACE] == 3


def test_the_memory_of_ids_is_bounded_and_long_enough() -> None:
    """The last `size` ids are always known, and never more than twice as many kept."""
    seen = Seen(100)
    for n in range(1000):
        seen.add(n)
        assert all(k in seen for k in range(max(0, n - 99), n + 1))
        assert len(seen._new) + len(seen._old) <= 200


def test_targets_share_one_memory_without_mixing() -> None:
    """The same span id at two targets is two spans."""
    seen = Seen()
    assert RecordSink("a", [128], seen=seen).accept(record(1), b"span")
    assert RecordSink("b", [128], seen=seen).accept(record(1), b"span")


def test_sources_are_never_added_up() -> None:
    """The same hundred requests from the log and from traces are a hundred requests."""
    sink = RecordSink("t", [128])
    # The log is there at once, the batch of spans seconds later; from then on both come along.
    for n in range(10):
        sink.accept(record(n, Source.LOG))
    for n in range(10):
        sink.accept(record(n), n)
    for n in range(10, 100):
        sink.accept(record(n, Source.LOG))
        sink.accept(record(n), n)
    assert sum(counted(sink).values()) == 100
    assert counted(sink) == {Source.LOG: 10, Source.TRACE: 90}
    assert sink.dropped[Source.LOG, Drop.LESSER_SOURCE] == 90


def test_a_lesser_source_takes_over_when_the_better_one_is_gone() -> None:
    """Tracing was switched off: after ten minutes of the log alone, the log counts."""
    clock = Clock()
    sink = RecordSink("t", [128], clock=clock)
    sink.accept(record(0), 0)
    clock.now = 10_000  # a quiet night is no sign that tracing is gone
    assert not sink.accept(record(1, Source.LOG))
    assert sink.accept(record(1), 1)
    clock.now += TAKEOVER_S + 1
    assert not sink.accept(record(2, Source.LOG)), "alone since just now"
    clock.now += TAKEOVER_S
    assert sink.accept(record(3, Source.LOG))
    assert sink.accept(record(4, Source.LOG))
    assert sink.accept(record(5), 5), "and back at once"


def test_the_order_is_trace_log_plugin() -> None:
    """Whatever comes first."""
    for better, lesser in itertools.combinations((Source.TRACE, Source.LOG, Source.PLUGIN), 2):
        sink = RecordSink("t", [128])
        assert sink.accept(record(1, lesser))
        assert sink.accept(record(2, better))
        assert not sink.accept(record(3, lesser))


def test_probes_compete_with_nobody() -> None:
    """They measure requests of their own."""
    sink = RecordSink("t", [128])
    assert sink.accept(record(1, Source.PROBE))
    assert sink.accept(record(2))
    assert sink.accept(record(3, Source.PROBE))


def test_rejects_are_counted_by_reason() -> None:
    """Received = counted + duplicates + dropped."""
    sink = RecordSink("t", [128])
    sink.reject(RejectedRecord(Drop.IN_FUTURE), Source.TRACE)
    sink.accept(record(1), 1)
    sink.accept(record(1), 1)
    assert sink.received[Source.TRACE] == 3
    assert sink.dropped == {(Source.TRACE, Drop.IN_FUTURE): 1}


def test_held_cost_is_held_tokens_at_the_price_of_the_moment() -> None:
    """100 * 0.1 + 105 * 0.2 = 31 token-seconds at 2 dollars each, then nothing while no price is known."""
    sink = RecordSink("t", [128])
    sink.accept(record(1))
    sink.dollars_per_token_second = 2.0
    sink.accept(record(2))
    assert sink.held_dollars["128", ""] == 62.0
