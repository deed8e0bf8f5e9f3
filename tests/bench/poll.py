"""One whole poll of a warm watcher, its parts, and one /metrics of ours.

The engine's page comes from a process of its own over loopback HTTP.  Wall time,
since a poll waits; the whole-page parser beside it says what the machine was
doing meanwhile.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from exporter.collect import registry
from exporter.fetch import client_for, get_text
from exporter.settings import ServeSettings, Target
from exporter.watch import TargetWatch
from tests.bench import _page_server
from tests.bench._common import ENGINES, Engine, Times, in_turns, quick, show, tell

TARGETS = (1, 50)


@contextmanager
def served(engine: Engine) -> Iterator[str]:
    """``engine``'s page server as a process; yields its URL."""
    command = [sys.executable, str(Path(_page_server.__file__)), engine.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.communicate("")  # it ends with its stdin


async def polls(engine: Engine, url: str, rounds: int) -> dict[str, Times]:
    """Times of a poll as the watcher does it, and of its parts done one by one."""
    targets: list[Target] = [engine.settings(url)]
    settings = ServeSettings(target=targets, hub=False)
    watcher = TargetWatch(settings, 0, time.monotonic)
    state = watcher.state
    taken: dict[str, list[float]] = {part: [] for part in ("poll", "fetch", "read", "derive", "full_parser")}

    async with client_for("127.0.0.1") as client:
        await watcher.poll(client)
        await watcher.settled()
        for _ in range(rounds):
            marks = [time.perf_counter()]
            await watcher.poll(client)
            marks.append(time.perf_counter())
            text = await get_text(
                client, f"{url}/metrics", timeout=settings.timeout, max_bytes=settings.max_page_bytes
            )
            marks.append(time.perf_counter())
            reading = state.read(text)
            marks.append(time.perf_counter())
            # A warm watcher asks, finds nothing new, and publishes.
            state.is_new(reading)
            state.accept(reading, watcher.clock())
            marks.append(time.perf_counter())
            list(text_string_to_metric_families(text))
            marks.append(time.perf_counter())
            for part, start, end in zip(taken, marks, marks[1:], strict=False):
                taken[part].append(end - start)
    # A poll that failed would be quick, and its time worth nothing.
    if state.errors or not state.up:
        raise RuntimeError(f"polls failed: {dict(state.errors)}")
    return {part: Times.of(seconds) for part, seconds in taken.items()}


def renders(engine: Engine, rounds: int) -> tuple[dict[int, Times], dict[int, bytes], Times]:
    """Times and bytes of our own page, by number of targets, and the parser beside them."""
    registries = {}
    for many in TARGETS:
        states = [engine.state(f"{engine.name}-{n}") for n in range(many)]
        # The states' own time stands still, or they would go stale while we measure.
        registries[many] = registry(lambda states=states: states, lambda: 0.0)  # type: ignore[misc]
    text = engine.page
    times = in_turns(
        rounds,
        {
            "full_parser": lambda: list(text_string_to_metric_families(text)),
            **{f"{many}": lambda r=r: generate_latest(r) for many, r in registries.items()},  # type: ignore[misc]
        },
    )
    return (
        {many: times[f"{many}"] for many in TARGETS},
        {many: generate_latest(r) for many, r in registries.items()},
        times["full_parser"],
    )


def main() -> None:
    tenth = quick(__doc__)
    rounds = 20 if tenth else 200
    figures: dict[str, object] = {}
    rows: list[list[object]] = [
        ["poll", "whole", "fetch", "read", "derive", "full parser", "poll / full parser"]
    ]
    for engine in ENGINES.values():
        with served(engine) as url:
            times = asyncio.run(polls(engine, url, rounds))
        for kind in ("best_ms", "median_ms"):
            ms = {part: float(getattr(taken, kind)) for part, taken in times.items()}
            label = f"{engine.name} {kind.removesuffix('_ms')}"
            rows.append([label, *ms.values(), ms["poll"] / ms["full_parser"]])
            figures[f"{engine.name}_poll_{kind}"] = ms
    print(f"wall ms of {rounds} polls")
    show(rows)

    engine = ENGINES["vllm"]
    rounds = 4 if tenth else 30
    times_by, pages, parser = renders(engine, rounds)
    rows = [["/metrics", "kB", "series", "render", "a target", "render / full parser"]]
    for many in TARGETS:
        series = sum(not line.startswith(b"#") for line in pages[many].splitlines())
        best = times_by[many].best_ms
        rows.append(
            [f"{many} vllm", len(pages[many]) / 1000, series, best, best / many, best / parser.best_ms]
        )
        figures[f"render_{many}"] = {"ms": best, "bytes": len(pages[many]), "series": series}
    print(f"\ncpu ms, best of {rounds}")
    show(rows)
    tell("poll", figures)


if __name__ == "__main__":
    main()
