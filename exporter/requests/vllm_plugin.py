"""A vLLM stat logger that tells the exporter of every finished request.  Standard library only.

This module runs inside the engine's process, so it imports nothing but the
standard library (vLLM itself only once vLLM asks for the class), never waits
for the network there and never lets an error out.

Installing it into an engine's image::

    pip install --no-deps kvcache-exporter
    export KVCACHE_EXPORTER_PLUGIN_URL=http://127.0.0.1:9844/v1/records

``--no-deps`` is enough: none of the exporter's dependencies is needed.  The
package has an entry point ``kvcache_exporter`` in ``vllm.stat_logger_plugins``,
a group that ``vllm serve`` loads by itself in its API process (0.32.0
``v1/engine/async_llm.py``; releases without the group ignore it).  Where
``VLLM_PLUGINS`` is set, it must name ``kvcache_exporter``.  The offline ``LLM``
class does not load the group.

What an installed package does to an engine that was not meant to have it:
without ``KVCACHE_EXPORTER_PLUGIN_URL`` the logger records nothing and opens
no connection.  One thing remains: a stat logger in the group makes vLLM collect
statistics even under ``--disable-log-stats``; keep it out with ``VLLM_PLUGINS``.

What is sent: one JSON line per finished request with its token counts, times,
preemptions and cached tokens; no prompt, no output, no parameters.  A queue of
:data:`QUEUE_RECORDS` waits for the exporter; beyond it records are dropped,
counted, and the count is sent along.
"""

from __future__ import annotations

import atexit
import http.client
import json
import logging
import os
import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

URL_VARIABLE = "KVCACHE_EXPORTER_PLUGIN_URL"
CONTENT_TYPE = "application/x-ndjson"
WIRE_VERSION = 1
# At 2,000 finished requests a second ten seconds without the exporter; about 10 MB.
QUEUE_RECORDS = 20_000
BATCH_RECORDS = 500
BATCH_SECONDS = 0.25
TIMEOUT_SECONDS = 5.0
RETRY_SECONDS = (0.5, 30.0)
LAST_WORD_SECONDS = 2.0

# Our record's field <- vLLM's FinishedRequestStats (0.32.0 v1/metrics/stats.py); older releases lack some.
_FIELDS = {
    "prompt_tokens": "num_prompt_tokens",
    "output_tokens": "num_generation_tokens",
    "queue_seconds": "queued_time",
    "prefill_seconds": "prefill_time",
    "decode_seconds": "decode_time",
    "e2e_seconds": "e2e_latency",
    "preemptions": "num_preemptions",
    "cached_tokens": "num_cached_tokens",
}
_NEEDED = ("num_prompt_tokens", "num_generation_tokens")

log = logging.getLogger("vllm.kvcache_exporter")


