"""The OTLP/HTTP trace receiver: ``POST /v1/traces`` and ``/v1/traces/<target>``.

As https://opentelemetry.io/docs/specs/otlp/#otlphttp has it: binary and JSON
encoding, gzip, an answer in the request's own encoding, partial success where
some spans were refused, 503 with Retry-After where the sender should come back.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from exporter.requests.forward import Forwarder
from exporter.requests.intake import (
    Intake,
    Refusal,
    RefusedError,
    content_encoding,
    content_type,
    media_type,
    unpacked,
)
from exporter.requests.record import Drop, RejectedRecord, Source
from exporter.requests.sink import RecordSink

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
# Spans handled in one turn of the event loop: a few milliseconds, so that /metrics never waits long.
SLICE = 100
# What JSON becomes in memory is many times its size; engines send the binary form.
MAX_JSON_BYTES = 4 * 2**20
RETRY_AFTER_S = 1
# google.rpc.Code
INVALID_ARGUMENT, UNAVAILABLE = 3, 14


class TraceReceiver:
    """The endpoint; ``now``: Unix time."""

    def __init__(
        self, intake: Intake, forwarder: Forwarder | None = None, now: Callable[[], float] = time.time
    ) -> None:
        self.intake = intake
        self.forwarder = forwarder
        self._now = now

    def routes(self) -> list[Route]:
        return [
            Route("/v1/traces", self.receive, methods=["POST"]),
            # A target is named host:port, or whatever the user likes.
            Route("/v1/traces/{target:path}", self.receive, methods=["POST"]),
        ]

    async def receive(self, request: Request) -> Response:
        """One export."""
        intake = self.intake
        intake.bodies += 1
        try:
            sink = intake.sink(request)
            kind = content_type(request, PROTOBUF, JSON)
            encoding = content_encoding(request)
            async with intake.body(request) as packed, intake.turn:
                rejected = await self._take(packed, encoding, kind, sink)
        except RefusedError as refused:
            intake.refused[refused.reason] += 1
            return _refusal(refused, media_type(request))
        if self.forwarder is not None:
            self.forwarder.offer(packed, kind, encoding)
        return _success(rejected, kind)

    async def _take(self, packed: bytes, encoding: str, kind: str, sink: RecordSink) -> Counter[Drop]:
        # protobuf takes 10 MB; processes that receive no traces do without.
        from exporter.requests import spans, trace  # noqa: PLC0415

        read, limit = (spans.from_json, MAX_JSON_BYTES) if kind == JSON else (spans.from_protobuf, None)
        body = await (unpacked(packed, encoding, limit) if limit else unpacked(packed, encoding))
        try:
            found: Iterator[spans.Found] = read(body)
        except spans.ExportError as error:
            raise RefusedError(Refusal.MALFORMED, f"no trace export: {error}") from None
        rejected: Counter[Drop] = Counter()
        ignored = 0
        now = self._now()
        for n, span in enumerate(found):
            if n % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            if span is None:
                ignored += 1
                continue
            record = trace.to_record(span, now)
            if isinstance(record, RejectedRecord):
                sink.reject(record, Source.TRACE)
                rejected[record.reason] += 1
            else:
                assert isinstance(span, spans.RequestSpan)  # noqa: S101  # a bad span makes no record
                sink.accept(record, span.span_id)
        self.intake.ignored_spans[sink.target] += ignored
        return rejected


def _success(rejected: Counter[Drop], kind: str) -> Response:
    """200; with a partial success where request spans were refused, so that the sender can log it."""
    many = rejected.total()
    text = ", ".join(f"{reason}: {count}" for reason, count in sorted(rejected.items()))
    if kind == JSON:
        # 64-bit integers are text in OTLP's JSON.
        told = {"partialSuccess": {"rejectedSpans": str(many), "errorMessage": text}} if many else {}
        return Response(json.dumps(told), media_type=JSON)
    if not many:
        return Response(b"", media_type=PROTOBUF)
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as service  # noqa: PLC0415

    partial = service.ExportTracePartialSuccess(rejected_spans=many, error_message=text)
    answer = service.ExportTraceServiceResponse(partial_success=partial)
    return Response(answer.SerializeToString(), media_type=PROTOBUF)


def _refusal(refused: RefusedError, kind: str) -> Response:
    """An error with a google.rpc.Status in the sender's encoding."""
    code = UNAVAILABLE if refused.reason is Refusal.BUSY else INVALID_ARGUMENT
    text = str(refused)[:120]
    headers = {"Retry-After": str(RETRY_AFTER_S)} if refused.reason is Refusal.BUSY else {}
    if kind == PROTOBUF:
        # Two fields, code = 1 and message = 2, both shorter than 128: not worth a dependency.
        encoded = text.encode()[:120]
        status = bytes([0x08, code, 0x12, len(encoded)]) + encoded
        return Response(status, refused.status, headers, media_type=PROTOBUF)
    if kind == JSON:
        return Response(json.dumps({"code": code, "message": text}), refused.status, headers, media_type=JSON)
    return Response(f"{text}\n", refused.status, headers, media_type="text/plain")
