"""SGLang's request log followed: hours, halves, restarts of either side, and a real run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from exporter.requests import sglang_log
from exporter.requests.record import Drop, RejectedRecord, RequestRecord, Source
from exporter.requests.sglang_log import RequestLog
from exporter.requests.sink import RecordSink

from .test_sglang_log_line import NOW, line_of

RUN = Path(__file__).parents[2] / "recordings" / "sglang-0.5.23-llama-retractions" / "request-log.jsonl"
HOUR_1, HOUR_2, HOUR_3 = (f"sglang-request-metrics-20260101_0{n}.log" for n in (1, 2, 3))


class Kept:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.refused: list[Drop] = []

    def accept(self, record: RequestRecord) -> bool:
        self.ids.append(record.request_id)
        return True

    def reject(self, rejected: RejectedRecord, source: Source) -> None:
        assert source is Source.LOG
        self.refused.append(rejected.reason)


class Stand:
    """A log directory, and exporters that start and stop on it."""

    def __init__(self, root: Path) -> None:
        self.directory, self.state = root / "log", root / "state"
        self.directory.mkdir()
        self.sink = Kept()

    def start(self, *, remember: bool = False, now: float = NOW) -> RequestLog:
        state = self.state if remember else None
        return RequestLog(self.directory, self.sink, state_directory=state, clock=lambda: now)

    def append(self, name: str, *ids: str, raw: bytes = b"", modified: float = NOW + 1) -> None:
        path = self.directory / name
        with path.open("ab") as file:
            file.write(b"".join(line_of({}, id=one) + b"\n" for one in ids) + raw)
        os.utime(path, (modified, modified))


@pytest.fixture
def stand(tmp_path: Path) -> Stand:
    return Stand(tmp_path)


def test_the_recorded_run() -> None:
    """The tiers of a real run with retractions, equal to the engine's own decode_throughput.

    Counts and means were taken off the recording by summing 1 / decode_throughput per final context.
    """
    clock = json.loads(RUN.read_text().splitlines()[-1])["request_finished_ts"] + 1
    sink = RecordSink("sglang", (128, 512, 1024))
    for line in RUN.read_bytes().splitlines():
        made = sglang_log.record_of(line, clock)
        assert isinstance(made, RequestRecord)
        assert sink.accept(made)
    cells = {tier: sink.totals.cells[Source.LOG, tier, ""] for tier in ("128", "512", "1024", "+Inf")}
    assert [cell.requests for cell in cells.values()] == [60, 112, 55, 14]
    means_ms = [1000 * cell.itl.sum / cell.itl.count for cell in cells.values()]
    assert means_ms == pytest.approx([17.30, 16.54, 15.55, 25.46], abs=0.005)
    # The engine's page says 15 retractions in this run (num_retracted_requests_total).
    assert sum(json.loads(line)["num_retractions"] for line in RUN.read_bytes().splitlines()) == 15
    assert 0 < sum(cell.preempted_requests or 0 for cell in cells.values()) <= 15


def test_routes_of_the_recorded_run() -> None:
    """The client labelled its requests: 83 shared, 59 short, 57 decode, 41 long and one warm-up without."""
    sink = RecordSink("sglang", (128,), routes=("short", "shared"))
    for line in RUN.read_bytes().splitlines():
        made = sglang_log.record_of(line, 2e9, route=True)
        assert isinstance(made, RequestRecord)
        sink.accept(made)
    by_route: dict[str, int] = {}
    for (_, _, route), cell in sink.totals.cells.items():
        by_route[route] = by_route.get(route, 0) + cell.requests
    assert by_route == {"shared": 83, "short": 59, "other": 57 + 41, "": 1}


def test_starts_at_the_end(stand: Stand) -> None:
    """An exporter that restarts must not count the hour again."""
    stand.append(HOUR_1, "old")
    log = stand.start()
    assert log.poll() == 0
    stand.append(HOUR_1, "new")
    log.poll()
    assert stand.sink.ids == ["new"]


def test_starts_in_the_middle_of_a_line(stand: Stand) -> None:
    """The second half of a line is no line; the next one counts."""
    half = line_of({}, id="half")
    stand.append(HOUR_1, "old", raw=half[:50])
    log = stand.start()
    log.poll()
    stand.append(HOUR_1, raw=half[50:] + b"\n")
    stand.append(HOUR_1, "new")
    log.poll()
    assert (stand.sink.ids, stand.sink.refused) == (["new"], [])


def test_the_next_hour_and_late_lines_of_the_last(stand: Stand) -> None:
    """A second worker may still write into the hour before."""
    log = stand.start()
    log.poll()
    stand.append(HOUR_1, "a")
    log.poll()
    stand.append(HOUR_2, "c")
    stand.append(HOUR_1, "b")
    log.poll()
    stand.append(HOUR_3, "d")
    log.poll()
    assert stand.sink.ids == ["a", "b", "c", "d"]


def test_half_lines_are_waited_for(stand: Stand) -> None:
    """The engine writes through a buffer: a long line arrives in pieces."""
    log = stand.start()
    log.poll()
    line = line_of({"text": "y" * 30_000}, id="long") + b"\n"
    for start in range(0, len(line), 10_000):
        assert stand.sink.ids == []
        stand.append(HOUR_1, raw=line[start : start + 10_000])
        log.poll()
    assert (stand.sink.ids, stand.sink.refused) == (["long"], [])


def test_a_line_cut_off_by_a_crash(stand: Stand) -> None:
    """The restarted engine appends behind the half line: one is lost and counted, not two."""
    log = stand.start()
    log.poll()
    stand.append(HOUR_1, raw=line_of({"text": '{"request_parameters": "'}, id="lost")[:-30])
    log.poll()
    stand.append(HOUR_1, "kept")
    log.poll()
    assert (stand.sink.ids, stand.sink.refused) == (["kept"], [Drop.MALFORMED])


def test_truncation(stand: Stand) -> None:
    """Copy-and-truncate rotation: what comes after it is new."""
    log = stand.start()
    log.poll()
    stand.append(HOUR_1, "a", "b", "c")
    log.poll()
    (stand.directory / HOUR_1).write_bytes(b"")
    stand.append(HOUR_1, "d")
    log.poll()
    assert stand.sink.ids == ["a", "b", "c", "d"]


def test_truncated_and_grown_beyond_the_position(stand: Stand) -> None:
    """Between two polls: the size alone does not tell, but the position is no longer the end of a line."""
    log = stand.start()
    log.poll()
    stand.append(HOUR_1, "a")
    log.poll()
    (stand.directory / HOUR_1).write_bytes(
        line_of({"text": "z" * 100}, id="b") + b"\n" + line_of({}, id="c") + b"\n"
    )
    log.poll()
    assert (stand.sink.ids, stand.sink.refused) == (["a", "b", "c"], [])


def test_replaced_file(stand: Stand) -> None:
    """Another file under the same name starts from its beginning."""
    log = stand.start()
    log.poll()
    stand.append(HOUR_1, "a")
    log.poll()
    stand.append(HOUR_2, "b", "c")
    os.replace(stand.directory / HOUR_2, stand.directory / HOUR_1)
    log.poll()
    assert stand.sink.ids == ["a", "b", "c"]


def test_a_restart_with_a_memory_loses_and_doubles_nothing(stand: Stand) -> None:
    """Requests that finished while the exporter was away count, those before do not count again."""
    stand.append(HOUR_1, "before")
    first = stand.start(remember=True)
    first.poll()
    stand.append(HOUR_1, "a", raw=line_of({}, id="b")[:40])
    first.poll()
    stand.append(HOUR_1, raw=line_of({}, id="b")[40:] + b"\n")
    stand.append(HOUR_2, "c")
    stand.append(HOUR_3, "d")
    # The second exporter starts an hour later: what it finds is old, and still not history.
    second = stand.start(remember=True, now=NOW + 3600)
    second.poll()
    second.poll()
    assert stand.sink.ids == ["a", "b", "c", "d"]


@pytest.mark.parametrize("text", ["", "[]", '{"x": 1}', "null", "\x00"])
def test_an_unusable_memory_is_none(stand: Stand, text: str) -> None:
    """Then reading starts at the end, as without one."""
    stand.append(HOUR_1, "old")
    first = stand.start(remember=True)
    first.poll()
    (state,) = stand.state.iterdir()
    state.write_text(text)
    second = stand.start(remember=True)
    second.poll()
    stand.append(HOUR_1, "new")
    second.poll()
    assert stand.sink.ids == ["new"]


def test_a_directory_that_comes_late(stand: Stand) -> None:
    """A sidecar starts before its engine: the first file is read whole, and the lack is said meanwhile."""
    stand.directory.rmdir()
    log = stand.start()
    assert (log.poll(), log.problem) == (0, "no such directory")
    stand.directory.mkdir()
    stand.append(HOUR_1, "history", modified=NOW - 3600)
    stand.append(HOUR_2, "a")
    log.poll()
    assert (stand.sink.ids, log.problem) == (["a"], None)


def test_other_files_links_and_pipes(stand: Stand) -> None:
    """Only regular files of that name are read; a pipe must not hang the exporter."""
    log = stand.start()
    log.poll()
    stand.append("other.log", "x")
    stand.append(HOUR_2 + ".gz", "x")
    os.mkfifo(stand.directory / HOUR_1)
    (stand.directory / HOUR_2).symlink_to(stand.directory / "other.log")
    stand.append(HOUR_3, "a")
    log.poll()
    assert stand.sink.ids == ["a"]
    assert log.problem is not None


def test_a_line_beyond_the_cap(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted once, not kept in memory, and the lines around it count."""
    monkeypatch.setattr(sglang_log, "MAX_LINE_BYTES", 5000)
    log = stand.start()
    log.poll()
    stand.append(HOUR_1, "a", raw=line_of({"text": "z" * 20_000})[:13_000])
    log.poll()
    assert (stand.sink.ids, stand.sink.refused) == (["a"], [Drop.TOO_LONG])
    stand.append(HOUR_1, raw=b"z" * 9000 + b'"}\n')
    stand.append(HOUR_1, "b")
    log.poll()
    assert (stand.sink.ids, stand.sink.refused) == (["a", "b"], [Drop.TOO_LONG])


def test_helpings(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backlog is read in parts, in order, without a line lost between two of them."""
    monkeypatch.setattr(sglang_log, "HELPING_LINES", 3)
    log = stand.start()
    log.poll()
    stand.append(HOUR_1, *map(str, range(10)))
    stand.append(HOUR_2, *map(str, range(10, 14)))
    assert log.poll() == 14
    assert stand.sink.ids == [str(n) for n in range(14)]
