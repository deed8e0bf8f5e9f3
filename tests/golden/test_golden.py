"""Whole outputs of ``explain --output prom``, byte for byte (see README.md here)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from exporter.cli import main

HERE = Path(__file__).parent
RECORDINGS = HERE.parent / "recordings"
VLLM = "vllm-0.32.0"
SGLANG = "sglang-0.5.23"
LLAMA_CONFIG = f"{VLLM}-llama-preemptions/config.json"

# Paths among the words are below tests/recordings.
CASES = {
    "vllm-llama-preemptions": [
        *("--metrics", f"{VLLM}-llama-preemptions/after.prom", "--model-config", LLAMA_CONFIG),
        *("--engine-info", f"{VLLM}-llama-preemptions/endpoints/v1_models.txt"),
        f"{VLLM}-llama-preemptions/endpoints/version.txt",
        f"{VLLM}-llama-preemptions/endpoints/server_info.json",
    ],
    "vllm-gemma2": [
        *("--metrics", f"{VLLM}-gemma2/loaded.prom", "--model-config", f"{VLLM}-gemma2/config.json"),
        *("--context", "512", "1024"),
    ],
    "vllm-llama-tp2-not-told": ["--metrics", f"{VLLM}-llama_tp2/loaded.prom", "--model-config", LLAMA_CONFIG],
    "vllm-mamba2": [
        *("--metrics", f"{VLLM}-mamba2/loaded.prom", "--model-config", f"{VLLM}-mamba2/config.json")
    ],
    "vllm-no-config": ["--metrics", f"{VLLM}-qwen3/loaded.prom"],
    "sglang-llama-retractions": [
        *("--metrics", f"{SGLANG}-llama-retractions/loaded.prom", "--model-config", LLAMA_CONFIG),
        *("--engine-info", f"{SGLANG}-llama-retractions/server_info.json"),
        *("--context", "512", "1024"),
    ],
    "sglang-before-first-batch": [
        *("--metrics", f"{SGLANG}-gdn/startup-before-first-batch.prom"),
        *("--engine-info", f"{SGLANG}-gdn/server_info.json", f"{SGLANG}-gdn/v1_models.json"),
    ],
    "sglang-llama-dp2": [
        *("--metrics", f"{SGLANG}-boot/llama-dp2/metrics.prom", "--model-config", LLAMA_CONFIG),
        *("--engine-info", f"{SGLANG}-boot/llama-dp2/server_info.json"),
    ],
    "no-engine": ["--metrics", "cases/T05_process_only.prom"],
}
# What differs from run to run or from release to release.
MASKED = re.compile(
    r'^(kvcache_exporter_build_info\{version=")[^"]*'
    r"|^(kvcache_exporter_last_success_timestamp_seconds\{[^}]*\} ).*$",
    re.MULTILINE,
)


def masked(text: str) -> str:
    return MASKED.sub(lambda match: (match[1] or match[2]) + "*", text)


@pytest.mark.parametrize("name", sorted(CASES))
def test_output(capsys: pytest.CaptureFixture[str], golden_update: bool, name: str) -> None:
    """Any change of a name, a help text, a label or a figure must be looked at."""
    words = [str(RECORDINGS / w) if (RECORDINGS / w).is_file() else w for w in CASES[name]]
    assert main(["explain", *words, "--output", "prom"]) == 0
    got = masked(capsys.readouterr().out)
    expected = HERE / f"{name}.prom"
    if golden_update:
        expected.write_text(got)
    assert expected.is_file(), f"no {expected.name} yet: run pytest --golden-update"
    assert got == expected.read_text()


def test_no_golden_file_is_left_over() -> None:
    """A file whose case is gone would look like a promise."""
    assert {path.stem for path in HERE.glob("*.prom")} == set(CASES)


def test_the_mask_hides_nothing_else() -> None:
    """One line with the version, one with the time, whatever stands around them."""
    text = (
        'kvcache_exporter_build_info{version="1.2"} 1.0\n'
        'kvcache_exporter_last_success_timestamp_seconds{target="t"} 1.7e+09\n'
        'kvcache_usage_ratio{target="t"} 0.5\n'
    )
    assert masked(text) == (
        'kvcache_exporter_build_info{version="*"} 1.0\n'
        'kvcache_exporter_last_success_timestamp_seconds{target="t"} *\n'
        'kvcache_usage_ratio{target="t"} 0.5\n'
    )
