"""Every recorded SGLang page: what the exporter makes of it against what the page says."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from .text import DATA, RECORDINGS, Text, explain

LLAMA = RECORDINGS / "sglang-0.5.23-llama-retractions"
GDN = RECORDINGS / "sglang-0.5.23-gdn"
BOOT = RECORDINGS / "sglang-0.5.23-boot"
SYNTHETIC = RECORDINGS / "sglang-0.5.23-all-families-synthetic.prom"
# The SGLang runs used the same checkpoints as the vLLM ones beside them.
LLAMA_CONFIG = RECORDINGS / "vllm-0.32.0-llama-preemptions" / "config.json"
MLA_CONFIG = RECORDINGS / "vllm-0.32.0-deepseek_v2" / "config.json"
# Any gated-delta-net model, whatever its size.
GDN_CONFIG = DATA / "kv" / "configs" / "Qwen__Qwen3-Next-80B-A3B-Instruct.json"

RUNS = {LLAMA: LLAMA_CONFIG, GDN: GDN_CONFIG}
NAMES = ("startup-before-first-batch", "idle", "loaded", "after")
PAGES = [(run, name) for run in RUNS for name in NAMES]
# Boots: config, KV bytes of a token on all GPUs, GPUs that share a token (not copies).
BOOTS = {
    "llama-page64": (LLAMA_CONFIG, 2 * 2 * 32 * 2 * 4, 1),
    "llama-tp2": (LLAMA_CONFIG, 2 * 2 * 32 * 2 * 4, 2),
    "llama-dp2": (LLAMA_CONFIG, 2 * 2 * 32 * 2 * 4, 1),
    "mla-bf16": (MLA_CONFIG, (512 + 64) * 2 * 4, 1),
}


def ids(value: object) -> str:
    return value.name if isinstance(value, Path) else str(value)


def ours(capsys: pytest.CaptureFixture[str], run: Path, name: str, config: Path | None = None) -> Text:
    info = [run / "server_info.json", *sorted(run.glob("v1_models.json"))]
    words: list[str | Path] = ["--metrics", run / f"{name}.prom", "--engine-info", *info]
    return explain(capsys, [*words, "--model-config", config] if config else words)


def total(page: Text, family: str, **labels: str) -> float:
    return sum(s.value for s in page.all(family, **labels))


def test_no_recording_is_left_out() -> None:
    """A new page must be added to one of the lists here."""
    there = {str(p.relative_to(RECORDINGS)) for p in RECORDINGS.glob("sglang-*/**/*.prom")}
    listed = {str((run / f"{name}.prom").relative_to(RECORDINGS)) for run, name in PAGES}
    assert there == listed | {f"{BOOT.name}/{name}/metrics.prom" for name in BOOTS}


@pytest.mark.parametrize(("run", "name"), PAGES, ids=ids)
def test_pool_gauges(capsys: pytest.CaptureFixture[str], run: Path, name: str) -> None:
    """Capacity, used, cached and usage are the engine's own, and its three parts fill the pool."""
    said, got = Text((run / f"{name}.prom").read_text()), ours(capsys, run, name, RUNS[run])
    capacity = said.one("sglang:max_total_num_tokens")
    assert got.one("kvcache_capacity_tokens", model_name="tiny-llama", engine="") == capacity
    assert got.one("kvcache_capacity_blocks") == capacity  # pages of one token
    assert got.one("kvcache_max_model_len_tokens") == said.one("sglang:context_len")
    gauges = {
        "kvcache_usage_ratio": "sglang:full_token_usage",
        "kvcache_used_tokens": "sglang:kv_used_tokens",
        "kvcache_used_blocks": "sglang:kv_used_tokens",
        "kvcache_cached_tokens": "sglang:kv_evictable_tokens",
        "kvcache_running_sequences": "sglang:num_running_reqs",
        "kvcache_waiting_sequences": "sglang:num_queue_reqs",
    }
    if name.startswith("startup"):
        for series in gauges:
            assert not got.all(series)
            # Free and used are not told yet; that nothing is cached is not told at all.
            assert got.reason(series) in {"no_traffic", "not_reported"}
        assert got.reason("kvcache_usage_ratio") == "no_traffic"
        return
    for series, family in gauges.items():
        assert got.one(series) == said.one(family), series
    parts = [f"sglang:kv_{part}_tokens" for part in ("used", "evictable", "available")]
    assert sum(said.one(part) for part in parts) == capacity
    running = said.one("sglang:num_running_reqs")
    used = said.one("sglang:kv_used_tokens")
    assert got.maybe("kvcache_tokens_per_sequence") == (used / running if running else None)


