"""Colours, and what a panel's thresholds and mappings make of a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

INK, FAINT, GRID = "#24292e", "#6e7781", "#e4e7eb"
COLOURS: Final = {
    "green": "#3f8f3f",
    "yellow": "#c99700",
    "red": "#d13b3b",
    "blue": "#3d7fc4",
    "purple": "#8f5bb5",
    "transparent": "none",
}
SMALL: Final = 7.5


def colour(name: str) -> str:
    """A Grafana colour as matplotlib has it."""
    return COLOURS.get(name, name)


def by_threshold(value: float, thresholds: Mapping[str, Any] | None) -> str:
    steps = (thresholds or {}).get("steps", [])
    reached = [step["color"] for step in steps if step.get("value") is None or value >= step["value"]]
    return colour(reached[-1]) if reached else INK


def mapped(value: object, mappings: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
    key = f"{value:g}" if isinstance(value, float) else str(value)
    for mapping in mappings:
        if key in mapping["options"]:
            told = mapping["options"][key]
            return told["text"], colour(told.get("color", INK))
    return None
