"""Settings: flags, then ``KVCACHE_EXPORTER_*``, then a YAML file; one model for all three.

Every field is a flag (``--poll-interval``), an environment variable
(``KVCACHE_EXPORTER_POLL_INTERVAL``) and a key of the file (``poll_interval``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import lru_cache
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
from pydantic_core import PydanticUndefined
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

from exporter.facts import Facts
from exporter.kvmath.known import Unavailable

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
    gpu_bandwidth: str | None = Field(
        default=None,
        max_length=80,
        description="one GPU's memory bandwidth, for the decode floor: its name (H100, ...) or bytes per second",
    )

    @field_validator("gpu_bandwidth", mode="before")
    @classmethod
    def _bandwidth(cls, said: object) -> object:
        if said is None:
            return None
        from exporter.requests.floor import gpu_bytes_per_second  # noqa: PLC0415  (45 GPUs that few name)

        told = gpu_bytes_per_second(str(said))
        if isinstance(told, Unavailable):
            raise ValueError(told.detail)  # noqa: TRY004  (bad input, not a bad type)
        return str(said)

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


def words_of(value: object) -> object:
    """A list from an environment variable: words between spaces or commas, or JSON."""
    if not isinstance(value, str):
        return value
    return json.loads(value) if value.lstrip().startswith("[") else value.replace(",", " ").split()


Target = Annotated[TargetSettings, BeforeValidator(_target)]
Targets = Annotated[list[Target], NoDecode, BeforeValidator(words_of)]
Tiers = Annotated[list[PositiveInt], NoDecode, BeforeValidator(words_of)]


class CommandSettings(BaseSettings):
    """Where the settings of every command come from."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_prefix_target="all",
        extra="forbid",
        populate_by_name=True,
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_exit_on_error=False,
        env_ignore_empty=True,
        nested_model_default_partial_update=False,
    )

    config_file: Path | None = Field(default=None, description="YAML file with these settings")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings, env_settings, _SharedFile(settings_cls))


class _SharedFile(YamlConfigSettingsSource):
    """One file serves all commands: each passes over what only another one knows."""

    def __call__(self) -> dict[str, Any]:
        others = _names(*COMMANDS.values()) - _names(self.settings_cls)
        return {
            key: value for key, value in super().__call__().items() if key.replace("-", "_") not in others
        }


class _Settings(Overrides, CommandSettings):
    """Fields common to the commands that look at an engine."""

    model_config = CommandSettings.model_config  # both bases have one

    context: Tiers = Field(
        default=list(DEFAULT_CONTEXTS),
        max_length=20,
        description="context tiers in tokens; those above max_model_len are left out, and that one is added",
    )
    hub: bool = Field(
        default=True, description="look the model's config.json up on the hub if it is nowhere local"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="debug, info, warning or error"
    )
    log_format: Literal["console", "json"] = Field(default="console", description="console or json")


class ServeSettings(_Settings):
    """kvcache-exporter serve: watch engines and serve /metrics."""

    target: Targets = Field(
        default_factory=lambda: [TargetSettings(url=DEFAULT_TARGET)],
        max_length=500,
        description="engine URL; repeatable",
    )
    listen_address: str = Field(
        default=":9844", description="HOST:PORT to serve on, without authentication; :PORT is every address"
    )
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
        list[Annotated[str, Field(min_length=1, max_length=128)]], NoDecode, BeforeValidator(words_of)
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
    """kvcache-exporter explain: one readout of an engine or of saved pages, every step shown."""

    target: Targets = Field(default_factory=list, max_length=500, description="engine URL; repeatable")
    metrics: Path | None = Field(default=None, description="a saved /metrics page, instead of a target")
    previous: Path | None = Field(default=None, description="an earlier page of the same engine, read first")
    engine_info: list[Path] = Field(
        default_factory=list,
        description="saved answers of the engine's info endpoints (vLLM: /v1/models, /version; "
        "SGLang: /server_info, /model_info)",
    )
    output: Literal["text", "json", "prom"] = Field(
        default="text", description="text, json, or prom: what /metrics would say"
    )


