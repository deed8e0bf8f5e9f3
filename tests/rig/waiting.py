"""Waiting for a state, by looking: the one place of the rig where time passes on purpose."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")

_BETWEEN_LOOKS_S = 0.02


def wait_for(look: Callable[[], T | None], deadline_s: float, what: str) -> T:
    """Call `look` until it returns something true; that is the result.

    Raises TimeoutError, naming `what` was waited for, after `deadline_s` seconds.
    """
    end = time.monotonic() + deadline_s
    while True:
        if found := look():
            return found
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {deadline_s:g} s")
        time.sleep(_BETWEEN_LOOKS_S)


async def wait_until(look: Callable[[], Awaitable[T | None]], deadline_s: float, what: str) -> T:
    """Like `wait_for`, for a `look` that is awaited; other tasks run between the looks."""
    end = time.monotonic() + deadline_s
    while True:
        if found := await look():
            return found
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {deadline_s:g} s")
        await asyncio.sleep(_BETWEEN_LOOKS_S)
