"""What the engine's own figures disprove is not published."""

from __future__ import annotations

from pathlib import Path

import pytest

from .text import RECORDINGS, explain

CONFIGS = Path(__file__).parents[1] / "data" / "kv" / "configs"


def test_another_models_config_beside_sglang(capsys: pytest.CaptureFixture[str]) -> None:
    """Llama 3.1 8B takes 131,072 bytes a token; the recorded pool has 1,024: a ratio of 128 and no bytes."""
    page = RECORDINGS / "sglang-0.5.23-llama-retractions" / "loaded.prom"
    config = CONFIGS / "meta-llama__Llama-3.1-8B-Instruct.json"
    info = RECORDINGS / "sglang-0.5.23-llama-retractions" / "server_info.json"
    got = explain(capsys, ["--metrics", page, "--model-config", config, "--engine-info", info])
    assert got.one("kvcache_arithmetic_ratio") == 128
    for signal in ("bytes_per_token", "used_bytes", "sequence_bytes", "max_sequences"):
        assert got.reason(f"kvcache_{signal}") == "contradiction"
    # The engine's own figures stay.
    assert got.one("kvcache_capacity_tokens") == 3_072
    assert got.one("kvcache_capacity_bytes") == 3_073 * 1_024


def test_an_old_page_of_a_hybrid_names_the_wrong_block(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Before the size label (about 0.30) a hybrid's page says 16; its states need hundreds of tokens."""
    page, version = tmp_path / "page.prom", tmp_path / "version.json"
    page.write_text(
        'vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="4000"} 1\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5\n'
    )
    version.write_text('{"version": "0.22.1"}')
    config = CONFIGS / "Qwen__Qwen3-Next-80B-A3B-Instruct.json"
    got = explain(capsys, ["--metrics", page, "--model-config", config, "--engine-info", version])
    for signal in ("bytes_per_token", "capacity_bytes", "max_sequences", "prefix_matchable_tokens"):
        assert got.reason(f"kvcache_{signal}") == "block_size"
