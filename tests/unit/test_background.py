"""Work beside the event loop: what hangs holds up nothing else, the end of the process neither."""

from __future__ import annotations

import asyncio
import socket
import threading

import pytest

from exporter import background
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


def test_a_name_is_asked_for_once_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll gives up after seconds, a resolver after half a minute: each would leave a thread behind."""
    hangs = threading.Event()
    asked: list[str] = []

    def silent(host: str, *_: object) -> list[object]:
        asked.append(host)
        hangs.wait(20)
        return []

    async def run() -> list[str]:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(DaemonThreads())
        first = asyncio.create_task(loop.getaddrinfo("a.test", 80))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.wait({first})
        second = [asyncio.create_task(loop.getaddrinfo(name, 80)) for name in ("a.test", "b.test")]
        await asyncio.sleep(0)
        with pytest.raises(socket.gaierror, match="too many names"):
            await loop.getaddrinfo("c.test", 80)
        hangs.set()
        await asyncio.gather(*second)
        await loop.getaddrinfo("a.test", 80)
        return asked

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    monkeypatch.setattr(background, "MAX_RESOLUTIONS", 2)
    assert asyncio.run(run()) == ["a.test", "b.test", "a.test"]
