"""Exports in both encodings -> request spans; everything else passed over."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from exporter.requests.record import Drop, RejectedRecord, RequestRecord
from exporter.requests.spans import BadSpan, ExportError, Found, RequestSpan, from_json, from_protobuf
from exporter.requests.trace import to_record

from .exports import NOW, as_json, binary, recorded_sglang, recorded_vllm, span

BOTH = pytest.mark.parametrize(
    ("encode", "decode"), [(binary, from_protobuf), (as_json, from_json)], ids=["protobuf", "json"]
)
Encode = Callable[[list[Span]], bytes]
Decode = Callable[[bytes], Iterator[Found]]


@BOTH
def test_both_encodings_say_the_same(encode: Encode, decode: Decode) -> None:
    """Ids, 64-bit times and both kinds of number survive."""
    (found,) = decode(encode([span(7, cached_tokens=64)]))
    assert isinstance(found, RequestSpan)
    assert found.span_id == b"\0\0\0\0\0\0\0\7"
    record = to_record(found, NOW)
    assert isinstance(record, RequestRecord)
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (100, 11, 64)
    assert record.finished_at_seconds == pytest.approx(NOW - 1)
    assert (record.ttft_seconds, record.prefill_seconds, record.decode_seconds) == (0.3, 0.2, 0.2)
    assert (record.queue_seconds, record.e2e_seconds, record.request_id) == (0.1, 0.5, "cmpl-1")


@BOTH
def test_both_engines_recorded_spans_are_all_records(encode: Encode, decode: Decode) -> None:
    """286 of vLLM and 103 of SGLang, real ones."""
    spans = recorded_vllm() + recorded_sglang()
    records = [to_record(found, NOW) for found in decode(encode(spans)) if found is not None]
    assert len(records) == 286 + 103
    assert all(isinstance(record, RequestRecord) for record in records)


@BOTH
def test_other_spans_are_passed_over(encode: Encode, decode: Decode) -> None:
    """SGLang's decode steps, start-up spans, an application's own spans."""
    step = Span(name="decode_loop", span_id=b"12345678")
    app = span(2, name="chat completion")  # an application that follows the same conventions
    thread = Span(name=" Req 1347654b", span_id=b"12345678")  # no counts: not a finished request
    assert list(decode(encode([step, app, thread]))) == [None, None, None]


@BOTH
def test_a_request_without_counts_is_told(encode: Encode, decode: Decode) -> None:
    """A release that renames attributes must not look like an idle engine."""
    (found,) = decode(encode([span(1, prompt_tokens=None)]))
    assert isinstance(found, RequestSpan)
    refused = to_record(found, NOW)
    assert isinstance(refused, RejectedRecord)
    assert refused.reason is Drop.MISSING_FIELD


@BOTH
def test_a_span_id_is_eight_bytes(encode: Encode, decode: Decode) -> None:
    """Without a proper id nothing tells repeats."""
    bad = span(1)
    bad.span_id = b"123"
    assert isinstance(next(decode(encode([bad]))), BadSpan)


def test_one_damaged_span_spoils_no_other() -> None:
    """The envelope is whole, one span in the middle is cut: the rest counts."""
    good = span(1).SerializeToString()
    cut = good[:-5]
    export = _envelope([good, cut, span(3).SerializeToString()])
    found = list(from_protobuf(export))
    assert [type(one) for one in found] == [RequestSpan, BadSpan, RequestSpan]


def test_a_huge_span_is_not_decoded() -> None:
    """Prompts as attributes: some instrumentations do that."""
    big = span(1)
    big.attributes.add(key="prompt").value.string_value = "x" * 100_000
    (found,) = from_protobuf(binary([big]))
    assert isinstance(found, BadSpan)
    assert found.too_long


@pytest.mark.parametrize("body", [b"\xff\xff", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x05abc"])
def test_what_is_no_protobuf_is_said_at_once(body: bytes) -> None:
    """Before a single span was counted."""
    with pytest.raises(ExportError):
        from_protobuf(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"\xff",
        b'{"resourceSpans": 3}',
        b"[" * 100_000,
        b'{"a": ' + b"9" * 10_000 + b"}",
    ],
)
def test_what_is_no_json_export_is_said_at_once(body: bytes) -> None:
    """Deep nesting and endless integers included."""
    with pytest.raises(ExportError):
        from_json(body)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spanId", 5), ("spanId", "zz"), ("spanId", None), ("endTimeUnixNano", "soon"),
        ("endTimeUnixNano", []), ("endTimeUnixNano", "9" * 5000),
        # An integer to Python, but more than a float holds; and one before 1970.
        ("endTimeUnixNano", "9" * 400), ("endTimeUnixNano", "-1"),
    ],
)  # fmt: skip
def test_a_json_span_with_nonsense_is_a_bad_span(path: str, value: object) -> None:
    """Counted as malformed, not an error."""
    export = json.loads(as_json([span(1), span(2)]))
    export["resourceSpans"][0]["scopeSpans"][0]["spans"][0][path] = value
    first, second = from_json(json.dumps(export).encode())
    assert isinstance(first, BadSpan)
    assert isinstance(second, RequestSpan)


def test_numbers_of_json_may_be_text_or_not() -> None:
    """The specification allows both for 64-bit integers."""
    export = json.loads(as_json([span(1)]))
    said = export["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    said["endTimeUnixNano"] = int(said["endTimeUnixNano"])
    for attribute in said["attributes"]:
        if "intValue" in attribute["value"]:
            attribute["value"]["intValue"] = int(attribute["value"]["intValue"])
    (found,) = from_json(json.dumps(export).encode())
    assert isinstance(found, RequestSpan)
    assert isinstance(to_record(found, NOW), RequestRecord)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_binary_reader(body: bytes) -> None:
    """Spans, or one kind of error."""
    try:
        found = list(from_protobuf(body))
    except ExportError:
        return
    for one in found:
        if one is not None:
            to_record(one, NOW)


@given(st.data())
def test_no_cut_or_flip_breaks_the_binary_reader(data: st.DataObject) -> None:
    """Half a body, one changed byte."""
    body = bytearray(binary([span(1), span(2)]))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(body[: data.draw(st.integers(0, len(body)))])
    try:
        found = list(from_protobuf(cut))
    except ExportError:
        return
    for one in found:
        if one is not None:
            to_record(one, NOW)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.data())
def test_no_json_breaks_the_reader(data: st.DataObject) -> None:
    """Any value in the place of any other."""
    export = json.loads(as_json([span(1)]))
    places: list[tuple[dict[str, object], str]] = []
    _places(export, places)
    holder, key = data.draw(st.sampled_from(places))
    holder[key] = data.draw(JSON)
    try:
        found = list(from_json(json.dumps(export).encode()))
    except ExportError:
        return
    for one in found:
        if one is not None:
            to_record(one, NOW)


def _places(value: object, out: list[tuple[dict[str, object], str]]) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            out.append((value, key))
            _places(inner, out)
    elif isinstance(value, list):
        for inner in value:
            _places(inner, out)


def _envelope(spans: list[bytes]) -> bytes:
    def field(number: int, content: bytes) -> bytes:
        assert len(content) < 2**14
        return bytes([number << 3 | 2, len(content) & 0x7F | 0x80, len(content) >> 7]) + content

    return field(1, field(2, b"".join(field(2, one) for one in spans)))
