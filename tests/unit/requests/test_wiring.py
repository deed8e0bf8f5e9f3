"""Settings, targets and /metrics around the receivers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from pydantic import ValidationError

from exporter import web
from exporter.catalogue import CATALOGUE
from exporter.fleet import Watch
from exporter.requests.forward import Forwarder
from exporter.settings import ServeSettings, TargetSettings, load

from .exports import NOW, RECORDINGS, binary, span


def watch_of(*names: str, route: str = "", **more: Any) -> Watch:
    targets = [
        TargetSettings(url=f"http://127.0.0.1:{8000 + n}", name=name, route=route)
        for n, name in enumerate(names)
    ]
    return Watch(ServeSettings(target=targets, context=[4096], **more))


def talk(watch: Watch, *requests: tuple[str, bytes]) -> list[Sample]:
    """Post the bodies, then scrape."""

    async def run() -> str:
        transport = httpx.ASGITransport(web.app(watch, now=lambda: NOW))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            for path, body in requests:
                await client.post(path, content=body, headers={"Content-Type": "application/x-protobuf"})
            return (await client.get("/metrics")).text

    page = asyncio.run(run())
    return [s for family in text_string_to_metric_families(page) for s in family.samples]


def values(samples: list[Sample], name: str, **labels: str) -> list[float]:
    return [
        s.value for s in samples if s.name == name and all(s.labels.get(k) == v for k, v in labels.items())
    ]


def test_records_belong_to_their_target_and_carry_no_engine() -> None:
    """They outlive the engine, and its ranks are not told apart in a span."""
    samples = talk(
        watch_of("a", "b"), ("/v1/traces/a", binary([span(1)])), ("/v1/traces/b", binary([span(2), span(3)]))
    )
    assert values(samples, "kvcache_context_requests_total", target="a", context="4096") == [1]
    assert values(samples, "kvcache_context_requests_total", target="b", context="4096") == [2]
    assert not [s for s in samples if s.name.startswith("kvcache_itl_seconds") and "engine" in s.labels]


def test_records_carry_the_model_once_it_is_known_and_outlive_the_engine() -> None:
    """A recorded page tells the model; when the engine is gone its requests are still there."""
    watch = watch_of("t")
    state = watch.states[0]
    page = (RECORDINGS / "vllm-0.32.0-llama-preemptions/loaded.prom").read_text()
    state.accept(state.read(page), at=watch.clock())
    model = state.readouts[0].sample.model_name
    assert model
    samples = talk(watch, ("/v1/traces", binary([span(1)])))
    assert values(samples, "kvcache_itl_seconds_count", model_name=model, context="4096") == [1]

    state.expire(watch.clock() + 1e6)
    assert not state.up
    samples = talk(watch)
    assert values(samples, "kvcache_itl_seconds_count", model_name=model, context="4096") == [1]
    assert values(samples, "kvcache_engine_up", target="t") == [0]


def test_nothing_is_said_before_the_first_record() -> None:
    """Zeros in a target without tracing would read as "no traffic"."""
    samples = talk(watch_of("t"))
    names = {metric.name for metric in CATALOGUE if metric.source == "records"}
    assert not [s for s in samples if s.name.removesuffix("_count") in names]


def test_route_label_only_when_switched_on() -> None:
    """And then the target's own route counts as listed."""
    off = talk(watch_of("t", route="rag"), ("/v1/traces", binary([span(1)])))
    assert not [s for s in off if s.name.startswith("kvcache_context_") and "route" in s.labels]
    watch = Watch(
        ServeSettings(
            target=[TargetSettings(url="http://127.0.0.1:8000", name="t", route="rag")], route=["chat"]
        )
    )
    split = talk(watch, ("/v1/traces", binary([span(1)])))
    assert sum(values(split, "kvcache_context_requests_total", route="rag")) == 1


def test_held_cost_needs_a_price_and_a_pool() -> None:
    """3.6 dollars an hour are 0.001 a second, for the whole pool; this request holds 41 token-seconds."""
    watch = watch_of("t", price_per_hour=3.6)
    state = watch.states[0]
    page = (RECORDINGS / "vllm-0.32.0-llama-preemptions/loaded.prom").read_text()
    state.accept(state.read(page), at=watch.clock())
    samples = talk(watch, ("/v1/traces", binary([span(1)])))
    capacity = values(samples, "kvcache_capacity_tokens")[0]
    held = 100 * 0.2 + 105 * 0.2
    assert values(samples, "kvcache_held_token_seconds_total", context="4096") == [pytest.approx(held)]
    cost = values(samples, "kvcache_held_cost_dollars_total", context="4096")
    assert cost == [pytest.approx(held * 0.001 / capacity)]
    assert not values(
        talk(watch_of("t"), ("/v1/traces", binary([span(1)]))), "kvcache_held_cost_dollars_total"
    )


def test_bodies_and_refusals_are_counted_on_metrics() -> None:
    """What a sender did wrong shows where people look."""
    samples = talk(watch_of("a", "b"), ("/v1/traces", binary([span(1)])), ("/v1/traces/a", b"\xff"))
    assert values(samples, "kvcache_exporter_record_bodies_total") == [2]
    refused = "kvcache_exporter_record_bodies_refused_total"
    assert values(samples, refused, reason="unknown_target") == [1]
    assert values(samples, refused, reason="malformed") == [1]


def test_settings_reach_the_receivers(tmp_path: Path) -> None:
    """Flags as people type them."""
    settings = load(
        ServeSettings,
        [
            "--traces-from", "any", "--forward-traces", "http://collector:4318/v1/traces",
            "--route", "chat", "rag", "--price-per-hour", "2.5", "--request-log", str(tmp_path),
        ],
    )  # fmt: skip

    watch = Watch(settings)
    assert watch.intake.peers == "any"
    assert isinstance(watch.forwarder, Forwarder)
    records = watch.states[0].records
    assert records is not None
    assert records.totals.routes == {"chat", "rag"}
    assert watch.watchers[0].target.request_log == tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["--forward-traces", "collector:4318"],
        ["--forward-traces", "http://user:secret@collector/v1/traces"],
        ["--traces-from", "everywhere"],
        ["--price-per-hour", "0"],
        ["--request-log", "/tmp", "--target", "http://a:1", "--target", "http://b:1"],
    ],
)
def test_settings_that_cannot_be_meant(words: list[str]) -> None:
    """Said at the start, not at the first request."""
    with pytest.raises((ValidationError, SystemExit)):
        load(ServeSettings, words)
