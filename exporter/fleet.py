"""All engines that one process watches, and how they follow a change of the settings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from exporter.requests.forward import Forwarder
from exporter.requests.intake import Intake
from exporter.requests.sglang_log import RequestLog
from exporter.requests.sink import RecordSink, Seen
from exporter.settings import ServeSettings
from exporter.target import TargetState
from exporter.watch import TargetWatch


class Watch:
    """All targets of one process, each in tasks of its own."""

    def __init__(self, settings: ServeSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.settings = settings
        self.watchers: list[TargetWatch] = []
        self._seen = Seen()
        self._sinks: dict[str, RecordSink] = {}
        self._group: asyncio.TaskGroup | None = None
        self._tasks: dict[TargetWatch, asyncio.Task[None]] = {}
        self.intake = Intake(self._sinks, settings.traces_from)
        self.forwarder = Forwarder(settings.forward_traces) if settings.forward_traces else None
        self.apply(settings)

    @property
    def states(self) -> Sequence[TargetState]:
        return [watcher.state for watcher in self.watchers]

    def apply(self, settings: ServeSettings) -> None:
        """Go over to these settings.  A target for which they say what they said before goes on with
        all it has counted; any other begins anew."""
        before = {watcher.state.name: watcher for watcher in self.watchers}
        self.watchers = []
        for n in range(len(settings.target)):
            fresh = TargetWatch(settings, n, self.clock)
            old = before.get(fresh.state.name)
            if old is not None and old.goes_on_as(fresh):
                del before[fresh.state.name]
                old.settings = settings
                self.watchers.append(old)
            else:
                self._equip(fresh)
                self.watchers.append(fresh)
        for gone in before.values():
            if self._sinks.get(gone.state.name) is gone.state.records:
                del self._sinks[gone.state.name]
            if (task := self._tasks.pop(gone, None)) is not None:
                task.cancel()
        self.settings = settings
        self.intake.peers = settings.traces_from
        for watcher in self.watchers:
            self._start(watcher)

    def _equip(self, watcher: TargetWatch) -> None:
        """Give a new target what it needs to count finished requests."""
        settings = watcher.settings
        watcher.state.price_per_hour = settings.price_per_hour
        self._sinks[watcher.state.name] = sink = RecordSink(
            watcher.state.name,
            settings.context,
            routes=settings.route,
            route=watcher.target.route,
            seen=self._seen,
            clock=self.clock,
        )
        watcher.state.records = sink
        watcher.probe = watcher.probe_by(sink)

    async def run(self) -> None:
        """Poll until cancelled."""
        try:
            async with asyncio.TaskGroup() as self._group:
                if self.forwarder is not None:
                    self._group.create_task(self.forwarder.run(), name="forward traces")
                for watcher in self.watchers:
                    self._start(watcher)
                await asyncio.Event().wait()  # without any target, too: there may be some after a reload
        finally:
            self._group = None

    def _start(self, watcher: TargetWatch) -> None:
        if self._group is not None and watcher not in self._tasks:
            self._tasks[watcher] = self._group.create_task(
                self._run(watcher), name=f"target {watcher.state.name}"
            )

    async def _run(self, watcher: TargetWatch) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(watcher.run(), name=f"watch {watcher.state.name}")
            if (follower := self._request_log(watcher)) is not None:
                group.create_task(follower.run(), name=f"request log {watcher.state.name}")
            if watcher.probe is not None:
                group.create_task(watcher.run_probe(watcher.probe), name=f"probe {watcher.state.name}")

    def _request_log(self, watcher: TargetWatch) -> RequestLog | None:
        directory, sink = watcher.target.request_log, watcher.state.records
        if directory is None or sink is None:
            return None
        return RequestLog(
            directory,
            sink,
            route=bool(watcher.settings.route),
            state_directory=self.settings.state_directory,
        )
