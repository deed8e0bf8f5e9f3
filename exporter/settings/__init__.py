"""Settings: flags, then ``KVCACHE_EXPORTER_*``, then a YAML file; one model for all three.

Every field is a flag (``--poll-interval``), an environment variable
(``KVCACHE_EXPORTER_POLL_INTERVAL``) and a key of the file (``poll_interval``).
"""

from exporter.settings.commands import (
    COMMANDS,
    DEFAULT_CONTEXTS,
    DemoSettings,
    ExplainSettings,
    ServeSettings,
    host_and_port,
)
from exporter.settings.engine import Overrides, Target, TargetSettings, http_url, words_of
from exporter.settings.loading import ENV_PREFIX, CommandSettings, flags, load
from exporter.settings.recording import RecordSettings, ReplaySettings

__all__ = [
    "COMMANDS",
    "DEFAULT_CONTEXTS",
    "ENV_PREFIX",
    "CommandSettings",
    "DemoSettings",
    "ExplainSettings",
    "Overrides",
    "RecordSettings",
    "ReplaySettings",
    "ServeSettings",
    "Target",
    "TargetSettings",
    "flags",
    "host_and_port",
    "http_url",
    "load",
    "words_of",
]