class DemoSettings(_Settings):
    """kvcache-exporter demo: the exporter against a recorded run."""

    context: Tiers = Field(default=[128, 512, 1024], description="context tiers in tokens")
    listen_address: str = Field(default="127.0.0.1:9844", description="HOST:PORT to serve on")
    poll_interval: float = Field(default=1.0, gt=0.01, le=60, description="seconds between polls")


def host_and_port(address: str) -> tuple[str, int]:
    """``":9844"`` -> every address; ``"[::1]:9844"`` and ``"host:9844"`` too."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ValueError("a listen address is HOST:PORT or :PORT")
    return host.strip("[]"), int(port)


COMMANDS: dict[str, type[_Settings]] = {
    "serve": ServeSettings,
    "demo": DemoSettings,
    "explain": ExplainSettings,
}


def _names(*kinds: type[BaseSettings]) -> set[str]:
    return {field_name(name) for kind in kinds for name in kind.model_fields}


def field_name(attribute: str) -> str:
    """The public spelling of a field (see ``model_config_path``)."""
    return "model_config" if attribute == "model_config_path" else attribute


def flags(kind: type[CommandSettings]) -> list[tuple[str, str, str]]:
    """(flag, default, meaning) of every setting of a command, for help and documentation."""
    rows: list[tuple[str, str, str]] = []
    for name, field in kind.model_fields.items():
        default = field.get_default(call_default_factory=True, validated_data={})
        words = default if isinstance(default, list) else [default]
        unset = (None, "", PydanticUndefined)
        shown = " ".join(str(getattr(word, "url", word)) for word in words if word not in unset)
        rows.append((f"--{field_name(name).replace('_', '-')}", shown, field.description or ""))
    return rows


def load(kind: type[CommandSettings], arguments: Sequence[str]) -> Any:
    """The settings of one command from its arguments, environment and file.

    Raises ``pydantic.ValidationError``, ``SettingsError`` or ``ValueError`` on bad
    input, which the caller turns into one line; ``SystemExit`` after ``--help``.
    """
    _check_environment(kind)
    loaded, source = _parser(kind, _config_file(arguments))
    parsed = source(args=_repeat_lists(arguments, kind))
    return loaded(_cli_settings_source=parsed)  # type: ignore[call-arg]  # a pydantic-settings argument


@lru_cache(maxsize=8)
def _parser(
    kind: type[CommandSettings], file: Path | None
) -> tuple[type[CommandSettings], CliSettingsSource[Any]]:
    """The settings class bound to its file, and its parser: kept, for building them is most of the work."""
    loaded: type[CommandSettings] = type(
        kind.__name__,
        (kind,),
        {
            "model_config": SettingsConfigDict(yaml_file=file),
            "__doc__": kind.__doc__,
            "__module__": kind.__module__,
        },
    )
    name = kind.__name__.removesuffix("Settings").lower()
    return loaded, CliSettingsSource(loaded, cli_prog_name=f"kvcache-exporter {name}")


def _check_environment(kind: type[CommandSettings]) -> None:
    """A misspelt variable must not pass for a default.  Raises ValueError."""
    known = {f"{ENV_PREFIX}{name}".upper() for name in _names(kind, *COMMANDS.values())}
    known.add(f"{ENV_PREFIX}PLUGIN_URL")  # the vLLM plugin's own
    for name in os.environ:
        if name.upper().startswith(ENV_PREFIX) and name.upper() not in known:
            raise ValueError(f"{name}: no such setting")


def _config_file(arguments: Sequence[str]) -> Path | None:
    named: str | None = os.environ.get(f"{ENV_PREFIX}CONFIG_FILE")
    for n, argument in enumerate(arguments):
        if argument == CONFIG_FLAG and n + 1 < len(arguments):
            named = arguments[n + 1]
        elif argument.startswith(f"{CONFIG_FLAG}="):
            named = argument.partition("=")[2]
    if not named:
        return None
    import yaml  # noqa: PLC0415  (a tenth of a second that most commands need not wait)

    path = Path(named)
    try:
        said = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeError):
        raise ValueError(f"{path}: not YAML") from None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    if said is not None and not isinstance(said, dict):
        raise ValueError(f"{path}: settings are a mapping of names to values")
    return path


def _repeat_lists(arguments: Sequence[str], kind: type[CommandSettings]) -> list[str]:
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
