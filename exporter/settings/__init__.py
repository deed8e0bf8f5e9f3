"""Settings: flags, then ``KVCACHE_EXPORTER_*``, then a YAML file; one model for all three.

Every field is a flag (``--poll-interval``), an environment variable
(``KVCACHE_EXPORTER_POLL_INTERVAL``) and a key of the file (``poll_interval``).
"""

from exporter.settings.commands import (
    COMMANDS,
    DEFAULT_CONTEXTS,
    FETCH_SHARE,
    CheckSettings,
    DemoSettings,
    ExplainSettings,
    ServeSettings,
    host_and_port,
)
from exporter.settings.engine import (
    ModuleSettings,
    Overrides,
    Target,
    TargetSettings,
    http_url,
    words_of,
)
from exporter.settings.loading import ENV_PREFIX, CommandSettings, field_name, flags, load, origins, problems
from exporter.settings.recording import RecordSettings, ReplaySettings

__all__ = [
    "COMMANDS",
    "DEFAULT_CONTEXTS",
    "ENV_PREFIX",
    "FETCH_SHARE",
    "CheckSettings",
    "CommandSettings",
    "DemoSettings",
    "ExplainSettings",
    "ModuleSettings",
    "Overrides",
    "RecordSettings",
    "ReplaySettings",
    "ServeSettings",
    "Target",
    "TargetSettings",
    "field_name",
    "flags",
    "host_and_port",
    "http_url",
    "load",
    "origins",
    "problems",
    "words_of",
]
