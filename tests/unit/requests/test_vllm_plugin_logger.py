"""The vLLM plugin without a vLLM: that it never harms the engine, and what it hands over."""

from __future__ import annotations

import json
import logging
import queue
import socket
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from exporter.requests import vllm_plugin
from exporter.requests.plugin_records import MAX_LINES, PluginBatch, feed, records_from_plugin
from exporter.requests.record import Drop, Source
from exporter.requests.sink import RecordSink
from exporter.requests.vllm_plugin import Recorder, Sender, stat_logger_class

ROOT = Path(vllm_plugin.__file__).parents[2]
NOW = 1_800_000_000.0


class EngineBase(ABC):
    """Stands for vLLM's StatLoggerBase (0.32.0), with one method more that a later release might want."""

    @abstractmethod
    def __init__(self, vllm_config: Any, engine_index: int = 0): ...

    @abstractmethod
    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None: ...

    @abstractmethod
    def log_engine_initialized(self) -> None: ...

    @abstractmethod
    def record_something_new(self, what: int) -> None: ...


def finished(**changes: Any) -> SimpleNamespace:
    """FinishedRequestStats as 0.32.0 fills it."""
    fields = {
        "request_id": "cmpl-1",
        "e2e_latency": 2.0,
        "num_prompt_tokens": 100,
        "num_preemptions": 1,
        "num_generation_tokens": 11,
        "queued_time": 0.25,
        "prefill_time": 0.5,
        "inference_time": 1.5,
        "decode_time": 1.0,
        "num_cached_tokens": 64,
    }
    return SimpleNamespace(**{**fields, **changes})


def step(*requests: SimpleNamespace) -> SimpleNamespace:
    """IterationStats of a step in which these requests finished."""
    return SimpleNamespace(finished_requests=list(requests), iteration_timestamp=NOW - 1)


def decoded(records: list[dict[str, Any]], dropped: int = 0) -> PluginBatch:
    """Through the wire and back."""
    return records_from_plugin(vllm_plugin._encode(records, dropped), NOW)


def recorded(*requests: SimpleNamespace) -> PluginBatch:
    out: list[dict[str, Any]] = []
    Recorder(out.append).step(step(*requests))
    return decoded(out)


def test_only_the_standard_library_is_imported() -> None:
    """It goes into an engine's image without our dependencies: with an empty site-packages it must import."""
    code = (
        "import sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "import exporter.requests.vllm_plugin as plugin\n"
        "assert plugin.Recorder and plugin.Sender\n"
        "ours = {name for name in sys.modules if name.partition('.')[0] == 'exporter'}\n"
        "assert ours == {'exporter', 'exporter.requests', 'exporter.requests.vllm_plugin'}, ours\n"
        "foreign = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names)\n"
        "assert foreign <= {'exporter', '__main__'}, foreign\n"
    )
    # -I -S: no site-packages, no environment, no user directory.
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_without_vllm_the_entry_point_raises() -> None:
    """vLLM catches what loading raises; a class that is no stat logger would end the engine (0.32.0)."""
    with pytest.raises(ImportError):
        _ = vllm_plugin.RequestRecordLogger


def test_a_record_is_what_the_engine_counted() -> None:
    """e2e 2.0 s less decode 1.0 s is the time to the first token; 10 gaps in 1.0 s are 100 ms each."""
    ((key, record),) = recorded(finished()).records
    assert key
    assert (record.request_id, record.source) == ("cmpl-1", Source.PLUGIN)
    assert (record.prompt_tokens, record.output_tokens) == (100, 11)
    assert record.itl_seconds == pytest.approx(0.1)
    assert (record.ttft_seconds, record.queue_seconds, record.prefill_seconds) == (1.0, 0.25, 0.5)
    assert (record.preemptions, record.cached_tokens) == (1, 64)
    assert record.finished_at_seconds == NOW - 1


