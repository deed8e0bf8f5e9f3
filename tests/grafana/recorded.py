"""The real exporter beside the recorded engines: every scrape as Prometheus would have stored it."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, TextIO

import httpx

from exporter import web
from exporter.collect import Families, add_process, add_target
from exporter.collect_records import add_receivers
from exporter.fleet import Watch
from exporter.kvmath.weights import model_weights
from exporter.requests.record import RejectedRecord
from exporter.requests.sglang_log import record_of
from exporter.settings import ServeSettings, TargetSettings
from tests.contract.test_request_recordings import NOW, vllm_export

from .tapes import END_S, VLLM_RUN, Pod, finished, pods, run_of

# When the recorded vLLM began.
START: Final = 1_795_987_680
STEP_S: Final = 60
# Tiers that the recorded requests fall into; what is longer counts as long.
TIERS: Final = (128, 512, 1024)
PRICE: Final = 4.0
GPU: Final = "H100 SXM"


class Clock:
    """The tape's time, and within a step the real one, so that a fetch takes as long as it takes."""

    def __init__(self) -> None:
        self._at, self._mark = 0.0, time.perf_counter()

    def show(self, at: float) -> None:
        self._at, self._mark = at, time.perf_counter()

    def __call__(self) -> float:
        return self._at + time.perf_counter() - self._mark


def checkpoint(folder: Path) -> Path:
    """The tiny Llama's config.json beside a file of the size its weights have (bf16)."""
    folder.mkdir(exist_ok=True)
    shutil.copy(VLLM_RUN / "config.json", folder / "config.json")
    weights = model_weights(json.loads((folder / "config.json").read_text()))
    parameters = weights.total  # type: ignore[union-attr]  # a Llama's are counted
    tensor = {"dtype": "BF16", "shape": [parameters], "data_offsets": [0, 2 * parameters]}
    header = json.dumps({"all": tensor}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2 * parameters)
    return folder


class Scraped:
    """One pod: its exporter, polling the tape."""

    def __init__(self, pod: Pod, clock: Clock) -> None:
        self.pod, self._clock, self._at = pod, clock, 0.0
        routes = ["shared", "long", "short", "decode"] if pod.log_lines else []
        # Nobody is asked there; at an address of this machine an engine of somebody else may listen.
        target = TargetSettings(
            url="http://192.0.2.1", name=pod.target, model_config_path=pod.config, **pod.settings
        )
        recorded = {"gpu_bandwidth": GPU, "price_per_hour": PRICE} if pod.spans or pod.log_lines else {}
        settings = ServeSettings(
            target=[target],
            hub=False,
            context=list(TIERS),
            route=routes,
            # Polls would stretch with the fetch time, which here is this machine's.
            fetch_share=1.0,
            **recorded,  # type: ignore[arg-type]
        )
        self.watch = Watch(settings, clock)
        self._app = web.app(self.watch, now=lambda: NOW)
        self._client = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))
        self._told, self._run = 0, 0

    def _answer(self, request: httpx.Request) -> httpx.Response:
        page = self.pod.page(self._at)
        if page is None:
            raise httpx.ConnectError("[Errno 111] Connection refused", request=request)
        if request.url.path == "/metrics":
            return httpx.Response(200, stream=httpx.ByteStream(page.encode()))
        body = self.pod.endpoints.get(request.url.path)
        if body is None:
            return httpx.Response(404, stream=httpx.ByteStream(b""))
        return httpx.Response(200, stream=httpx.ByteStream(json.dumps(body).encode()))

    async def poll(self, at: float) -> None:
        """Read the engine as it is at ``at``, and its finished requests up to then."""
        self._at = at
        (watcher,) = self.watch.watchers
        await watcher.poll(self._client)
        if watcher.state.last_success_timestamp is not None and watcher.state.last_attempt_failed is None:
            watcher.state.last_success_timestamp = START + at
        page = self.pod.page(at)
        if page is not None and (self.pod.spans or self.pod.log_lines):
            await self._report(finished(page), run_of(at))

    async def _report(self, many: int, run: int) -> None:
        if run != self._run:
            self._told, self._run = 0, run
        if many <= self._told:
            return
        # Requests of one run are others than those of the one before.
        if self.pod.spans:
            spans = [
                {**span, "span_id": f"{run:02x}{span['span_id'][2:]}"}
                for span in self.pod.spans[self._told : many]
            ]
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as sender:
                headers = {"Content-Type": "application/x-protobuf"}
                answer = await sender.post("/v1/traces", content=vllm_export(spans), headers=headers)
                answer.raise_for_status()
        sink = self.watch.states[0].records
        for line in self.pod.log_lines[self._told : many]:
            record = record_of(line, NOW, route=True)
            assert sink is not None
            assert not isinstance(record, RejectedRecord), record
            sink.accept(replace(record, request_id=f"{run}-{record.request_id}"))
        self._told = many

    def series(self) -> Iterator[tuple[str, Mapping[str, str], float]]:
        """(name, labels, value) of a scrape now."""
        yield "up", {}, 1.0
        receivers = self.watch.intake, self.watch.forwarder
        out = Families()
        add_process(out, lambda out: add_receivers(*receivers, out))
        for state in self.watch.states:
            add_target(state, out, self._clock())
        for family in out.ordered():
            for sample in family.samples:
                yield sample.name, sample.labels, sample.value


def line(name: str, labels: Mapping[str, str], value: float, at: float) -> str:
    """A sample as OpenMetrics has it."""
    told = ",".join(f'{key}="{escaped(text)}"' for key, text in sorted(labels.items()) if text)
    return f"{name}{{{told}}} {value!r} {at:.3f}\n"


def escaped(text: str) -> str:
    """A label's value in quotes."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


async def _record(file: TextIO, scraped: Iterable[Scraped], clock: Clock) -> None:
    several = list(scraped)
    for at in range(0, END_S + 1, STEP_S):
        for one in several:
            clock.show(at)
            await one.poll(at)
            for name, labels, value in one.series():
                file.write(line(name, {**labels, **one.pod.labels}, value, START + at))
    file.write("# EOF\n")


def record(path: Path, folder: Path) -> None:
    """Write every scrape of every pod to ``path`` (OpenMetrics)."""
    clock = Clock()
    several = [Scraped(pod, clock) for pod in pods(checkpoint(folder))]
    with path.open("w", encoding="utf-8") as file:
        asyncio.run(_record(file, several, clock))
