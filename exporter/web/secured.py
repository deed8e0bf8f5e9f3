"""TLS, users, headers and the rate limit of ``--web.config.file``, re-read whenever a file changes."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from exporter import catalogue as c
from exporter.collect_records import Adder
from exporter.log import log
from exporter.server import RotatingContext
from exporter.web import tls
from exporter.web.file_format import RateLimit, WebFile, read
from exporter.web.users import Users


class WebConfig:
    """What the file said last, when it could be read.  Raises ValueError where it can't be at the start.

    Whether there is TLS at all is decided once: a listening port doesn't change its protocol.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: object = None
        self.successful = True
        self.told = read(path)
        self._latest = self._context(self.told)
        self._stamp = self._stamps(self.told)
        self.context: RotatingContext | None = None
        if self._latest is not None:
            self.context = RotatingContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.latest = self._fresh_context
            self.context.allowed_sans = lambda: (
                self.told.tls_server_config.client_allowed_sans if self.told.tls_server_config else []
            )
        if "http2" in self.told.http_server_config.model_fields_set and self.told.http_server_config.http2:
            log.warning("http2 is not spoken here: HTTP/1.1 is served", file=str(path))

    def add(self, out: Adder) -> None:
        """What there is to say on /metrics."""
        out.add(c.WEB_CONFIG_SUCCESSFUL, 1 if self.successful else 0, {})

    def refresh(self) -> WebFile:
        """Look whether a file changed (a few stat calls); what is broken leaves the old content in force."""
        stamp = self._stamps(self.told)
        if stamp == self._stamp:
            return self.told
        self._stamp = stamp
        try:
            told, latest = self._read_again()
        except ValueError as error:
            self.successful = False
            log.error("web configuration not taken", detail=str(error)[:500])
        else:
            self.told, self._latest = told, latest
            self._stamp = self._stamps(told)
            self.successful = True
            log.info("web configuration read again", file=str(self._path))
        return self.told

    def _read_again(self) -> tuple[WebFile, ssl.SSLContext | None]:
        told = read(self._path)
        latest = self._context(told)
        if (latest is None) != (self._latest is None):
            raise ValueError(f"{self._path}: to begin or end with TLS needs a restart")
        return told, latest

    def _fresh_context(self) -> ssl.SSLContext:
        self.refresh()
        assert self._latest is not None  # noqa: S101
        return self._latest

    @staticmethod
    def _context(told: WebFile) -> ssl.SSLContext | None:
        return None if told.tls_server_config is None else tls.context(told.tls_server_config)

    def _stamps(self, told: WebFile) -> object:
        files = told.tls_server_config.files() if told.tls_server_config else []
        return [_stamp(file) for file in (self._path, *files)]


def _stamp(path: Path) -> object:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


class _Bucket:
    """A token bucket."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limit = RateLimit()
        self._tokens = 0.0
        self._at = 0.0

    def take(self, limit: RateLimit) -> bool:
        if not limit.interval:
            return True
        now = self._clock()
        if limit != self._limit:
            self._limit, self._tokens, self._at = limit, float(limit.burst), now
        self._tokens = min(limit.burst, self._tokens + (now - self._at) / limit.interval)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Secured:
    """The application behind users, rate limit and headers: all of it, health and receivers too."""

    def __init__(self, inner: ASGIApp, config: WebConfig) -> None:
        self._inner = inner
        self._config = config
        self._users = Users()
        self._bucket = _Bucket()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        told = self._config.refresh()

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in told.http_server_config.headers.items():
                    headers[name] = value
            await send(message)

        if not self._bucket.take(told.rate_limit):
            await PlainTextResponse("Too Many Requests\n", 429)(scope, receive, with_headers)
            return
        users = told.basic_auth_users
        if users and not await self._users.admit(Headers(scope=scope).get("authorization", ""), users):
            refusal = PlainTextResponse("Unauthorized\n", 401, {"WWW-Authenticate": "Basic"})
            await refusal(scope, receive, with_headers)
            return
        await self._inner(scope, receive, with_headers)
