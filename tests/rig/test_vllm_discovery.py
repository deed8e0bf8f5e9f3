"""What the sidecar finds out by itself about a real vLLM that was told nothing but its own flags."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from . import vllm_figures
from .checks import Ledger, Subject
from .engine import Engine
from .scenes import trimmed
from .sidecar import Sidecar
from .truth import LLAMA_TP2

pytestmark = [pytest.mark.rig, pytest.mark.timeout(1200)]


def test_config_and_flags_are_found_without_a_setting(
    engine_python: Path, model_directories: Path, tmp_path: Path, ledger: Ledger, gpu: str | None
) -> None:
    """config.json comes from the path the engine serves, tensor parallelism from its command line.

    The engine's page tells neither, and without its developer mode no endpoint does. Two ranks are what makes
    the difference visible: one token takes 1,024 bytes together and 512 on each.
    """
    if gpu:
        pytest.skip("takes two GPUs; on a CPU two ranks share it")
    model = LLAMA_TP2
    engine = Engine(
        engine_python,
        model_directories / model.directory,
        tmp_path / "engine.log",
        kv_cache_bytes=model.kv_cache_bytes,
        flags=model.flags,
        developer_mode=False,
    )
    flags = ["--context", *map(str, model.fits)]
    with engine, Sidecar(engine.url, tmp_path / "sidecar.log", flags) as sidecar:
        engine.wait_ready()
        sidecar.wait_listening()
        sidecar.wait_up()
        page = sidecar.scrape_fresh()

        info = page.one("kvcache_engine_info").labels
        assert info["software"] == "vllm"
        assert info["tensor_parallel_size"] == "2"
        assert info["parallel_source"] == "command_line"
        assert page.value("kvcache_exporter_model_config_loaded") == 1
        checks = ledger.of(Subject("vllm", engine.version(), model.name))
        log, told = engine.capacity_line(), engine.scrape()
        checks.account.scene.idle = trimmed(told.text)
        # Each rank has 608 blocks of 32 tokens x 512 bytes.
        checks.account.scene.logged = {**asdict(log), "tensor_bytes": 608 * 32 * 512}
        checks.all(vllm_figures.capacity(model, log, told, page, ranks=2))
