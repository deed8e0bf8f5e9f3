"""The settings of each command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, PositiveInt, field_validator, model_validator
from pydantic_settings import CliPositionalArg, CliToggleFlag, NoDecode

from exporter.probing.allow import AllowList
from exporter.settings.engine import (
    ModuleSettings,
    Overrides,
    Targets,
    TargetSettings,
    Tiers,
    http_url,
    words_of,
)
from exporter.settings.loading import SHARED_NAMES, CommandSettings, names_of

DEFAULT_CONTEXTS = (4096, 8192, 32768, 131072)
DEFAULT_TARGET = "http://127.0.0.1:8000"
FETCH_SHARE = 0.01


class BaseCommand(Overrides, CommandSettings):
    """Fields common to the commands that look at an engine."""

    model_config = CommandSettings.model_config  # both bases have one

    hub: bool = Field(
        default=True,
        description="look the model's config.json up on the hub if it is nowhere local; `--hub false`: never",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="debug, info, warning or error"
    )
    log_format: Literal["console", "json"] = Field(default="console", description="console or json")


class _Settings(BaseCommand):
    """Fields common to those that derive figures."""

    context: Tiers = Field(
        default=list(DEFAULT_CONTEXTS),
        max_length=20,
        description="context tiers in tokens; those above max_model_len are left out, and that one is added",
    )


class ServeSettings(_Settings):
    """kvcache-exporter serve: watch engines and serve /metrics."""

    target: Targets = Field(
        default_factory=lambda: [TargetSettings(url=DEFAULT_TARGET)],
        max_length=500,
        description="engine URL; repeatable",
    )
    listen_address: str = Field(default=":9844", description="HOST:PORT to serve on; :PORT is every address")
    poll_interval: float = Field(default=2.0, gt=0.01, le=60, description="seconds between polls")
    fetch_share: float = Field(
        default=FETCH_SHARE,
        gt=0,
        le=1,
        description="most of the time that an engine spends on its page; a slow one is polled less often, "
        "every 15 s at the least",
    )
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
    probe_allow: Annotated[list[str], NoDecode, BeforeValidator(words_of)] = Field(
        default=[],
        max_length=200,
        description="targets that /probe may fetch: HOST:PORT, *.SUFFIX:PORT or CIDR:PORT; default: none",
    )
    probe_timeout_offset: float = Field(
        default=0.5, ge=0, le=30, description="seconds by which /probe ends before the scraper's timeout"
    )
    modules: dict[str, ModuleSettings] = Field(
        default_factory=dict,
        max_length=100,
        description="in the file: named settings of a target, for /probe?module=NAME",
    )
    web_config_file: Path | None = Field(
        default=None, description="TLS and users of the web surface, in the format of Prometheus's exporters"
    )
    check_config: CliToggleFlag[bool] = Field(
        default=False, description="read all settings, say what is wrong with them, and end"
    )

    @field_validator("probe_allow")
    @classmethod
    def _patterns(cls, entries: list[str]) -> list[str]:
        AllowList(entries)
        return entries

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
    recording: Path | None = Field(
        default=None, description="a file that `record` wrote, instead of a target"
    )
    at: float | None = Field(
        default=None, ge=0, description="seconds into the recording; default: its last page"
    )
    previous: Path | None = Field(default=None, description="an earlier page of the same engine, read first")
    engine_info: list[Path] = Field(
        default_factory=list,
        description="saved answers of the engine's info endpoints (vLLM: /v1/models, /version; "
        "SGLang: /server_info, /model_info)",
    )
    output: Literal["text", "json", "prom"] = Field(
        default="text", description="text, json, or prom: what /metrics would say"
    )


class CheckSettings(_Settings):
    """kvcache-exporter check: an engine examined: what it tells, what is missing, which flags would help."""

    url: CliPositionalArg[str] = Field(description="engine URL")
    poll_interval: float = Field(
        default=2.0, gt=0.01, le=60, description="as `serve` will have it: what share of it a poll takes"
    )
    timeout: float = Field(default=5.0, gt=0, le=60, description="seconds for one fetch")
    strict: CliToggleFlag[bool] = Field(
        default=False, description="exit with 1 for advice as well, but for what is only optional"
    )
    output: Literal["text", "json"] = Field(default="text", description="text or json")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="error", description="debug, info, warning or error; the report says what the log would"
    )

    @field_validator("url")
    @classmethod
    def _target(cls, url: str) -> str:
        return TargetSettings(url=url).url


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


COMMANDS: dict[str, type[BaseCommand]] = {
    "serve": ServeSettings,
    "demo": DemoSettings,
    "explain": ExplainSettings,
    "check": CheckSettings,
}


SHARED_NAMES |= names_of(*COMMANDS.values())