@pytest.mark.parametrize(("run", "name"), PAGES, ids=ids)
def test_counters(capsys: pytest.CaptureFixture[str], run: Path, name: str) -> None:
    """Event counters that have not appeared yet are zero in this release; requests are of all routes."""
    said, got = Text((run / f"{name}.prom").read_text()), ours(capsys, run, name, RUNS[run])
    retracted = said.maybe("sglang:num_retracted_requests_total")
    assert got.one("kvcache_preemptions_total") == (retracted or 0)
    assert got.one("kvcache_evicted_tokens_total") == (said.maybe("sglang:evicted_tokens_total") or 0)
    # Retractions are events; the requests hit are not told.
    assert not got.all("kvcache_preempted_requests_total")
    if name.startswith("startup"):
        assert not got.all("kvcache_requests_total")
    else:
        assert got.values("kvcache_requests_total", "outcome") == {
            "finished": total(said, "sglang:num_requests_total"),
        }


@pytest.mark.parametrize("name", NAMES[1:])
def test_prefix_by_route(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """This server labels routes: each route's prompt tokens over streaming and not, hits by source."""
    said, got = Text((LLAMA / f"{name}.prom").read_text()), ours(capsys, LLAMA, name)
    queries: defaultdict[str, float] = defaultdict(float)
    for series in said.all("sglang:prompt_tokens_total"):
        queries[series.labels["route"]] += series.value
    if name != "idle":
        assert set(queries) == {"", "short", "shared", "long", "decode"}
        assert got.values("kvcache_prefix_query_tokens_total", "route") == queries
        for route in queries:
            hits = total(said, "sglang:cached_tokens_total", route=route)
            assert got.one("kvcache_prefix_hit_tokens_total", route=route, cache_source="device") == hits
    assert total(got, "kvcache_prefix_query_tokens_total") == sum(queries.values())
    assert total(got, "kvcache_prefix_hit_tokens_total") == total(said, "sglang:cached_tokens_total")


@pytest.mark.parametrize("name", NAMES)
def test_prefix_of_prefills(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Without routes: what prefill looked up (computed and found) and what it found, by place."""
    said, got = Text((GDN / f"{name}.prom").read_text()), ours(capsys, GDN, name)
    prefill = said.values("sglang:prefill_effective_tokens_total", "mode")
    assert got.one("kvcache_prefix_query_tokens_total") == sum(prefill.values())
    assert got.values("kvcache_prefix_hit_tokens_total", "cache_source") == {
        mode.removesuffix("_hit"): tokens for mode, tokens in prefill.items() if mode.endswith("_hit")
    }


@pytest.mark.parametrize("name", NAMES)
def test_bytes_of_the_llama(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """1,024 bytes a token; the pool has one page of one token more than its capacity."""
    said, got = Text((LLAMA / f"{name}.prom").read_text()), ours(capsys, LLAMA, name, LLAMA_CONFIG)
    assert got.one("kvcache_bytes_per_token") == 1_024
    assert got.one("kvcache_capacity_bytes") == (3_072 + 1) * 1_024
    gib = said.one("sglang:kv_cache_memory_usage_gb")
    assert gib * 2**30 == pytest.approx((3_072 + 1) * 1_024, rel=1e-9)
    assert got.one("kvcache_arithmetic_ratio") == 1
    used = said.maybe("sglang:kv_used_tokens")
    assert got.maybe("kvcache_used_bytes") == (None if used is None else used * 1_024)
    # Neither 4,096 nor the longest context of 8,192 fits 3,072 tokens.
    assert got.values("kvcache_max_sequences", "context") == {"4096": 0, "8192": 0}


@pytest.mark.parametrize("name", NAMES)
def test_state_slots_without_a_config(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Gated delta net: nothing that needs the layout, and the pool's bytes as the engine says them."""
    said, got = Text((GDN / f"{name}.prom").read_text()), ours(capsys, GDN, name)
    for series in (
        "kvcache_bytes_per_token",
        "kvcache_device_bytes_per_token",
        "kvcache_state_bytes_per_sequence",
        "kvcache_sequence_bytes",
        "kvcache_used_bytes",
        "kvcache_max_sequences",
        "kvcache_free_sequences",
        "kvcache_whatif_max_sequences",
        "kvcache_arithmetic_ratio",
    ):
        assert not got.all(series), series
        assert got.reason(series) == "model_config", series
    told = said.one("sglang:kv_cache_memory_usage_gb") * 2**30
    assert got.one("kvcache_capacity_bytes") == pytest.approx(told, abs=0.5)


# A model that SGLang 0.5.23 was started with and that reported the recorded run's pool: 512 bytes a token
# (1 full layer x 2 heads x 2 x 64 x 2). The recorded model's own config was not kept, and no page shows
# what a state takes: here 3 x (3 x 384 of convolution in 16 bits, 2 heads of 64 x 64 in float32).
TINY_GDN = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 64,
    "linear_num_value_heads": 2,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 8192,
}
TINY_STATE = 3 * (3 * (2 * 2 * 64 + 2 * 64) * 2 + 2 * 64 * 64 * 4)


@pytest.mark.parametrize("name", ["idle", "loaded", "after"])
def test_state_slots(capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str) -> None:
    """24 slots; the engine's pool of 4,097 x 512 bytes leaves the states out, and so does the check."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(TINY_GDN))
    said, got = Text((GDN / f"{name}.prom").read_text()), ours(capsys, GDN, name, config)
    assert got.one("kvcache_bytes_per_token") == 512
    assert got.one("kvcache_arithmetic_ratio") == 1
    assert got.one("kvcache_state_bytes_per_sequence") == TINY_STATE
    assert got.one("kvcache_capacity_bytes") == 4_097 * 512 + 25 * TINY_STATE
    used, slots = said.one("sglang:kv_used_tokens"), said.one("sglang:mamba_used_tokens")
    assert got.one("kvcache_used_bytes") == used * 512 + slots * TINY_STATE
    # Neither 4,096 tokens nor the longest context of 8,192 are more than the slots could hold.
    assert got.values("kvcache_max_sequences", "context") == {"4096": 1, "8192": 0}


@pytest.mark.parametrize("name", sorted(BOOTS))
def test_boots(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """One series per data-parallel rank, tensor ranks folded into one, and the pool to the byte."""
    config, token_bytes, gpus = BOOTS[name]
    said = Text((BOOT / name / "metrics.prom").read_text())
    got = ours(capsys, BOOT / name, "metrics", config)
    ranks = sorted({s.labels.get("dp_rank", "") for s in said.all("sglang:max_total_num_tokens")})
    assert ranks == (["0", "1"] if name == "llama-dp2" else [""])
    page = 64 if name == "llama-page64" else 1
    for family, value in {
        "kvcache_capacity_tokens": 4_096,
        "kvcache_capacity_blocks": 4_096 / page,
        "kvcache_prefix_matchable_tokens": page,
        "kvcache_bytes_per_token": token_bytes,
        "kvcache_device_bytes_per_token": token_bytes / gpus,
        "kvcache_capacity_bytes": (4_096 + page) * token_bytes,
        "kvcache_arithmetic_ratio": 1,
        "kvcache_preemptions_total": 0,
        "kvcache_evicted_tokens_total": 0,
    }.items():
        assert got.values(family, "engine") == dict.fromkeys(ranks, value), family
    # The engine's own figure, per GPU and rank.
    for series in said.all("sglang:kv_cache_memory_usage_gb"):
        assert series.value * 2**30 * gpus == pytest.approx((4_096 + page) * token_bytes, rel=1e-9)
    info = got.all("kvcache_engine_info")
    assert len(info) == len(ranks)
    assert {s.labels["tensor_parallel_size"] for s in info} == {str(gpus)}


@pytest.mark.parametrize("name", ["llama-tp2"])
def test_the_page_alone_shows_tensor_ranks(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Constants come from every tensor rank, so the number of GPUs needs no info endpoint."""
    page = BOOT / name / "metrics.prom"
    got = explain(capsys, ["--metrics", page, "--model-config", LLAMA_CONFIG])
    assert got.one("kvcache_device_bytes_per_token") == 512
    assert got.one("kvcache_arithmetic_ratio") == 1


def test_every_family_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    """The synthetic page: invented values, no two alike, so a neighbour's figure would show."""
    said, got = Text(SYNTHETIC.read_text()), explain(capsys, ["--metrics", SYNTHETIC])
    for series, family in {
        "kvcache_usage_ratio": "sglang:full_token_usage",
        "kvcache_capacity_tokens": "sglang:max_total_num_tokens",
        "kvcache_used_tokens": "sglang:kv_used_tokens",
        "kvcache_cached_tokens": "sglang:kv_evictable_tokens",
        "kvcache_running_sequences": "sglang:num_running_reqs",
        "kvcache_waiting_sequences": "sglang:num_queue_reqs",
        "kvcache_max_model_len_tokens": "sglang:context_len",
        "kvcache_prefix_matchable_tokens": "sglang:page_size",
        "kvcache_preemptions_total": "sglang:num_retracted_requests_total",
        "kvcache_evicted_tokens_total": "sglang:evicted_tokens_total",
    }.items():
        assert got.one(series) == said.one(family), series
    assert got.one("kvcache_capacity_bytes") == said.one("sglang:kv_cache_memory_usage_gb") * 2**30
    assert got.one("kvcache_capacity_blocks") == 262_144 / 64
    assert got.one("kvcache_used_blocks") == 2_996  # 191,700 / 64 = 2,995.3
    assert got.values("kvcache_requests_total", "outcome") == {
        "finished": total(said, "sglang:num_requests_total"),
    }
    assert got.values("kvcache_prefix_query_tokens_total", "route") == said.values(
        "sglang:prompt_tokens_total", "route"
    )
    for cached in said.all("sglang:cached_tokens_total"):
        labels = {key: cached.labels[key] for key in ("route", "cache_source")}
        assert got.one("kvcache_prefix_hit_tokens_total", **labels) == cached.value
