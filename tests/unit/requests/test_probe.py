"""The active probe: what it asks, what it measures, and that it stays out of the user's figures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from exporter.requests.probe import OUTPUT_TOKENS, Engine, Probe
from exporter.requests.record import Drop, RequestRecord, Source
from exporter.requests.sink import RecordSink

VLLM = Engine("m", sglang=False, max_model_len_tokens=4096)


def chunks(tokens: int = OUTPUT_TOKENS, prompt: int = 48) -> Iterator[bytes]:
    for _ in range(tokens):
        yield b'data: {"choices": [{"text": "x"}], "usage": null}\n\n'
    usage = {"prompt_tokens": prompt, "completion_tokens": tokens}
    yield b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def clock(*times: float) -> Callable[[], float]:
    left = iter(times)
    return lambda: next(left)


# One look per chunk: the first token at 5 s, then every 20 ms; the usage chunk after a second more.
STEADY = [5 + n * 0.02 for n in range(OUTPUT_TOKENS)] + [6.5]


def probe(
    answer: Callable[[httpx.Request], httpx.Response],
    times: int = 1,
    engine: Engine | None = VLLM,
    contexts: tuple[int, ...] = (64,),
    looks: list[float] | None = None,
) -> tuple[RecordSink, list[httpx.Request]]:
    sink = RecordSink("t", [64, 128])
    asked: list[httpx.Request] = []

    def serve(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return answer(request)

    one = Probe(
        "http://engine",
        sink,
        contexts,
        lambda: engine,
        interval_seconds=1,
        clock=clock(*(looks or STEADY * times)),
    )

    async def run() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(serve)) as client:
            for _ in range(times):
                await one.once(client)

    asyncio.run(run())
    return sink, asked


def stream(_: httpx.Request) -> httpx.Response:
    return httpx.Response(200, content=b"".join(chunks()))


def test_the_mean_gap_as_a_client_sees_it() -> None:
    """15 gaps of 20 ms; the wait before the first token and the last chunk are no gaps."""
    sink, asked = probe(stream)
    cell = sink.totals.cells[Source.PROBE, "64", ""]
    assert (cell.requests, cell.itl.count) == (1, 1)
    assert cell.itl.sum == pytest.approx(0.02)
    assert cell.ttft.count == 0, "its prompt is cached: not what users wait for"
    body = json.loads(asked[0].content)
    assert len(body["prompt"]) + body["max_tokens"] == 64, "up to its tier's bound"
    assert body["model"] == "m"
    assert "rid" not in body
    assert asked[0].headers["x-request-id"].startswith(sink.probe_mark)


def test_sglang_is_told_the_id_its_own_way() -> None:
    """It ignores the header and takes `rid`."""
    sink, asked = probe(stream, engine=Engine("m", sglang=True, max_model_len_tokens=None))
    assert json.loads(asked[0].content)["rid"].startswith(sink.probe_mark)


def test_tiers_take_turns() -> None:
    """One request per turn, whatever the number of tiers."""
    _, asked = probe(stream, times=3, contexts=(128, 64))
    assert [len(json.loads(r.content)["prompt"]) + OUTPUT_TOKENS for r in asked] == [64, 128, 64]


@pytest.mark.parametrize(
    ("engine", "contexts"),
    [
        (None, (64,)),
        (Engine("", sglang=False, max_model_len_tokens=None), (64,)),
        (Engine("m", sglang=False, max_model_len_tokens=32), (64,)),
        (VLLM, ()),
        (VLLM, (OUTPUT_TOKENS,)),
    ],
    ids=["down", "no model", "longer than the model", "no tier", "no room for a prompt"],
)
def test_nothing_is_sent_where_nothing_can_come_of_it(
    engine: Engine | None, contexts: tuple[int, ...]
) -> None:
    """No request, no failure."""
    sink, asked = probe(stream, engine=engine, contexts=contexts)
    assert not asked
    assert (sink.probes_sent, sink.probes_failed) == (0, 0)


def refused(_: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused")


@pytest.mark.parametrize(
    "answer",
    [
        refused,
        lambda _: httpx.Response(401),
        lambda _: httpx.Response(200, content=b"data: {oops\n\n"),
        lambda _: httpx.Response(200, content=b"data: [1]\n\n"),
        lambda _: httpx.Response(200, content=b"data: [DONE]\n\n"),
        lambda _: httpx.Response(200, content=b'data: {"choices": [{}]}\n\n'),
        lambda _: httpx.Response(200, content=b"".join(chunks(prompt=10**9))),
    ],
    ids=["down", "401", "half json", "no object", "no token", "no usage", "impossible usage"],
)
def test_failures_are_counted_and_leave_no_figure(answer: Any) -> None:
    """A probe that fails says so; it does not end the exporter."""
    sink, _ = probe(answer)
    assert (sink.probes_sent, sink.probes_failed) == (1, 1)
    assert not sink.totals.cells


def test_the_engines_own_report_of_a_probe_does_not_count() -> None:
    """vLLM's span of it is named cmpl-<our id>-0: no request of a user."""
    sink, _ = probe(stream)
    span = RequestRecord(f"cmpl-{sink.probe_mark}-1-0", 48, 16, 1.0, Source.TRACE, decode_seconds=0.3)
    assert not sink.accept(span, b"span")
    assert sink.dropped[Source.TRACE, Drop.OWN_PROBE] == 1
    assert sink.accept(RequestRecord("cmpl-kvcache-probe-of-somebody", 48, 16, 1.0, Source.TRACE), b"other")
