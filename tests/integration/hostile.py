"""A server without manners: raw sockets, because HTTP libraries would be too polite.

One listening socket plays many engines, told apart by the first part of the
path, so that one exporter can watch all of them at once.
"""

from __future__ import annotations

import gzip
import json
import socket
import ssl
import struct
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self


class Connection:
    """One request: what was asked, and the socket to answer on."""

    def __init__(self, sock: socket.socket, path: str, closing: threading.Event) -> None:
        self.sock, self.path, self.closing = sock, path, closing

    def send(self, content: bytes) -> None:
        self.sock.sendall(content)


Answer = Callable[[Connection], None]


def reserve_port() -> socket.socket:
    """A bound socket that does not listen: connecting to it is refused until someone does."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    return sock


class HostileServer:
    """Serves :attr:`engines` on 127.0.0.1 for the length of a ``with`` block."""

    def __init__(
        self,
        engines: Mapping[str, Answer] | None = None,
        sock: socket.socket | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``sock``: bound already, perhaps a unix socket; ``tls``: the server's side of it."""
        self.tls = tls
        self.engines: dict[str, Answer] = engines if isinstance(engines, dict) else dict(engines or {})
        self.asked: Counter[str] = Counter()  # requests by "engine/path"
        self.heads: list[bytes] = []
        self._closing = threading.Event()
        self._sock = sock or reserve_port()
        self.port: int = 0 if self._sock.family == socket.AF_UNIX else self._sock.getsockname()[1]

    def url(self, engine: str) -> str:
        return f"http://127.0.0.1:{self.port}/{engine}"

    def __enter__(self) -> Self:
        self._sock.listen(256)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = self._sock.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(sock,), daemon=True).start()

    def _answer(self, sock: socket.socket) -> None:
        # The client hanging up in the middle is what many of these answers provoke.
        with suppress(OSError), sock:
            if self.tls is None:
                self._serve(sock)
            else:
                with self.tls.wrap_socket(sock, server_side=True) as secured:
                    self._serve(secured)

    def _serve(self, sock: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            more = sock.recv(65536)
            if not more:
                return
            head += more
            if head[:1] == b"\x16":  # a TLS client greets us; this is what a plain web server says
                sock.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
                return
        path = head.split(b" ", 2)[1].decode().lstrip("/")
        engine, _, rest = path.partition("/")
        self.heads.append(head)
        self.asked[path] += 1
        self.engines[engine](Connection(sock, "/" + rest, self._closing))


# -- answers ----------------------------------------------------------------------


def head(status: str = "200 OK", **headers: str) -> bytes:
    """A response head; underscores in header names stand for hyphens."""
    lines = [f"HTTP/1.1 {status}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def body(content: bytes | str, status: str = "200 OK", **headers: str) -> Answer:
    """A complete answer, whatever is asked."""
    raw = content.encode() if isinstance(content, str) else content
    whole = head(status, **{"Content_Length": str(len(raw)), **headers}) + raw
    return lambda c: c.send(whole)


def as_json(document: object) -> Answer:
    return body(json.dumps(document), Content_Type="application/json")


def raw(content: bytes) -> Answer:
    """These bytes, then the end of the connection."""
    return lambda c: c.send(content)


def nothing(c: Connection) -> None:
    """Takes the request and says nothing for good."""
    c.closing.wait()


def hang_up(c: Connection) -> None:
    """Closes without a byte."""


def reset(c: Connection) -> None:
    """Breaks the connection off with RST instead of FIN."""
    c.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def drip(content: bytes) -> Answer:
    """A good answer, one byte every 50 ms: never silent, never done."""

    def answer(c: Connection) -> None:
        for n in range(len(content)):
            c.send(content[n : n + 1])
            if c.closing.wait(0.05):
                return

    return answer


def endless(piece: bytes, before: bytes = b"", times: int = 10**9, **headers: str) -> Answer:
    """``before`` and then ``piece`` again and again, never held in memory as a whole."""

    def answer(c: Connection) -> None:
        c.send(head(**headers) + before)
        for _ in range(times):
            c.send(piece)

    return answer


def endless_head(c: Connection) -> None:
    """A response head that never comes to its blank line."""
    c.send(b"HTTP/1.1 200 OK\r\n")
    while not c.closing.is_set():
        c.send(b"X-More: more\r\n")


def gzip_bomb(inflated_bytes: int) -> bytes:
    """A gzip body about a thousand times smaller than what it becomes: a metric line, then newlines."""
    packer = zlib.compressobj(9, wbits=zlib.MAX_WBITS | 16)
    piece = b"\n" * 2**20
    parts = [packer.compress(b"vllm:num_requests_running 1\n")]
    parts += [packer.compress(piece) for _ in range(inflated_bytes // len(piece))]
    return b"".join([*parts, packer.flush()])


def zipped(content: bytes) -> bytes:
    return gzip.compress(content)


def engine(metrics: Answer, **info: Answer) -> Answer:
    """An engine: ``/metrics`` and info endpoints (``v1_models`` -> ``/v1/models``); 404 elsewhere."""
    by_path = {"/metrics": metrics, **{"/" + name.replace("_", "/", 1): a for name, a in info.items()}}
    missing = body("no such path", "404 Not Found")
    return lambda c: by_path.get(c.path.partition("?")[0], missing)(c)
