"""uvicorn, as a guest in a process that has more to do than serve HTTP."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

# Requests still open when we are told to stop get this many seconds.
GRACE_S = 1
BACKLOG = 1024
# More connections than this are answered with 503: what each may hold is bounded, so all of them are.
MAX_CONNECTIONS = 1000
# As peers are called on IPv4, IPv6 and a socket that is both.
LOOPBACK = "127.0.0.1,::1,::ffff:127.0.0.1"
# A reader that leaves something of its answer lying for so long will not come for it.
UNREAD_S = 30.0
# So long may pass without one complete request and answer: more than any probe or body is given.
IDLE_S = 90.0


class RotatingContext(ssl.SSLContext):
    """Stands for the latest context: a certificate that is exchanged counts from the next handshake on,
    and connections that are open keep theirs."""

    latest: Callable[[], ssl.SSLContext]
    allowed_sans: Callable[[], list[str]]

    def wrap_bio(self, *args: Any, **more: Any) -> ssl.SSLObject:
        """As the latest context does it."""
        return self.latest().wrap_bio(*args, **more)

    def admits(self, certificate: Mapping[str, Any] | None) -> bool:
        """Whether a client with this (verified) certificate may stay: exact match of one of its names."""
        allowed = self.allowed_sans()
        names = [value for _, value in (certificate or {}).get("subjectAltName", ())]
        return not allowed or any(name in allowed for name in names)


class BoundedProtocol(H11Protocol):
    """A connection that ends by itself where its other end neither asks nor reads.

    uvicorn's own limit is for kept-alive connections between requests only, and its close
    waits for the reader.
    """

    _watchdog: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        context = transport.get_extra_info("sslcontext")
        if isinstance(context, RotatingContext) and not context.admits(transport.get_extra_info("peercert")):
            transport.abort()
            return
        self._fresh = self._read = self.loop.time()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._fresh = self.loop.time()
        super().on_response_complete()

    def _look(self) -> None:
        now = self.loop.time()
        if not self.transport.get_write_buffer_size():
            self._read = now
        if now - self._read > UNREAD_S or now - self._fresh > IDLE_S:
            self.transport.abort()
            return
        self._watchdog = self.loop.call_later(UNREAD_S / 6, self._look)


class GuestServer(uvicorn.Server):
    """Leaves signals to the host: uvicorn's own handling kills the process by the
    signal once it has shut down, so nothing after it would run."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; "" as host is every address, IPv4 and IPv6.  Raises OSError.

    Made before the server: a taken port is then one clear error, and whoever
    connects early waits in the backlog instead of being refused.
    """
    if not host:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        return socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=BACKLOG)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


def guest(app: ASGIApp, tls: ssl.SSLContext | None = None, **more: Any) -> GuestServer:
    """A server for ``app``, to be given its sockets; no access log, lifespan or websockets."""
    config = uvicorn.Config(
        app,
        http=BoundedProtocol,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=MAX_CONNECTIONS,
        backlog=BACKLOG,
        # Who may send traces hangs on the peer's address: FORWARDED_ALLOW_IPS must not change whose
        # X-Forwarded-For is believed.
        forwarded_allow_ips=LOOPBACK,
        timeout_graceful_shutdown=GRACE_S,
        **more,
    )
    config.load()
    config.ssl = tls
    return GuestServer(config)
