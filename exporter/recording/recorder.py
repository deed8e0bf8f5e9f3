"""Recording an engine while it runs: its pages, what its info endpoints say, its model's config."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx

from exporter import __version__
from exporter.access import engine_client
from exporter.background import in_thread
from exporter.facts import Facts, Source
from exporter.fetch import Answer, Failure, FetchError, check_end, get
from exporter.kvmath.known import Unavailable, known
from exporter.lookup import Learned, learn
from exporter.recording.format import DEFAULT_CONTENT_TYPE, SETTINGS, Header
from exporter.recording.redaction import Redactor
from exporter.recording.writer import Writer
from exporter.settings import TargetSettings
from exporter.sources.model_config import FoundConfig, find_model_config
from exporter.sources.weights import weights_bytes
from exporter.target import Reading, TargetState

MAX_PAGE_BYTES = 8 * 2**20
# An engine that has just begun to serve may not answer everything at once.
ASK_AGAIN = 3


class NothingRecordedError(Exception):
    """The engine gave no page in time; ``str()`` says why.  No file was written."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How long and how often: seconds; and bytes of the file."""

    seconds: float = 300.0
    interval_seconds: float = 2.0
    timeout_seconds: float = 5.0
    max_bytes: int = 64 * 2**20


@dataclass(slots=True)
class Summary:
    """What was recorded.  ``redacted``: what was left out or replaced, by kind."""

    path: Path
    software: str = ""
    engine_version: str | None = None
    config: str = ""  # where config.json is from, or why there is none
    pages: int = 0
    failures: Counter[Failure] = field(default_factory=Counter)
    seconds: float = 0.0
    size_bytes: int = 0
    usage_ratio: float | None = None
    ended: str = ""
    redacted: Mapping[str, int] = field(default_factory=dict)


def record(
    target: str | TargetSettings, path: Path, *, seconds: float, interval: float = 2.0, force: bool = False
) -> Summary:
    """Record ``target`` (a URL or settings) for ``seconds`` into ``path``.

    Raises :class:`NothingRecordedError`, FileExistsError without ``force``, other OSErrors.
    """
    settings = TargetSettings(url=target) if isinstance(target, str) else target
    return asyncio.run(capture(settings, path, Limits(seconds, interval), force=force))


async def capture(
    target: TargetSettings,
    path: Path,
    limits: Limits,
    *,
    force: bool = False,
    redact_names: bool = False,
    hub: bool = True,
    stop: asyncio.Event | None = None,
    progress: Callable[[Summary], None] = lambda _: None,
) -> Summary:
    """Record until ``stop`` is set or a limit is reached; raises like :func:`record`.

    The file begins with the first page, for which is waited as long as the
    recording may take.  It ends early where another engine answers: what stands
    in the file's first line would not be true of it.  ``progress`` is called
    after every poll.
    """
    _check(path, force)
    recorder = _Recorder(target, path, limits, Redactor(names=redact_names), force=force, hub=hub)
    async with engine_client(target) as client:
        with recorder.files:
            return await recorder.run(client, stop or asyncio.Event(), progress)


def _check(path: Path, force: bool) -> None:
    """What can be known before a run is lost."""
    if path.exists() and not force:
        raise FileExistsError(f"{path} exists")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent}: no such directory")


