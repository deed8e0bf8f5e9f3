"""A real vLLM sends its traces to the sidecar: request for request what its client asked for."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from .engine import Engine
from .load import load, prompts
from .page import Page
from .sidecar import Sidecar
from .test_vllm_plugin import PluggedEngine
from .truth import LLAMA
from .waiting import wait_for

pytestmark = [pytest.mark.rig, pytest.mark.timeout(1200)]

# (prompt, output): every final context is another one, and each gets a tier of its own, so that the tiers
# tell the requests apart. One has a single output token: no gap, but a request.
REQUESTS = (
    (20, 1),
    (20, 2),
    (50, 10),
    (60, 33),
    (100, 5),
    (150, 64),
    (300, 20),
    (500, 100),
    (900, 8),
    (1000, 50),
)
TIERS = [prompt + output for prompt, output in REQUESTS]


def by_tier(page: Page, name: str) -> dict[int, float]:
    """Tier -> value, without the open tier."""
    return {int(s.labels["context"]): s.value for s in page.all(name) if s.labels["context"] != "+Inf"}


def engine_of(python: Path, models: Path, logs: Path) -> PluggedEngine:
    return PluggedEngine(
        python,
        models / LLAMA.name,
        logs / "engine.log",
        kv_cache_bytes=LLAMA.kv_cache_bytes,
        flags=LLAMA.flags,
    )


def sidecar_of(engine: Engine, logs: Path, *flags: str) -> Sidecar:
    return Sidecar(engine.url, logs / "sidecar.log", ["--context", *map(str, TIERS), *flags])


async def all_requests(engine: Engine) -> Page:
    """Run every request, all at once; the engine's page afterwards."""
    async with load(engine.url, engine.model_name) as client:
        for prompt, (_, output) in zip(prompts(800, [p for p, _ in REQUESTS]), REQUESTS, strict=True):
            client.start(prompt, output)
        await client.finish()
        return await client.scrape()


def received(sidecar: Sidecar, source: str) -> float:
    """Reports of finished requests so far, whatever became of them."""
    sidecar.raise_if_dead()
    return sum(
        s.value for s in sidecar.scrape().all("kvcache_exporter_records_received_total", source=source)
    )


def test_traces_are_the_clients_requests(
    engine_python: Path, model_directories: Path, tmp_path: Path
) -> None:
    """Counts, lengths and times, from the engine's exporter through the receiver to /metrics."""
    engine = engine_of(engine_python, model_directories, tmp_path)
    sidecar = sidecar_of(engine, tmp_path)
    engine.tracing_to(sidecar.url)
    with sidecar:
        sidecar.wait_listening()
        with engine:
            engine.wait_ready()
            theirs = asyncio.run(all_requests(engine))
            wait_for(lambda: received(sidecar, "trace") >= len(REQUESTS), 60, "the spans of all requests")
        # The engine is gone; it flushed what it had left, and its requests are still there.
        page = sidecar.scrape()

    assert by_tier(page, "kvcache_context_requests_total") == dict.fromkeys(TIERS, 1)
    assert page.total("kvcache_context_requests_total") == len(REQUESTS)
    assert by_tier(page, "kvcache_context_prompt_tokens_total") == {p + o: p for p, o in REQUESTS}
    assert by_tier(page, "kvcache_itl_seconds_count") == {p + o: int(o > 1) for p, o in REQUESTS}
    assert by_tier(page, "kvcache_ttft_seconds_count") == dict.fromkeys(TIERS, 1)
    assert {s.labels["model_name"] for s in page.all("kvcache_itl_seconds_count")} == {engine.model_name}

    # One request a tier: its mean gap times its gaps is its decode time, and those are the engine's own sum.
    gap_seconds = by_tier(page, "kvcache_itl_seconds_sum")
    decode_seconds = sum(gap_seconds[p + o] * (o - 1) for p, o in REQUESTS)
    assert decode_seconds == pytest.approx(theirs.total("vllm:request_decode_time_seconds_sum"), abs=1e-6)
    assert page.total("kvcache_ttft_seconds_sum") == pytest.approx(
        theirs.total("vllm:time_to_first_token_seconds_sum"), abs=1e-6
    )

    assert page.value("kvcache_exporter_records_received_total", source="trace") == len(REQUESTS)
    assert page.total("kvcache_exporter_records_dropped_total") == 0
    assert page.total("kvcache_exporter_record_bodies_refused_total") == 0


def test_two_sources_of_one_engine_are_not_added_up(
    engine_python: Path, model_directories: Path, tmp_path: Path
) -> None:
    """Traces and the plugin at once, straight to the sidecar: the plugin is first, then traces take over."""
    engine = engine_of(engine_python, model_directories, tmp_path)
    sidecar = sidecar_of(engine, tmp_path)
    engine.tracing_to(sidecar.url)
    engine.with_package(tmp_path / "site", f"{sidecar.url}/v1/records")
    with sidecar:
        sidecar.wait_listening()
        with engine:
            engine.wait_ready()
            for rounds in (1, 2):
                asyncio.run(all_requests(engine))
                for source in ("plugin", "trace"):
                    wait_for(
                        lambda source=source, rounds=rounds: (  # type: ignore[misc]
                            received(sidecar, source) >= rounds * len(REQUESTS)
                        ),
                        60,
                        f"the {source} records of round {rounds}",
                    )
        page = sidecar.scrape()

    assert by_tier(page, "kvcache_context_requests_total") == dict.fromkeys(TIERS, 2)
    for source in ("plugin", "trace"):
        assert page.value("kvcache_exporter_records_received_total", source=source) == 2 * len(REQUESTS)


def test_probes_measure_and_stay_out_of_the_figures(
    engine_python: Path, model_directories: Path, tmp_path: Path
) -> None:
    """The engine reports them like any request; they are told by their id and left out."""
    engine = engine_of(engine_python, model_directories, tmp_path)
    sidecar = sidecar_of(engine, tmp_path, "--probe-interval", "1", "--probe-max-context", "100")
    engine.tracing_to(sidecar.url)

    def dropped() -> float:
        sidecar.raise_if_dead()
        found = sidecar.scrape().all(
            "kvcache_exporter_records_dropped_total", source="trace", reason="own_probe"
        )
        return sum(s.value for s in found)

    with sidecar:
        sidecar.wait_listening()
        with engine:
            engine.wait_ready()
            # Tiers up to 100 tokens with room for a prompt beside 16 of output: 21, 22, 60, 93.
            wait_for(lambda: dropped() >= 4, 60, "spans of four probes")
            page = sidecar.scrape()

    measured = by_tier(page, "kvcache_itl_seconds_count")
    assert {tier for tier, count in measured.items() if count} == {21, 22, 60, 93}
    assert {s.labels["source"] for s in page.all("kvcache_itl_seconds_count")} == {"probe"}
    assert page.all("kvcache_context_requests_total") == []
    assert page.total("kvcache_exporter_probes_failed_total") == 0