class Sender:
    """Sends records from a thread of its own; everything else only puts them into a queue."""

    def __init__(self, url: str) -> None:
        """``url``: http(s)://HOST[:PORT]/PATH.  Raises ValueError for anything else."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise ValueError(f"{URL_VARIABLE} is no http URL of an exporter")
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._path = parts.path or "/v1/records"
        self._queue: queue.Queue[dict[str, Any]] = queue.Queue(QUEUE_RECORDS)
        self._lock = threading.Lock()
        self._dropped = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._silent = False

    def put(self, record: dict[str, Any]) -> None:
        """Hand a record over; never waits, drops it where the queue is full."""
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            with self._lock:
                self._dropped += 1
        if self._thread is None:
            # Not before: a thread would not survive the fork that makes an engine process.
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="kvcache-exporter", daemon=True)
                    self._thread.start()
                    atexit.register(self.close)

    def close(self) -> None:
        """Send what is left, for a short while."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(LAST_WORD_SECONDS)

    def _run(self) -> None:
        wait = RETRY_SECONDS[0]
        for batch in self._batches():
            with self._lock:
                dropped, self._dropped = self._dropped, 0
            body = _encode(batch, dropped)
            while (refused := self._post(body)) is not None:
                self._complain(refused)
                if self._stop.wait(wait):
                    return
                wait = min(2 * wait, RETRY_SECONDS[1])
            wait = RETRY_SECONDS[0]

    def _batches(self) -> Iterator[list[dict[str, Any]]]:
        """Records as they come, some at a time; ends after :meth:`close` once the queue is empty."""
        while True:
            try:
                batch = [self._queue.get(timeout=BATCH_SECONDS)]
            except queue.Empty:
                if self._stop.is_set():
                    return
                continue
            until = time.monotonic() + BATCH_SECONDS
            while len(batch) < BATCH_RECORDS and not self._stop.is_set():
                try:
                    batch.append(self._queue.get(timeout=max(0.001, until - time.monotonic())))
                except queue.Empty:
                    break
            yield batch

    def _post(self, body: bytes) -> str | None:
        """What went wrong, or None; what the exporter will never accept counts as delivered."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request("POST", self._path, body, {"Content-Type": CONTENT_TYPE})
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            connection.close()
        if status in (408, 429) or status >= 500:
            return f"HTTP {status}"
        if status >= 400:
            self._complain(f"HTTP {status}, records lost")
        else:
            self._silent = False
        return None

    def _complain(self, why: str) -> None:
        # Once per outage: the engine's log belongs to the engine.
        if not self._silent:
            self._silent = True
            log.warning("request records not delivered to the exporter: %s", why)


def _encode(batch: list[dict[str, Any]], dropped: int) -> bytes:
    lines = [json.dumps({"v": WIRE_VERSION, **record}) for record in batch]
    if dropped:
        lines.append(json.dumps({"v": WIRE_VERSION, "dropped": dropped}))
    return "\n".join(lines).encode() + b"\n"


class Recorder:
    """vLLM's statistics of one step in, records out; gives up for good at the first surprise."""

    def __init__(self, put: Callable[[dict[str, Any]], None] | None) -> None:
        """``put``: where records go; None records nothing."""
        self._put = put
        self._process = uuid.uuid4().hex[:12]
        self._number = 0

    def step(self, iteration_stats: Any) -> None:
        """Pass on the requests that finished in this step; never raises."""
        if self._put is None or iteration_stats is None:
            return
        try:
            for finished in iteration_stats.finished_requests:
                self._put(self._record(finished, iteration_stats))
        except Exception as error:
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Record nothing from now on and say so once."""
        self._put = None
        log.warning(
            "this vLLM's statistics are not the ones known here, no request records: %s: %s",
            type(error).__name__,
            error,
        )

    def _record(self, finished: Any, iteration_stats: Any) -> dict[str, Any]:
        self._number += 1
        for name in _NEEDED:
            getattr(finished, name)  # without these there is no record: AttributeError
        values = {ours: getattr(finished, theirs, None) for ours, theirs in _FIELDS.items()}
        if values["cached_tokens"] is not None and values["cached_tokens"] < 0:
            values["cached_tokens"] = None  # 0.32.0 clamps it too before it uses it (v1/metrics/loggers.py)
        e2e, decode = values["e2e_seconds"], values["decode_seconds"]
        # The frontend's time to first token is not kept per request; what is not decode comes before the
        # first token, give or take the way of one message from the engine's core.
        ttft = e2e - decode if e2e is not None and decode is not None else None
        return {
            # n completions of one request share its id (external_req_id in 0.32.0's
            # v1/engine/output_processor.py): it takes a key to tell a record sent twice from two records.
            "key": f"{self._process}/{self._number}",
            "request_id": getattr(finished, "request_id", None) or "",
            "finished_at_seconds": getattr(iteration_stats, "iteration_timestamp", None) or time.time(),
            "ttft_seconds": ttft,
            **values,
        }


_sender: Sender | None = None


def _shared_sender() -> Sender | None:
    """One sender per process: an engine makes a logger per rank, and new ones when it scales."""
    global _sender  # noqa: PLW0603
    url = os.environ.get(URL_VARIABLE, "").strip()
    if _sender is None and url:
        _sender = Sender(url)
    return _sender


def _recorder() -> Recorder:
    recorder = Recorder(None)
    try:
        sender = _shared_sender()
        if sender is None:
            log.info("%s is not set: no request records are sent", URL_VARIABLE)
        else:
            recorder = Recorder(sender.put)
    except Exception as error:
        log.warning("no request records are sent: %s", error)
    return recorder


def stat_logger_class(base: type[Any]) -> type[Any]:
    """A stat logger below vLLM's ``base``; abstract methods not known here do nothing.

    vLLM ends with a TypeError where a plugin is no subclass of its base, and
    where one can't be instantiated (0.32.0 ``v1/metrics/loggers.py``).
    """

    def __init__(self: Any, *_args: Any, **_more: Any) -> None:
        self.kvcache_recorder = _recorder()

    def record(
        self: Any, _scheduler_stats: Any = None, iteration_stats: Any = None, *_args: Any, **_more: Any
    ) -> None:
        # Both by position so far; should a release name them, its own names arrive in _more.
        self.kvcache_recorder.step(_more.get("iteration_stats", iteration_stats))

    def nothing(_self: Any, *_args: Any, **_more: Any) -> None:
        return None

    unknown = dict.fromkeys(getattr(base, "__abstractmethods__", ()), nothing)
    known = {"__init__": __init__, "record": record, "log_engine_initialized": nothing, "__doc__": __doc__}
    return type("RequestRecordLogger", (base,), {**unknown, **known, "__module__": __name__})


def __getattr__(name: str) -> Any:
    """``RequestRecordLogger``, made when vLLM asks for it.

    ImportError where this is no vLLM with that base class: vLLM catches what
    an entry point raises, logs it and goes on.
    """
    if name != "RequestRecordLogger":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from vllm.v1.metrics.loggers import StatLoggerBase  # type: ignore[import-not-found]  # noqa: PLC0415

    made = globals()[name] = stat_logger_class(StatLoggerBase)
    return made
