"""Watch and serve, from the first socket to the last signal."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
from collections.abc import Sequence
from contextlib import suppress

from exporter import __version__
from exporter.background import DaemonThreads
from exporter.fleet import Watch
from exporter.log import log
from exporter.server import guest, listen
from exporter.settings import host_and_port
from exporter.web.app import app
from exporter.web.control import Control, ReloadError
from exporter.web.secured import Secured, WebConfig


async def serve(
    watch: Watch,
    listen_address: str,
    words: Sequence[str] | None = None,
    web_config: WebConfig | None = None,
    greeting: str = "",
) -> None:
    """Watch and serve until SIGTERM or SIGINT; SIGHUP reloads what ``words`` (the command line) name.

    ``greeting`` is printed once the address is ours.

    Raises OSError where the address is taken.
    """
    _allow_many_files()
    listening = listen(*host_and_port(listen_address))
    if greeting:
        print(greeting, flush=True)
    log.info(
        "listening",
        version=__version__,
        address=listen_address,
        targets=[state.name for state in watch.states],
    )
    loop = asyncio.get_running_loop()
    loop.set_default_executor(DaemonThreads())
    control = Control(watch, words)
    inner = app(watch, control=control)
    if web_config is None:
        server = guest(inner)
    else:
        control.also = web_config.add
        server = guest(Secured(inner, web_config), web_config.context)

    def stop() -> None:
        # A scrape that is cut off now is no error, and needs no traceback.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    reloads: set[asyncio.Task[None]] = set()

    def reload() -> None:
        task = asyncio.create_task(_reload(control), name="reload")
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    if words is not None:  # else it means what it always does: the terminal is gone
        loop.add_signal_handler(signal.SIGHUP, reload)
    polling = asyncio.create_task(watch.run(), name="watch")
    # A poll loop that dies takes the process with it: better restarted than silently blind.
    polling.add_done_callback(lambda _: stop())
    try:
        await server.serve(sockets=[listening])
    finally:
        polling.cancel()
        await asyncio.wait({polling})
    if not polling.cancelled() and (error := polling.exception()) is not None:
        raise error


async def _reload(control: Control) -> None:
    with suppress(ReloadError):  # it is logged, and on /metrics
        await control.reload()


def _allow_many_files() -> None:
    """As many open files as the system lets us have: a socket for each target and each scraper."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
