"""Exports passed on to the user's own collector, as they came.

The receiver only puts them into a bounded queue; what does not fit is dropped
and counted.  While the collector is away the queue waits, so an outage costs at
most what no longer fits.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

import httpx

from exporter.fetch import client_for
from exporter.log import log

QUEUE_BODIES = 1024
QUEUE_BYTES = 16 * 2**20
TIMEOUT_S = 10.0
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
# As the OTLP specification has it; everything else is final.
RETRYABLE = (429, 502, 503, 504)


class ForwardDrop(StrEnum):
    """Why a body was not passed on (a bounded label)."""

    QUEUE_FULL = "queue_full"
    REFUSED = "refused"  # the collector will not have it


@dataclass(frozen=True, slots=True)
class _Body:
    content: bytes
    headers: dict[str, str]


class Forwarder:
    """Sends bodies to ``url`` one after the other, in a task of its own."""

    def __init__(self, url: str, client: httpx.AsyncClient | None = None) -> None:
        """``url``: the collector's full trace URL, ``http://collector:4318/v1/traces``."""
        self.url = url
        self.sent = 0
        self.dropped: Counter[ForwardDrop] = Counter()
        self._client = client
        self._queue: deque[_Body] = deque()
        self._bytes = 0
        self._filled = asyncio.Event()
        self._said: object = None

    def offer(self, content: bytes, content_type: str, encoding: str) -> None:
        """Queue a body; never waits."""
        if len(self._queue) >= QUEUE_BODIES or self._bytes + len(content) > QUEUE_BYTES:
            self.dropped[ForwardDrop.QUEUE_FULL] += 1
            return
        headers = {"Content-Type": content_type}
        if encoding != "identity":
            headers["Content-Encoding"] = encoding
        self._queue.append(_Body(content, headers))
        self._bytes += len(content)
        self._filled.set()

    async def run(self) -> None:
        """Send until cancelled."""
        client = self._client or client_for(urlsplit(self.url).hostname or "")
        async with client:
            while True:
                while not self._queue:
                    self._filled.clear()
                    await self._filled.wait()
                # It stays in the queue, and in its limits, until it is settled.
                body = self._queue[0]
                await self._settle(client, body)
                self._queue.popleft()
                self._bytes -= len(body.content)

    async def _settle(self, client: httpx.AsyncClient, body: _Body) -> None:
        pause = FIRST_PAUSE_S
        while True:
            try:
                answer = await client.post(
                    self.url, content=body.content, headers=body.headers, timeout=TIMEOUT_S
                )
            except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
                self._say("collector not reached", str(error) or type(error).__name__)
            else:
                if answer.is_success:
                    self.sent += 1
                    self._said = None
                    return
                self._say("collector refuses", f"HTTP {answer.status_code}")
                if answer.status_code not in RETRYABLE:
                    self.dropped[ForwardDrop.REFUSED] += 1
                    return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _say(self, what: str, detail: str) -> None:
        if self._said != what:
            self._said = what
            log.warning(what, url=self.url.partition("?")[0], detail=detail[:300])
