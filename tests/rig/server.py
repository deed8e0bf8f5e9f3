"""A server that runs beside the tests: its own process group, its output in a file, gone afterwards."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from .page import Page

# Below those that a kernel gives to clients: an engine listens long after its port was chosen.
_PORTS = range(15_000, 30_000)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on right now."""
    while True:
        with socket.socket() as probe, suppress(OSError):
            port = random.choice(_PORTS)
            probe.bind(("127.0.0.1", port))
            return port


class Server:
    """A subprocess that serves HTTP on a port of 127.0.0.1, for the length of a `with` block.

    It leads a process group, so that what it starts itself (vLLM's engine and worker processes) goes with it.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], log_path: Path, port: int
    ) -> None:
        """Remember what to start; nothing runs before the `with` block is entered."""
        self.url = f"http://127.0.0.1:{port}"
        self.log_path = log_path
        # Proxies of the machine have no business between two programs on it.
        self._http = httpx.Client(base_url=self.url, timeout=30, trust_env=False)
        self._command = list(command)
        self._environment = dict(environment)
        self._popen: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self.log_path.open("wb") as log:
            self._popen = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()
        if self._popen is None:
            return
        # Only the leader is asked to end: SGLang takes the end of a child that it did not end itself for a
        # crash, and spends 5 s on it (0.5.23). Then the group, which outlives its leader as long as one child
        # of it does.
        self._popen.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait(20)
        self._popen = None

    def answers(self, path: str) -> bool:
        """Whether it answers that path with success; raises RuntimeError if it has ended."""
        self.raise_if_dead()
        try:
            return self._http.get(path).is_success
        except httpx.TransportError:
            return False

    def scrape(self) -> Page:
        """Its /metrics; raises httpx.HTTPError when they can't be had."""
        answer = self._http.get("/metrics", headers={"Accept": "text/plain;version=0.0.4"})
        return Page.parse(answer.raise_for_status().text)

    def log(self) -> str:
        """All it has written so far."""
        return self.log_path.read_text(errors="replace")

    def raise_if_dead(self) -> None:
        """Raise RuntimeError, with much of the end of the log, if the program has ended."""
        if self._popen is not None and (status := self._popen.poll()) is not None:
            end = "\n".join(self.log().splitlines()[-150:])
            raise RuntimeError(f"{self._command[0]} ended with status {status}:\n{end}")
