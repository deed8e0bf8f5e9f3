"""Bodies that others send us: who may send, how much, how long, how they are packed."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from enum import StrEnum
from ipaddress import ip_address
from typing import Literal

from starlette.requests import ClientDisconnect, Request

from exporter.requests.sink import RecordSink

# An engine's exporter sends 512 spans of about 700 bytes at most; a collector's batch of 8,192 is 6 MB.
MAX_BODY_BYTES = 8 * 2**20
MAX_UNPACKED_BYTES = 16 * 2**20
# All bodies being received at the same time, together.
MAX_WAITING_BYTES = 32 * 2**20
BODY_TIMEOUT_S = 30.0
# A body goes through the decompressor in pieces, and the event loop gets a turn between them.
PIECE_BYTES = 2**20

GZIP = zlib.MAX_WBITS | 16


class Refusal(StrEnum):
    """Why a whole body was refused (a bounded label)."""

    PEER = "peer_not_loopback"
    TARGET = "unknown_target"
    CONTENT_TYPE = "content_type"
    ENCODING = "content_encoding"
    TOO_LARGE = "too_large"
    MALFORMED = "malformed"
    INCOMPLETE = "incomplete"  # the sender hung up or took too long
    BUSY = "busy"


STATUS = {
    Refusal.PEER: 403,
    Refusal.TARGET: 404,
    Refusal.CONTENT_TYPE: 415,
    Refusal.ENCODING: 415,
    Refusal.TOO_LARGE: 413,
    Refusal.MALFORMED: 400,
    Refusal.INCOMPLETE: 408,
    Refusal.BUSY: 503,
}


class RefusedError(Exception):
    """A body that is not taken; the text goes back to its sender."""

    def __init__(self, reason: Refusal, text: str) -> None:
        super().__init__(text)
        self.reason = reason

    @property
    def status(self) -> int:
        return STATUS[self.reason]


class Intake:
    """What all receivers of one process share: the sinks, the limits and the counters."""

    def __init__(
        self, sinks: Mapping[str, RecordSink], peers: Literal["loopback", "any"] = "loopback"
    ) -> None:
        self.sinks = sinks
        self.peers = peers
        self.bodies = 0
        self.refused: Counter[Refusal] = Counter()
        self.ignored_spans: Counter[str] = Counter()
        """By target: spans that were no requests."""
        self.turn = asyncio.Lock()
        """Held while a body is unpacked and decoded: one at a time, which bounds the memory that takes."""
        self._waiting_bytes = 0

    def sink(self, request: Request) -> RecordSink:
        """The sink that the path names, for a peer that may send.  Raises :class:`RefusedError`."""
        # A peer without an address is a socket in the file system: local.
        if self.peers == "loopback" and request.client is not None and not _is_loopback(request.client.host):
            raise RefusedError(Refusal.PEER, "only from this host; --traces-from any lifts that")
        name = request.path_params.get("target") or None
        if name is None:
            if len(self.sinks) != 1:
                raise RefusedError(Refusal.TARGET, "several targets are watched: say which one in the path")
            return next(iter(self.sinks.values()))
        if (found := self.sinks.get(name)) is None:
            raise RefusedError(Refusal.TARGET, "no such target")
        return found

    @asynccontextmanager
    async def body(self, request: Request) -> AsyncIterator[bytes]:
        """The body as sent, still packed, for the length of a ``with`` block; the limit on
        what is waiting holds until its end.  Raises :class:`RefusedError`."""
        told = request.headers.get("content-length", "")
        if told.isdecimal() and int(told[:20]) > MAX_BODY_BYTES:
            raise RefusedError(Refusal.TOO_LARGE, f"more than {MAX_BODY_BYTES} bytes")
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                async for chunk in request.stream():
                    body += chunk
                    self._waiting_bytes += len(chunk)
                    if len(body) > MAX_BODY_BYTES:
                        raise RefusedError(Refusal.TOO_LARGE, f"more than {MAX_BODY_BYTES} bytes")
                    if self._waiting_bytes > MAX_WAITING_BYTES:
                        raise RefusedError(Refusal.BUSY, "too much is being received; come back")
            yield bytes(body)
        except (TimeoutError, ClientDisconnect):
            raise RefusedError(Refusal.INCOMPLETE, f"no complete body in {BODY_TIMEOUT_S:g} s") from None
        finally:
            self._waiting_bytes -= len(body)


def _is_loopback(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)  # ::ffff:127.0.0.1, where a socket takes both
    return (mapped or address).is_loopback


def content_type(request: Request, *taken: str) -> str:
    """Which of the types ``taken`` the body has.  Raises :class:`RefusedError`."""
    kind = media_type(request)
    if kind not in taken:
        raise RefusedError(Refusal.CONTENT_TYPE, f"a content type must be {' or '.join(taken)}")
    return kind


def media_type(request: Request) -> str:
    """The content type without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def content_encoding(request: Request) -> str:
    """ "gzip" or "identity".  Raises :class:`RefusedError`."""
    encoding = request.headers.get("content-encoding", "").strip().lower() or "identity"
    if encoding not in ("gzip", "identity"):
        raise RefusedError(Refusal.ENCODING, "a content encoding must be gzip or identity")
    return encoding


async def unpacked(body: bytes, encoding: str, limit: int = MAX_UNPACKED_BYTES) -> bytes:
    """``body`` without its encoding, at most ``limit`` bytes.  Raises :class:`RefusedError`."""
    if encoding == "identity":
        if len(body) > limit:
            raise RefusedError(Refusal.TOO_LARGE, f"more than {limit} bytes")
        return body
    out = bytearray()
    rest = body
    try:
        while rest:  # a gzip file may hold several members
            inflate = zlib.decompressobj(wbits=GZIP)
            while not inflate.eof:
                piece = inflate.decompress(rest, min(PIECE_BYTES, limit + 1 - len(out)))
                rest = inflate.unconsumed_tail
                out += piece
                if len(out) > limit:
                    raise RefusedError(Refusal.TOO_LARGE, f"more than {limit} bytes once unpacked")
                if not piece and not inflate.eof and not rest:
                    raise RefusedError(Refusal.MALFORMED, "the gzip body ends early")
                await asyncio.sleep(0)
            rest = inflate.unused_data
    except zlib.error as error:
        raise RefusedError(Refusal.MALFORMED, f"not gzip: {error}") from None
    return bytes(out)