def test_an_older_release_tells_less() -> None:
    """Releases before 0.32 have no cached tokens, preemptions or id per request: unknown, not 0."""
    old = finished()
    for name in ("request_id", "num_preemptions", "num_cached_tokens"):
        delattr(old, name)
    ((_, record),) = recorded(old).records
    assert (record.request_id, record.preemptions, record.cached_tokens) == ("", None, None)
    assert record.itl_seconds == pytest.approx(0.1)


def test_minus_one_cached_token_is_not_known() -> None:
    """vLLM marks "not told" with a negative number in some paths; the record must not be refused for it."""
    ((_, record),) = recorded(finished(num_cached_tokens=-1)).records
    assert record.cached_tokens is None


def test_completions_of_one_request_are_told_apart() -> None:
    """n=2 gives two finished sequences with one id; a repeated delivery gives the same keys again."""
    batch = recorded(finished(), finished())
    sink = RecordSink("vllm", (128,))
    assert feed(batch, sink) == 2
    assert feed(batch, sink) == 0
    assert sink.duplicates[Source.PLUGIN] == 2


def test_an_unknown_interface_costs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """The engine must not notice: no exception, one line, then silence."""
    out: list[dict[str, Any]] = []
    recorder = Recorder(out.append)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            recorder.step(SimpleNamespace())
            recorder.step(step(SimpleNamespace(num_prompt_tokens=1)))
        recorder.step(step(finished()))
    assert len(caplog.records) == 1
    assert out == []


def test_the_class_is_made_for_any_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM instantiates it and calls it by position or by name; methods not known here do nothing."""
    monkeypatch.delenv(vllm_plugin.URL_VARIABLE, raising=False)
    made = stat_logger_class(EngineBase)
    assert issubclass(made, EngineBase)
    logger = made(SimpleNamespace(), 0)
    logger.log_engine_initialized()
    logger.record_something_new(3)
    out: list[dict[str, Any]] = []
    vars(logger)["kvcache_recorder"] = Recorder(out.append)
    logger.record(None, step(finished()))
    logger.record(None, step(finished()), mm_cache_stats=None, engine_idx=0)
    logger.record(scheduler_stats=None, iteration_stats=step(finished()), engine_idx=0)
    logger.record(None, None, mm_cache_stats=None)
    assert len(out) == 3


@pytest.mark.parametrize(
    "url", ["", "ftp://127.0.0.1/x", "nonsense", "http://user:word@127.0.0.1/", "http://[::1"]
)
def test_without_a_usable_url_nothing_is_recorded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed where nobody meant it to be, or with a typing error: inert."""
    monkeypatch.setenv(vllm_plugin.URL_VARIABLE, url)
    monkeypatch.setattr(vllm_plugin, "_sender", None)
    logger = stat_logger_class(EngineBase)(SimpleNamespace(), 0)
    logger.record(None, step(finished()))
    assert vllm_plugin._sender is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"nonsense\n", Drop.MALFORMED),
        (b"[1]\n", Drop.MALFORMED),
        (b"{}\n", Drop.MALFORMED),
        (b'{"v": 2, "prompt_tokens": 1}\n', Drop.MALFORMED),
        (b"[" * 3000 + b"\n", Drop.MALFORMED),
        (b'{"v": 1, "x": "' + b"y" * 5000 + b'"}\n', Drop.TOO_LONG),
        (b'{"v": 1}\n', Drop.MISSING_FIELD),
        (b'{"v": 1, "prompt_tokens": 1000000000, "output_tokens": 1}\n', Drop.TOKENS_OUT_OF_RANGE),
        (b"\xff\xfe\n", Drop.MALFORMED),
    ],
)
def test_a_bad_line_costs_itself_only(body: bytes, reason: Drop) -> None:
    """What is valid in the same body counts."""
    good: list[dict[str, Any]] = []
    Recorder(good.append).step(step(finished()))
    line = vllm_plugin._encode(good, 0)
    batch = records_from_plugin(line + body + line, NOW)
    assert [one.reason for one in batch.rejected] == [reason]
    assert len(batch.records) == 2


