"""What may be said about one engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    field_validator,
    model_validator,
)
from pydantic_settings import CliToggleFlag, NoDecode

from exporter.facts import Facts
from exporter.kvmath.known import Unavailable
from exporter.kvmath.overrides import Override
from exporter.kvmath.speculation import METHODS, known_method
from exporter.settings.access import Access

UNIX_SCHEMES = ("unix", "http+unix")
MAX_SOCKET_PATH_BYTES = 107  # Linux's sockaddr_un, less its final zero
# Names go into labels and log lines.
_ONE_LINE = r"^[^\x00-\x1f\x7f\x85\u2028\u2029]*$"


class Overrides(Access):
    """What the user says about an engine, and how to reach it.  About itself the engine's own word wins."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    # pydantic keeps "model_config" for itself, so the field has another name inside.
    model_config_path: Path | None = Field(
        default=None,
        validation_alias=AliasChoices("model_config", "model-config"),
        description="config.json of the model, or its directory",
    )
    tensor_parallel_size: PositiveInt | None = Field(default=None, description="GPUs that share each layer")
    pipeline_parallel_size: PositiveInt | None = Field(default=None, description="pipeline stages")
    kv_cache_dtype: str | None = Field(
        default=None,
        description="as the engine spells it: auto, bfloat16, fp8, ...",
        pattern=r"^[A-Za-z0-9_.]{1,40}$",
    )
    block_size: PositiveInt | None = Field(default=None, description="tokens per block or page")
    max_model_len: PositiveInt | None = Field(default=None, description="longest context served, in tokens")
    max_num_batched_tokens: PositiveInt | None = Field(
        default=None, description="the engine's scheduling budget, in tokens"
    )
    decode_context_parallel_size: PositiveInt | None = Field(
        default=None, description="ranks among which the tokens of a sequence are split"
    )
    no_prefix_caching: CliToggleFlag[bool] = Field(
        default=False, description="the engine runs without a prefix cache"
    )
    no_hybrid_manager: CliToggleFlag[bool] = Field(
        default=False, description="vLLM's hybrid KV cache manager is off: windows are stored in full"
    )
    speculative: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_.-]{1,40}$",
        description="the engine decodes speculatively, by this method: mtp, ngram, eagle3, ...",
    )
    num_speculative_tokens: PositiveInt | None = Field(default=None, description="tokens drafted a step")
    bytes_per_token: NonNegativeFloat | None = Field(
        default=None, description="set by hand: cache bytes of a token, all GPUs of a replica"
    )
    state_bytes_per_sequence: NonNegativeInt | None = Field(
        default=None, description="set by hand: state bytes of a sequence, all GPUs of a replica"
    )
    window_tokens: PositiveInt | None = Field(
        default=None, description="set by hand: how many tokens of a sequence are kept"
    )
    gpu_bandwidth: str | None = Field(
        default=None,
        max_length=80,
        description="memory bandwidth of one GPU, for the decode floor: its name or bytes per second",
    )

    @field_validator("gpu_bandwidth", mode="before")
    @classmethod
    def _bandwidth(cls, said: object) -> object:
        if not isinstance(said, str | int | float):
            return said
        from exporter.requests.floor import gpu_bytes_per_second  # noqa: PLC0415  (45 GPUs that few name)

        told = gpu_bytes_per_second(str(said))
        if isinstance(told, Unavailable):
            raise ValueError(told.detail)  # noqa: TRY004  (bad input, not a bad type)
        return str(said)

    @field_validator("speculative")
    @classmethod
    def _method(cls, name: str | None) -> str | None:
        if name is not None and known_method(name) is None:
            raise ValueError(f"not a method of either engine; known: {', '.join(sorted(METHODS))}")
        return name

    def override(self) -> Override | None:
        """The cache set by hand, where one is."""
        set_by_hand = Override(self.bytes_per_token, self.state_bytes_per_sequence, self.window_tokens)
        return set_by_hand if set_by_hand.names else None

    def facts(self) -> Facts:
        """These settings as a source of facts."""
        return Facts(
            tensor_parallel_size=self.tensor_parallel_size,
            pipeline_parallel_size=self.pipeline_parallel_size,
            kv_cache_dtype=self.kv_cache_dtype,
            block_size=self.block_size,
            max_model_len=self.max_model_len,
            max_num_batched_tokens=self.max_num_batched_tokens,
            decode_context_parallel_size=self.decode_context_parallel_size,
            enable_prefix_caching=False if self.no_prefix_caching else None,
            hybrid_kv_cache_manager=False if self.no_hybrid_manager else None,
            speculative=True if self.speculative else None,
            speculative_method=known_method(self.speculative),
            num_speculative_tokens=self.num_speculative_tokens,
        )


