"""Ways to a guarded engine: token, TLS, client certificate, proxy, unix socket; over real sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trustme

from exporter import access
from exporter.access import engine_client
from exporter.fetch import Failure, past_proxies
from exporter.fleet import Watch
from exporter.settings import ServeSettings, TargetSettings
from exporter.target import TargetState

from . import hostile as h
from .engines import LLAMA_BYTES_PER_TOKEN, vllm

TOKEN = "tok-4f1c.A_b~9+/=="
CANARY = "c4nary"

Change = Callable[[], object]


def polls(url: str, *changes: Change, **said: Any) -> TargetState:
    """The state after a poll, and one more after each of ``changes``."""
    target = TargetSettings(url=url, name="engine", **said)
    watch = Watch(ServeSettings(target=[target], timeout=5.0, hub=False))

    async def run() -> None:
        watcher = watch.watchers[0]
        async with engine_client(watcher.target) as client:
            await watcher.poll(client)
            for change in changes:
                change()
                await watcher.poll(client)
            await watcher.settled()

    asyncio.run(run())
    return watch.states[0]


def failures(state: TargetState) -> dict[Failure, int]:
    return {reason: many for reason, many in state.errors.items() if many}


def bytes_per_token(state: TargetState) -> list[float]:
    return [f.value for r in state.readouts for f in r.figures if f.metric.name == "kvcache_bytes_per_token"]


def sent(server: h.HostileServer, header: str) -> list[list[str]]:
    """The values of ``header`` in each request received."""
    found = []
    for head in server.heads:
        lines = [line.partition(":") for line in head.decode("latin-1").split("\r\n")[1:]]
        found.append([value.strip() for name, _, value in lines if name.lower() == header.lower()])
    return found


@pytest.fixture
def server() -> Iterator[h.HostileServer]:
    with h.HostileServer({"engine": vllm()}) as running:
        yield running


@pytest.fixture
def token(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")  # as an editor, or echo, leaves it
    return file


# -- the token --------------------------------------------------------------------


def test_token_goes_with_every_request(server: h.HostileServer, token: Path) -> None:
    """The info endpoints need it more than the page: vLLM's --api-key guards /v1/models, not /metrics."""
    state = polls(server.url("engine"), bearer_token_file=token)
    assert bytes_per_token(state) == [LLAMA_BYTES_PER_TOKEN]
    assert {"engine/metrics", "engine/v1/models", "engine/version"} <= set(server.asked)
    assert sent(server, "authorization") == [[f"Bearer {TOKEN}"]] * len(server.heads)


def test_token_in_a_header_of_its_own(server: h.HostileServer, token: Path) -> None:
    """Gateways ask for X-API-Key or the like; then nothing stands in Authorization."""
    polls(server.url("engine"), bearer_token_file=token, token_header="X-API-Key")
    assert sent(server, "x-api-key") == [[TOKEN]] * len(server.heads)
    assert sent(server, "authorization") == [[]] * len(server.heads)


def test_rotated_token(server: h.HostileServer, tmp_path: Path) -> None:
    """A mounted secret is a link that is moved: the next poll says the new word, without a restart."""
    for name in ("first", "second"):
        (tmp_path / name).write_text(f"{name}-token")
    link = tmp_path / "token"
    link.symlink_to("first")

    def rotate() -> None:
        (tmp_path / "new").symlink_to("second")
        os.replace(tmp_path / "new", link)

    polls(server.url("engine"), rotate, bearer_token_file=link)
    pages = [
        value
        for head, value in zip(server.heads, sent(server, "authorization"), strict=True)
        if head.startswith(b"GET /engine/metrics ")
    ]
    assert pages == [["Bearer first-token"], ["Bearer second-token"]]


def _missing(_: Path) -> None:
    """No file."""


BAD_TOKENS: dict[str, Callable[[Path], object]] = {
    "missing": _missing,
    "empty": lambda p: p.write_text("\n"),
    "header injection": lambda p: p.write_bytes(f"{CANARY}\r\nX-Evil: 1".encode()),
    "two lines": lambda p: p.write_text(f"{CANARY}\n{CANARY}\n"),
    "null byte": lambda p: p.write_bytes(f"{CANARY}\0".encode()),
    "not ASCII": lambda p: p.write_text(f"{CANARY}-schlüssel"),
    "too long": lambda p: p.write_text(CANARY * 2000),
    "directory": lambda p: p.mkdir(),
    "pipe": os.mkfifo,
}


