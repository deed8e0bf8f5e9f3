"""Finished requests and their receivers -> metric families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from exporter import catalogue as c
from exporter.requests.forward import ForwardDrop, Forwarder
from exporter.requests.intake import Intake, Refusal
from exporter.requests.record import Drop, Source
from exporter.requests.sink import RecordSink
from exporter.requests.tiers import CONTEXT_BOUNDS, Cell, Histogram


class Adder(Protocol):
    """Takes samples of families."""

    def add(self, metric: c.Metric, value: float, labels: Mapping[str, str], suffix: str = "") -> None: ...


def add_records(sink: RecordSink, out: Adder) -> None:
    """Everything one target's finished requests came to.  Nothing is said before the first."""
    target = {"target": sink.target}
    named = {**target, "model_name": sink.model_name}
    # One source reports a target at a time, so totals over sources count no request twice.
    totals: dict[tuple[str, str], list[Cell]] = {}
    context_tokens = Histogram(CONTEXT_BOUNDS)
    for (source, context, route), cell in sink.totals.cells.items():
        labels = {**named, "context": context, "source": source, "route": route}
        add_histogram(out, c.ITL_SECONDS, cell.itl, labels)
        add_histogram(out, c.TTFT_SECONDS, cell.ttft, labels)
        if source is not Source.PROBE:
            totals.setdefault((context, route), []).append(cell)
            context_tokens.add(cell.context_tokens)
    if totals:
        add_histogram(out, c.REQUEST_CONTEXT_TOKENS, context_tokens, named)
    for (context, route), cells in totals.items():
        labels = {**named, "context": context, "route": route}
        out.add(c.CONTEXT_REQUESTS, sum(cell.requests for cell in cells), labels)
        out.add(c.HELD_TOKEN_SECONDS, sum(cell.held_token_seconds for cell in cells), labels)
        out.add(c.CONTEXT_PROMPT_TOKENS, sum(cell.prompt_tokens for cell in cells), labels)
        preempted = [n for cell in cells if (n := cell.preempted_requests) is not None]
        cached = [n for cell in cells if (n := cell.cached_tokens) is not None]
        if preempted:
            out.add(c.CONTEXT_PREEMPTED_REQUESTS, sum(preempted), labels)
        if cached:
            out.add(c.CONTEXT_CACHED_TOKENS, sum(cached), labels)
        if sink.dollars_per_token_second is not None:
            out.add(c.HELD_COST, sink.held_dollars[context, route], labels)
    if sink.probes_sent:
        out.add(c.PROBES, sink.probes_sent, target)
        out.add(c.PROBES_FAILED, sink.probes_failed, target)
    for source, many in sink.received.items():
        labels = {**target, "source": source}
        out.add(c.RECORDS_RECEIVED, many, labels)
        out.add(c.RECORDS_DUPLICATE, sink.duplicates[source], labels)
        for drop in Drop:
            out.add(c.RECORDS_DROPPED, sink.dropped[source, drop], {**labels, "reason": drop})


def add_receivers(intake: Intake, forwarder: Forwarder | None, out: Adder) -> None:
    """What the receivers and the forwarder say about themselves."""
    out.add(c.BODIES_RECEIVED, intake.bodies, {})
    for refusal in Refusal:
        out.add(c.BODIES_REFUSED, intake.refused[refusal], {"reason": refusal})
    for target, many in intake.ignored_spans.items():
        out.add(c.SPANS_IGNORED, many, {"target": target})
    if forwarder is not None:
        out.add(c.FORWARDED, forwarder.sent, {})
        for drop in ForwardDrop:
            out.add(c.FORWARD_DROPPED, forwarder.dropped[drop], {"reason": drop})


def add_histogram(out: Adder, metric: c.Metric, histogram: Histogram, labels: Mapping[str, str]) -> None:
    """A histogram's samples."""
    for le, count in histogram.cumulative():
        out.add(metric, count, {**labels, "le": le}, "_bucket")
    out.add(metric, histogram.count, labels, "_count")
    out.add(metric, histogram.sum, labels, "_sum")