def http_url(url: str, what: str) -> str:
    """``url``, where it is one that we may fetch and may show.  Raises ValueError."""
    if _odd(url):
        raise ValueError("not a URL: it has blanks or control characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(f"{what} is http://HOST:PORT or https://HOST:PORT")
    if parts.username is not None or parts.password is not None:
        raise ValueError("no user or password in a URL: it would end up in labels and logs")
    return url


def _odd(text: str) -> bool:
    # urlsplit() passes over line ends and tabs: what it saw would not be what is asked for.
    return any(not c.isprintable() or c.isspace() for c in text)


def unix_url(url: str) -> str | None:
    """The path in ``unix:///PATH`` or ``http+unix:///PATH``; None for another URL.  Raises ValueError."""
    scheme, _, path = url.partition("://")
    if scheme not in UNIX_SCHEMES:
        return None
    if not path.startswith("/") or any(not c.isprintable() for c in path):
        raise ValueError("a unix socket is unix:///ABSOLUTE/PATH")
    if len(path.encode()) > MAX_SOCKET_PATH_BYTES:
        raise ValueError(f"a unix socket's path has at most {MAX_SOCKET_PATH_BYTES} bytes")
    return path


class TargetSettings(Overrides):
    """One engine.  On a command line just its URL."""

    url: str
    name: str = Field(
        default="", max_length=128, pattern=_ONE_LINE, description="label `target`; default host:port"
    )
    route: str = Field(
        default="", max_length=128, pattern=_ONE_LINE, description="the one route of this engine"
    )
    request_log: Path | None = Field(
        default=None, description="directory of this engine's request log (SGLang)"
    )
    prefix_hit_objectives: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(
        default_factory=dict, max_length=50, description="route -> hit ratio it was designed for"
    )

    @field_validator("url")
    @classmethod
    def _http(cls, url: str) -> str:
        if unix_url(url) is not None:
            return url
        if "?" in url or "#" in url:
            raise ValueError("a target has no query: paths are put behind it")
        return http_url(url, "a target").rstrip("/").removesuffix("/metrics")

    @property
    def socket_path(self) -> str | None:
        """The unix socket that the engine listens on, where it is one."""
        return unix_url(self.url)

    @property
    def base_url(self) -> str:
        """What paths are put behind; over a unix socket the host is only a word."""
        return self.url if self.socket_path is None else "http://localhost"

    @property
    def label(self) -> str:
        """The ``target`` label: its name, else host:port or the socket's path."""
        return self.name or self.socket_path or urlsplit(self.url).netloc

    def with_common(self, common: BaseModel) -> Self:
        """This one, with what it leaves open taken from the settings said for all targets."""
        shared = set(type(self).model_fields) - {"url", "name", "route"}
        own = self.model_dump(exclude_none=True, exclude_unset=True)
        return type(self)(**{**common.model_dump(include=shared), **own})


class ModuleSettings(TargetSettings):
    """What a probe is told about its target: all that may be said about one, but which one it is."""

    url: str = ""

    @model_validator(mode="before")
    @classmethod
    def _of_no_target(cls, said: Any) -> Any:
        for key in ("url", "name", "request_log"):
            if isinstance(said, dict) and key in said:
                raise ValueError(f"{key} belongs to a target, not to a module")
        return said

    @field_validator("url")
    @classmethod
    def _http(cls, url: str) -> str:
        return url

    def said(self) -> dict[str, Any]:
        """What was said, to make a target of."""
        return {name: getattr(self, name) for name in self.model_fields_set}


def _target(value: object) -> object:
    return {"url": value} if isinstance(value, str) else value


def words_of(value: object) -> object:
    """A list from an environment variable: words between spaces or commas, or JSON."""
    if not isinstance(value, str):
        return value
    return json.loads(value) if value.lstrip().startswith("[") else value.replace(",", " ").split()


Target = Annotated[TargetSettings, BeforeValidator(_target)]
Targets = Annotated[list[Target], NoDecode, BeforeValidator(words_of)]
Tiers = Annotated[list[PositiveInt], NoDecode, BeforeValidator(words_of)]
