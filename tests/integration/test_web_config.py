"""--web.config.file against real handshakes: certificates, client certificates, users, and their exchange."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import httpx
import pytest
import trustme

from . import hostile as h
from .engines import vllm
from .page import Page
from .running import CLASSIC, Program
from .waiting import wait_for

SUCCESSFUL = "kvcache_exporter_web_config_last_reload_successful"
PATHS = ("/", "/metrics", "/probe?target=x", "/sd", "/explain", "/-/healthy", "/-/ready", "/-/config")


def hashed(password: str) -> str:
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()


class Web:
    """The file, its certificates, and clients for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "web.yml"
        self.authority = trustme.CA()
        self.clients = trustme.CA()
        self.clients.cert_pem.write_to_path(str(folder / "clients.pem"))
        self.issue("localhost")

    def issue(self, name: str) -> None:
        """A new certificate in the place of the old one, written as a rotation does: by renaming."""
        issued = self.authority.issue_cert(name)
        for content, to in ((issued.private_key_pem, "key.pem"), (issued.cert_chain_pems[0], "cert.pem")):
            content.write_to_path(str(self.folder / "new"))
            os.replace(self.folder / "new", self.folder / to)

    def write(self, text: str) -> None:
        (self.folder / "new").write_text(text)
        os.replace(self.folder / "new", self.file)

    def context(self, client: str | None = None) -> ssl.SSLContext:
        """A client's context; ``client``: it has a certificate for that name."""
        made = ssl.create_default_context()
        self.authority.configure_trust(made)
        if client is not None:
            self.clients.issue_cert(client).configure_cert(made)
        return made


TLS = "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n"
MUTUAL = TLS + "  client_ca_file: clients.pem\n  client_auth_type: RequireAndVerifyClientCert\n"


@pytest.fixture
def web(tmp_path: Path) -> Web:
    return Web(tmp_path)


@pytest.fixture(scope="module")
def server() -> Iterator[h.HostileServer]:
    with h.HostileServer({"engine": vllm()}) as running:
        yield running


class Secured(Program):
    """The program with a web configuration."""

    def __init__(
        self,
        server: h.HostileServer,
        web: Web,
        client: str | None = None,
        auth: tuple[str, str] | None = None,
    ) -> None:
        flags = ("--target", server.url("engine"), "--hub", "false", f"--web.config.file={web.file}")
        super().__init__(web.folder / "log", *flags)
        self._auth = auth
        self._verify: ssl.SSLContext | bool = True
        if "tls_server_config" in web.file.read_text():
            self.url = f"https://localhost:{self.listen.rpartition(':')[2]}"
            self._verify = web.context(client)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.ask(path, self._verify, self._auth, **headers)

    def ask(
        self,
        path: str,
        verify: ssl.SSLContext | bool = True,
        auth: tuple[str, str] | None = None,
        **headers: str,
    ) -> httpx.Response:
        """A request of a client of one's own."""
        return httpx.get(
            self.url + path, headers={**CLASSIC, **headers}, verify=verify, auth=auth, timeout=20,
            trust_env=False,
        )  # fmt: skip


def test_certificate_is_exchanged_without_a_restart(server: h.HostileServer, web: Web) -> None:
    """New handshakes get the new certificate, open connections go on; half an exchange changes nothing."""
    web.write(TLS)
    with Secured(server, web) as program:
        program.wait(lambda p: p.values("kvcache_engine_up") == [1.0], "the engine read, through TLS")
        port = program.listen.rpartition(":")[2]

        def serial() -> str:
            return ssl.get_server_certificate(("127.0.0.1", int(port)))

        old = serial()
        with httpx.Client(verify=web.context(), trust_env=False, timeout=20) as kept:
            kept.get(program.url + "/-/healthy").raise_for_status()
            # The key alone: it does not fit the certificate that is still there.
            issued = web.authority.issue_cert("localhost")
            issued.private_key_pem.write_to_path(str(web.folder / "key.pem"))
            assert serial() == old
            assert program.scrape().value(SUCCESSFUL) == 0
            issued.cert_chain_pems[0].write_to_path(str(web.folder / "cert.pem"))
            assert serial() == issued.cert_chain_pems[0].bytes().decode()
            assert program.scrape().value(SUCCESSFUL) == 1
            kept.get(program.url + "/-/healthy").raise_for_status()
        # One line for the state that changed, not one for each handshake.
        assert program.output().count("web configuration not taken") == 1


