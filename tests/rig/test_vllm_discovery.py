"""What the sidecar finds out by itself about a real vLLM that was told nothing but its own flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from .engine import Engine
from .sidecar import Sidecar

pytestmark = [pytest.mark.rig, pytest.mark.timeout(1200)]


def test_config_and_flags_are_found_without_a_setting(
    engine_python: Path, model_directories: Path, tmp_path: Path
) -> None:
    """config.json comes from the path the engine serves, tensor parallelism from its command line.

    The engine's page tells neither, and without its developer mode no endpoint does. Two ranks are what makes
    the difference visible: one token takes 1,024 bytes together and 512 on each.
    """
    # 9,830,400 bytes per rank; a rank's block is 32 tokens x 512 bytes = 16,384 bytes: 600 blocks.
    engine = Engine(
        engine_python,
        model_directories / "llama",
        tmp_path / "engine.log",
        kv_cache_bytes=9_830_400,
        flags=("--tensor-parallel-size", "2", "--block-size", "32"),
        developer_mode=False,
    )
    with engine, Sidecar(engine.url, tmp_path / "sidecar.log") as sidecar:
        engine.wait_ready()
        sidecar.wait_listening()
        sidecar.wait_up()
        page = sidecar.scrape_fresh()

        info = page.one("kvcache_engine_info").labels
        assert info["software"] == "vllm"
        assert info["tensor_parallel_size"] == "2"
        assert info["parallel_source"] == "command_line"
        assert page.value("kvcache_exporter_model_config_loaded") == 1
        assert page.value("kvcache_bytes_per_token") == 1024
        assert page.value("kvcache_device_bytes_per_token") == 512
        assert page.value("kvcache_capacity_blocks") == 600
        assert page.value("kvcache_capacity_tokens") == engine.capacity_line().kv_cache_tokens == 600 * 32
        assert page.value("kvcache_capacity_bytes") == 2 * 9_830_400
