"""The exporter while it runs: in this process (a thread), or as the program itself."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from exporter import web
from exporter.fleet import Watch
from exporter.server import guest, listen
from exporter.settings import ServeSettings, Target, TargetSettings

from .page import Page
from .waiting import wait_for

CLASSIC = {"Accept": "text/plain;version=0.0.4"}
PROGRAM = str(Path(sys.executable).with_name("kvcache-exporter"))


class _Scraped:
    """What both kinds have in common: a web surface."""

    url: str

    def get(self, path: str, **headers: str) -> httpx.Response:
        # No proxy stands between two ends on loopback.
        return httpx.get(self.url + path, headers={**CLASSIC, **headers}, timeout=20, trust_env=False)

    def post(self, path: str, content: bytes, content_type: str) -> httpx.Response:
        headers = {"Content-Type": content_type}
        return httpx.post(self.url + path, content=content, headers=headers, timeout=20, trust_env=False)

    def scrape(self) -> Page:
        return Page.parse(self.get("/metrics").raise_for_status().text)

    def wait_for_polls(self, target: str, more: int) -> Page:
        """A scrape after ``more`` polls of ``target`` began."""
        at = self.scrape().value("kvcache_exporter_fetches_total", target=target)
        return self.wait(
            lambda p: p.value("kvcache_exporter_fetches_total", target=target) >= at + more,
            f"{more} more polls of {target}",
        )

    def wait(self, look: Callable[[Page], object], what: str, deadline_s: float = 30.0) -> Page:
        """The first scrape for which ``look`` gives something true."""

        def one() -> Page | None:
            page = self.scrape()
            return page if look(page) else None

        found = wait_for(one, what, deadline_s)
        assert found is not None
        return found


class InProcess(_Scraped):
    """Watch and web surface on a real server, in a thread with an event loop of its own."""

    def __init__(
        self, targets: Mapping[str, str], clock: Callable[[], float] = time.monotonic, **settings: Any
    ) -> None:
        """``targets``: name -> URL.  The hub is never asked."""
        listed: list[Target] = [TargetSettings(url=url, name=name) for name, url in targets.items()]
        given: dict[str, Any] = {
            "poll_interval": 0.25,
            # Polls would stretch with the fetch time, which on a busy machine is its own.
            "fetch_share": 1.0,
            "timeout": 2.0,
            "hub": False,
            **settings,
        }
        self.watch = Watch(ServeSettings(target=listed, **given), clock)
        self.escaped: list[str] = []  # exceptions that nobody caught
        self._server = guest(web.app(self.watch))
        self._sock = listen("", 0)
        self.url = f"http://127.0.0.1:{self._sock.getsockname()[1]}"
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.escaped.append(repr(context)))
        polling = asyncio.create_task(self.watch.run())
        polling.add_done_callback(self._watch_ended)
        await self._server.serve(sockets=[self._sock])
        polling.cancel()
        await asyncio.wait({polling})

    def server_tasks(self) -> Collection[object]:
        """The requests that are being answered."""
        return self._server.server_state.tasks

    def _watch_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self.escaped.append(f"the poll loops ended: {task.exception()!r}")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        self._sock.close()
        assert not self.escaped, self.escaped


def environment(**more: str) -> dict[str, str]:
    """This process's environment without settings of the exporter, and without a hub."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("KVCACHE_")}
    return {**kept, "HF_HUB_OFFLINE": "1", **more}


def run_program(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """The program, to its end."""
    return subprocess.run(
        [PROGRAM, *arguments],
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


class Program(_Scraped):
    """``kvcache-exporter serve`` in a process of its own; its output in a file."""

    def __init__(
        self, log: Path, *flags: str, env: Mapping[str, str] | None = None, unstretched: bool = False
    ) -> None:
        """``unstretched``: polls keep their interval, however long a fetch takes."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.listen = f"127.0.0.1:{probe.getsockname()[1]}"
        self.url = f"http://{self.listen}"
        self._log, self._flags = log, flags
        self._unstretched = unstretched
        self._env = environment(**(env or {}))
        self.process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def targets(targets: Mapping[str, str], folder: Path) -> list[str]:
        """Flags for named targets (names need a settings file)."""
        file = folder / "settings.yaml"
        rows = [f"  - {{name: {name}, url: '{url}'}}\n" for name, url in targets.items()]
        file.write_text("target:\n" + "".join(rows))
        return ["--config-file", str(file)]

    def __enter__(self) -> Self:
        command = [PROGRAM, "serve", "--listen-address", self.listen, *self._flags]
        if self._unstretched:
            command += ["--fetch-share", "1"]
        if "--poll-interval" not in self._flags:
            command += ["--poll-interval", "0.1"]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(command, env=self._env, stdout=log, stderr=subprocess.STDOUT)
        wait_for(self._listening, "the program listening")
        return self

    def _listening(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError(f"ended with {self.process.returncode}: {self.output()}")
        with suppress(httpx.TransportError):
            return self.get("/-/healthy").is_success
        return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def stop(self, sign: signal.Signals, within_s: float) -> int:
        """Send ``sign``; the exit status.  Raises TimeoutExpired."""
        assert self.process is not None
        self.process.send_signal(sign)
        return self.process.wait(within_s)

    def output(self) -> str:
        # A device, given to see what happens when it is full, has no end.
        return self._log.read_text(errors="replace") if self._log.is_file() else ""

    def peak_bytes(self) -> int:
        """Most resident memory since the last :meth:`forget_peak`."""
        return self._status("VmHWM")

    def resident_bytes(self) -> int:
        return self._status("VmRSS")

    def forget_peak(self) -> None:
        # 5: reset the peak resident set size (proc(5), clear_refs).
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def _status(self, field: str) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(rf"^{field}:\s+(\d+) kB$", status, re.M)
        assert found is not None
        return int(found[1]) * 1024


def lines_of(output: str) -> Sequence[str]:
    """Its lines, empty ones left out."""
    return [line for line in output.splitlines() if line.strip()]
