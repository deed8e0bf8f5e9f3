"""A stand-in: vLLM names classes of xgrammar in annotations; structured output is not used here."""

from __future__ import annotations

from typing import Any

__version__ = "0.2.5"


def __getattr__(name: str) -> Any:
    """A class of that name, which can be named but not made."""
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_: Any, **__: Any) -> None:
        raise RuntimeError(f"xgrammar.{name}: the stand-in cannot do structured output")

    made = type(name, (), {"__init__": missing})
    globals()[name] = made
    return made
