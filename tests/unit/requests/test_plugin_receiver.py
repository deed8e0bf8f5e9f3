"""Where the vLLM plugin delivers: the same doors as for traces, JSON lines inside."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from exporter.requests.intake import Intake, Refusal
from exporter.requests.plugin_receiver import PluginReceiver
from exporter.requests.record import Drop, Source
from exporter.requests.sink import RecordSink
from exporter.requests.vllm_plugin import CONTENT_TYPE

NOW = 1_800_000_000.0


def line(number: int, **changed: Any) -> bytes:
    told = {
        "v": 1,
        "key": f"k{number}",
        "request_id": f"r{number}",
        "prompt_tokens": 100,
        "output_tokens": 11,
        "finished_at_seconds": NOW - 1,
        "decode_seconds": 0.2,
        "preemptions": 1,
        **changed,
    }
    return json.dumps(told).encode() + b"\n"


def post(
    intake: Intake, body: bytes, path: str = "/v1/records", peer: str = "127.0.0.1", **headers: str
) -> httpx.Response:
    async def send() -> httpx.Response:
        app = Starlette(routes=PluginReceiver(intake, now=lambda: NOW).routes())
        transport = httpx.ASGITransport(app, client=(peer, 4000))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            sent = {"Content-Type": CONTENT_TYPE, **{k.replace("_", "-"): v for k, v in headers.items()}}
            return await client.post(path, content=body, headers=sent)

    return asyncio.run(send())


def test_good_lines_count_and_bad_ones_are_told() -> None:
    """One bad line costs that line; a batch sent twice counts once."""
    sink = RecordSink("t", [128])
    intake = Intake({"t": sink})
    body = line(1) + b"{half\n" + line(2, prompt_tokens=0) + line(3)
    assert post(intake, body).json() == {"counted": 2}
    assert post(intake, gzip.compress(body), content_encoding="gzip").json() == {"counted": 0}
    assert sink.duplicates[Source.PLUGIN] == 2
    assert sink.dropped[Source.PLUGIN, Drop.MALFORMED] == 2
    assert sink.dropped[Source.PLUGIN, Drop.TOKENS_OUT_OF_RANGE] == 2
    assert sum(cell.preempted_requests or 0 for cell in sink.totals.cells.values()) == 2


@pytest.mark.parametrize(
    ("path", "peer", "headers", "status", "reason"),
    [
        ("/v1/records", "127.0.0.1", {"Content-Type": "text/plain"}, 415, Refusal.CONTENT_TYPE),
        ("/v1/records", "127.0.0.1", {"Content-Encoding": "br"}, 415, Refusal.ENCODING),
        ("/v1/records/other", "127.0.0.1", {}, 404, Refusal.TARGET),
        ("/v1/records", "10.0.0.1", {}, 403, Refusal.PEER),
    ],
)
def test_the_doors_are_those_of_traces(
    path: str, peer: str, headers: dict[str, str], status: int, reason: Refusal
) -> None:
    """Peer, target, type and encoding are checked before anything is read."""
    sink = RecordSink("t", [128])
    intake = Intake({"t": sink})
    assert post(intake, line(1), path, peer, **headers).status_code == status
    assert intake.refused == {reason: 1}
    assert not sink.totals.cells
