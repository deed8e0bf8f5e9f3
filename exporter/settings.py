"""Settings: flags, then ``KVCACHE_EXPORTER_*``, then a YAML file; one model for all three.

Every field is a flag (``--poll-interval``), an environment variable
(``KVCACHE_EXPORTER_POLL_INTERVAL``) and a key of the file (``poll_interval``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

from exporter.facts import Facts

ENV_PREFIX = "KVCACHE_EXPORTER_"
CONFIG_FLAG = "--config-file"
DEFAULT_CONTEXTS = (4096, 8192, 32768, 131072)
DEFAULT_TARGET = "http://127.0.0.1:8000"


class Overrides(BaseModel):
    """What the user says about an engine.  The engine's own word wins."""

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
    gpu_bandwidth: Annotated[float, Field(gt=0, lt=1e16)] | None = Field(
        default=None, description="memory bandwidth of one GPU in bytes per second, for the decode floor"
    )

    def facts(self) -> Facts:
        """These settings as a source of facts."""
        return Facts(
            tensor_parallel_size=self.tensor_parallel_size,
            pipeline_parallel_size=self.pipeline_parallel_size,
            kv_cache_dtype=self.kv_cache_dtype,
            block_size=self.block_size,
            max_model_len=self.max_model_len,
            max_num_batched_tokens=self.max_num_batched_tokens,
        )


def http_url(url: str, what: str) -> str:
    """``url``, where it is one that we may fetch and may show.  Raises ValueError."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"not a URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(f"{what} is http://HOST:PORT or https://HOST:PORT")
    if parts.username or parts.password:
        raise ValueError("no user or password in a URL: it would end up in labels and logs")
    return url


class TargetSettings(Overrides):
    """One engine.  On a command line just its URL."""

    url: str
    name: str = Field(default="", max_length=128, description="label `target`; default host:port")
    route: str = Field(default="", max_length=128, description="the one route of this engine")
    request_log: Path | None = Field(
        default=None, description="directory of this engine's request log (SGLang)"
    )
    prefix_hit_objectives: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(
        default_factory=dict, max_length=50, description="route -> hit ratio it was designed for"
    )

    @field_validator("url")
    @classmethod
    def _http(cls, url: str) -> str:
        return http_url(url, "a target").rstrip("/").removesuffix("/metrics")

    @property
    def label(self) -> str:
        """The ``target`` label."""
        return self.name or urlsplit(self.url).netloc


def _target(value: object) -> object:
    return {"url": value} if isinstance(value, str) else value


def _words(value: object) -> object:
    """A list from an environment variable: words between spaces or commas, or JSON."""
    if not isinstance(value, str):
        return value
    return json.loads(value) if value.lstrip().startswith("[") else value.replace(",", " ").split()


Target = Annotated[TargetSettings, BeforeValidator(_target)]


class _Settings(Overrides, BaseSettings):
    """Sources and fields common to the commands."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_prefix_target="all",
        extra="forbid",
        populate_by_name=True,
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        env_ignore_empty=True,
        nested_model_default_partial_update=False,
    )

    config_file: Path | None = Field(default=None, description="YAML file with these settings")
    context: Annotated[list[PositiveInt], NoDecode, BeforeValidator(_words)] = Field(
        default=list(DEFAULT_CONTEXTS), max_length=20, description="context tiers in tokens"
    )
    hub: bool = Field(
        default=True, description="look the model's config.json up on the hub if it is nowhere local"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="debug, info, warning or error"
    )
    log_format: Literal["console", "json"] = Field(default="console", description="console or json")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings, env_settings, YamlConfigSettingsSource(settings_cls))


