"""An engine's client: its token, its TLS and its socket, read from files that may be rotated.

Nothing of a file's content is ever part of an error, and a token belongs to one
target's client: redirects are not followed, so it goes nowhere else.
"""

from __future__ import annotations

import os
import ssl
import stat
import threading
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import httpx

from exporter.fetch import AccessError, client_for, is_loopback
from exporter.settings.access import Access
from exporter.settings.engine import TargetSettings
from exporter.sources.files import UnreadableError, read_bounded

# The longest JWTs are some kilobytes, and servers refuse longer headers.
MAX_TOKEN_BYTES = 8192
MAX_PEM_BYTES = 2**20

_Stamp = tuple[int, int, int, int]


def engine_client(target: TargetSettings) -> httpx.AsyncClient:
    """The client of one target.  Reads no file yet: one that is missing fails a poll, not the start."""
    host = urlsplit(target.base_url).hostname or ""
    token = target.bearer_token_file
    return client_for(
        host,
        verify=RereadContext(target, trust_env=not is_loopback(host)) if target.own_tls else None,
        auth=TokenFile(token, target.token_header) if token is not None else None,
        unix_socket=target.socket_path,
    )


class TokenFile(httpx.Auth):
    """Signs each request with what the file says at that moment."""

    def __init__(self, path: Path, header: str | None) -> None:
        self._path, self._header = path, header

    async def async_auth_flow(self, request: httpx.Request) -> AsyncGenerator[httpx.Request, httpx.Response]:
        # Raises AccessError.
        token = read_token(self._path)
        if self._header is None:
            request.headers["Authorization"] = f"Bearer {token}"
        else:
            request.headers[self._header] = token
        yield request


def read_token(path: Path) -> str:
    """The one word in the file; blanks around it (an editor's line end) don't count.  Raises AccessError."""
    try:
        said = read_bounded(path, MAX_TOKEN_BYTES).strip()
    except UnreadableError as error:
        raise AccessError(f"token file {error}") from None
    if not said:
        raise AccessError(f"token file {path}: empty")
    # A line end inside would be another header.
    if any(not 0x21 <= byte <= 0x7E for byte in said):
        raise AccessError(f"token file {path}: more than one word of ASCII")
    return said.decode("ascii")


class RereadContext(ssl.SSLContext):
    """Client-side TLS whose certificates are read again at the first handshake after they changed.

    anyio calls ``wrap_bio`` of a class of its own in a worker thread, as this one
    may read files; so no handshake costs the event loop the 20 ms that the public
    roots take, and none costs anything while the files stay as they are.
    """

    def __new__(cls, access: Access, *, trust_env: bool) -> Self:
        return super().__new__(cls, ssl.PROTOCOL_TLS_CLIENT)

    def __init__(self, access: Access, *, trust_env: bool) -> None:
        """``trust_env``: SSL_CERT_FILE and SSL_CERT_DIR count where no ``ca_file`` is said."""
        self._access, self._trust_env = access, trust_env
        self._lock = threading.Lock()
        self._read: tuple[tuple[_Stamp, ...], ssl.SSLContext] | None = None
        self._alpn: list[str] = []

    def set_alpn_protocols(self, protocols: Iterable[str]) -> None:
        self._alpn = list(protocols)

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """One connection's TLS.  Raises AccessError where a file can't be used."""
        context = self._inner()
        context.set_alpn_protocols(self._alpn)
        name = self._access.tls_server_name or server_hostname
        return context.wrap_bio(incoming, outgoing, server_side, name, session)

    def _inner(self) -> ssl.SSLContext:
        access = self._access
        files = (access.ca_file, access.client_cert_file, access.client_key_file)
        with self._lock:
            stamps = tuple(_stamp(path) for path in files if path is not None)
            if self._read is None or self._read[0] != stamps:
                self._read = (stamps, _context(access, self._trust_env))
            return self._read[1]


def _context(access: Access, trust_env: bool) -> ssl.SSLContext:
    if access.insecure_skip_verify:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif access.ca_file is not None:
        context = _trusting(access.ca_file)
    else:
        context = httpx.create_ssl_context(trust_env=trust_env)
    if access.client_cert_file is not None:
        # Without a password of ours OpenSSL would ask for one at the terminal.
        try:
            context.load_cert_chain(access.client_cert_file, access.client_key_file, password=lambda: "")
        except (ssl.SSLError, ValueError):
            why = "not PEM, without its key, or with a passphrase"
            raise AccessError(f"client certificate {access.client_cert_file}: {why}") from None
        except OSError as error:
            raise AccessError(f"client certificate {access.client_cert_file}: {error.strerror}") from None
    return context


def _trusting(file: Path) -> ssl.SSLContext:
    """A context that believes what these authorities signed, and nothing else."""
    try:
        pem = read_bounded(file, MAX_PEM_BYTES).decode("ascii", errors="ignore")  # comments may be anything
    except UnreadableError as error:
        raise AccessError(f"CA file {error}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError):
        raise AccessError(f"CA file {file}: no certificates (PEM)") from None
    return context


def _stamp(path: Path) -> _Stamp:
    """What changes with the file, also where a link is moved (a mounted secret).  Raises AccessError."""
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        raise AccessError(f"{path}: {getattr(error, 'strerror', None) or 'not a usable path'}") from None
    if not stat.S_ISREG(found.st_mode):  # reading a FIFO would never end
        raise AccessError(f"{path}: not a regular file")
    if found.st_size > MAX_PEM_BYTES:
        raise AccessError(f"{path}: larger than {MAX_PEM_BYTES} bytes")
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
