"""One piece of work for everybody who asks for the same thing at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """Work in progress by key.  Nothing is kept once it is done."""

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[T]] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._running

    def join(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """The running task of ``key``, or a new one.

        Await it through ``asyncio.shield``: others may wait for it, too.
        """
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.create_task(make())
            task.add_done_callback(lambda _: self._running.pop(key, None))
        return task
