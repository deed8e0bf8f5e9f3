"""Connections whose other end neither asks nor reads end by themselves."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from exporter import server
from exporter.web.pieces import InPieces

from .running import InProcess
from .waiting import wait_for

# More than the buffers of a connection on loopback take.
BODY = b"x" * 64 * 2**20


@pytest.fixture
def guest(monkeypatch: pytest.MonkeyPatch) -> Iterator[server.GuestServer]:
    """A server of one large page, with less patience than in earnest."""
    monkeypatch.setattr(server, "UNREAD_S", 0.6)
    monkeypatch.setattr(server, "IDLE_S", 0.6)

    async def page(scope: Scope, receive: Receive, send: Send) -> None:
        await InPieces(BODY)(scope, receive, send)

    sock = server.listen("127.0.0.1", 0)
    made = server.guest(page)
    made.config.port = sock.getsockname()[1]
    thread = threading.Thread(target=lambda: asyncio.run(made.serve(sockets=[sock])), daemon=True)
    thread.start()
    yield made
    made.should_exit = True
    thread.join(20)


@pytest.mark.parametrize(
    "said",
    [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"],
    ids=["nothing", "half a line", "half a head", "a request, and never reads"],
)
def test_it_is_ended(guest: server.GuestServer, said: bytes) -> None:
    """Without that, each would hold a socket and a buffer for good; the task that answers it ends, too."""
    with socket.create_connection(("127.0.0.1", guest.config.port)) as sock:
        sock.sendall(said)
        wait_for(lambda: guest.server_state.connections, "the connection")
        wait_for(lambda: not guest.server_state.connections, "its end")
        wait_for(lambda: not guest.server_state.tasks, "the end of its task")


def test_it_holds_a_piece_and_not_the_page(
    guest: server.GuestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 MiB for a reader that reads nothing: what waits in its buffer is a piece above the mark of 64 kB."""
    monkeypatch.setattr(server, "UNREAD_S", 60.0)
    monkeypatch.setattr(server, "IDLE_S", 60.0)

    def waiting() -> int:
        connections = list(guest.server_state.connections)
        return max((c.transport.get_write_buffer_size() for c in connections), default=0)

    with socket.create_connection(("127.0.0.1", guest.config.port)) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert wait_for(waiting, "the buffers full") < 2**17
        sock.recv(2**16)
        assert waiting() < 2**17


def test_slow_but_steady_reader_gets_everything(
    guest: server.GuestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as its buffer empties now and then, a reader is waited for."""
    monkeypatch.setattr(server, "IDLE_S", 60.0)
    monkeypatch.setattr(server, "UNREAD_S", 60.0)
    with socket.create_connection(("127.0.0.1", guest.config.port)) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        got = 0
        while more := sock.recv(2**20):
            got += len(more)
    assert got > len(BODY)


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1"])
def test_who_is_behind_a_proxy_on_this_host(peer: str) -> None:
    """Records are taken from this host: not from anybody whom a proxy on it lets in.

    On every address, as by default, a peer is called ::ffff:127.0.0.1, and is loopback all the same.
    """
    if peer == "::1" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with InProcess({"engine": "http://127.0.0.1:1"}) as exporter:
        url = f"http://{f'[{peer}]' if ':' in peer else peer}:{exporter.url.rpartition(':')[2]}/v1/traces"
        headers = {"Content-Type": "application/x-protobuf"}
        for forwarded, status in (({}, 200), ({"X-Forwarded-For": "8.8.8.8"}, 403)):
            sent = httpx.post(url, content=b"", headers={**headers, **forwarded}, trust_env=False)
            assert sent.status_code == status
