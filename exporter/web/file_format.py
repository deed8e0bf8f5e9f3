"""The file behind ``--web.config.file``: the format that Prometheus's own exporters read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from exporter.settings import problems

Version = Literal["TLS10", "TLS11", "TLS12", "TLS13"]
BCRYPT = re.compile(r"\$2[abxy]?\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}")
# Responses may carry these and no others; "" is any text.
HEADERS: dict[str, tuple[str, ...]] = {
    "Content-Security-Policy": (),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-Content-Type-Options": ("nosniff",),
    "X-XSS-Protection": (),
    "Strict-Transport-Security": (),
}
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
MAX_FILE_BYTES = 2**20


def _seconds(said: object) -> object:
    """A duration as Go writes it: 0, 250ms, 1s, 1m30s."""
    if said in (0, "0"):
        return 0.0
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h)", str(said))
    if not parts or "".join(number + unit for number, unit in parts) != said:
        raise ValueError("a duration is written 250ms, 1s or 1m30s")
    return sum(float(number) * UNITS[unit] for number, unit in parts)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TlsConfig(_Strict):
    """Certificate and key, each as a file or inline, and what clients have to show."""

    cert_file: Path | None = None
    key_file: Path | None = None
    cert: str = ""
    key: SecretStr = SecretStr("")
    client_ca_file: Path | None = None
    client_ca: str = ""
    client_auth_type: Literal[
        "NoClientCert",
        "RequestClientCert",
        "RequireAnyClientCert",
        "VerifyClientCertIfGiven",
        "RequireAndVerifyClientCert",
    ] = "NoClientCert"
    client_allowed_sans: list[str] = []
    min_version: Version = "TLS12"
    max_version: Version = "TLS13"
    cipher_suites: list[str] = []
    prefer_server_cipher_suites: bool = True
    curve_preferences: list[str] = []

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for file, inline, name in (
            (self.cert_file, self.cert, "cert"),
            (self.key_file, self.key.get_secret_value(), "key"),
        ):
            if bool(file) == bool(inline):
                raise ValueError(f"one of {name}_file and {name}")
        ca = self.client_ca_file or self.client_ca
        if self.client_ca_file and self.client_ca:
            raise ValueError("one of client_ca_file and client_ca")
        kind = self.client_auth_type
        if kind in ("RequestClientCert", "RequireAnyClientCert"):
            raise ValueError(f"client_auth_type {kind} takes unverified certificates, which is not supported")
        if ca and kind == "NoClientCert":
            raise ValueError("a client CA without a client_auth_type that uses it")
        if not ca and kind != "NoClientCert":
            raise ValueError(f"client_auth_type {kind} needs client_ca_file")
        if self.client_allowed_sans and kind != "RequireAndVerifyClientCert":
            raise ValueError("client_allowed_sans needs client_auth_type RequireAndVerifyClientCert")
        if len(self.curve_preferences) > 1:
            raise ValueError("curve_preferences: one curve, or none for the library's own order")
        return self

    def files(self) -> list[Path]:
        """The files that these settings name."""
        return [file for file in (self.cert_file, self.key_file, self.client_ca_file) if file]

    def beside(self, folder: Path) -> Self:
        """With relative paths taken from the configuration file's own folder."""
        names = ("cert_file", "key_file", "client_ca_file")
        return self.model_copy(
            update={name: folder / file for name in names if (file := getattr(self, name)) is not None}
        )


class HttpConfig(_Strict):
    """``http2`` is read and has no effect: HTTP/1.1 is what is served."""

    http2: bool = True
    headers: dict[str, str] = {}

    @field_validator("headers")
    @classmethod
    def _known(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if name not in HEADERS:
                raise ValueError(f"header {name[:60]!r} can't be set")
            if (HEADERS[name] and value and value not in HEADERS[name]) or not re.fullmatch(r"[ -~]*", value):
                raise ValueError(f"header {name}: not a value that it takes")
        return {name: value for name, value in headers.items() if value}


class RateLimit(_Strict):
    """One request per ``interval`` (seconds; 0: no limit) on average, ``burst`` at once."""

    interval: Annotated[float, BeforeValidator(_seconds)] = 0.0
    burst: int = Field(default=0, ge=0)


class WebFile(_Strict):
    """The whole file; an empty one asks for nothing."""

    tls_server_config: TlsConfig | None = None
    http_server_config: HttpConfig = HttpConfig()
    basic_auth_users: dict[str, SecretStr] = {}
    rate_limit: RateLimit = RateLimit()

    @field_validator("basic_auth_users")
    @classmethod
    def _hashed(cls, users: dict[str, SecretStr]) -> dict[str, SecretStr]:
        if not all(BCRYPT.fullmatch(told.get_secret_value()) for told in users.values()):
            raise ValueError("a user's password is given as its bcrypt hash ($2y$10$...)")
        return users


def read(path: Path) -> WebFile:
    """The file's content.  Raises ValueError, which repeats no value of it."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    if len(text) > MAX_FILE_BYTES:
        raise ValueError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
    try:
        said = yaml.safe_load(text)
        told = WebFile.model_validate({} if said is None else said)
    except (yaml.YAMLError, UnicodeError, RecursionError):
        raise ValueError(f"{path}: not YAML") from None
    except ValidationError as error:
        raise ValueError(f"{path}: {'; '.join(problems(error))}") from None
    if told.tls_server_config is not None:
        told.tls_server_config = told.tls_server_config.beside(path.parent)
    return told
