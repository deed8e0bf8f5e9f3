"""TLS settings -> the context of the next handshake."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from exporter.web.file_format import TlsConfig

VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}
# Go's name of a suite up to TLS 1.2, in parts: key exchange, cipher, hash. TLS 1.3's are not to be chosen.
SUITE = re.compile(
    r"TLS_(?:(ECDHE)_)?(RSA|ECDSA)_WITH_(AES_128|AES_256|CHACHA20)_(GCM|CBC|POLY1305)_(SHA\d*)"
)
TLS13_SUITES = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")


def context(config: TlsConfig) -> ssl.SSLContext:
    """A server's context.  Raises ValueError."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        made.minimum_version = VERSIONS[config.min_version]
        made.maximum_version = VERSIONS[config.max_version]
        with (
            _file(config.cert_file, config.cert) as cert,
            _file(config.key_file, config.key.get_secret_value()) as key,
        ):
            # A key with a passphrase would ask for it on the terminal.
            made.load_cert_chain(cert, key, password=lambda: "")
        if config.client_auth_type != "NoClientCert":
            required = config.client_auth_type == "RequireAndVerifyClientCert"
            made.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
            made.load_verify_locations(config.client_ca_file, cadata=config.client_ca or None)
        if suites := [_suite(name) for name in config.cipher_suites if name not in TLS13_SUITES]:
            made.set_ciphers(":".join(suites))
        for curve in config.curve_preferences:
            if curve not in CURVES:
                raise ValueError(f"curve_preferences: no curve {curve[:40]!r}")
            made.set_ecdh_curve(CURVES[curve])
    except ssl.SSLError as error:
        raise ValueError(
            f"tls_server_config: {error.reason or 'certificate, key or CA not readable'}"
        ) from None
    except OSError as error:
        raise ValueError(f"tls_server_config: {error.filename or ''}: {error.strerror}") from None
    if config.prefer_server_cipher_suites:
        made.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        made.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    return made


@contextmanager
def _file(path: Path | None, inline: str) -> Iterator[Path]:
    """A file with the text; what is given inline goes into memory, never to a disk."""
    if path is not None:
        with path.open("rb"):  # so that the error names the file
            yield path
        return
    memory = os.memfd_create("kvcache-exporter")
    try:
        os.write(memory, inline.encode())
        yield Path(f"/proc/self/fd/{memory}")
    finally:
        os.close(memory)


def _suite(name: str) -> str:
    """OpenSSL's name of a suite that Go names ``name``."""
    found = SUITE.fullmatch(name)
    if found is None:
        raise ValueError(f"cipher_suites: no suite {name[:60]!r}")
    exchange, signature, cipher, mode, digest = found.groups()
    kind = f"{exchange}-{signature}-" if exchange else ""
    if cipher == "CHACHA20":
        return f"{kind}CHACHA20-POLY1305"
    return f"{kind}{cipher.replace('_', '')}{'-GCM' if mode == 'GCM' else ''}-{digest}"
