"""Blocking work beside the event loop that never holds up the end of the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class DaemonThreads(ThreadPoolExecutor):
    """A thread for each piece of work, and none that the process waits for at its end.

    For the event loop's own use (name resolution, ``asyncio.to_thread``): its default is a pool of few
    threads, and a handful of names whose server is silent would hold up everything else in it.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        done: Future[T] = Future()

        def run() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # as the pool itself does: it belongs to who waits
                done.set_exception(error)
            else:
                done.set_result(result)

        threading.Thread(target=run, name="kvcache-work", daemon=True).start()
        return done

    def shutdown(self, *_: Any, **__: Any) -> None:
        """Wait for nothing."""


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
