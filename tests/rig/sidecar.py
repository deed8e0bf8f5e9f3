"""The program under test: `kvcache-exporter serve` beside one engine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from .page import Page
from .server import Server, free_port
from .waiting import wait_for

_START_S = 30.0
_POLL_INTERVAL_S = 0.2
# Polls stretch with the time the engine takes to render its page, but never beyond 15 s.
_FRESH_S = 45.0


class Sidecar(Server):
    """The exporter watching one target, for the length of a `with` block."""

    def __init__(self, target: str, log_path: Path, flags: Sequence[str] = ()) -> None:
        """Prepare the command: the console script of the environment the tests run in."""
        port = free_port()
        command = [
            str(Path(sys.executable).with_name("kvcache-exporter")), "serve",
            "--target", target,
            "--listen-address", f"127.0.0.1:{port}",
            "--poll-interval", str(_POLL_INTERVAL_S),
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

        Two new polls are waited for: the first to be reported may have begun before.
        """
        for _ in range(2):
            self._wait_for_poll(after=self._last_success())
        return self.scrape()

    def _wait_for_poll(self, after: float) -> None:
        # The timestamp may be worked out from an age and then differ a little from scrape to scrape.
        wait_for(lambda: self._last_success() > after + _POLL_INTERVAL_S / 2, _FRESH_S, "a new poll")

    def _last_success(self) -> float:
        self.raise_if_dead()
        return self.scrape().value("kvcache_exporter_last_success_timestamp_seconds")
