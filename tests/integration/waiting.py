"""Waiting for a state, with this folder's patience."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tests.rig import waiting

T = TypeVar("T")

# Generous, since two busy cores may be shared; every wait ends as soon as the state is there.
DEADLINE_S = 30.0


def wait_for(look: Callable[[], T | None], what: str, deadline_s: float = DEADLINE_S) -> T:
    """Call ``look`` until it returns something true, and return that.

    Raises TimeoutError, naming ``what`` was waited for.
    """
    return waiting.wait_for(look, deadline_s, what)
