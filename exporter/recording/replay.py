"""Recorded engines served inside the exporter's own event loop."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from exporter.recording.engine import engine_app
from exporter.recording.format import Recording
from exporter.server import GuestServer, guest, listen
from exporter.sources.model_config import CONFIG_NAME
from exporter.sources.weights import INDEX_NAME


class Replayed(NamedTuple):
    """One replayed engine: its name, its base URL, and its model's ``config.json`` where there is one."""

    name: str
    url: str
    config_path: Path | None


@asynccontextmanager
async def replayed(
    recordings: Mapping[str, Recording], clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[list[Replayed]]:
    """Serve the recorded engines on 127.0.0.1 while the block runs; yields where they are.

    They run as tasks of the current event loop and stop within about a second
    of leaving the block.
    """
    engines: list[Replayed] = []
    running: list[tuple[GuestServer, asyncio.Task[None]]] = []
    with TemporaryDirectory(prefix="kvcache-exporter-") as scratch:
        try:
            for name, recording in recordings.items():
                server = guest(engine_app(recording, clock))
                sock = listen("127.0.0.1", 0)
                url = f"http://127.0.0.1:{sock.getsockname()[1]}"
                task = asyncio.create_task(server.serve(sockets=[sock]), name=f"replay {name}")
                running.append((server, task))
                config_path = write_model(recording, Path(scratch) / str(len(engines)))
                engines.append(Replayed(name, url, config_path))
            yield engines
        finally:
            for server, _ in running:
                server.should_exit = True
            await asyncio.gather(*(task for _, task in running))


def write_model(recording: Recording, directory: Path) -> Path | None:
    """The recorded model's ``config.json`` in the new ``directory``, and the size of its weights.

    None where the recording has no config.
    """
    header = recording.header
    if header.config is None:
        return None
    directory.mkdir(parents=True)
    if header.weights_bytes is not None:
        index = {"metadata": {"total_size": header.weights_bytes}}
        (directory / INDEX_NAME).write_text(json.dumps(index))
    path = directory / CONFIG_NAME
    path.write_text(json.dumps(header.config))
    return path