@pytest.mark.parametrize("case", BAD_TOKENS)
def test_bad_token_file_fails_the_poll_and_asks_nobody(
    server: h.HostileServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    """One bounded reason; a request without its token, or with a forged header, must not leave the house."""
    BAD_TOKENS[case](tmp_path / "token")
    state = polls(server.url("engine"), bearer_token_file=tmp_path / "token")
    assert failures(state) == {Failure.ACCESS_FILE: 1}
    assert server.heads == []
    said = capsys.readouterr()
    assert str(tmp_path / "token") in said.out + said.err  # the log line names the file ...
    assert CANARY not in said.out + said.err  # ... and nothing in it


def test_token_that_is_mended_is_taken(server: h.HostileServer, tmp_path: Path) -> None:
    """The secret may be mounted after we start."""
    file = tmp_path / "token"
    state = polls(server.url("engine"), lambda: file.write_text(TOKEN), bearer_token_file=file)
    assert failures(state) == {Failure.ACCESS_FILE: 1}
    assert state.up


def test_token_follows_no_redirect(token: Path) -> None:
    """Whoever can redirect us would collect the keys of the fleet."""
    with h.HostileServer({"thief": vllm()}) as elsewhere:
        away = h.body("", "307 Temporary Redirect", Location=f"{elsewhere.url('thief')}/metrics")
        with h.HostileServer({"engine": away}) as server:
            state = polls(server.url("engine"), bearer_token_file=token)
        assert failures(state) == {Failure.REDIRECT: 1}
        assert elsewhere.heads == []


# -- TLS --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def _server_side(
    authority: trustme.CA, name: str = "127.0.0.1", clients: trustme.CA | None = None
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        clients.configure_trust(context)
    return context


def _https(server: h.HostileServer) -> str:
    return server.url("engine").replace("http:", "https:")


def _pem(file: Path, *blobs: trustme.Blob) -> Path:
    file.write_bytes(b"".join(blob.bytes() for blob in blobs))
    return file


@pytest.mark.parametrize(
    ("said", "good"),
    [
        ((), False),  # nobody has heard of that authority
        (("ca",), True),
        (("other ca",), False),
        (("skip",), True),
    ],
)
def test_custom_authority(authority: trustme.CA, tmp_path: Path, said: Sequence[str], good: bool) -> None:
    """A private CA is believed where it is named, and only there."""
    settings: dict[str, Any] = {}
    if "ca" in said:
        settings["ca_file"] = _pem(tmp_path / "ca", authority.cert_pem)
    if "other ca" in said:
        settings["ca_file"] = _pem(tmp_path / "other", trustme.CA().cert_pem)
    if "skip" in said:
        settings["insecure_skip_verify"] = True
    with h.HostileServer({"engine": vllm()}, tls=_server_side(authority)) as server:
        state = polls(_https(server), **settings)
    assert failures(state) == ({} if good else {Failure.TLS: 1})
    assert state.up is good


def test_server_name(authority: trustme.CA, tmp_path: Path) -> None:
    """The certificate of a pod names its service, and we go to its address."""
    ca = _pem(tmp_path / "ca", authority.cert_pem)
    tls = _server_side(authority, "engine.models.svc")
    with h.HostileServer({"engine": vllm()}, tls=tls) as server:
        assert failures(polls(_https(server), ca_file=ca)) == {Failure.TLS: 1}
        assert polls(_https(server), ca_file=ca, tls_server_name="engine.models.svc").up
        wrong = polls(_https(server), ca_file=ca, tls_server_name="other.models.svc")
        assert failures(wrong) == {Failure.TLS: 1}


def test_rotated_authority(tmp_path: Path) -> None:
    """Old certificate authorities are forgotten, new ones believed, without a restart."""
    old, new = trustme.CA(), trustme.CA()
    ca = _pem(tmp_path / "ca", old.cert_pem)
    with h.HostileServer({"engine": vllm()}, tls=_server_side(old)) as server:

        def rotate_server() -> None:
            server.tls = _server_side(new)

        def rotate_file() -> None:
            _pem(ca, new.cert_pem)

        def back() -> None:
            server.tls = _server_side(old)

        state = polls(_https(server), rotate_server, rotate_file, back, ca_file=ca)
        # Old with old; new with old file fails; new with new; old with new file fails.
        assert (state.fetches, failures(state)) == (4, {Failure.TLS: 2})


def test_client_certificate(authority: trustme.CA, tmp_path: Path) -> None:
    """An engine that asks for a certificate gets ours, from one file or two, and its successor."""
    clients, successors = trustme.CA(), trustme.CA()
    ca = _pem(tmp_path / "ca", authority.cert_pem)

    def issue(by: trustme.CA) -> None:
        mine = by.issue_cert("exporter@models")
        _pem(tmp_path / "cert", *mine.cert_chain_pems)
        _pem(tmp_path / "key", mine.private_key_pem)
        _pem(tmp_path / "both", mine.private_key_and_cert_chain_pem)

    issue(clients)
    two = {"client_cert_file": tmp_path / "cert", "client_key_file": tmp_path / "key"}
    tls = _server_side(authority, clients=clients)
    with h.HostileServer({"engine": vllm()}, tls=tls) as server:
        assert not polls(_https(server), ca_file=ca).up
        assert polls(_https(server), ca_file=ca, client_cert_file=tmp_path / "both").up

        def rotate() -> None:
            server.tls = _server_side(authority, clients=successors)
            issue(successors)

        state = polls(_https(server), rotate, ca_file=ca, **two)
        assert (state.fetches, failures(state)) == (2, {})


def _locked(folder: Path) -> dict[str, Path]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    mine = trustme.CA().issue_cert("exporter@models")
    key = load_pem_private_key(mine.private_key_pem.bytes(), None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"passphrase"),
    )
    (folder / "key").write_bytes(locked)
    return {
        "client_cert_file": _pem(folder / "cert", *mine.cert_chain_pems),
        "client_key_file": folder / "key",
    }


