"""2,000 finished requests a second for a minute, as traces, into a sidecar that has one core.

A process of its own sends recorded vLLM spans with new ids, in the batches of an
engine's exporter (500 spans), while /metrics is scraped once a second.  Told
are: how many counted (none may be lost), CPU per record and at which share of
the core, resident memory at the start, after a quarter of the time and at the
end, and how long the scrapes took.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import httpx
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from prometheus_client.parser import text_string_to_metric_families

from tests.bench._common import RECORDINGS, quick, show, tell

RATE = 2000
BATCH = 500
SECONDS = 60
PLACE_OF_ID = b"span--id"


def templates() -> list[bytes]:
    """The recorded spans, encoded, with a placeholder for the id."""
    made = []
    path = RECORDINGS / "vllm-0.32.0-llama-preemptions/otlp-request-spans.jsonl"
    for told in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        span = Span(name=told["name"], span_id=PLACE_OF_ID, trace_id=bytes.fromhex(told["trace_id"]))
        span.end_time_unix_nano = round(time.time() * 1e9)
        for key, value in told["attributes"].items():
            kind = {int: "int_value", float: "double_value", str: "string_value"}[type(value)]
            setattr(span.attributes.add(key=key).value, kind, value)
        made.append(span.SerializeToString())
    return made


def field(number: int, content: bytes) -> bytes:
    """A length-delimited field on the wire."""
    length = len(content)
    prefix = bytearray([number << 3 | 2])
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + content


def batch(spans: list[bytes], first: int) -> bytes:
    """An export of ``BATCH`` spans, numbered from ``first``."""
    body = b"".join(
        field(2, spans[n % len(spans)].replace(PLACE_OF_ID, n.to_bytes(8, "big")))
        for n in range(first, first + BATCH)
    )
    return field(1, field(2, body))


@contextmanager
def sidecar(core: int) -> Iterator[tuple[str, int]]:
    """URL and process id of `kvcache-exporter serve` on one core; its engine is not there."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable, "-c", "from exporter.cli import main; raise SystemExit(main())", "serve",
        "--listen-address", f"127.0.0.1:{port}", "--target", "http://127.0.0.1:1", "--log-level", "error",
    ]  # fmt: skip
    with subprocess.Popen(command) as process:
        try:
            with suppress(AttributeError):  # Linux only; elsewhere the figure is one of several cores
                os.sched_setaffinity(process.pid, {core})
            yield f"http://127.0.0.1:{port}", process.pid
        finally:
            process.terminate()


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


async def listening(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(30):
        while True:
            with suppress(httpx.TransportError):
                await client.get("/-/healthy")
                return
            await asyncio.sleep(0.05)


async def run(url: str, pid: int, seconds: int) -> dict[str, float]:
    spans = templates()
    scrapes: list[float] = []
    late: list[float] = []
    memory: list[float] = []
    async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:
        await listening(client)

        async def scrape() -> str:
            started = time.perf_counter()
            page = await client.get("/metrics")
            scrapes.append(time.perf_counter() - started)
            return page.raise_for_status().text

        async def scraping() -> None:
            while True:
                await scrape()
                memory.append(resident_mib(pid))
                await asyncio.sleep(1)

        async def send(first: int) -> None:
            answer = await client.post(
                "/v1/traces",
                content=batch(spans, first),
                headers={"Content-Type": "application/x-protobuf"},
            )
            if answer.status_code != 200 or answer.content:
                raise RuntimeError(f"{answer.status_code}: {answer.content!r}")

        await send(0)  # loads what only receivers of traces need
        before = resident_mib(pid)
        cpu = cpu_seconds(pid)
        scraper = asyncio.create_task(scraping())
        started = time.perf_counter()
        batches = RATE * seconds // BATCH
        for n in range(1, batches + 1):
            due = started + n * BATCH / RATE
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await send(n * BATCH)
            late.append(max(0.0, time.perf_counter() - due))
        wall = time.perf_counter() - started
        cpu = cpu_seconds(pid) - cpu
        scraper.cancel()
        page = await scrape()
    counted = sum(
        s.value
        for family in text_string_to_metric_families(page)
        for s in family.samples
        if s.name == "kvcache_context_requests_total"
    )
    sent = (batches + 1) * BATCH
    if counted != sent:
        raise RuntimeError(f"{sent} sent, {counted:.0f} counted")
    return {
        "sent": sent,
        "counted": counted,
        "seconds": wall,
        "cpu_us_per_record": cpu / (batches * BATCH) * 1e6,
        "core_share": cpu / wall,
        "scrapes": len(scrapes),
        "scrape_median_ms": median(scrapes) * 1e3,
        "scrape_worst_ms": max(scrapes) * 1e3,
        "batch_median_ms": median(late) * 1e3,
        "batch_worst_ms": max(late) * 1e3,
        "rss_start_mib": before,
        "rss_quarter_mib": memory[len(memory) // 4],
        "rss_end_mib": memory[-1],
    }


def main() -> None:
    seconds = SECONDS // 10 if quick(__doc__) else SECONDS
    with sidecar(core=0) as (url, pid):
        figures = asyncio.run(run(url, pid, seconds))
    show([["requests as traces", "figure"], *figures.items()])
    tell("records", figures)


if __name__ == "__main__":
    main()
