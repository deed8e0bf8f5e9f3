"""Names of cache dtypes and draft methods: what is known, what is refused, what is said about the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from exporter.kvmath.known import Unavailable
from exporter.kvmath.speculation import draft_problem
from exporter.planner.names import CACHE_DTYPES, cache_dtype, draft_method

Plan = Callable[..., dict[str, Any]]
SMALL = "meta-llama__Llama-3.1-8B-Instruct"
WITH_DRAFTS = "deepseek-ai__DeepSeek-V3"


@pytest.mark.parametrize("name", [*CACHE_DTYPES, "BF16", "torch.float8_e4m3fn", "turboquant_4bit_nc"])
def test_cache_dtypes(name: str) -> None:
    """Every name a message may propose is itself accepted, and other spellings of the engines are, too."""
    assert cache_dtype(name) == name


@pytest.mark.parametrize("name", ["mtp", "MTP", "deepseek_mtp", "qwen3_next_mtp", "NEXTN", "mimo_v2_mtp"])
def test_spellings_of_mtp(name: str) -> None:
    """vLLM 0.32.0 turns its per-model names into mtp; SGLang says NEXTN."""
    assert draft_method(name) == "mtp"


@pytest.mark.parametrize("method", ["ngram", "ngram_gpu", "suffix"])
def test_methods_without_a_cache(plan: Plan, method: str) -> None:
    """Text is looked up, no model drafts: the same figures as without."""
    assert plan(SMALL, f"--speculative {method}") == plan(SMALL)


@pytest.mark.parametrize("method", ["eagle", "EAGLE3", "medusa", "draft_model", "standalone", "draft-model"])
def test_a_draft_model_of_its_own(plan: Plan, method: str) -> None:
    """CONFIG doesn't show it: no figure, and the way out is named."""
    for engine in ("vllm",) if method == "medusa" else ("vllm", "sglang"):
        told = plan(SMALL, f"--speculative {method} --engine {engine}")
        assert "bytes_per_token" not in told
        (entry,) = [entry for entry in told["unavailable"] if entry["signal"] == "bytes_per_token"]
        assert entry["reason"] == "speculative_decoding"
        assert "--bytes-per-token" in entry["detail"]
    # Following it gives figures.
    assert plan(SMALL, f"--speculative {method} --bytes-per-token 140000")["bytes_per_token"] == 140_000


def test_mtp_without_draft_layers(plan: Plan) -> None:
    """vLLM 0.32.0 raises NotImplementedError for it, so there is nothing to plan."""
    told = plan(SMALL, "--speculative mtp")
    (entry,) = [entry for entry in told["unavailable"] if entry["signal"] == "bytes_per_token"]
    assert entry["reason"] == "speculative_decoding"
    assert "vLLM refuses to start" in entry["detail"]


def test_mtp_with_draft_layers(plan: Plan) -> None:
    """DeepSeek-V3 adds one layer of 1,152 bytes to its 61."""
    assert plan(WITH_DRAFTS, "--gpu H200 --gpus 8")["device_bytes_per_token"] == 61 * 1152
    for name in ("mtp", "deepseek_mtp", "nextn"):
        told = plan(WITH_DRAFTS, f"--gpu H200 --gpus 8 --speculative {name}")
        assert told["device_bytes_per_token"] == 62 * 1152


def test_the_other_engines_methods() -> None:
    """A method is real, and this engine hasn't got it."""
    for engine, method in (("sglang", "suffix"), ("vllm", "frozen_kv_mtp")):
        found = draft_problem(engine, draft_method(method), has_drafts=True)
        assert isinstance(found, Unavailable)
        assert engine in found.detail
