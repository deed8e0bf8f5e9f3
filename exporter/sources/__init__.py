"""Where facts come from that the engine's pages leave out.

The model's ``config.json`` and weights, and the engine's own command line.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "EngineFlags": "flags",
    "FoundConfig": "model_config",
    "find_engine": "command_line",
    "find_model_config": "model_config",
    "parse_flags": "flags",
    "weights_bytes": "weights",
}


def __getattr__(name: str) -> Any:
    # On demand, because model_config brings the hub library with it and the planner needs only weights.
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
