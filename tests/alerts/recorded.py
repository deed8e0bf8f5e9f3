"""A recorded engine on a port of its own, and what its recording says about usage."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn

from exporter.demo import load
from exporter.recording import Recording, engine_app

RECORDING: Final = load("vllm")
LAST_S: Final = RECORDING.frames[-1].at_seconds


def recorded_usage() -> list[tuple[float, float]]:
    """(seconds, usage) of each frame, read from the engine's own line."""
    name = "vllm:kv_cache_usage_perc{"
    return [
        (frame.at_seconds, float(line.rsplit(" ", 1)[1]))
        for frame in RECORDING.frames
        for line in frame.page_text.splitlines()
        if line.startswith(name)
    ]


class Tape:
    """Where the recording stands; the engine's gauges and counters are those of that frame.

    It stands still until it is moved by hand or played.
    """

    def __init__(self) -> None:
        self._at_seconds = 0.0
        self._played_since: float | None = None
        self._slower, self._until = 1.0, LAST_S

    def __call__(self) -> float:
        """Seconds since the recording's beginning."""
        if self._played_since is None:
            return self._at_seconds
        played = (time.monotonic() - self._played_since) / self._slower
        return min(self._at_seconds + played, self._until)

    def show(self, usage: float) -> None:
        """Go on to the next frame whose usage is that."""
        self._at_seconds = next(t for t, u in recorded_usage() if t > self._at_seconds and u == usage)

    def end(self) -> None:
        """Go on to the last frame, where everything has drained."""
        self._at_seconds = LAST_S

    def wind(self, to: float) -> None:
        """Stand at that second."""
        self._at_seconds = to

    def play(self, slower: float, until: float) -> float:
        """Run on up to a second, so many times slower than it was recorded.  The time of day it began."""
        self._slower, self._until = slower, until
        now = time.time()
        self._played_since = time.monotonic()
        return now


@contextmanager
def recorded_engine(tape: Tape, recording: Recording = RECORDING) -> Iterator[str]:
    """Its URL."""
    app = engine_app(recording, tape)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", ws="none", log_config=None, access_log=False))
    listening = socket.create_server(("127.0.0.1", 0), backlog=64)
    thread = threading.Thread(target=lambda: server.run(sockets=[listening]), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
