"""Work beside the event loop: what hangs holds up nothing else, the end of the process neither."""

from __future__ import annotations

import asyncio
import threading

import pytest

from exporter.background import DaemonThreads


def test_many_that_hang_hold_up_nobody() -> None:
    """A resolver that does not answer blocks a thread; the default pool of some six would be full of them."""
    hangs = threading.Event()

    async def run() -> int:
        asyncio.get_running_loop().set_default_executor(DaemonThreads())
        for _ in range(50):
            asyncio.get_running_loop().run_in_executor(None, hangs.wait)
        return await asyncio.to_thread(lambda: 7)

    # It comes back although all of them still hang.
    assert asyncio.run(run()) == 7
    hangs.set()


def test_errors_belong_to_who_waits() -> None:
    """As with the pool that it stands for."""

    def fails() -> None:
        raise OSError("no")

    async def run() -> None:
        asyncio.get_running_loop().set_default_executor(DaemonThreads())
        await asyncio.to_thread(fails)

    with pytest.raises(OSError, match="no"):
        asyncio.run(run())
