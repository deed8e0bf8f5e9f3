"""How an engine is reached: who we are to it, and whom it must prove to be."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import BaseModel, Field, field_validator, model_validator
from pydantic_settings import CliToggleFlag

_FRAMING = ("host", "connection", "content-", "transfer-", "te", "upgrade", "expect", "proxy-")


class Access(BaseModel):
    """Secrets are named by their files only: a value would be seen in `ps`, in environments and dumps."""

    bearer_token_file: Path | None = Field(
        default=None,
        description="file with the engine's token or API key; read at each request, so it may be rotated",
    )
    token_header: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9-]{1,64}$",
        description="send the token as it is in this header (X-API-Key), not as `Authorization: Bearer`",
    )
    ca_file: Path | None = Field(
        default=None,
        description="PEM of those who may sign the engine's certificate, instead of the public ones",
    )
    client_cert_file: Path | None = Field(
        default=None,
        description="PEM of our own certificate, where the engine wants one; may hold the key as well",
    )
    client_key_file: Path | None = Field(
        default=None, description="PEM of its key, without a passphrase; both may be rotated"
    )
    tls_server_name: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9.:_-]{1,253}$",
        description="name that the engine's certificate must carry, where it is not the URL's host",
    )
    insecure_skip_verify: CliToggleFlag[bool] = Field(
        default=False, description="believe any certificate: only for a try"
    )

    @field_validator("token_header")
    @classmethod
    def _no_framing(cls, name: str | None) -> str | None:
        if name is not None and name.lower().startswith(_FRAMING):
            raise ValueError("what a request is framed by is not to be set from here")
        return name

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if self.client_key_file is not None and self.client_cert_file is None:
            raise ValueError("client_key_file is of no use without client_cert_file")
        if self.token_header is not None and self.bearer_token_file is None:
            raise ValueError("token_header is of no use without bearer_token_file")
        if self.insecure_skip_verify and self.ca_file is not None:
            raise ValueError("insecure_skip_verify would make ca_file useless")
        return self

    @property
    def own_tls(self) -> bool:
        """Whether anything is said about TLS beyond the defaults."""
        said = (self.ca_file, self.client_cert_file, self.tls_server_name)
        return self.insecure_skip_verify or any(value is not None for value in said)