def test_a_body_of_endless_lines_is_capped() -> None:
    """A sender's batch has some hundred lines; more than that is refused line by line."""
    batch = records_from_plugin(b"x\n" * (MAX_LINES + 3), NOW)
    assert sum(one.reason is Drop.TOO_LONG for one in batch.rejected) == 3


class Exporter:
    """A server that answers with the statuses it was given, then with 200."""

    def __init__(self) -> None:
        self.bodies: queue.Queue[bytes] = queue.Queue()
        self.statuses: list[int] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = outer.statuses.pop(0) if outer.statuses else 200
                if status == 200:
                    outer.bodies.put(body)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/records"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def received(self, count: int) -> list[str]:
        """Ids in order of arrival, once there are ``count`` of them."""
        ids: list[str] = []
        while len(ids) < count:
            batch = records_from_plugin(self.bodies.get(timeout=30), 2e9)
            ids.extend(record.request_id for _, record in batch.records)
        return ids


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    server = Exporter()
    yield server
    server.server.shutdown()
    server.thread.join()
    server.server.server_close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_plugin, "RETRY_SECONDS", (0.01, 0.02))
    monkeypatch.setattr(vllm_plugin, "BATCH_SECONDS", 0.01)


def test_records_arrive_in_order_and_once(exporter: Exporter) -> None:
    """More than one batch, from the engine's thread to the exporter's socket."""
    sender = Sender(exporter.url)
    recorder = Recorder(sender.put)
    names = [f"cmpl-{n}" for n in range(1200)]
    for name in names:
        recorder.step(step(finished(request_id=name)))
    assert exporter.received(1200) == names
    sender.close()
    assert exporter.bodies.empty()


def test_an_exporter_that_is_away_gets_them_later(
    exporter: Exporter, caplog: pytest.LogCaptureFixture
) -> None:
    """503 while it starts: tried again, said once."""
    exporter.statuses = [503, 503, 429]
    sender = Sender(exporter.url)
    with caplog.at_level(logging.WARNING):
        Recorder(sender.put).step(step(finished(request_id="late")))
        assert exporter.received(1) == ["late"]
        sender.close()
    assert len(caplog.records) == 1


def test_what_is_refused_for_good_is_not_sent_again(exporter: Exporter) -> None:
    """404 will stay 404; the queue must not stand still for it."""
    exporter.statuses = [404]
    sender = Sender(exporter.url)
    recorder = Recorder(sender.put)
    recorder.step(step(finished(request_id="refused")))
    sender.close()  # returns once the queue is empty: the first is through
    assert exporter.statuses == []
    assert exporter.bodies.empty()


def test_the_engine_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that accepts and never answers: the queue fills, the rest is dropped and counted."""
    monkeypatch.setattr(vllm_plugin, "QUEUE_RECORDS", 10)
    monkeypatch.setattr(vllm_plugin, "LAST_WORD_SECONDS", 0.0)
    monkeypatch.setattr(vllm_plugin, "TIMEOUT_SECONDS", 60.0)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        sender = Sender(f"http://127.0.0.1:{mute.getsockname()[1]}/v1/records")
        recorder = Recorder(sender.put)
        recorder.step(step(finished()))
        peer, _ = mute.accept()
        assert peer.recv(4) == b"POST"  # the first record is under way, its sender waits for an answer
        for _ in range(1000):
            recorder.step(step(finished()))
        assert (sender._queue.qsize(), sender._dropped) == (10, 990)
        sender.close()
        peer.close()


def test_the_dropped_count_is_told() -> None:
    """So that the exporter can say what it never saw."""
    sink = RecordSink("vllm", (128,))
    assert feed(decoded([], dropped=7), sink) == 0
    assert sink.dropped[Source.PLUGIN, Drop.SENDER_QUEUE] == sink.received[Source.PLUGIN] == 7
    assert records_from_plugin(json.dumps({"v": 1, "dropped": -1}).encode(), NOW).dropped_by_sender == 0
