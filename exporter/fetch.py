"""One bounded HTTP GET: time, bytes and decompressed bytes all have a limit."""

from __future__ import annotations

import asyncio
import socket
import ssl
import zlib
from enum import StrEnum
from functools import cache
from ipaddress import ip_address, ip_network
from typing import NamedTuple
from urllib.request import getproxies, proxy_bypass

import httpx

# Never OpenMetrics: with it, client_python 0.26.0 renames samples but not their TYPE lines.
ACCEPT = "text/plain;version=0.0.4"
# Compressing costs the engine's own process; on loopback it saves nothing.
HEADERS = {"Accept": ACCEPT, "Accept-Encoding": "identity", "User-Agent": "kvcache-exporter"}
# Each of the two handshakes gets this share of a fetch's time.
HANDSHAKE_SHARE = 0.45


class Failure(StrEnum):
    """Why a poll gave nothing (a bounded label)."""

    CONNECTION_REFUSED = "connection_refused"
    CONNECTION_FAILED = "connection_failed"
    DNS = "dns"
    TLS = "tls"
    ACCESS_FILE = "access_file"  # the token's, CA's or client certificate's
    TIMEOUT = "timeout"
    UNAUTHORIZED = "http_401_403"
    NOT_FOUND = "http_404"
    SERVER_ERROR = "http_5xx"
    OTHER_STATUS = "http_other"
    REDIRECT = "redirect"
    TRUNCATED = "truncated"
    TOO_LARGE = "too_large"
    ENCODING = "bad_encoding"
    EMPTY = "empty"
    NOT_METRICS = "not_metrics"
    NO_ENGINE_FAMILIES = "no_engine_families"
    INTERNAL = "internal"


class AccessError(OSError):
    """A file of the access settings that can't be used: ``str()`` names it and quotes nothing of it."""


class FetchError(Exception):
    """A poll that gave nothing: ``reason`` for the label, the text for people."""

    def __init__(self, reason: Failure, detail: str = "") -> None:
        super().__init__(detail or str(reason))
        self.reason = reason


def client_for(
    host: str,
    *,
    verify: ssl.SSLContext | None = None,
    auth: httpx.Auth | None = None,
    unix_socket: str | None = None,
) -> httpx.AsyncClient:
    """A client that follows no redirect, and no proxy settings to loopback.

    The one place where clients are made.  ``verify``: TLS other than the default;
    ``auth``: what each request is signed with; ``unix_socket``: its path, instead
    of a connection to ``host``.  A proxy that can't be used fails requests, not the start.
    """
    trust_env = unix_socket is None and not is_loopback(host)
    limits = httpx.Limits(max_connections=2, max_keepalive_connections=1)
    verify = verify or _trusted_roots(trust_env)

    def made(*, proxied: bool, transport: httpx.AsyncBaseTransport | None = None) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            follow_redirects=False,
            trust_env=proxied,
            verify=verify,
            headers=HEADERS,
            auth=auth,
            limits=limits,
            transport=transport,
        )

    if unix_socket:
        return made(proxied=False, transport=httpx.AsyncHTTPTransport(uds=unix_socket, limits=limits))
    try:
        # Decided here by the name: a request may be pinned to an address later, which NO_PROXY doesn't list.
        return made(proxied=trust_env and not past_proxies(host))
    except (ImportError, ValueError, httpx.InvalidURL):
        return made(proxied=False, transport=_UnusableProxy())


