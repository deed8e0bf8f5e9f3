"""Target states -> prometheus_client metric families, built afresh at every scrape.

Nothing is kept in global gauges, so what an engine stops reporting disappears
by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from exporter import __version__
from exporter import catalogue as c
from exporter.collect_decode import add_decode
from exporter.collect_records import Adder, add_records
from exporter.engines.exposition import Dropped
from exporter.engines.sample import EngineSample
from exporter.fetch import Failure
from exporter.kvmath.cost import share_per_hour
from exporter.kvmath.known import known
from exporter.target import TargetState, rank


class Families:
    """Families in the catalogue's order, filled sample by sample."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}

    def add(self, metric: c.Metric, value: float, labels: Mapping[str, str], suffix: str = "") -> None:
        family = self._families.get(metric.name)
        if family is None:
            name = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
            family = self._families[metric.name] = Family(name, metric.help, metric.kind)
        # An empty label is the same as none; leaving it out keeps series short.
        family.add_sample(metric.name + suffix, {k: v for k, v in labels.items() if v}, value)

    def ordered(self) -> Iterator[Family]:
        for metric in c.CATALOGUE:
            if metric.name in self._families:
                yield self._families[metric.name]


def families(states: Iterable[TargetState], now: float | None = None) -> Iterator[Family]:
    """Every family of ``states``; ``now``: clock of the states' times, for ages."""
    out = Families()
    add_process(out)
    for state in states:
        add_target(state, out, now)
    return out.ordered()


def add_process(out: Families, extra: Callable[[Adder], None] | None = None) -> None:
    """What is said once for all targets; ``extra`` adds more."""
    out.add(c.BUILD_INFO, 1, {"version": __version__})
    if extra is not None:
        extra(out)


def add_target(state: TargetState, out: Families, now: float | None = None, *, polled: bool = True) -> None:
    """Every sample of one target; not ``polled``: without what is made of many polls."""
    _target(state, out, now)
    if state.records is not None:
        add_records(state.records, out)
    add_decode(
        state.decode,
        state.readouts,
        lambda readout: _rank_labels(state.name, readout.sample),
        out,
        window=polled and (state.records is None or not state.records.totals.cells),
    )
    _costs(state, out)
    for readout in state.readouts:
        labels = _rank_labels(state.name, readout.sample)
        for figure in readout.figures:
            out.add(figure.metric, figure.value, {**labels, **figure.labels})
        for metric, why in readout.missing.items():
            out.add(c.UNAVAILABLE, 1, {**labels, "signal": metric.signal, "reason": why.reason})
        for said in {(x.input, x.used, x.other) for x in readout.contradictions}:
            out.add(
                c.INPUT_CONTRADICTION,
                1,
                {**labels, **dict(zip(("input", "used", "other"), said, strict=True))},
            )
        if readout.info:
            out.add(c.ENGINE_INFO, 1, {**labels, **readout.info})
        histogram = state.usage.get(rank(readout.sample))
        if polled and histogram is not None and histogram.count and not readout.sample.whole_server:
            for le, count in histogram.cumulative():
                out.add(c.SAMPLED_USAGE_RATIO, count, {**labels, "le": le}, "_bucket")
            out.add(c.SAMPLED_USAGE_RATIO, histogram.count, labels, "_count")
            out.add(c.SAMPLED_USAGE_RATIO, histogram.sum, labels, "_sum")


def _costs(state: TargetState, out: Families) -> None:
    """The price is the whole target's, so a sequence's share is of all its ranks' pools."""
    ranks = [readout for readout in state.readouts if not readout.sample.whole_server]
    pools = [f.value for readout in ranks for f in readout.figures if f.metric is c.CAPACITY_BYTES]
    if state.price_per_hour is None or len(pools) < len(ranks) or not sum(pools):
        return
    for readout in ranks:
        for figure in readout.figures:
            if figure.metric is c.SEQUENCE_BYTES:
                cost = share_per_hour(state.price_per_hour, int(figure.value), int(sum(pools)))
                out.add(c.SEQUENCE_COST, cost, {**_rank_labels(state.name, readout.sample), **figure.labels})


def _rank_labels(target: str, sample: EngineSample) -> dict[str, str]:
    return {
        "target": target,
        "model_name": sample.model_name,
        "engine": sample.engine,
        "replica": sample.replica,
    }


def _target(state: TargetState, out: Families, now: float | None) -> None:
    labels = {"target": state.name}
    out.add(c.ENGINE_UP, 1 if state.up else 0, labels)
    if not state.up and state.last_attempt_failed is not None:
        out.add(
            c.UNAVAILABLE, 1, {**labels, "signal": c.ENGINE_UP.signal, "reason": state.last_attempt_failed}
        )
    out.add(c.FETCHES, state.fetches, labels)
    for failure in Failure:
        out.add(c.ERRORS, state.errors[failure], {**labels, "reason": failure})
    for dropped in Dropped:
        out.add(c.DROPPED, state.dropped[dropped], {**labels, "reason": dropped})
    out.add(c.ENGINE_RESTARTS, state.engine_restarts, labels)
    out.add(c.POLL_INTERVAL, state.interval, labels)
    out.add(c.CONFIG_LOADED, 1 if known(state.model.shape) else 0, labels)
    if state.fetch_seconds is not None:
        out.add(c.FETCH_SECONDS, state.fetch_seconds, labels)
    if state.last_success is not None and now is not None:
        out.add(c.READOUT_AGE, max(0.0, now - state.last_success), labels)
    if state.last_success_timestamp is not None:
        out.add(c.LAST_SUCCESS, state.last_success_timestamp, labels)


class EngineCollector(Collector):
    """The registry's view of the watched engines."""

    def __init__(self, states: Callable[[], Sequence[TargetState]], clock: Callable[[], float]) -> None:
        self._states = states
        self._clock = clock

    def collect(self) -> Iterable[Family]:
        now = self._clock()
        states = self._states()
        for state in states:
            state.expire(now)
        return families(states, now)


def registry(states: Callable[[], Sequence[TargetState]], clock: Callable[[], float]) -> CollectorRegistry:
    """A registry of our own families and the process's; the global one stays out."""
    made = CollectorRegistry()
    made.register(EngineCollector(states, clock))
    ProcessCollector(registry=made)
    return made