class _Recorder:
    def __init__(
        self,
        target: TargetSettings,
        path: Path,
        limits: Limits,
        redactor: Redactor,
        *,
        force: bool,
        hub: bool,
    ) -> None:
        self.target, self.limits, self.redactor = target, limits, redactor
        self.force, self.hub = force, hub
        self.files = ExitStack()
        self.summary = Summary(path)
        # Tells engines apart and how full they are; nothing of it goes into the file.
        self.state = TargetState(target, (), limits.interval_seconds)
        self._writer: Writer | None = None
        self._began = 0.0
        self._asked = 0
        self._last_error = "no answer yet"

    async def run(
        self, client: httpx.AsyncClient, stop: asyncio.Event, progress: Callable[[Summary], None]
    ) -> Summary:
        self._began = due = time.monotonic()
        while not self.summary.ended:
            await self._poll(client)
            progress(self.summary)
            now = time.monotonic()
            # Polls that the engine was too slow for are left out, not made up for.
            due = max(due + self.limits.interval_seconds, now)
            left = self._began + self.limits.seconds - due
            if not self.summary.ended and left < 0:
                self.summary.ended = "the time is over"
            if not self.summary.ended:
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), due - now)
                if stop.is_set():
                    self.summary.ended = "stopped"
        if self._writer is None:
            raise NothingRecordedError(f"{self.target.label}: {self._last_error}")
        return self.summary

    async def _poll(self, client: httpx.AsyncClient) -> None:
        at = time.monotonic()
        try:
            answer = await get(
                client,
                f"{self.target.base_url}/metrics",
                timeout=self.limits.timeout_seconds,
                max_bytes=MAX_PAGE_BYTES,
            )
            reading = self.state.read(answer.text)
            check_end(answer.text)
        except FetchError as error:
            self._last_error = str(error)
            self._failed(at, error.reason)
            return
        if self.state.last_attempt_failed is not None or self.state.is_new(reading):
            await self._look(client, answer, reading, at)
            if self._writer is None or self.summary.ended:
                return
        self.state.accept(reading, at)
        self._page(at, answer.text)

    def _failed(self, at: float, reason: Failure) -> None:
        self.state.fail(reason)
        self.summary.usage_ratio = None
        if self._writer is None:
            return
        self.summary.failures[reason] += 1
        self._added(at, self._writer.failure(at - self._began, reason))

    def _page(self, at: float, text: str) -> None:
        assert self._writer is not None  # noqa: S101
        usage = [r.sample.usage_ratio for r in self.state.readouts if known(r.sample.usage_ratio)]
        self.summary.usage_ratio = max((value for value in usage if known(value)), default=None)
        if self._added(at, self._writer.page(at - self._began, self.redactor.page(text))):
            self.summary.pages += 1
            self.summary.redacted = self.redactor.counts

    def _added(self, at: float, added: bool) -> bool:
        assert self._writer is not None  # noqa: S101
        if added:
            self.summary.seconds = at - self._began
            self.summary.size_bytes = self._writer.size_bytes
        else:
            self.summary.ended = "the file is as large as it may be"
        return added

    # -- what stands beside the page ------------------------------------------

    async def _look(self, client: httpx.AsyncClient, answer: Answer, reading: Reading, at: float) -> None:
        """Ask the info endpoints, of a new process again; open the file when they have answered."""
        learned = await learn(client, self.target, reading.page.software)
        self._asked += 1
        if self._writer is not None:
            if not _same(self.state.facts, learned):
                self.summary.ended = "another engine answers, or the same one with other settings"
            return
        if not learned.complete and self._asked < ASK_AGAIN:
            self._last_error = "its info endpoints do not answer"
            return
        self.state.learn(learned.engine, learned.command_line)
        found = await in_thread(lambda: self._find_config(learned))
        header = self._header(answer, reading, learned, found)
        self._began = at
        self._writer = self.files.enter_context(
            Writer(self.summary.path, header, max_bytes=self.limits.max_bytes, force=self.force)
        )

    def _find_config(self, learned: Learned) -> FoundConfig | Unavailable:
        said = learned.command_line
        return find_model_config(
            self.target.model_config_path,
            learned.engine.model or (said.model if said else None),
            allow_hub=self.hub,
            base_directory=learned.working_directory,
            cache_dir=learned.hub_cache,
        )

    def _header(
        self, answer: Answer, reading: Reading, learned: Learned, found: FoundConfig | Unavailable
    ) -> Header:
        software, redactor = reading.page.software, self.redactor
        weights = weights_bytes(found.directory) if known(found) else found
        self.summary.software = software
        self.summary.engine_version = learned.engine.version
        self.summary.config = found.source if known(found) else f"none ({found.detail})"
        set_by_hand = self.target.model_dump(mode="json", exclude_none=True, exclude_unset=True)
        return Header(
            exporter=__version__,
            software="sglang" if software == "sglang" else "vllm",
            engine_version=_short(learned.engine.version or "") or None,
            recorded_at=datetime.now(UTC).isoformat(timespec="seconds"),
            interval_seconds=self.limits.interval_seconds,
            content_type=_short(answer.content_type) or DEFAULT_CONTENT_TYPE,
            endpoints={
                path.partition("?")[0]: redactor.document(document)
                for path, document in learned.documents.items()
                if not isinstance(document, Unavailable)
            },
            config=redactor.config(found.config) if known(found) else None,
            config_source=found.source if known(found) else "none",
            weights_bytes=weights if known(weights) and isinstance(weights, int) else None,
            command_line=redactor.command_line(learned.command_line) if learned.command_line else None,
            settings={name: value for name, value in set_by_hand.items() if name in SETTINGS},
            names_redacted=redactor.names.replace,
        )


def _short(text: str) -> str:
    """``text`` where a header can hold it, else ""."""
    return text if text.isascii() and text.isprintable() and len(text) <= 100 else ""


def _same(before: Mapping[Source, Facts], now: Learned) -> bool:
    """Whether nothing that was said at the beginning is said otherwise now."""
    engine = before[Source.ENGINE]
    if engine.filled_from(now.engine) != now.engine.filled_from(engine):
        return False
    started = before.get(Source.COMMAND_LINE)
    return started is None or now.command_line is None or started == now.command_line
