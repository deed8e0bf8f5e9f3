"""Trace exports as the engines' exporters send them, made by hand or out of recordings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

RECORDINGS = Path(__file__).parents[2] / "recordings"
# When the recorded requests finished, within minutes.
NOW = 1_795_990_400.0

Attributes = Mapping[str, int | float | str]

GOOD: Attributes = {
    "gen_ai.usage.prompt_tokens": 100,
    "gen_ai.usage.completion_tokens": 11,
    "gen_ai.latency.time_to_first_token": 0.3,
    "gen_ai.latency.e2e": 0.5,
    "gen_ai.latency.time_in_queue": 0.1,
    "gen_ai.latency.time_in_model_prefill": 0.2,
    "gen_ai.latency.time_in_model_decode": 0.2,
    "gen_ai.request.id": "cmpl-1",
}


def span(number: int, name: str = "llm_request", end: float = NOW - 1, **changed: Any) -> Span:
    """A good vLLM span, but for what is ``changed`` (last part of the key; None: left out)."""
    attributes = dict(GOOD)
    for word, value in changed.items():
        key = next(k for k in (*GOOD, "gen_ai.usage.cached_tokens") if k.endswith(f".{word}"))
        attributes.pop(key, None)
        if value is not None:
            attributes[key] = value
    return encoded(number.to_bytes(8, "big"), name, round(end * 1e9), attributes)


def encoded(span_id: bytes, name: str, end: int, attributes: Attributes) -> Span:
    """A span as protobuf."""
    made = Span(name=name, span_id=span_id, trace_id=b"\1" * 16, end_time_unix_nano=end)
    for key, value in attributes.items():
        entry = made.attributes.add(key=key)
        if isinstance(value, int):
            entry.value.int_value = value
        elif isinstance(value, float):
            entry.value.double_value = value
        else:
            entry.value.string_value = value
    return made


def binary(spans: Iterable[Span]) -> bytes:
    """An export in the binary encoding."""
    export = ExportTraceServiceRequest()
    export.resource_spans.add().scope_spans.add().spans.extend(spans)
    return export.SerializeToString()


def as_json(spans: Iterable[Span]) -> bytes:
    """An export in OTLP's JSON: hexadecimal ids, integers of 64 bits as text."""
    told = [
        {
            "name": s.name,
            "traceId": s.trace_id.hex(),
            "spanId": s.span_id.hex(),
            "endTimeUnixNano": str(s.end_time_unix_nano),
            "attributes": [{"key": a.key, "value": _json_value(a.value)} for a in s.attributes],
        }
        for s in spans
    ]
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": told}]}]}).encode()


def _json_value(value: Any) -> dict[str, object]:
    kind = value.WhichOneof("value")
    if kind == "int_value":
        return {"intValue": str(value.int_value)}
    name = {"double_value": "doubleValue", "string_value": "stringValue"}[kind]
    return {name: getattr(value, kind)}


def recorded_vllm() -> list[Span]:
    """The 286 request spans of the recorded vLLM 0.32.0 run with preemptions."""
    path = RECORDINGS / "vllm-0.32.0-llama-preemptions/otlp-request-spans.jsonl"
    return [
        encoded(bytes.fromhex(s["span_id"]), s["name"], s["end"], s["attributes"])
        for s in map(json.loads, path.read_text().splitlines())
    ]


def recorded_sglang() -> list[Span]:
    """103 root spans of a recorded SGLang 0.5.23 run (protobuf's own JSON: ids in base 64)."""
    made = []
    path = RECORDINGS / "sglang-0.5.23-otlp-request-spans.jsonl"
    for line in path.read_text().splitlines():
        told = json.loads(line)
        told.pop("resource")
        made.append(json_format.ParseDict(told, Span()))
    return made
