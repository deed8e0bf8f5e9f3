"""A model that no config tells: its cache in figures set by the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from exporter.cli import main

from .text import RECORDINGS, explain

PAGE = RECORDINGS / "cases" / "T15_no_model_name.prom"  # 5,691 blocks of 16 tokens, no config anywhere


def test_bytes_per_token_set_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    """A public report of this pool at 131,072 bytes a token says 11.115234375 GiB."""
    got = explain(capsys, ["--metrics", PAGE, "--bytes-per-token", "131072"])
    assert got.one("kvcache_bytes_per_token") == 131_072
    assert got.one("kvcache_capacity_bytes") == 11.115234375 * 2**30
    assert got.one("kvcache_engine_info", config_source="set_by_hand") == 1
    # What another dtype would give cannot be told from one figure.
    assert got.reason("kvcache_whatif_max_sequences") == "set_by_hand"


def test_a_window_alone_is_no_cache(capsys: pytest.CaptureFixture[str]) -> None:
    """Figures that make no cache end in a reason, not in a guess."""
    got = explain(capsys, ["--metrics", PAGE, "--window-tokens", "128"])
    assert got.reason("kvcache_bytes_per_token") == "bad_model_config"


def test_explain_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever reads the figures later must see that they are not the model's own."""
    assert main(["explain", "--metrics", str(PAGE), "--bytes-per-token", "131072"]) == 0
    assert "set by hand: bytes_per_token" in capsys.readouterr().out


def test_sglang_takes_bytes_per_token(capsys: pytest.CaptureFixture[str]) -> None:
    """The recorded Llama's 1,024 bytes a token are what the engine's own pool figure says: ratio 1."""
    page = RECORDINGS / "sglang-0.5.23-llama-retractions" / "loaded.prom"
    got = explain(capsys, ["--metrics", page, "--bytes-per-token", "1024"])
    assert got.one("kvcache_used_bytes") == 2_784 * 1_024
    assert got.one("kvcache_arithmetic_ratio") == 1
    assert got.reason("kvcache_whatif_max_sequences") == "set_by_hand"


def test_flags_that_no_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """Gemma 2 without the hybrid manager: one group of all 6 layers, so a block is twice the recorded
    engine's (3 layers a group), which its byte budget disproves."""
    page = RECORDINGS / "vllm-0.32.0-gemma2"
    arguments: list[str | Path] = ["--metrics", page / "loaded.prom", "--model-config", page / "config.json"]
    got = explain(capsys, [*arguments, "--no-hybrid-manager", "--tensor-parallel-size", "1"])
    assert got.one("kvcache_arithmetic_ratio") == pytest.approx(2, rel=1 / 682)  # a block's rounding
    eagle = explain(capsys, [*arguments, "--speculative", "eagle"])
    assert eagle.reason("kvcache_bytes_per_token") == "speculative_decoding"
