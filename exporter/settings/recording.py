"""The settings of ``record`` and ``replay``."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import CliPositionalArg, CliToggleFlag

from exporter.settings.commands import COMMANDS, DEFAULT_CONTEXTS, DEFAULT_TARGET, BaseCommand, host_and_port
from exporter.settings.engine import Targets, TargetSettings, Tiers
from exporter.settings.loading import SHARED_NAMES, names_of


class RecordSettings(BaseCommand):
    """kvcache-exporter record: save what an engine says over some time, to look at elsewhere."""

    target: Targets = Field(
        default_factory=lambda: [TargetSettings(url=DEFAULT_TARGET)],
        min_length=1,
        max_length=1,
        description="engine URL",
    )
    out: Path = Field(description="file to write, say run.jsonl.gz")
    duration: float = Field(
        default=300.0, gt=0, le=7 * 86_400, description="seconds to record; Ctrl-C ends it"
    )
    interval: float = Field(default=2.0, gt=0.01, le=3600, description="seconds between pages")
    timeout: float = Field(default=5.0, gt=0, le=60, description="seconds for one fetch")
    max_bytes: int = Field(
        default=64 * 2**20, ge=2**20, le=256 * 2**20, description="largest file; the recording ends there"
    )
    force: CliToggleFlag[bool] = Field(default=False, description="replace the file if there is one")
    redact_names: CliToggleFlag[bool] = Field(
        default=False, description="models, adapters and routes become model-1, adapter-1, route-1, ..."
    )


class ReplaySettings(BaseCommand):
    """kvcache-exporter replay: the exporter against a recording, as if the engine ran."""

    recording: CliPositionalArg[Path] = Field(description="file that `record` wrote")
    context: Tiers = Field(
        default=list(DEFAULT_CONTEXTS), max_length=20, description="context tiers in tokens"
    )
    listen_address: str = Field(default="127.0.0.1:9844", description="HOST:PORT to serve on")
    poll_interval: float = Field(default=1.0, gt=0.01, le=60, description="seconds between polls")
    speed: float = Field(default=1.0, gt=0, le=1000, description="times as fast as it was recorded")
    once: CliToggleFlag[bool] = Field(default=False, description="end with the recording, do not start again")

    @field_validator("listen_address")
    @classmethod
    def _address(cls, address: str) -> str:
        host_and_port(address)
        return address


COMMANDS |= {"record": RecordSettings, "replay": ReplaySettings}
SHARED_NAMES |= names_of(RecordSettings, ReplaySettings)
