"""The program under test: `kvcache-exporter serve` beside one engine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .page import Page
from .server import Server, free_port
from .waiting import wait_for

_START_S = 30.0
_POLL_INTERVAL_S = 0.2
# With the usual share every look at a slow page would take seconds.
_FETCH_SHARE = 0.1
# Polls stretch with the time the engine takes to render its page, but never beyond 15 s.
_FRESH_S = 45.0


def checked(target: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of `kvcache-exporter check`."""
    command = [_program(), "check", target, "--output", "json"]
    environment = {name: text for name, text in os.environ.items() if not name.startswith("KVCACHE_")}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return ended.returncode, json.loads(ended.stdout)


def _program() -> str:
    """The console script of this environment, else the one on PATH; raises LookupError without either."""
    beside = Path(sys.executable).with_name("kvcache-exporter")
    found = str(beside) if beside.exists() else shutil.which("kvcache-exporter")
    if found is None:
        raise LookupError("kvcache-exporter is not installed")
    return found


@contextmanager
def recorded(target: str, out: Path) -> Iterator[None]:
    """`kvcache-exporter record` beside an engine, while the block runs; raises where it failed."""
    out.parent.mkdir(parents=True, exist_ok=True)
    command = [_program(), "record", "--target", target, "--out", str(out), "--force", "--interval", "0.5"]
    environment = {name: text for name, text in os.environ.items() if not name.startswith("KVCACHE_")}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        # Its file is there once it has heard from the engine; before that a signal would find no recording.
        wait_for(lambda: process.poll() is not None or out.exists(), _START_S, "the recorder at work")
        yield
    finally:
        process.terminate()
        _, said = process.communicate(timeout=_START_S)
    if process.returncode:
        raise RuntimeError(f"record ended with {process.returncode}: {said.decode(errors='replace')[-500:]}")


class Sidecar(Server):
    """The exporter watching one target, for the length of a `with` block."""

    def __init__(self, target: str, log_path: Path, flags: Sequence[str] = ()) -> None:
        """Prepare the command: the console script of the environment the tests run in."""
        port = free_port()
        command = [
            _program(), "serve",
            "--target", target,
            "--listen-address", f"127.0.0.1:{port}",
            "--poll-interval", str(_POLL_INTERVAL_S),
            "--fetch-share", str(_FETCH_SHARE),
            *flags,
        ]  # fmt: skip
        # Settings may come from the environment: only those of the command line are wanted here.
        environment = {name: text for name, text in os.environ.items() if not name.startswith("KVCACHE_")}
        super().__init__(command, environment, log_path, port)

    def wait_listening(self) -> None:
        """Return when it answers, engine or no engine."""
        wait_for(lambda: self.answers("/-/healthy"), _START_S, "the sidecar listening")

    def wait_up(self) -> None:
        """Return when it has read its engine's page."""

        def up() -> bool:
            self.raise_if_dead()
            return self.scrape().value("kvcache_engine_up") == 1

        wait_for(up, _FRESH_S, "kvcache_engine_up 1")

    def scrape_fresh(self) -> Page:
        """Its /metrics, made of a poll that began after this call.

        Polls are counted when they begin and leave their time when they have succeeded. So once another has
        begun, any one that was under way at the call is over, and the next success is of a poll begun since.
        """
        begun = self._polls(self._watched())
        page = wait_for(
            lambda: self._page_where(lambda now: self._polls(now) > begun), _FRESH_S, "a new poll"
        )
        last = self._last_success(page)
        # The timestamp may be worked out from an age and then differ a little from scrape to scrape.
        margin = _POLL_INTERVAL_S / 2
        return wait_for(
            lambda: self._page_where(lambda now: self._last_success(now) > last + margin),
            _FRESH_S,
            "a new poll's figures",
        )

    def _page_where(self, holds: Callable[[Page], bool]) -> Page | None:
        page = self._watched()
        return page if holds(page) else None

    def _watched(self) -> Page:
        self.raise_if_dead()
        return self.scrape()

    @staticmethod
    def _polls(page: Page) -> float:
        return page.value("kvcache_exporter_fetches_total")

    @staticmethod
    def _last_success(page: Page) -> float:
        return page.value("kvcache_exporter_last_success_timestamp_seconds")
