"""Tiers and their histograms."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.requests.record import RequestRecord, Source
from exporter.requests.tiers import CONTEXT_BOUNDS, ITL_BOUNDS, TTFT_BOUNDS, Histogram, Tiers, TierTotals


def record(
    context: int = 100, source: Source = Source.TRACE, route: str = "", **more: float | int
) -> RequestRecord:
    return RequestRecord("r", context - 11, 11, 1.0, source, route=route, **more)  # type: ignore[arg-type]


def test_the_upper_bound_belongs_to_the_tier() -> None:
    """As with every `le` in Prometheus."""
    tiers = Tiers([8192, 4096, 4096])
    assert tiers.labels == ("4096", "8192", "+Inf")
    assert [tiers.label_of(n) for n in (1, 4096, 4097, 8192, 8193)] == [
        "4096", "4096", "8192", "8192", "+Inf",
    ]  # fmt: skip


@pytest.mark.parametrize("bounds", [ITL_BOUNDS, TTFT_BOUNDS])
def test_at_most_24_buckets_that_tell_11_ms_from_22_ms(bounds: tuple[float, ...]) -> None:
    """vLLM's own buckets (10, 25, 50 ms) do not: a doubled ITL reads the same there."""
    assert len(bounds) + 1 <= 24
    assert list(bounds) == sorted(set(bounds))
    assert any(0.011 < bound < 0.022 for bound in bounds)
    # Finest between 5 and 100 ms: no step there is wider than any step above.
    inside = [b - a for a, b in itertools.pairwise(bounds) if a >= 0.005 and b <= 0.1]
    above = [b - a for a, b in itertools.pairwise(bounds) if a >= 0.1]
    assert max(inside) <= min(above)


@given(st.lists(st.floats(min_value=0, max_value=1e4), max_size=50))
def test_histograms_add_up(values: list[float]) -> None:
    """Cumulative buckets count what is at or below their bound; the last one counts all."""
    histogram = Histogram(ITL_BOUNDS)
    for value in values:
        histogram.observe(value)
    buckets = dict(histogram.cumulative())
    assert buckets["+Inf"] == histogram.count == len(values)
    for bound in ITL_BOUNDS:
        assert buckets[f"{bound:g}"] == sum(value <= bound for value in values)
    assert histogram.sum == pytest.approx(sum(values))


def test_bucket_labels_are_plain_numbers() -> None:
    """1048576 must not read 1.04858e+06: another number."""
    labels = [le for le, _ in Histogram(CONTEXT_BOUNDS).cumulative()]
    assert [float(le) for le in labels[:-1]] == list(CONTEXT_BOUNDS)


def test_all_tiers_start_with_the_first_record() -> None:
    """rate() misses the first increase of a series that is born with it."""
    totals = TierTotals(Tiers([128, 512]))
    totals.add(record(100))
    assert {key[1]: cell.requests for key, cell in totals.cells.items()} == {"128": 1, "512": 0, "+Inf": 0}


def test_routes_are_bounded_whatever_a_client_sends() -> None:
    """A route per user id would be a series per user id."""
    totals = TierTotals(Tiers([128]), routes=["chat", "rag"])
    for n in range(1000):
        totals.add(record(route=f"user-{n}"))
    totals.add(record(route="rag"))
    totals.add(record())
    assert {route for _, _, route in totals.cells} == {"other", "rag", ""}
    assert totals.cells[Source.TRACE, "128", "other"].requests == 1000


def test_without_a_list_there_are_no_routes() -> None:
    """The label exists only when switched on."""
    totals = TierTotals(Tiers([128]))
    totals.add(record(route="rag"))
    assert {route for _, _, route in totals.cells} == {""}


def test_what_a_source_does_not_tell_is_not_zero() -> None:
    """vLLM's spans say nothing of preemptions: no series, instead of "never preempted"."""
    totals = TierTotals(Tiers([128]))
    silent = totals.add(record())
    assert (silent.preempted_requests, silent.cached_tokens) == (None, None)
    telling = TierTotals(Tiers([128]))
    for preemptions in (0, 3):
        cell = telling.add(record(preemptions=preemptions, cached_tokens=20))
    # Requests, not events: three preemptions of one request are one preempted request.
    assert (cell.preempted_requests, cell.cached_tokens) == (1, 40)
