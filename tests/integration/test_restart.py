"""An engine that comes back with another model: the old model's bytes must never pass for the new one's."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter import lookup, watch

from . import hostile as h
from .engines import LLAMA, LLAMA_BYTES_PER_TOKEN, QWEN3, models, page, renamed, vllm
from .page import Page
from .running import InProcess
from .waiting import wait_for

# K and V x 2 KV heads x 64 x 4 layers x 2 bytes (bf16), from QWEN3's config.json.
QWEN3_BYTES_PER_TOKEN = 2048.0
RIGHT = {"llama": LLAMA_BYTES_PER_TOKEN, "other": QWEN3_BYTES_PER_TOKEN}
OTHER = renamed(page(folder=QWEN3), "other")
# Without the memory budget, which would give a changed model away.
UNBUDGETED = re.sub(r'kv_cache_memory_bytes="\d+"', 'kv_cache_memory_bytes="None"', page("idle.prom"))


@pytest.fixture
def server() -> Iterator[h.HostileServer]:
    with h.HostileServer({"engine": vllm()}) as running:
        yield running


@pytest.fixture
def exporter(server: h.HostileServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcess]:
    monkeypatch.setattr(lookup, "INFO_TIMEOUT_S", 0.5)
    with InProcess({"engine": server.url("engine")}) as running:
        running.wait(
            lambda p: p.values("kvcache_bytes_per_token") == [LLAMA_BYTES_PER_TOKEN], "the first model"
        )
        yield running


def _never_wrong(seen: Page) -> None:
    """Bytes per token are right for the name beside them, or absent."""
    for sample in seen.all("kvcache_bytes_per_token"):
        assert sample.value == RIGHT[sample.labels["model_name"]], sample


def _new_model(exporter: InProcess) -> Page:
    """Wait for the other model's series; every scrape on the way there must be right, too."""

    def look(seen: Page) -> bool:
        _never_wrong(seen)
        return bool(seen.all("kvcache_usage_ratio", model_name="other"))

    return exporter.wait(look, "the second model's page")


def test_another_model_is_read_anew(exporter: InProcess, server: h.HostileServer) -> None:
    """The usual restart: new page, new endpoints, another directory."""
    server.engines["engine"] = vllm(OTHER, QWEN3)
    seen = _new_model(exporter)
    assert seen.values("kvcache_bytes_per_token", model_name="other") == [QWEN3_BYTES_PER_TOKEN]
    assert seen.all("kvcache_usage_ratio", model_name="llama") == []


def test_silent_endpoint_costs_nothing_while_the_process_lives(
    server: h.HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Surroundings are looked at again now and then; what was told once holds while the process lives."""
    monkeypatch.setattr(lookup, "INFO_TIMEOUT_S", 0.5)
    monkeypatch.setattr(watch, "REFRESH_S", 0.1)
    monkeypatch.setattr(watch, "RETRY_INFO_S", 0.1)
    with InProcess({"engine": server.url("engine")}) as exporter:
        exporter.wait(lambda p: p.values("kvcache_bytes_per_token") == [LLAMA_BYTES_PER_TOKEN], "the model")
        for said in (h.nothing, h.body("", "500 Internal Server Error")):
            server.engines["engine"] = vllm(v1_models=said)
            server.asked.clear()
            wait_for(lambda: server.asked["engine/v1/models"] > 1, "the endpoint asked twice")
            seen = exporter.wait_for_polls("engine", 1)
            assert seen.values("kvcache_bytes_per_token") == [LLAMA_BYTES_PER_TOKEN]


@pytest.mark.parametrize(
    "said", [h.nothing, h.body("garbage"), h.body("", "500 Internal Server Error"), models("/nowhere")]
)
def test_another_model_nobody_describes_has_no_bytes(
    exporter: InProcess, server: h.HostileServer, said: h.Answer
) -> None:
    """The page names another model and the endpoint says nothing of use: the bytes must go at once."""
    server.engines["engine"] = vllm(OTHER, v1_models=said)
    seen = _new_model(exporter)
    assert seen.all("kvcache_bytes_per_token") == []
    assert seen.why_missing("engine")["kvcache_bytes_per_token"] == "model_config"


def test_another_model_under_the_same_path(server: h.HostileServer, tmp_path: Path) -> None:
    """A mounted ``current`` directory keeps its name when the model in it is exchanged."""
    shutil.copy(LLAMA / "config.json", tmp_path)
    server.engines["engine"] = vllm(v1_models=models(str(tmp_path)))
    with InProcess({"engine": server.url("engine")}) as exporter:
        exporter.wait(
            lambda p: p.values("kvcache_bytes_per_token") == [LLAMA_BYTES_PER_TOKEN], "the first model"
        )
        shutil.copy(QWEN3 / "config.json", tmp_path)
        server.engines["engine"] = vllm(OTHER, v1_models=models(str(tmp_path)))
        seen = _new_model(exporter)
        assert seen.values("kvcache_bytes_per_token") == [QWEN3_BYTES_PER_TOKEN]


def test_another_model_after_a_failed_poll(server: h.HostileServer, tmp_path: Path) -> None:
    """The served name, the path and every counter are the same: only the failed poll tells of a restart."""
    shutil.copy(LLAMA / "config.json", tmp_path)
    engine = vllm(UNBUDGETED, v1_models=models(str(tmp_path)))
    server.engines["engine"] = engine
    with InProcess({"engine": server.url("engine")}) as exporter:
        exporter.wait(
            lambda p: p.values("kvcache_bytes_per_token") == [LLAMA_BYTES_PER_TOKEN], "the first model"
        )
        server.engines["engine"] = h.hang_up
        exporter.wait(
            lambda p: p.values("kvcache_exporter_errors_total", reason="truncated") != [0.0], "down"
        )
        shutil.copy(QWEN3 / "config.json", tmp_path)
        server.engines["engine"] = engine
        # The figures of the first process stay until then: it was there a moment ago.
        seen = exporter.wait(
            lambda p: p.values("kvcache_bytes_per_token") != [LLAMA_BYTES_PER_TOKEN], "the second model"
        )
        assert seen.values("kvcache_bytes_per_token") == [QWEN3_BYTES_PER_TOKEN]
