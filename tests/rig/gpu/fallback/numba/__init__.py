"""A stand-in where the real numba can't be imported: vLLM's n-gram speculation asks for it at import."""

from __future__ import annotations

from typing import Any

__version__ = "0.0"
prange = range


def jit(*args: Any, **kwargs: Any) -> Any:
    """The function as it is, with the decorator's arguments or without."""
    if len(args) == 1 and callable(args[0]) and not kwargs:
        return args[0]
    return lambda function: function


njit = vectorize = guvectorize = jit


def get_num_threads() -> int:
    """One."""
    return 1


def set_num_threads(_: int) -> None:
    """Nothing."""


def __getattr__(name: str) -> Any:
    """Anything else that is only named."""
    if name.startswith("__"):
        raise AttributeError(name)
    return object()