class ServeSettings(_Settings):
    """kvcache-exporter serve: watch engines and serve /metrics."""

    target: Annotated[list[Target], NoDecode, BeforeValidator(_words)] = Field(
        default_factory=lambda: [TargetSettings(url=DEFAULT_TARGET)],
        max_length=500,
        description="engine URL; repeatable",
    )
    listen_address: str = Field(default=":9844", description="HOST:PORT to serve on")
    poll_interval: float = Field(default=2.0, gt=0.01, le=60, description="seconds between polls")
    timeout: float = Field(default=5.0, gt=0, le=60, description="seconds for one fetch")
    max_page_bytes: int = Field(default=8 * 2**20, ge=2**16, le=2**28, description="largest page accepted")
    request_log: Path | None = Field(
        default=None, description="directory of SGLang's request log, where there is one target"
    )
    state_directory: Path | None = Field(
        default=None, description="remembers how far request logs were read; default: start at their end"
    )
    traces_from: Literal["loopback", "any"] = Field(
        default="loopback", description="who may send traces and plugin records: loopback or any"
    )
    forward_traces: str | None = Field(
        default=None, description="pass traces on to this OTLP/HTTP URL (http://COLLECTOR:4318/v1/traces)"
    )
    route: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=128)]], NoDecode, BeforeValidator(_words)
    ] = Field(
        default=[],
        max_length=50,
        description="split finished requests by these routes, the rest is `other`; default: not split",
    )
    probe_interval: Annotated[float, Field(ge=1)] | None = Field(
        default=None, description="seconds between requests of our own to each target; default: none are sent"
    )
    probe_max_context: PositiveInt = Field(default=8192, description="longest context probed, in tokens")
    price_per_hour: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="dollars per hour of one target, all its GPUs"
    )

    @field_validator("forward_traces")
    @classmethod
    def _collector(cls, url: str | None) -> str | None:
        return None if url is None else http_url(url, "a collector's URL")

    @field_validator("target")
    @classmethod
    def _distinct(cls, targets: list[TargetSettings]) -> list[TargetSettings]:
        names = [t.label for t in targets]
        if len(set(names)) != len(names):
            raise ValueError("two targets have the same name")
        return targets

    @model_validator(mode="after")
    def _one_log(self) -> Self:
        if self.request_log is not None and len(self.target) != 1:
            raise ValueError("with several targets, request_log belongs to each of them")
        return self

    @field_validator("listen_address")
    @classmethod
    def _address(cls, address: str) -> str:
        host_and_port(address)
        return address


class ExplainSettings(_Settings):
    """kvcache-exporter explain: one readout, every step shown."""

    target: Target | None = Field(default=None, description="engine URL")
    metrics: Path | None = Field(default=None, description="a saved /metrics page")
    previous: Path | None = Field(default=None, description="an earlier page of the same engine")
    engine_info: list[Path] = Field(default_factory=list, description="saved info endpoint answers (JSON)")
    output: Literal["text", "json", "prom"] = Field(
        default="text", description="text, json, or prom: what /metrics would say"
    )


class DemoSettings(_Settings):
    """kvcache-exporter demo: the exporter against a recorded run."""

    listen_address: str = Field(default="127.0.0.1:9844", description="HOST:PORT to serve on")
    poll_interval: float = Field(default=1.0, gt=0.01, le=60)


def host_and_port(address: str) -> tuple[str, int]:
    """``":9844"`` -> every address; ``"[::1]:9844"`` and ``"host:9844"`` too."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ValueError("a listen address is HOST:PORT or :PORT")
    return host.strip("[]"), int(port)


def load(kind: type[_Settings], arguments: Sequence[str]) -> Any:
    """The settings of one command from its arguments, environment and file.

    Raises ``pydantic.ValidationError`` / ``SettingsError`` / ``SystemExit``
    (argparse) on bad input; the caller turns them into one line.
    """
    arguments = _repeat_lists(arguments, kind)
    file = _config_file(arguments)
    loaded: type[_Settings] = type(
        kind.__name__,
        (kind,),
        {
            "model_config": SettingsConfigDict(yaml_file=file),
            "__doc__": kind.__doc__,
            "__module__": kind.__module__,
        },
    )
    source: CliSettingsSource[Any] = CliSettingsSource(
        loaded,
        cli_prog_name=f"kvcache-exporter {kind.__name__.removesuffix('Settings').lower()}",
        cli_parse_args=list(arguments),
    )
    return loaded(_cli_settings_source=source)  # type: ignore[call-arg]  # a pydantic-settings argument


def _config_file(arguments: Sequence[str]) -> Path | None:
    named: str | None = os.environ.get(f"{ENV_PREFIX}CONFIG_FILE")
    for n, argument in enumerate(arguments):
        if argument == CONFIG_FLAG and n + 1 < len(arguments):
            named = arguments[n + 1]
        elif argument.startswith(f"{CONFIG_FLAG}="):
            named = argument.partition("=")[2]
    if not named:
        return None
    path = Path(named)
    if not path.is_file():
        raise ValueError(f"{path}: no such settings file")
    return path


def _repeat_lists(arguments: Sequence[str], kind: type[_Settings]) -> list[str]:
    """``--context 4096 8192`` -> ``--context 4096 --context 8192``: people write
    both, the settings library knows the second."""
    lists = {
        "--" + name.replace("_", "-") for name, f in kind.model_fields.items() if "list" in str(f.annotation)
    }
    out: list[str] = []
    current = ""
    values = 0
    for argument in arguments:
        if argument.startswith("-"):
            current = argument if argument in lists else ""
            values = 0
        elif current:
            values += 1
            if values > 1:
                out.append(current)
        out.append(argument)
    return out
