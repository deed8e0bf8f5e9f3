"""Where facts come from that the engine's pages leave out.

The model's ``config.json`` and weights, and the engine's own command line.
"""

from exporter.sources.command_line import find_engine
from exporter.sources.flags import EngineFlags, parse_flags
from exporter.sources.model_config import FoundConfig, find_model_config
from exporter.sources.weights import weights_bytes

__all__ = [
    "EngineFlags",
    "FoundConfig",
    "find_engine",
    "find_model_config",
    "parse_flags",
    "weights_bytes",
]
