"""Blocking work beside the event loop that never holds up the end of the process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

# Names that may be waited for at the same time: more than the most targets.
MAX_RESOLUTIONS = 600
T = TypeVar("T")
P = ParamSpec("P")


class DaemonThreads(ThreadPoolExecutor):
    """A thread for each piece of work, and none that the process waits for at its end.

    For the event loop's own use (name resolution, ``asyncio.to_thread``): its default is a pool of few
    threads, and a handful of names whose server is silent would hold up everything else in it.
    A name that is being resolved is not asked for a second time: the question outlives the poll that
    gave up on it, and each poll would leave one more thread behind.
    """

    def __init__(self) -> None:
        super().__init__()
        self._resolving: dict[tuple[object, ...], Future[Any]] = {}

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        resolves: bool = fn is socket.getaddrinfo
        if not resolves:
            return _started(fn, *args, **kwargs)
        running = self._resolving.get(args)
        if running is None:
            if len(self._resolving) >= MAX_RESOLUTIONS:
                raise socket.gaierror(socket.EAI_AGAIN, "too many names are being resolved")
            running = self._resolving[args] = _started(fn, *args, **kwargs)
            running.add_done_callback(lambda _: self._resolving.pop(args, None))
        return running

    def shutdown(self, *_: Any, **__: Any) -> None:
        """Wait for nothing."""


def _started(fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """``fn`` in a thread of its own.  It can't be cancelled: several may wait for it."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result = fn(*args, **kwargs)
        except BaseException as error:  # as the pool itself does: it belongs to who waits
            done.set_exception(error)
        else:
            done.set_result(result)

    threading.Thread(target=run, name="kvcache-work", daemon=True).start()
    return done


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