def _pipe(folder: Path) -> dict[str, Path]:
    os.mkfifo(folder / "pipe")
    return {"client_cert_file": folder / "pipe"}


def _garbage(folder: Path) -> dict[str, Path]:
    (folder / "ca").write_bytes(bytes(range(256)) * 4)
    return {"ca_file": folder / "ca"}


def _empty(folder: Path) -> dict[str, Path]:
    (folder / "ca").touch()  # must not mean "the public ones"
    return {"ca_file": folder / "ca"}


@pytest.mark.parametrize(
    "made",
    [
        _locked,  # OpenSSL would ask for its passphrase at the terminal, and wait
        _pipe,  # would wait for a writer
        _garbage,
        _empty,
        lambda folder: {"ca_file": folder / "missing"},
        lambda folder: {"ca_file": folder},
        lambda folder: {"client_cert_file": folder / "missing"},
    ],
)
def test_bad_certificate_files_have_one_reason(
    authority: trustme.CA, tmp_path: Path, made: Callable[[Path], dict[str, Path]]
) -> None:
    """Our own files are wrong, not the engine's TLS: another reason, and never a wait."""
    with h.HostileServer({"engine": vllm()}, tls=_server_side(authority)) as server:
        state = polls(_https(server), **made(tmp_path))
    assert failures(state) == {Failure.ACCESS_FILE: 1}


