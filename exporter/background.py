"""Blocking work beside the event loop that never holds up the end of the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """``work()`` in a daemon thread.

    ``asyncio.to_thread`` would do, but its threads are joined at exit, and a hub
    that does not answer keeps one busy for half a minute (huggingface_hub 2.4
    retries for about 23 s).
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # None only where T allows it

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = work()
        except Exception as raised:
            error = raised
        with suppress(RuntimeError):  # the loop ended while we worked
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="kvcache-lookup", daemon=True).start()
    return await done
