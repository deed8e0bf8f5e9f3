"""Numbers as Grafana writes them, for the units that the boards use."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

_SI: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def _scaled(value: float, suffix: str, kilo: str = "k") -> str:
    for factor, letter in _SI:
        if abs(value) >= factor:
            return f"{value / factor:.3g} {kilo if letter == 'k' else letter}{suffix}".rstrip()
    return f"{value:.3g}{' ' if suffix else ''}{suffix}"


def _seconds(value: float) -> str:
    if value == 0:
        return "0 s"
    for factor, word in (
        (86400.0, "d"),
        (3600.0, "h"),
        (60.0, "min"),
        (1.0, "s"),
        (1e-3, "ms"),
        (1e-6, "µs"),
    ):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {word}"
    return f"{value * 1e9:.3g} ns"


def _dollars(value: float) -> str:
    return f"${value:.2f}" if abs(value) >= 0.01 or value == 0 else f"${value:.2g}"


FORMATS: Final[Mapping[str, Callable[[float], str]]] = {
    "none": lambda value: f"{value:.4g}",
    "short": lambda value: _scaled(value, "", "K"),
    "percentunit": lambda value: f"{value * 100:.3g}%",
    "decbytes": lambda value: _scaled(value, "B"),
    "s": _seconds,
    "currencyUSD": _dollars,
    "cps": lambda value: _scaled(value, "c/s"),
    "reqps": lambda value: _scaled(value, "req/s"),
    "suffix:×": lambda value: f"{value:.3g}×" if abs(value) < 1000 else f"{value:.0f}×",
}


def written(value: float, unit: str) -> str:
    """``value`` with its unit.  Raises KeyError for a unit that no board uses."""
    return FORMATS[unit](value) if math.isfinite(value) else str(value)