def test_client_certificates(server: h.HostileServer, web: Web) -> None:
    """None, a stranger's, a wrong name and the right one."""
    web.write(MUTUAL + "  client_allowed_sans: [prometheus.example]\n")
    with Secured(server, web, "prometheus.example") as program:
        assert program.get("/metrics").status_code == 200
        strangers = web.context()
        trustme.CA().issue_cert("prometheus.example").configure_cert(strangers)
        for verify in (web.context(), strangers, web.context("other.example")):
            # In TLS 1.3 the refusal may come with the first read instead of the handshake.
            with pytest.raises(httpx.TransportError):
                program.ask("/metrics", verify)
        # Another CA, from the next handshake on.
        fresh = trustme.CA()
        fresh.cert_pem.write_to_path(str(web.folder / "clients.pem"))
        with pytest.raises(httpx.TransportError):
            program.ask("/metrics", web.context("prometheus.example"))
        web.clients = fresh
        assert program.ask("/metrics", web.context("prometheus.example")).status_code == 200


def test_plain_http_gets_no_answer_from_a_tls_port(server: h.HostileServer, web: Web) -> None:
    """And old protocol versions neither."""
    web.write(TLS + "  min_version: TLS13\n")
    with Secured(server, web) as program:
        with pytest.raises(httpx.TransportError):
            httpx.get(program.url.replace("https", "http"), trust_env=False)
        old = web.context()
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(httpx.TransportError):
            program.ask("/metrics", old)


def test_users_guard_everything(server: h.HostileServer, web: Web) -> None:
    """Each path, receivers and health included, as with Prometheus's own exporters; then a new password."""
    old, new = "c4nary-of-monday", "c4nary-of-tuesday"
    web.write(f"basic_auth_users:\n  alice: {hashed(old)}\n")
    with Secured(server, web, auth=("alice", old)) as program:
        assert program.get("/metrics").status_code == 200
        for path in PATHS:
            refused = program.ask(path)
            assert refused.status_code == 401, path
            assert refused.headers["www-authenticate"].startswith("Basic")
            assert program.ask(path, auth=("alice", "wrong")).status_code == 401
            assert program.ask(path, auth=("mallory", old)).status_code == 401
        for path in ("/v1/traces", "/v1/records", "/-/reload"):
            assert httpx.post(program.url + path, trust_env=False).status_code == 401, path
        web.write(f"basic_auth_users:\n  alice: {hashed(new)}\n")
        assert program.get("/metrics").status_code == 401
        assert program.ask("/metrics", auth=("alice", new)).status_code == 200
        # A broken file leaves the last good one in force: nobody is let in, and nobody is locked out.
        web.write("basic_auth_users: {}\nnonsense: 1\n")
        assert program.ask("/metrics").status_code == 401
        page = Page.parse(program.ask("/metrics", auth=("alice", new)).text)
        assert page.value(SUCCESSFUL) == 0
        for secret in (old, new, "$2b$"):
            assert secret not in program.output()


def test_headers_and_rate_limit(server: h.HostileServer, web: Web) -> None:
    """The allowed headers on every answer; with a limit of three at once the fourth gets 429."""
    web.write("http_server_config: {http2: true, headers: {X-Frame-Options: deny}}\n")
    with Secured(server, web) as program:
        for path in ("/metrics", "/nothing"):
            assert program.get(path).headers["x-frame-options"] == "deny"
        assert "http2 is not spoken here" in program.output()
        web.write("rate_limit: {interval: 1h, burst: 3}\n")
        assert [program.get("/-/healthy").status_code for _ in range(4)] == [200, 200, 200, 429]


def test_tls_does_not_begin_or_end_while_running(server: h.HostileServer, web: Web) -> None:
    """A port doesn't change its protocol; the word is said, and all else goes on."""
    web.write(TLS)
    with Secured(server, web) as program:
        web.write("")
        assert program.scrape().value(SUCCESSFUL) == 0
        wait_for(lambda: "needs a restart" in program.output(), "the line about it")
