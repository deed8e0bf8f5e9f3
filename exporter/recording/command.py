"""``record`` and ``replay`` (and ``demo``) as the terminal sees them."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from exporter import web
from exporter.fleet import Watch
from exporter.log import log
from exporter.recording.format import SETTINGS, Recording
from exporter.recording.reader import read
from exporter.recording.recorder import Limits, NothingRecordedError, Summary, capture
from exporter.recording.replay import Replayed, replayed
from exporter.settings import RecordSettings, ReplaySettings, ServeSettings

# Where the terminal can't overwrite a line, a new one this often (seconds).
PROGRESS_S = 10.0


def record(settings: RecordSettings) -> int:
    """Record until the time is over, Ctrl-C or SIGTERM; 1 where nothing was recorded."""
    limits = Limits(settings.duration, settings.interval, settings.timeout, settings.max_bytes)
    progress = _Progress()

    async def run() -> Summary:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        return await capture(
            settings.target[0].with_common(settings),
            settings.out,
            limits,
            force=settings.force,
            redact_names=settings.redact_names,
            hub=settings.hub,
            stop=stop,
            progress=progress,
        )

    try:
        summary = asyncio.run(run())
    except FileExistsError:
        raise ValueError(f"{settings.out} exists; --force replaces it") from None
    except (NothingRecordedError, OSError) as error:
        progress.end()
        print(f"kvcache-exporter record: {error}", file=sys.stderr)
        return 1
    progress.end()
    print(as_text(summary))
    return 0


class _Progress:
    """One line that says how far it is, on stderr."""

    def __init__(self) -> None:
        self._said_at = time.monotonic()
        self._open = False

    def __call__(self, now: Summary) -> None:
        usage = "" if now.usage_ratio is None else f", KV usage {now.usage_ratio:.0%}"
        failed = f", {now.failures.total()} failed" if now.failures else ""
        line = f"{now.seconds:.0f} s, {now.pages} pages{failed}, {now.size_bytes:,} bytes{usage}"
        if sys.stderr.isatty():
            print(f"\r{line:78}", end="", file=sys.stderr, flush=True)
            self._open = True
        elif time.monotonic() - self._said_at >= PROGRESS_S:
            self._said_at = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._open:
            print(file=sys.stderr)


def as_text(summary: Summary) -> str:
    """What was recorded, what was left out, and what still stands in the file."""
    failures = ", ".join(f"{reason} {many}" for reason, many in summary.failures.items())
    left_out = ", ".join(f"{many:,} {what}" for what, many in sorted(summary.redacted.items()) if many)
    return "\n".join(
        [
            f"Recorded {summary.software} {summary.engine_version or '(release unknown)'}: {summary.pages} "
            f"pages over {summary.seconds:.0f} s, {summary.size_bytes:,} bytes, in {summary.path}",
            f"Ended: {summary.ended}" + (f"; polls without a page: {failures}" if failures else ""),
            f"config.json: {summary.config}",
            f"Left out or replaced: {left_out or 'nothing had to be'}",
            "Still in it: metric and label names, figures, names of models, adapters and routes (unless "
            "--redact-names), releases, sizes and dtypes, the config's numbers, the time of the first page",
            f"Look at it: zcat {summary.path} | less",
        ]
    )


@dataclass(frozen=True, slots=True)
class Play:
    """How recordings are played."""

    listen_address: str
    poll_interval: float
    context: Sequence[int]
    speed: float = 1.0
    once: bool = False


def replay(settings: ReplaySettings) -> int:
    """Play one recording until Ctrl-C, or once; 1 where the address is taken.  Raises RecordingError."""
    recording = read(settings.recording)
    if recording.cut:
        print(f"{settings.recording}: ends within a line; played up to there", file=sys.stderr)
    own = settings.model_dump(include={*SETTINGS, "model_config_path"}, exclude_unset=True)

    def greeting(engines: Sequence[Replayed]) -> str:
        header = recording.header
        return (
            f"{header.software} {header.engine_version or ''} as recorded {header.recorded_at}, "
            f"{len(recording.frames)} pages over {recording.frames[-1].at_seconds:.0f} s.\n"
            f"  the engine    {engines[0].url}/metrics\n"
            f"  the exporter  http://{settings.listen_address}/explain, /metrics\n"
            + ("It ends with the recording." if settings.once else "Ctrl-C ends it.")
        )

    how = Play(
        settings.listen_address, settings.poll_interval, settings.context, settings.speed, settings.once
    )
    return play({"recording": recording}, how, greeting, own)


def play(
    recordings: Mapping[str, Recording],
    how: Play,
    greeting: Callable[[Sequence[Replayed]], str],
    own: Mapping[str, object] | None = None,
) -> int:
    """The recorded engines and the exporter beside them, until it is told to stop."""

    async def run() -> None:
        started = time.monotonic()
        async with replayed(recordings, lambda: (time.monotonic() - started) * how.speed) as engines:
            targets = [
                recordings[engine.name].header.target(
                    engine.url, engine.name, **{"model_config_path": engine.config_path, **(own or {})}
                )
                for engine in engines
            ]
            serving = ServeSettings(
                target=targets,
                listen_address=how.listen_address,
                poll_interval=how.poll_interval,
                context=list(how.context),
                hub=False,
            )
            longest = max(recording.loop_seconds for recording in recordings.values())
            limit = longest / how.speed if how.once else None
            with suppress(TimeoutError):
                async with asyncio.timeout(limit):
                    await web.serve(Watch(serving), how.listen_address, greeting=greeting(engines))

    try:
        with suppress(asyncio.CancelledError):
            asyncio.run(run())
    except OSError as error:
        log.error("cannot serve", listen=how.listen_address, detail=str(error))
        return 1
    return 0
