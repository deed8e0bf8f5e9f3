"""Passing exports on: never in the receiver's way, losing no more than the queue can't hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import pytest

from exporter.requests import forward
from exporter.requests.forward import ForwardDrop, Forwarder

URL = "http://collector:4318/v1/traces"


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "FIRST_PAUSE_S", 0)


def deliver(
    answer: Callable[[httpx.Request], httpx.Response], bodies: list[bytes], done: Callable[[Forwarder], bool]
) -> Forwarder:
    """Run a forwarder over ``bodies`` until ``done``."""

    async def run() -> Forwarder:
        one = Forwarder(URL, httpx.AsyncClient(transport=httpx.MockTransport(answer)))
        for body in bodies:
            one.offer(body, "application/x-protobuf", "gzip")
        task = asyncio.create_task(one.run())
        async with asyncio.timeout(10):
            while not done(one):
                await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        return one

    return asyncio.run(run())


def test_bodies_arrive_as_they_came_and_in_order() -> None:
    """Bytes and headers untouched: the collector has to unpack them."""
    got: list[tuple[bytes, str, str, str]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        headers = request.headers
        got.append((request.content, headers["content-type"], headers["content-encoding"], str(request.url)))
        return httpx.Response(200)

    one = deliver(answer, [b"a", b"b"], lambda f: f.sent == 2)
    assert got == [(body, "application/x-protobuf", "gzip", URL) for body in (b"a", b"b")]
    assert one.dropped.total() == 0


def test_an_absent_collector_is_tried_again() -> None:
    """Refused connections and 503 are not the end of a body."""
    troubles: list[httpx.HTTPError | httpx.Response] = [
        httpx.ConnectError("refused"),
        httpx.Response(503),
        httpx.Response(429),
        httpx.ReadTimeout(""),
    ]
    got: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if troubles:
            trouble = troubles.pop(0)
            if isinstance(trouble, httpx.HTTPError):
                raise trouble
            return trouble
        got.append(request.content)
        return httpx.Response(200)

    deliver(answer, [b"a", b"b"], lambda f: f.sent == 2)
    assert got == [b"a", b"b"]


def test_what_the_collector_refuses_for_good_is_dropped_and_counted() -> None:
    """A body that is never taken must not hold up the others."""
    one = deliver(
        lambda request: httpx.Response(400 if request.content == b"bad" else 200),
        [b"bad", b"good"],
        lambda f: f.sent == 1,
    )
    assert one.dropped == {ForwardDrop.REFUSED: 1}


def test_a_full_queue_drops_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """By number and by bytes; offering never waits."""
    monkeypatch.setattr(forward, "QUEUE_BODIES", 3)
    one = Forwarder(URL)
    for _ in range(5):
        one.offer(b"x", "application/json", "identity")
    assert one.dropped == {ForwardDrop.QUEUE_FULL: 2}
    monkeypatch.setattr(forward, "QUEUE_BYTES", 10)
    two = Forwarder(URL)
    for _ in range(3):
        two.offer(b"12345", "application/json", "identity")
    assert two.dropped == {ForwardDrop.QUEUE_FULL: 1}


def test_sent_bodies_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits are on what waits, not on what ever came."""
    monkeypatch.setattr(forward, "QUEUE_BYTES", 5)

    async def run() -> Forwarder:
        transport = httpx.MockTransport(lambda _: httpx.Response(200))
        one = Forwarder(URL, httpx.AsyncClient(transport=transport))
        task = asyncio.create_task(one.run())
        async with asyncio.timeout(10):
            for n in range(1, 4):
                one.offer(b"12345", "application/json", "identity")
                # Sent and off the queue: the room is free one turn after the count moved.
                while one.sent < n or one._queue:
                    await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        return one

    one = asyncio.run(run())
    assert (one.sent, one.dropped.total()) == (3, 0)
