"""Reports of finished requests, damaged: their one error, or records that can be true."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exporter.requests.plugin_records import feed, records_from_plugin
from exporter.requests.record import MAX_SECONDS, MAX_TOKENS, Drop, RejectedRecord, RequestRecord, Source
from exporter.requests.sglang_log import record_of
from exporter.requests.sink import RecordSink
from exporter.requests.spans import ExportError, Found, from_json, from_protobuf
from exporter.requests.trace import to_record
from exporter.settings import TargetSettings
from exporter.target import TargetState
from tests.unit.requests.exports import NOW, as_json, binary, recorded_sglang, recorded_vllm

from .mutations import EXAMPLES, ODD_TEXT, bytes_changed
from .surface import check

SPANS = [*recorded_vllm()[:3], *recorded_sglang()[:3]]
LOG = Path(__file__).parents[1] / "recordings" / "sglang-0.5.23-llama-retractions" / "request-log.jsonl"
LINES = LOG.read_bytes().splitlines()[:8]
SENT: list[dict[str, Any]] = [{"finished_at_seconds": NOW - 1, "decode_seconds": 0.4}, {"dropped": 3}]
PLUGIN = b"\n".join(
    json.dumps({"v": 1, "key": str(n), "prompt_tokens": 100, "output_tokens": 9, **more}).encode()
    for n, more in enumerate(SENT)
)
ODD = st.one_of(
    ODD_TEXT,
    st.integers(),
    st.sampled_from([10**200, -(10**200), 2**64, 0.0, -0.0, 5e-324, 1e308, math.nan, math.inf, -math.inf]),
    st.none(),
    st.booleans(),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)

fuzz = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))


def possible(record: RequestRecord) -> None:
    """Nothing in it is out of the range that it declares."""
    for count in (record.prompt_tokens, record.output_tokens, record.cached_tokens, record.preemptions):
        assert count is None or 0 <= count <= MAX_TOKENS
    for seconds in (
        *(record.ttft_seconds, record.prefill_seconds, record.decode_seconds),
        *(record.queue_seconds, record.e2e_seconds),
    ):
        assert seconds is None or 0 <= seconds <= MAX_SECONDS
    assert math.isfinite(record.finished_at_seconds)
    for derived in (record.itl_seconds, record.held_token_seconds):
        assert derived is None or (math.isfinite(derived) and derived >= 0)


def fresh() -> tuple[TargetState, RecordSink]:
    state = TargetState(TargetSettings(url="http://engine:1"), [4096], 1.0)
    state.records = sink = RecordSink(state.name, [4096], routes=["chat"])
    return state, sink


def count(reports: Iterable[RequestRecord | RejectedRecord], source: Source) -> None:
    """Into a target's figures, and out on its page."""
    state, sink = fresh()
    for report in reports:
        if isinstance(report, RejectedRecord):
            assert report.reason in Drop
            sink.reject(report, source)
        else:
            possible(report)
            sink.accept(report)
    check(state)


def trace(found: Iterable[Found]) -> None:
    count([to_record(span, NOW) for span in found if span is not None], Source.TRACE)


@fuzz
@given(data=st.data())
def test_binary_exports(data: st.DataObject) -> None:
    """Recorded spans of both engines with bytes flipped, cut and doubled."""
    try:
        found = list(from_protobuf(data.draw(bytes_changed(binary(SPANS)))))
    except ExportError:
        return
    trace(found)


@fuzz
@given(data=st.data())
def test_json_exports(data: st.DataObject) -> None:
    """The same in JSON: bytes, and any value in the place of any other."""
    export = json.loads(as_json(SPANS))
    for _ in range(data.draw(st.integers(0, 3))):
        replace_one(export, data)
    content = json.dumps(export).encode()
    if data.draw(st.booleans()):
        content = data.draw(bytes_changed(content))
    try:
        found = list(from_json(content))
    except ExportError:
        return
    trace(found)


@fuzz
@given(data=st.data())
def test_request_log(data: st.DataObject) -> None:
    """Recorded lines: bytes changed, and fields replaced, with and without routes."""
    line = data.draw(st.sampled_from(LINES))
    if data.draw(st.booleans()):
        said = json.loads(line)
        for _ in range(data.draw(st.integers(1, 3))):
            said[data.draw(st.sampled_from(sorted(said)))] = data.draw(ODD)
        line = json.dumps(said).encode()
    if data.draw(st.booleans()):
        line = data.draw(bytes_changed(line))
    count([record_of(line, NOW, route=data.draw(st.booleans()))], Source.LOG)


@fuzz
@given(data=st.data())
def test_plugin_batches(data: st.DataObject) -> None:
    """What the plugin sends, or somebody else who knows the address."""
    lines = [json.loads(line) for line in PLUGIN.splitlines()]
    for said in lines:
        for _ in range(data.draw(st.integers(0, 2))):
            said[data.draw(st.sampled_from(sorted(said)))] = data.draw(ODD)
    body = b"\n".join(json.dumps(said).encode() for said in lines)
    if data.draw(st.booleans()):
        body = data.draw(bytes_changed(body))
    batch = records_from_plugin(body, NOW)
    for _, record in batch.records:
        possible(record)
    state, sink = fresh()
    feed(batch, sink)
    check(state)


def replace_one(document: Any, data: st.DataObject) -> None:
    """Something odd in the place of one value of a JSON document."""
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        entries = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        )
        for key, inner in list(entries):
            places.append((value, key))
            walk(inner)

    walk(document)
    if places:
        holder, key = data.draw(st.sampled_from(places))
        holder[key] = data.draw(ODD)


def test_the_good_reports_are_good() -> None:
    """The bait: every undamaged report is a record."""
    spans = [span for span in from_protobuf(binary(SPANS)) if span is not None]
    assert len(spans) == len(SPANS)
    assert all(isinstance(to_record(span, NOW), RequestRecord) for span in spans)
    assert all(isinstance(record_of(line, NOW), RequestRecord) for line in LINES)
    batch = records_from_plugin(PLUGIN, NOW)
    assert (len(batch.records), batch.dropped_by_sender, batch.rejected) == (1, 3, ())
