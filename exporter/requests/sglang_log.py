"""SGLang's request log, followed: hourly files, one JSON object per finished request.

``--export-metrics-to-file --export-metrics-to-file-dir DIR`` writes
``sglang-request-metrics-YYYYMMDD_HH.log`` (local time of the engine), appends to
it after a restart and never deletes it (0.5.23
``observability/request_metrics_exporter.py``).

Where reading starts: at the end of what is there when the exporter starts, so
that a restart counts nothing twice; files that appear later are read from their
start.  With a state directory the position is remembered, and requests that
finished while the exporter was away are counted too.  A file that shrinks or is
replaced under its name is read from its start.  A half line waits for its end.
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from typing_extensions import TypeIs

from exporter.background import in_thread
from exporter.log import log
from exporter.requests.log_position import Position, PositionFile
from exporter.requests.record import Drop, RejectedRecord, RequestRecord, Source, make_record
from exporter.requests.sglang_line import Malformed, values

FILE_NAME = re.compile(r"sglang-request-metrics-\d{8}_\d{2}\.log")
# A prompt of a million token ids takes about 8 MB.
MAX_LINE_BYTES = 32 * 2**20
# One helping: longer ones would keep too many records, and /metrics, waiting.
HELPING_LINES = 2000
HELPING_BYTES = 64 * 2**20
# Workers of one engine may still write into the hour before; older files are done with.
OPEN_HOURS = 3
# Raw, this cannot stand inside a string: there every quote has a backslash before it.
_LINE_START = b'{"request_parameters"'
_WANTED = frozenset(
    {
        "id",
        "prompt_tokens",
        "completion_tokens",
        "cached_tokens",
        "num_retractions",
        "queue_time",
        "first_token_latency",
        "e2e_latency",
        "decode_throughput",
        "forward_entry_time",
        "prefill_finished_time",
        "request_received_ts",
        "request_finished_ts",
    }
)

Report = RequestRecord | RejectedRecord


class Sink(Protocol):
    """Where records go."""

    def accept(self, record: RequestRecord) -> bool: ...
    def reject(self, rejected: RejectedRecord, source: Source) -> None: ...


def record_of(line: bytes, now_seconds: float, *, route: bool = False) -> Report:
    """One line without its newline -> a record, or why not; never raises.

    ``route``: also look for ``custom_labels.route`` (the sink allows it or calls
    it "other"); without, the parameters are stepped over in one go.
    """
    if len(line) > MAX_LINE_BYTES:
        return RejectedRecord(Drop.TOO_LONG, "a log line beyond its cap")
    try:
        said = values(line, _WANTED, route=route)
    except Malformed as why:
        return RejectedRecord(Drop.MALFORMED, str(why))
    output, throughput = said.get("completion_tokens"), said.get("decode_throughput")
    decode = None
    if _number(output) and _number(throughput) and throughput > 0:
        # Defined as (output tokens - 1) / decode time, None where that makes no sense (0.5.23).
        decode = max(0.0, output - 1) / throughput
    received, e2e = said.get("request_received_ts"), said.get("e2e_latency")
    finished = said.get("request_finished_ts")
    if finished is None and _number(received) and _number(e2e):
        finished = received + e2e
    begun, prefilled = said.get("forward_entry_time"), said.get("prefill_finished_time")
    return make_record(
        source=Source.LOG,
        now_seconds=now_seconds,
        request_id=said.get("id"),
        prompt_tokens=said.get("prompt_tokens"),
        output_tokens=output,
        finished_at_seconds=finished,
        ttft_seconds=said.get("first_token_latency"),
        prefill_seconds=prefilled - begun if _number(prefilled) and _number(begun) else None,
        decode_seconds=decode,
        queue_seconds=said.get("queue_time"),
        e2e_seconds=e2e,
        cached_tokens=said.get("cached_tokens"),
        preemptions=said.get("num_retractions"),
        route=said.get("route", ""),
    )


def _number(value: object) -> TypeIs[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


class RequestLog:
    """Follows the request log of one engine and hands its records to a sink."""

    def __init__(
        self,
        directory: Path,
        sink: Sink,
        *,
        route: bool = False,
        state_directory: Path | None = None,
        interval_seconds: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``route``: read the route label too; ``clock``: Unix time."""
        self.directory = directory
        self.problem: str | None = None
        """Why nothing can be read just now; None while all is well."""
        self._sink = sink
        self._route = route
        self._interval = interval_seconds
        self._clock = clock
        self._state = PositionFile(state_directory, directory) if state_directory is not None else None
        remembered = self._state.load() if self._state is not None else None
        self._positions: dict[str, Position] = remembered or {}
        self._started = remembered is not None
        # A file first seen later (a volume mounted late) may still be history.
        self._history_until = clock() if remembered is None else 0.0

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            reports, more = await in_thread(self._helping)
            self._hand_over(reports)
            await asyncio.sleep(0 if more else self._interval)

    def poll(self) -> int:
        """Read what is new; how many lines that were."""
        total, more = 0, True
        while more:
            reports, more = self._helping()
            self._hand_over(reports)
            total += len(reports)
        return total

    def _hand_over(self, reports: list[Report]) -> None:
        for report in reports:
            if isinstance(report, RejectedRecord):
                self._sink.reject(report, Source.LOG)
            else:
                self._sink.accept(report)
        if self._state is not None and self._started:
            self._state.save(self._positions)

    # -- files ----------------------------------------------------------------

    def _helping(self) -> tuple[list[Report], bool]:
        """Some reports, and whether there may be more at once."""
        reports: list[Report] = []
        budget = HELPING_BYTES
        problem: str | None = None
        for name in self._names():
            try:
                position = self._position(name)
                before = position.offset
                for line in self._lines(name, position):
                    reports.extend(self._reports(line))
                    if len(reports) >= HELPING_LINES or position.offset - before >= budget:
                        return reports, True
                budget -= max(0, position.offset - before)
            except OSError as error:
                problem = f"{name}: {error.strerror}"
        self._started = True
        for name in sorted(self._positions)[:-OPEN_HOURS]:
            del self._positions[name]
        self._say(problem if self.directory.is_dir() else "no such directory")
        return reports, False

    def _names(self) -> list[str]:
        """The files to look at, oldest first; the names sort by time."""
        try:
            there = sorted(name for name in os.listdir(self.directory) if FILE_NAME.fullmatch(name))
        except OSError:
            return []
        if self._positions:
            oldest = min(self._positions)
            return [name for name in there if name >= oldest]
        return there if self._started else there[-OPEN_HOURS:]

    def _position(self, name: str) -> Position:
        """How far the file is read; for a file not seen before, where its news begin."""
        if name in self._positions:
            return self._positions[name]
        position = Position()
        with _open(self.directory / name) as file:
            found = os.fstat(file.fileno())
            if found.st_size and (not self._started or found.st_mtime < self._history_until):
                file.seek(found.st_size - 1)
                # In the middle of a line: its end is no line.
                position = Position(found.st_ino, found.st_size, skipping=file.read(1) != b"\n")
        self._positions[name] = position
        return position

    def _lines(self, name: str, position: Position) -> Iterator[bytes | None]:
        """Whole new lines, None for one beyond the cap; the position moves along."""
        with suppress(FileNotFoundError), _open(self.directory / name) as file:
            found = os.fstat(file.fileno())
            if found.st_ino != position.inode or found.st_size < position.offset:
                position.inode, position.offset, position.skipping = found.st_ino, 0, False
            if found.st_size == position.offset:
                return
            if position.offset and not position.skipping:
                file.seek(position.offset - 1)
                if file.read(1) != b"\n":  # truncated and grown again since the last look
                    position.offset = 0
            file.seek(position.offset)
            while line := file.readline(MAX_LINE_BYTES + 1):
                whole = line.endswith(b"\n")
                if not whole and len(line) <= MAX_LINE_BYTES and not position.skipping:
                    return  # its end is not written yet
                position.offset += len(line)
                was_skipping, position.skipping = position.skipping, not whole
                if not was_skipping:
                    yield line[:-1] if whole else None

    def _reports(self, line: bytes | None) -> Iterator[Report]:
        now = self._clock()
        if line is None:
            yield RejectedRecord(Drop.TOO_LONG, "a log line beyond its cap")
            return
        if not line.strip():
            return
        report = record_of(line, now, route=self._route)
        yield report
        if isinstance(report, RejectedRecord) and report.reason is Drop.MALFORMED:
            # An engine killed in the middle of a line goes on behind it after its restart.
            again = line.rfind(_LINE_START)
            if again > 0:
                yield record_of(line[again:], now, route=self._route)

    def _say(self, problem: str | None) -> None:
        if problem != self.problem:
            self.problem = problem
            if problem is None:
                log.info("request log read", directory=str(self.directory))
            else:
                log.warning("request log not read", directory=str(self.directory), reason=problem)


def _open(path: Path) -> io.BufferedReader:
    """Open a regular file; no link is followed, no pipe's writer waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return os.fdopen(descriptor, "rb")
