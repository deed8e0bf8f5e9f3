"""Waiting for a state, by looking: the only place of this folder where time passes on purpose."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_BETWEEN_LOOKS_S = 0.05
# Generous, since two busy cores may be shared; every wait ends as soon as the state is there.
DEADLINE_S = 30.0


def wait_for(look: Callable[[], T], what: str, deadline_s: float = DEADLINE_S) -> T:
    """Call ``look`` until it returns something true, and return that.

    Raises TimeoutError, naming ``what`` was waited for.
    """
    end = time.monotonic() + deadline_s
    while True:
        if found := look():
            return found
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {deadline_s:g} s")
        time.sleep(_BETWEEN_LOOKS_S)
