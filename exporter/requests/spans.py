"""OTLP trace exports -> request spans.  Pure: bytes in, spans out.

Most spans of an export are not requests: SGLang at its default trace level
sends a span for every decode step, 12,846 of 13,950 in one recorded run.  So
the outer messages are read with a schema in which a span is a string of bytes
(the wire format of an embedded message and of bytes is the same), bytes without
the right attribute are passed over, and only the rest is decoded, one span at a
time: a damaged one spoils no other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.trace.v1.trace_pb2 import Span

# Only these are read; the other attributes of a request span are passed over.
TAKEN = frozenset(
    {
        "gen_ai.usage.prompt_tokens",
        "gen_ai.usage.completion_tokens",
        "gen_ai.usage.cached_tokens",
        "gen_ai.latency.time_to_first_token",
        "gen_ai.latency.e2e",
        "gen_ai.latency.time_in_queue",
        "gen_ai.latency.time_in_model_prefill",
        "gen_ai.latency.time_in_model_decode",
        "gen_ai.request.id",
    }
)
# Both engines' request spans carry it, none of their other spans does.  vLLM's count as requests
# without it too, so that a renamed attribute shows as records with a missing field.
MARK = "gen_ai.usage.prompt_tokens"
_MARK_BYTES = MARK.encode()
# vLLM's name (0.32.0 v1/engine/output_processor.py); SGLang's root is " Req 1347654b", behind a
# role where prefill and decode are separate engines (0.5.23 srt/observability/trace.py).
VLLM_NAME = "llm_request"
_VLLM_NAME_BYTES = VLLM_NAME.encode()
SGLANG_NAME = "Req "
# Ten times the largest seen; a span of megabytes is not a request.
MAX_SPAN_BYTES = 64 * 1024
MAX_ATTRIBUTES = 128
SPAN_ID_BYTES = 8


class ExportError(Exception):
    """A body that is no trace export at all."""


@dataclass(frozen=True, slots=True)
class RequestSpan:
    """What one request span said, unchecked."""

    span_id: bytes
    end_unix_nanoseconds: int
    attributes: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class BadSpan:
    """A span that claims to be a request and can't be read."""

    too_long: bool
    detail: str


Found = RequestSpan | BadSpan | None
"""None: a span of something else."""


def _envelope() -> type[Message]:
    """``ExportTraceServiceRequest`` with spans left as bytes (field numbers: opentelemetry-proto 1.x)."""
    file = descriptor_pb2.FileDescriptorProto(name="kvcache_trace_envelope.proto", syntax="proto3")
    inner: str | None = None
    for name, field, number in (("Scope", "spans", 2), ("Resource", "scopes", 2), ("Export", "resources", 1)):
        message = file.message_type.add(name=name)
        entry = message.field.add(
            name=field, number=number, label=descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
        )
        if inner is None:
            entry.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
        else:
            entry.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
            entry.type_name = f".kvcache.{inner}"
        inner = name
    file.package = "kvcache"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("kvcache.Export"))


_Export: Any = _envelope()


def from_protobuf(body: bytes) -> Iterator[Found]:
    """Every span of a binary export.  Raises :class:`ExportError` at once where it is none."""
    try:
        export = _Export.FromString(body)
    except DecodeError as error:
        raise ExportError(str(error)[:200]) from None
    return (
        _binary(span) for resource in export.resources for scope in resource.scopes for span in scope.spans
    )


def _binary(encoded: bytes) -> Found:
    if _MARK_BYTES not in encoded and _VLLM_NAME_BYTES not in encoded:
        return None
    if len(encoded) > MAX_SPAN_BYTES:
        return BadSpan(True, f"a span of {len(encoded)} bytes")
    try:
        span = Span.FromString(encoded)
    except DecodeError as error:
        return BadSpan(False, str(error)[:200])
    if not _may_be_request(span.name):
        return None
    attributes: dict[str, object] = {}
    for attribute in span.attributes:
        key = attribute.key
        if key in TAKEN:
            value = attribute.value
            kind = value.WhichOneof("value")
            if kind in ("int_value", "double_value", "string_value"):
                attributes[key] = getattr(value, kind)
    if MARK not in attributes and span.name != VLLM_NAME:
        return None
    if len(span.span_id) != SPAN_ID_BYTES:
        return BadSpan(False, "a span id is 8 bytes")
    return RequestSpan(span.span_id, span.end_time_unix_nano, attributes)


def from_json(body: bytes) -> Iterator[Found]:
    """Every span of a JSON export (OTLP's JSON: hexadecimal ids, 64-bit integers as text).

    Raises :class:`ExportError` at once where it is none.
    """
    try:
        # "Infinity" and "NaN" pass here and fail the record's own checks.
        export = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ExportError(str(error)[:200]) from None
    if not isinstance(export, dict):
        raise ExportError("an export is a JSON object")
    if not isinstance(export.get("resourceSpans", []), list):
        raise ExportError("resourceSpans is a list")
    return _json_spans(export)


def _json_spans(export: Mapping[str, Any]) -> Iterator[Found]:
    for resource in _objects(export.get("resourceSpans")):
        for scope in _objects(resource.get("scopeSpans")):
            for span in _objects(scope.get("spans")):
                yield _json_span(span)


def _json_span(span: Mapping[str, Any]) -> Found:
    name = span.get("name")
    if not isinstance(name, str) or not _may_be_request(name):
        return None
    attributes: dict[str, object] = {}
    for n, attribute in enumerate(_objects(span.get("attributes"))):
        if n >= MAX_ATTRIBUTES:
            return BadSpan(True, "too many attributes")
        key = attribute.get("key")
        if isinstance(key, str) and key in TAKEN and isinstance(value := attribute.get("value"), dict):
            attributes[key] = _json_value(value)
    if MARK not in attributes and name != VLLM_NAME:
        return None
    try:
        span_id = bytes.fromhex(span.get("spanId", ""))
        # Nanoseconds are text in OTLP's JSON, because 2^53 is too small; both spellings are allowed.
        end = int(span.get("endTimeUnixNano", 0))
    except (TypeError, ValueError, OverflowError):
        return BadSpan(False, "span id or end time")
    if len(span_id) != SPAN_ID_BYTES:
        return BadSpan(False, "a span id is 8 bytes")
    if not 0 <= end < 2**64:  # JSON has no limit, and a number of 400 digits is no float any more
        return BadSpan(False, "span id or end time")
    return RequestSpan(span_id, end, attributes)


def _json_value(value: Mapping[str, Any]) -> object:
    if "intValue" in value:
        try:
            return int(value["intValue"])
        except (TypeError, ValueError, OverflowError):
            return math.nan  # there, and no number: the record's checks refuse it
    if "doubleValue" in value:
        try:
            return float(value["doubleValue"])
        except (TypeError, ValueError, OverflowError):
            return math.nan
    text = value.get("stringValue")
    return text if isinstance(text, str) else None


def _may_be_request(name: str) -> bool:
    return name == VLLM_NAME or SGLANG_NAME in name


def _objects(value: object) -> Iterable[Mapping[str, Any]]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else ()