class _UnusableProxy(httpx.AsyncBaseTransport):
    """Stands for a proxy of the environment that is none; its URL may hold a password, so it isn't quoted."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        raise httpx.ProxyError("a proxy variable of the environment is no http:// or https:// URL")


def past_proxies(host: str) -> bool:
    """Whether NO_PROXY names ``host``, or, as httpx does not see, a network that holds it."""
    if proxy_bypass(host):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    for entry in getproxies().get("no", "").split(","):
        try:
            if address in ip_network(entry.strip(), strict=False):
                return True
        except ValueError:
            continue
    return False


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine by its very name."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@cache
def _trusted_roots(trust_env: bool) -> ssl.SSLContext:
    # Once for all targets: reading the certificates takes some 20 ms of the event loop.
    return httpx.create_ssl_context(trust_env=trust_env)


class Answer(NamedTuple):
    """A body as text, and the ``Content-Type`` that it came with."""

    text: str
    content_type: str


async def get_text(client: httpx.AsyncClient, url: str, *, timeout: float, max_bytes: int) -> str:  # noqa: ASYNC109
    """The body of ``url`` as text; see :func:`get`."""
    return (await get(client, url, timeout=timeout, max_bytes=max_bytes)).text


async def get(client: httpx.AsyncClient, url: str, *, timeout: float, max_bytes: int) -> Answer:  # noqa: ASYNC109
    """What ``url`` answers.  ``timeout`` is for the whole exchange, so a
    server that drips bytes cannot hold a poll.  Raises :class:`FetchError`."""
    try:
        async with asyncio.timeout(timeout):
            body, content_type = await _body(client, url, timeout, max_bytes)
    except TimeoutError:
        raise FetchError(Failure.TIMEOUT, f"no complete answer in {timeout:g} s") from None
    except httpx.TimeoutException:
        raise FetchError(Failure.TIMEOUT, f"no answer in {timeout:g} s") from None
    except httpx.RemoteProtocolError as error:
        raise FetchError(Failure.TRUNCATED, str(error)) from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise FetchError(_why(error), str(error) or type(error).__name__) from None
    return Answer(body.decode("utf-8", errors="replace"), content_type)


async def _body(client: httpx.AsyncClient, url: str, timeout: float, max_bytes: int) -> tuple[bytes, str]:  # noqa: ASYNC109
    # The TCP and the TLS handshake must end by their own time limits, before the one around
    # them does: httpcore 1.x leaves the socket open when a TLS handshake is cancelled.
    limits = httpx.Timeout(timeout, connect=timeout * HANDSHAKE_SHARE)
    async with client.stream("GET", url, timeout=limits) as response:
        _check_status(response)
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        inflate = None
        if encoding in ("gzip", "x-gzip", "deflate"):
            inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
        elif encoding not in ("", "identity"):
            raise FetchError(Failure.ENCODING, f"content-encoding {encoding[:40]!r} was not asked for")
        body = bytearray()
        async for chunk in response.aiter_raw():
            try:
                # max_length bounds what one small chunk of a bomb becomes.
                body += inflate.decompress(chunk, max_bytes + 1 - len(body)) if inflate else chunk
            except zlib.error as error:
                raise FetchError(Failure.ENCODING, str(error)) from None
            if len(body) > max_bytes:
                raise FetchError(Failure.TOO_LARGE, f"more than {max_bytes} bytes")
            if inflate and inflate.unused_data:
                # A second member would be left out, and zlib would collect whatever follows.
                raise FetchError(Failure.ENCODING, "more follows the end of the compressed body")
        if inflate and not inflate.eof:
            raise FetchError(Failure.TRUNCATED, "the compressed body ends early")
        return bytes(body), response.headers.get("content-type", "")


def _check_status(response: httpx.Response) -> None:
    status = response.status_code
    if status == httpx.codes.OK:
        return
    if response.is_redirect:
        raise FetchError(Failure.REDIRECT, "redirects are not followed")
    named = {401: Failure.UNAUTHORIZED, 403: Failure.UNAUTHORIZED, 404: Failure.NOT_FOUND}
    fallback = Failure.SERVER_ERROR if response.is_server_error else Failure.OTHER_STATUS
    raise FetchError(named.get(status, fallback), f"HTTP {status}")


def _why(error: BaseException) -> Failure:
    kinds: tuple[tuple[type[BaseException], Failure], ...] = (
        (AccessError, Failure.ACCESS_FILE),
        (ConnectionRefusedError, Failure.CONNECTION_REFUSED),
        (socket.gaierror, Failure.DNS),
        (ssl.SSLError, Failure.TLS),
    )
    seen: BaseException | None = error
    while seen is not None:
        for kind, failure in kinds:
            if isinstance(seen, kind):
                return failure
        # anyio gathers the attempts of several addresses in a group.
        if isinstance(seen, BaseExceptionGroup) and seen.exceptions:
            seen = seen.exceptions[0]
        else:
            seen = seen.__cause__ or seen.__context__
    return Failure.CONNECTION_FAILED


def check_page(text: str) -> str:
    """``text`` if it can be an exposition.  Raises :class:`FetchError`."""
    start = text[:256].lstrip("\ufeff \t\r\n")
    if not start:
        raise FetchError(Failure.EMPTY, "an empty page")
    if start.startswith("<") or "\0" in text[:4096]:
        raise FetchError(Failure.NOT_METRICS, "HTML or binary, not an exposition")
    return text


def check_end(text: str) -> None:
    """Raise :class:`FetchError` where ``text`` stops in the middle of a line.

    The format ends every line.  A page that a proxy cut to a consistent length may
    end inside a number, and sums over its series would be too small.
    """
    if not text.endswith("\n"):
        raise FetchError(Failure.TRUNCATED, "the page's last line is not ended")
