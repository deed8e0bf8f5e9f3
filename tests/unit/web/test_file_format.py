"""--web.config.file: what Prometheus's exporters take is taken; all else is an error without a secret."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trustme

from exporter.web import tls
from exporter.web.file_format import WebFile, read

# The password "pw" at the least cost.
HASH = "$2b$04$uydy/GFfbdqHFAWaCT/uWu12qZXEFX5tz7XRaYWqycMCYv1gdxABG"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate, its key and a CA."""
    made = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(str(made / "ca.pem"))
    issued.private_key_pem.write_to_path(str(made / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(made / "cert.pem"))
    return made


def told(folder: Path, text: str) -> WebFile:
    file = folder / "web.yml"
    file.write_text(text)
    return read(file)


def test_everything_that_the_format_has(folder: Path) -> None:
    """Every key at once; relative paths are beside the file."""
    got = told(
        folder,
        "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n  client_ca_file: ca.pem\n"
        "  client_auth_type: RequireAndVerifyClientCert\n  client_allowed_sans: [a.example]\n"
        "  min_version: TLS12\n  max_version: TLS13\n  prefer_server_cipher_suites: true\n"
        "  cipher_suites: [TLS_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,"
        " TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256]\n  curve_preferences: [CurveP256]\n"
        "http_server_config:\n  http2: true\n  headers: {X-Frame-Options: deny, X-XSS-Protection: ''}\n"
        f"basic_auth_users: {{alice: '{HASH}'}}\nrate_limit: {{interval: 1m30s, burst: 5}}\n",
    )
    assert got.tls_server_config is not None
    assert got.tls_server_config.cert_file == folder / "cert.pem"
    assert got.http_server_config.headers == {"X-Frame-Options": "deny"}
    assert (got.rate_limit.interval, got.rate_limit.burst) == (90.0, 5)
    context = tls.context(got.tls_server_config)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.verify_mode is ssl.CERT_REQUIRED
    upto_12 = {c["name"] for c in context.get_ciphers() if c["protocol"] == "TLSv1.2"}
    assert upto_12 == {"ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"}


def test_inline_certificate(folder: Path) -> None:
    """As a secret mounted into the one file."""
    lines = ["tls_server_config:"]
    for name in ("cert", "key"):
        text = (folder / f"{name}.pem").read_text().replace("\n", "\n    ")
        lines.append(f"  {name}: |\n    {text}")
    got = told(folder, "\n".join(lines))
    assert got.tls_server_config is not None
    assert tls.context(got.tls_server_config).verify_mode is ssl.CERT_NONE
    assert "PRIVATE KEY" not in repr(got)


def test_empty_file_asks_for_nothing(folder: Path) -> None:
    """As with the exporters: no TLS, no users."""
    assert told(folder, "") == WebFile()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("basic_auth_user: {}\n", "basic_auth_user"),
        ("tls_server_config: {cert_file: a, key_file: b, colour: red}\n", "colour"),
        ("tls_server_config: {cert_file: a}\n", "key_file"),
        ("tls_server_config: {cert_file: a, key_file: b, min_version: TLS9}\n", "min_version"),
        ("tls_server_config: {cert_file: a, key_file: b, client_ca_file: c}\n", "client_auth_type"),
        ("tls_server_config: {cert_file: a, key_file: b, client_auth_type: RequireAndVerifyClientCert}\n",
         "client_ca_file"),
        ("tls_server_config: {cert_file: a, key_file: b, client_ca_file: c,"
         " client_auth_type: RequestClientCert}",
         "not supported"),
        ("http_server_config: {headers: {Set-Cookie: x}}\n", "Set-Cookie"),
        ("http_server_config: {headers: {X-Frame-Options: allow}}\n", "X-Frame-Options"),
        ('http_server_config: {headers: {X-XSS-Protection: "1\\r\\nSet-Cookie: a=b"}}\n', "X-XSS-Protection"),
        ("basic_auth_users: {alice: hunter2}\n", "bcrypt"),
        ("basic_auth_users: [alice]\n", "basic_auth_users"),
        ("rate_limit: {interval: 5 parsecs}\n", "interval"),
        ("!!python/object/apply:os.system ['true']\n", "not YAML"),
        ("a: [\n", "not YAML"),
        ("- list\n", "settings"),
        ("\0\1", "not YAML"),
    ],
)  # fmt: skip
def test_bad_files(folder: Path, text: str, named: str) -> None:
    """The key that is wrong, and nothing of its value."""
    with pytest.raises(ValueError, match=r"web\.yml") as error:
        told(folder, text)
    assert named in str(error.value)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"cert_file": "nowhere.pem"}, "nowhere.pem"),
        ({"cert_file": "key.pem"}, "tls_server_config"),
        ({"key_file": "cert.pem"}, "tls_server_config"),
        ({"cipher_suites": "[TLS_NULL]"}, "TLS_NULL"),
        ({"curve_preferences": "[Curve9]"}, "Curve9"),
    ],
)
def test_bad_tls_files(folder: Path, change: dict[str, str], named: str) -> None:
    """What only reading the certificates tells."""
    said = {"cert_file": "cert.pem", "key_file": "key.pem", **change}
    got = told(folder, "tls_server_config:\n" + "".join(f"  {k}: {v}\n" for k, v in said.items()))
    assert got.tls_server_config is not None
    with pytest.raises(ValueError, match=named):
        tls.context(got.tls_server_config)