def test_certificates_are_read_once(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading the public roots takes some 20 ms: not at every poll, and never on the event loop."""
    made: list[bool] = []
    real = access._context

    def counted(*arguments: Any) -> ssl.SSLContext:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            made.append(True)  # a worker thread has no loop
        else:
            made.append(False)
        return real(*arguments)

    monkeypatch.setattr(access, "_context", counted)
    ca = _pem(tmp_path / "ca", authority.cert_pem)
    with h.HostileServer({"engine": vllm()}, tls=_server_side(authority)) as server:
        # The server closes after each answer, so that every request is a handshake.
        state = polls(_https(server), *[lambda: None] * 5, ca_file=ca)
        assert len(server.heads) > 6
    assert (failures(state), made) == ({}, [True])


# -- proxy ------------------------------------------------------------------------


class _Proxy(h.HostileServer):
    """An HTTP proxy behind which every engine is the recorded one; CONNECT leads to its TLS side."""

    def __init__(self, host: str, inner: ssl.SSLContext | None = None) -> None:
        super().__init__({"http:": self._forward, f"{host}:443": self._tunnel})
        self._host, self._tls_inside = host, inner
        self.inside: list[bytes] = []

    def _forward(self, c: h.Connection) -> None:
        path = c.path.lstrip("/").partition("/")[2]
        vllm()(h.Connection(c.sock, "/" + path, c.closing))

    def _tunnel(self, c: h.Connection) -> None:
        c.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
        assert self._tls_inside is not None
        with self._tls_inside.wrap_socket(c.sock, server_side=True) as sock:
            head = b""
            while b"\r\n\r\n" not in head:
                head += sock.recv(65536)
            self.inside.append(head)
            vllm()(h.Connection(sock, head.split(b" ", 2)[1].decode(), c.closing))


@pytest.fixture
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.usefixtures("_no_proxies")
def test_http_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is asked for through the proxy of the environment, by its full URL."""
    with _Proxy("engine.invalid") as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        assert polls("http://engine.invalid:8000").up
        assert proxy.heads[0].startswith(b"GET http://engine.invalid:8000/metrics HTTP/1.1\r\n")


@pytest.mark.usefixtures("_no_proxies")
def test_no_proxy_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name listed there is looked up, and this one does not exist."""
    with _Proxy("engine.invalid") as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("NO_PROXY", "engine.invalid")
        assert failures(polls("http://engine.invalid:8000")) == {Failure.DNS: 1}
        assert proxy.heads == []


@pytest.mark.parametrize(
    ("no_proxy", "host", "past"),
    [
        (".svc,.cluster.local", "engine.llm.svc", True),
        ("cluster.local", "engine.llm.svc.cluster.local", True),
        ("svc", "enginesvc", False),
        ("10.0.0.0/8, 192.168.0.0/16", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("10.1.2.3", "10.1.2.3", True),
        ("fd00::/8", "fd12::1", True),
        ("*", "engine.example", True),
        ("", "engine.example", False),
    ],
)
@pytest.mark.usefixtures("_no_proxies")
def test_no_proxy_as_clusters_write_it(
    monkeypatch: pytest.MonkeyPatch, no_proxy: str, host: str, past: bool
) -> None:
    """Suffixes and networks, as Go's programs in the same cluster read them."""
    monkeypatch.setenv("NO_PROXY", no_proxy)
    assert past_proxies(host) is past


@pytest.mark.parametrize("proxy", ["socks5://user:c4nary@p:1080", "ftp://c4nary@p", "http://p:notaport"])
@pytest.mark.usefixtures("_no_proxies")
def test_a_proxy_that_is_none_fails_what_needs_it(
    server: h.HostileServer, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    """A poll fails with the reason; the process, and engines that need no proxy, go on."""
    monkeypatch.setenv("ALL_PROXY", proxy)
    state = polls("http://engine.invalid:8000", lambda: None)
    assert failures(state) == {Failure.CONNECTION_FAILED: 2}
    assert "proxy" in state.last_failure_detail
    assert CANARY not in state.last_failure_detail
    assert polls(server.url("engine")).up


@pytest.mark.usefixtures("_no_proxies")
def test_loopback_has_no_proxy(server: h.HostileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sidecar's engine is next door, whatever the pod's environment says."""
    with _Proxy("engine.invalid") as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
        monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{proxy.port}")
        assert polls(server.url("engine")).up
        assert proxy.heads == []


@pytest.mark.usefixtures("_no_proxies")
def test_secrets_stay_inside_the_tunnel(
    authority: trustme.CA, token: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy sees a host and a port, the https engine behind it token and certificate."""
    clients = trustme.CA()
    mine = _pem(tmp_path / "mine", clients.issue_cert("exporter@models").private_key_and_cert_chain_pem)
    inner = _server_side(authority, "engine.invalid", clients=clients)
    with _Proxy("engine.invalid", inner) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        state = polls(
            "https://engine.invalid",
            bearer_token_file=token,
            ca_file=_pem(tmp_path / "ca", authority.cert_pem),
            client_cert_file=mine,
        )
        assert state.up
        assert all(head.startswith(b"CONNECT engine.invalid:443 ") for head in proxy.heads)
        assert all(TOKEN.encode() not in head for head in proxy.heads)
        assert all(f"Authorization: Bearer {TOKEN}".encode() in head for head in proxy.inside)


# -- unix socket ------------------------------------------------------------------


class _AnyFirst(dict[str, h.Answer]):
    """The recorded engine at the root, where the server sees the first part of a path as an engine's name."""

    def __missing__(self, first: str) -> h.Answer:
        return lambda c: vllm()(h.Connection(c.sock, f"/{first}{c.path.rstrip('/')}", c.closing))


@pytest.mark.parametrize("scheme", ["unix", "http+unix"])
def test_unix_socket(tmp_path: Path, token: Path, scheme: str) -> None:
    """vLLM's --uds: the page and the info endpoints come over the socket, under the path as target."""
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        with h.HostileServer(_AnyFirst(), sock=sock) as server:
            state = polls(f"{scheme}://{path}", bearer_token_file=token)
            assert bytes_per_token(state) == [LLAMA_BYTES_PER_TOKEN]
            assert sent(server, "host") == [["localhost"]] * len(server.heads)
            assert sent(server, "authorization")[0] == [f"Bearer {TOKEN}"]
    assert TargetSettings(url=f"{scheme}://{path}").label == str(path)


def test_no_unix_socket(tmp_path: Path) -> None:
    """Before the engine starts there is none, and afterwards perhaps one that nobody serves."""
    assert failures(polls(f"unix://{tmp_path}/none")) == {Failure.CONNECTION_FAILED: 1}
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "left"))
    assert failures(polls(f"unix://{tmp_path}/left")) == {Failure.CONNECTION_REFUSED: 1}
