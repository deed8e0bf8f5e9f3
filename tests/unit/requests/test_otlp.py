"""The trace receiver as its senders see it: status codes, answers, limits."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from starlette.applications import Starlette

from exporter.requests import intake as limits
from exporter.requests.forward import Forwarder
from exporter.requests.intake import Intake, Refusal
from exporter.requests.otlp import TraceReceiver
from exporter.requests.record import Drop, Source
from exporter.requests.sink import RecordSink, Seen

from .exports import NOW, as_json, binary, span

PROTOBUF = {"Content-Type": "application/x-protobuf"}
JSON = {"Content-Type": "application/json"}


class Stand:
    """Receivers of the named targets behind an in-process client."""

    def __init__(
        self,
        *names: str,
        peers: Any = "loopback",
        peer: str = "127.0.0.1",
        forwarder: Forwarder | None = None,
    ) -> None:
        seen = Seen()
        self.sinks = {name: RecordSink(name, [128], seen=seen) for name in names or ("t",)}
        self.intake = Intake(self.sinks, peers)
        self._app = Starlette(routes=TraceReceiver(self.intake, forwarder, now=lambda: NOW).routes())
        self._peer = peer

    def post(self, body: Any, headers: dict[str, str], path: str = "/v1/traces") -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, client=(self._peer, 4000))
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                return await client.post(path, content=body, headers=headers)

        return asyncio.run(send())

    def counted(self, name: str = "t") -> int:
        return sum(cell.requests for cell in self.sinks[name].totals.cells.values())


def test_all_good_is_200_and_an_empty_message() -> None:
    """The specification: partial_success must be unset then."""
    stand = Stand()
    answer = stand.post(binary([span(1), span(2)]), PROTOBUF)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == "application/x-protobuf"
    assert stand.counted() == 2


def test_json_is_answered_in_json() -> None:
    """In the encoding of the request."""
    stand = Stand()
    answer = stand.post(as_json([span(1)]), {"Content-Type": "application/json; charset=utf-8"})
    assert (answer.status_code, answer.json()) == (200, {})
    assert answer.headers["content-type"] == "application/json"
    assert stand.counted() == 1


BAD: list[tuple[Span, Drop]] = [
    (span(11, end=NOW + 86_400), Drop.IN_FUTURE),
    (span(12, time_in_model_decode=-0.5), Drop.TIME_OUT_OF_RANGE),
    (span(13, prompt_tokens=10**9), Drop.TOKENS_OUT_OF_RANGE),
    (span(14, prompt_tokens=0, completion_tokens=0), Drop.TOKENS_OUT_OF_RANGE),
    (span(15, completion_tokens="many"), Drop.MISSING_FIELD),
    (span(16, end=0), Drop.MISSING_FIELD),
]


@pytest.mark.parametrize(("encode", "headers"), [(binary, PROTOBUF), (as_json, JSON)])
def test_bad_spans_are_refused_and_the_good_ones_count(encode: Any, headers: dict[str, str]) -> None:
    """One batch with every kind of bad span between good ones: nothing valid is lost."""
    stand = Stand()
    spans = [span(1), *(bad for bad, _ in BAD), span(2), span(3, completion_tokens=1)]
    answer = stand.post(encode(spans), headers)
    assert answer.status_code == 200
    if headers is JSON:
        told = answer.json()["partialSuccess"]
        assert told["rejectedSpans"] == "6"  # 64-bit integers are text
        text = told["errorMessage"]
    else:
        partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
        assert partial.rejected_spans == 6
        text = partial.error_message
    assert "tokens_out_of_range: 2" in text
    assert stand.counted() == 3
    sink = stand.sinks["t"]
    assert {reason for (_, reason), many in sink.dropped.items() if many} == {reason for _, reason in BAD}
    assert sink.dropped.total() == 6
    (cell,) = [cell for cell in sink.totals.cells.values() if cell.requests]
    assert cell.itl.count == 2, "one output token has no gap"


def test_duplicates_are_a_success_and_count_once() -> None:
    """A sender that repeats a batch must not be told to repeat it again."""
    stand = Stand()
    for _ in range(2):
        assert stand.post(binary([span(1), span(2)]), PROTOBUF).content == b""
    assert stand.counted() == 2
    assert stand.sinks["t"].duplicates[Source.TRACE] == 2


def test_other_spans_are_no_failure() -> None:
    """Ignored, counted, not reported as rejected."""
    stand = Stand()
    assert stand.post(binary([Span(name="decode_loop"), span(1)]), PROTOBUF).content == b""
    assert stand.intake.ignored_spans["t"] == 1


@pytest.mark.parametrize("body", [binary([span(1)]), b""])
def test_gzip(body: bytes) -> None:
    """Collectors compress by default; an empty export is a good one."""
    stand = Stand()
    answer = stand.post(gzip.compress(body), {**PROTOBUF, "Content-Encoding": "gzip"})
    assert answer.status_code == 200
    assert stand.counted() == (1 if body else 0)


def test_gzip_in_several_members() -> None:
    """RFC 1952 allows it."""
    body = binary([span(1)])
    packed = gzip.compress(body[:50]) + gzip.compress(body[50:])
    stand = Stand()
    assert stand.post(packed, {**PROTOBUF, "Content-Encoding": "gzip"}).status_code == 200
    assert stand.counted() == 1


ZEROS = gzip.compress(bytes(64 * 2**20))
GZIP = {**PROTOBUF, "Content-Encoding": "gzip"}


@pytest.mark.parametrize(
    ("body", "headers", "status", "reason"),
    [
        (b"x", {"Content-Type": "text/plain"}, 415, Refusal.CONTENT_TYPE),
        (b"x", {}, 415, Refusal.CONTENT_TYPE),
        (b"x", {**PROTOBUF, "Content-Encoding": "zstd"}, 415, Refusal.ENCODING),
        (b"x", {**PROTOBUF, "Content-Encoding": "gzip, gzip"}, 415, Refusal.ENCODING),
        (binary([span(1)])[:-9], PROTOBUF, 400, Refusal.MALFORMED),
        (b"{", JSON, 400, Refusal.MALFORMED),
        (b"not gzip", GZIP, 400, Refusal.MALFORMED),
        (gzip.compress(binary([span(1)]))[:-12], GZIP, 400, Refusal.MALFORMED),
        (ZEROS, GZIP, 413, Refusal.TOO_LARGE),
        (bytes(limits.MAX_BODY_BYTES + 1), PROTOBUF, 413, Refusal.TOO_LARGE),
        (b"[" + b" " * 5 * 2**20 + b"]", JSON, 413, Refusal.TOO_LARGE),
    ],
    ids=[
        "text", "no type", "zstd", "twice", "half protobuf", "half json", "not gzip", "half gzip", "bomb",
        "large", "large json",
    ],
)  # fmt: skip
def test_bodies_that_are_refused(body: bytes, headers: dict[str, str], status: int, reason: Refusal) -> None:
    """With the specification's status, a status message in the sender's encoding, and a count."""
    stand = Stand()
    answer = stand.post(body, headers)
    assert answer.status_code == status
    assert stand.intake.refused == {reason: 1}
    assert stand.counted() == 0
    if headers.get("Content-Type") == "application/json":
        assert answer.json()["message"]
    elif headers.get("Content-Type") == "application/x-protobuf":
        # google.rpc.Status: field 1 is the code (3, invalid argument), field 2 the text.
        assert answer.content[:3] == b"\x08\x03\x12"
        assert answer.content[3] == len(answer.content) - 4


def test_a_large_body_without_a_length_is_cut_off() -> None:
    """Chunked: the size shows only while it comes in."""
    sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(100):
            sent += 2**20
            yield bytes(2**20)

    stand = Stand()
    assert stand.post(chunks(), PROTOBUF).status_code == 413


def test_the_limit_on_all_bodies_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """503 with Retry-After: the sender keeps its batch and comes back."""
    monkeypatch.setattr(limits, "MAX_WAITING_BYTES", 100)
    stand = Stand()
    answer = stand.post(binary([span(1)]), PROTOBUF)
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.content[:2] == b"\x08\x0e"  # code 14: unavailable
    monkeypatch.undo()
    assert stand.post(binary([span(1)]), PROTOBUF).status_code == 200, "what was refused waits no more"


def test_a_sender_that_stops_halfway() -> None:
    """A hung-up connection costs nothing but a count."""
    stand = Stand()
    sent: list[dict[str, Any]] = []

    async def run() -> None:
        messages: list[dict[str, Any]] = [
            {"type": "http.request", "body": b"abc", "more_body": True},
            {"type": "http.disconnect"},
        ]
        scope = {
            "type": "http", "method": "POST", "path": "/v1/traces", "query_string": b"", "client": None,
            "headers": [(b"content-type", b"application/x-protobuf")],
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            return messages.pop(0)

        async def send(message: Any) -> None:
            sent.append(message)

        await stand._app(scope, receive, send)

    asyncio.run(run())
    assert sent[0]["status"] == 408
    assert stand.intake.refused == {Refusal.INCOMPLETE: 1}


@pytest.mark.parametrize(
    ("peer", "setting", "status"),
    [
        ("127.0.0.1", "loopback", 200),
        ("127.8.8.8", "loopback", 200),
        ("::1", "loopback", 200),
        ("::ffff:127.0.0.1", "loopback", 200),
        ("10.0.0.7", "loopback", 403),
        ("::ffff:10.0.0.7", "loopback", 403),
        ("not an address", "loopback", 403),
        ("10.0.0.7", "any", 200),
    ],
)
def test_only_this_host_may_send_unless_told_otherwise(peer: str, setting: str, status: int) -> None:
    """/metrics is for the network, records are not: anybody could poison them."""
    stand = Stand(peers=setting, peer=peer)
    assert stand.post(binary([span(1)]), PROTOBUF).status_code == status
    assert stand.counted() == (1 if status == 200 else 0)


def test_several_targets() -> None:
    """Each has its own path; the plain one would be a guess."""
    stand = Stand("127.0.0.1:8000", "chat/eu")
    assert stand.post(binary([span(1)]), PROTOBUF, "/v1/traces/127.0.0.1:8000").status_code == 200
    assert stand.post(binary([span(2)]), PROTOBUF, "/v1/traces/chat/eu").status_code == 200
    assert stand.post(binary([span(3)]), PROTOBUF, "/v1/traces").status_code == 404
    assert stand.post(binary([span(3)]), PROTOBUF, "/v1/traces/other").status_code == 404
    assert (stand.counted("127.0.0.1:8000"), stand.counted("chat/eu")) == (1, 1)


def test_what_is_taken_is_passed_on_as_it_came() -> None:
    """Packed, with the spans that we ignore; what was refused is not."""
    forwarder = Forwarder("http://collector/v1/traces")
    stand = Stand(forwarder=forwarder)
    packed = gzip.compress(binary([Span(name="decode_loop"), span(1)]))
    stand.post(packed, GZIP)
    stand.post(b"junk", GZIP)
    (queued,) = forwarder._queue
    assert queued.content == packed
    assert queued.headers == {"Content-Type": "application/x-protobuf", "Content-Encoding": "gzip"}


def test_the_loop_gets_its_turn_while_a_large_export_is_decoded() -> None:
    """A scrape in the middle of 5,000 spans must not wait for the last one."""
    stand = Stand()
    seen: list[int] = []

    async def run() -> None:
        async def scraper() -> None:
            while True:
                seen.append(stand.counted())
                await asyncio.sleep(0)

        scraping = asyncio.create_task(scraper())
        transport = httpx.ASGITransport(stand._app, client=("127.0.0.1", 4000))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            await client.post(
                "/v1/traces", content=binary([span(n) for n in range(1, 5001)]), headers=PROTOBUF
            )
        scraping.cancel()

    asyncio.run(run())
    between = {count for count in seen if 0 < count < 5000}
    assert len(between) >= 40, "one look at least every hundred spans or so"


def test_json_is_json_whatever_the_answer() -> None:
    """A sender's JSON parser must not meet protobuf."""
    stand = Stand("a", "b")
    assert json.loads(stand.post(b"{}", JSON).content)["code"] == 3
