"""What the sidecar finds out by itself about a real vLLM that was told nothing but its own flags."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from . import vllm_figures
from .checks import Ledger, Subject
from .engine import Engine
from .hardware import wants_gpu
from .scenes import trimmed
from .sidecar import Sidecar
from .stands import Begun, Own, begin
from .truth import LLAMA_TP2

pytestmark = [pytest.mark.rig, pytest.mark.timeout(1200)]


def _told_nothing(python: Path, models: Path, logs: Path) -> Begun[Engine]:
    engine = Engine(
        python,
        models / LLAMA_TP2.directory,
        logs / "engine.log",
        kv_cache_bytes=LLAMA_TP2.kv_cache_bytes,
        flags=LLAMA_TP2.flags,
        developer_mode=False,
    )
    return begin(engine, Sidecar(engine.url, logs / "sidecar.log", ["--context", *map(str, LLAMA_TP2.fits)]))


@pytest.mark.skipif(wants_gpu(), reason="takes two GPUs; on a CPU two ranks share it")
@pytest.mark.parametrize("own", [Own(LLAMA_TP2.name, _told_nothing)], indirect=True, ids=lambda own: own.name)
def test_config_and_flags_are_found_without_a_setting(own: Begun[Engine], ledger: Ledger) -> None:
    """config.json comes from the path the engine serves, tensor parallelism from its command line.

    The engine's page tells neither, and without its developer mode no endpoint does. Two ranks are what makes
    the difference visible: one token takes 1,024 bytes together and 512 on each.
    """
    model, engine = LLAMA_TP2, own.engine
    page = own.sidecar.scrape_fresh()

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
