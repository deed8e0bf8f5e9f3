"""The replayed engine over HTTP, driven by a clock the test turns."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from exporter.demo import NAMES, load
from exporter.engines.info import ENDPOINTS
from exporter.recording import engine_app


class Clock:
    """Seconds from an odd origin, moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def get(name: str, *paths: str, at_seconds: float = 0.0) -> list[httpx.Response]:
    """Answers of the engine ``name`` to ``paths``, ``at_seconds`` after it started."""
    clock = Clock()
    app = engine_app(load(name), clock)
    clock.now += at_seconds

    async def fetch() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            return [await client.get(path) for path in paths]

    return asyncio.run(fetch())


def value(page: str, line_start: str) -> float:
    """The value on the only line that starts so."""
    (line,) = [line for line in page.splitlines() if line.startswith(line_start)]
    return float(line.rsplit(" ", 1)[1])


def test_a_new_round_looks_like_a_restart() -> None:
    """Counters must go back to the first page's, as a restarted engine's do.

    The vLLM run ends at 35.177 s with 73 preemptions, and a round lasts
    35.177 x 36 / 35 = 36.182 s.
    """
    preemptions = 'vllm:num_preemptions_total{engine="0",model_name="llama"}'
    seen = [
        value(get("vllm", "/metrics", at_seconds=at)[0].text, preemptions) for at in (0.0, 35.2, 36.1, 36.2)
    ]
    assert seen == [0.0, 73.0, 73.0, 0.0]


@pytest.mark.parametrize(
    ("name", "content_type"),
    [
        ("vllm", "text/plain; version=1.0.0; charset=utf-8"),
        ("sglang", "text/plain; version=0.0.4; charset=utf-8"),
    ],
)
def test_metrics_carry_the_engines_content_type(name: str, content_type: str) -> None:
    """vLLM's odd version=1.0.0 has tripped readers before: the demo keeps it."""
    (answer,) = get(name, "/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == content_type


@pytest.mark.parametrize(
    ("name", "path", "keys", "expected"),
    [
        ("vllm", "/version", ("version",), "0.32.0"),
        ("vllm", "/v1/models", ("data", 0, "max_model_len"), 4096),
        (
            "vllm",
            "/server_info?config_format=json",
            ("vllm_config", "cache_config", "num_gpu_blocks"),
            300,
        ),
        ("sglang", "/v1/models", ("data", 0, "max_model_len"), 8192),
        ("sglang", "/model_info", ("served_model_name",), "tiny-llama"),
        ("sglang", "/server_info", ("max_total_num_tokens",), 3072),
    ],
)
def test_info_endpoints_answer(
    name: str, path: str, keys: tuple[str | int, ...], expected: str | int
) -> None:
    """Figures as the engines logged them; the exporter reads each of these endpoints."""
    (answer,) = get(name, path)
    assert answer.status_code == 200
    body = answer.json()
    for key in keys:
        body = body[key]
    assert body == expected


@pytest.mark.parametrize("name", NAMES)
def test_other_paths_are_not_found(name: str) -> None:
    """An exporter that probes /health would cost a real SGLang a prefill: here it would notice."""
    statuses = [answer.status_code for answer in get(name, "/health", "/", "/v1/models/x", "/metrics/x")]
    assert statuses == [404] * 4


def test_each_engine_answers_only_its_own_dialect() -> None:
    """Telling the engines apart by endpoint must work on the demo too."""
    assert get("vllm", "/model_info")[0].status_code == 404
    assert get("sglang", "/version")[0].status_code == 404


@pytest.mark.parametrize("name", NAMES)
def test_everything_the_exporter_asks_an_engine_is_answered(name: str) -> None:
    """A question left unanswered would make the demo show less than a real engine does."""
    for spellings in ENDPOINTS[name]:
        assert 200 in [answer.status_code for answer in get(name, *spellings)], spellings
