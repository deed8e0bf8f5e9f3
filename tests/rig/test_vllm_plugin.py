"""The stat logger plugin inside a real vLLM: every request of the client arrives, with its own counts."""

from __future__ import annotations

import asyncio
import queue
import threading
import tomllib
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from exporter import catalogue as c
from exporter.requests.plugin_records import records_from_plugin
from exporter.requests.record import RequestRecord
from exporter.requests.vllm_plugin import URL_VARIABLE

from . import claims
from .checks import Ledger, Subject
from .engine import Engine
from .load import load, prompts
from .page import Page
from .sidecar import Sidecar
from .truth import LLAMA
from .waiting import wait_for

pytestmark = [pytest.mark.rig, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
# The second prompt comes again at the end; 100 tokens are three whole blocks of 32 that then hit.
PROMPT_TOKENS = (7, 100, 300, 64)
OUTPUT_TOKENS = (1, 2, 40, 17)
AGAIN = 1
# As many want 364 blocks of 303 in the end.
OVERLOAD = 28


class Collector:
    """Between plugin and sidecar: passes every body on, and remembers what was in it."""

    def __init__(self) -> None:
        self.records: queue.Queue[RequestRecord] = queue.Queue()
        self.sidecar_url = ""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                batch = records_from_plugin(body, 2e9)
                for _, record in batch.records:
                    outer.records.put(record)
                assert (batch.rejected, batch.dropped_by_sender) == ((), 0)
                answer = httpx.post(
                    f"{outer.sidecar_url}{self.path}",
                    content=body,
                    headers={"Content-Type": self.headers["Content-Type"]},
                    trust_env=False,
                )
                self.send_response(answer.status_code)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/records"
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()

    def take(self, count: int) -> list[RequestRecord]:
        return [self.records.get(timeout=60) for _ in range(count)]

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()


class PluggedEngine(Engine):
    """An engine in whose environment the package lies as ``pip install --no-deps`` would put it."""

    def with_package(self, site: Path, url: str) -> PluggedEngine:
        site.mkdir()
        (site / "exporter").symlink_to(ROOT / "exporter")
        groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
        info = site / "kvcache_exporter-0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kvcache-exporter\nVersion: 0\n")
        lines = [
            f"[{group}]\n{name} = {what}\n" for group, all_ in groups.items() for name, what in all_.items()
        ]
        (info / "entry_points.txt").write_text("\n".join(lines))
        self.on_path(site)
        self._environment[URL_VARIABLE] = url
        return self


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    one = Collector()
    yield one
    one.close()


def test_the_records_are_the_clients_requests(
    engine_python: Path,
    model_directories: Path,
    tmp_path: Path,
    collector: Collector,
    ledger: Ledger,
    gpu: str | None,
) -> None:
    """Request for request: counts are the client's, times add up to the engine's own histograms.

    Under an overload at the end, the requests that the engine says it preempted are those that we count.
    """
    engine = PluggedEngine(
        engine_python,
        model_directories / LLAMA.name,
        tmp_path / "engine.log",
        kv_cache_bytes=LLAMA.kv_cache_bytes,
        flags=LLAMA.flags,
    ).with_package(tmp_path / "site", collector.url)

    async def scenario() -> Page:
        async with load(engine.url, engine.model_name) as client:
            sent = prompts(300, PROMPT_TOKENS)
            for prompt, output in zip(sent, OUTPUT_TOKENS, strict=True):
                client.start(prompt, output)
            await client.finish()
            await client.run(sent[AGAIN], 3)
            return await client.scrape()

    async def overload() -> None:
        async with load(engine.url, engine.model_name) as client:
            await client.start_together(prompts(400, [300] * OVERLOAD), max_tokens=101)
            await client.finish()

    sidecar = Sidecar(engine.url, tmp_path / "sidecar.log", ("--context", "128", "256"))
    collector.sidecar_url = sidecar.url
    with sidecar, engine:
        sidecar.wait_listening()
        engine.wait_ready()
        page = asyncio.run(scenario())
        records = collector.take(len(PROMPT_TOKENS) + 1)

        def all_there() -> bool:
            found = sidecar.scrape().all("kvcache_context_requests_total")
            return sum(s.value for s in found) == len(records)

        wait_for(all_there, 30, "the sidecar's count of the records")
        exported = sidecar.scrape()
        asyncio.run(overload())
        crowded = collector.take(OVERLOAD)
        checks = ledger.of(Subject("vllm", engine.version(), "llama_plugin", gpu))
        checks.check(
            claims.PREEMPTED_REQUESTS,
            expected=sum(1 for record in crowded if record.preemptions),
            got=sidecar.scrape_fresh().maybe(c.PREEMPTED_REQUESTS.name),
            case=f"{OVERLOAD} at once",
        )
        assert any(record.preemptions for record in crowded)
        assert "Available plugins for group vllm.stat_logger_plugins" in engine.log()
        assert "no request records" not in engine.log()
        assert "not delivered" not in engine.log()
    assert collector.records.empty()

    assert Counter((r.prompt_tokens, r.output_tokens) for r in records) == Counter(
        [*zip(PROMPT_TOKENS, OUTPUT_TOKENS, strict=True), (PROMPT_TOKENS[AGAIN], 3)]
    )
    assert all(r.request_id.startswith("cmpl-") for r in records)
    assert len({r.request_id for r in records}) == len(records)
    assert Counter(r.cached_tokens for r in records) == {0: 4, 96: 1}
    assert [r.preemptions for r in records] == [0] * 5
    assert [r.itl_seconds is None for r in sorted(records, key=lambda r: r.output_tokens)] == [
        True,
        *[False] * 4,
    ]

    # 8, 102, 81 and 103 tokens in the end lie below 128, 340 beyond 256.
    tiers = {s.labels["context"]: s.value for s in exported.all("kvcache_context_requests_total")}
    assert tiers == {"128": 4, "256": 0, "+Inf": 1}
    assert {s.labels["source"] for s in exported.all("kvcache_itl_seconds_count")} == {"plugin"}
    assert (
        exported.value("kvcache_itl_seconds_count", context="128") == 3
    )  # one of the four has a single token
    assert exported.total("kvcache_context_cached_tokens_total") == 96
    assert exported.all("kvcache_itl_window_seconds_count") == []

    for ours, theirs in (
        ("decode_seconds", "vllm:request_decode_time_seconds_sum"),
        ("prefill_seconds", "vllm:request_prefill_time_seconds_sum"),
        ("queue_seconds", "vllm:request_queue_time_seconds_sum"),
        ("e2e_seconds", "vllm:e2e_request_latency_seconds_sum"),
    ):
        assert sum(getattr(r, ours) for r in records) == pytest.approx(page.total(theirs), abs=1e-6)
    # The engine does not keep it per request: ours is all that is not decode, queue and prefill included.
    assert all(
        r.ttft_seconds is not None and r.ttft_seconds >= (r.queue_seconds or 0.0) + (r.prefill_seconds or 0.0)
        for r in records
    )
