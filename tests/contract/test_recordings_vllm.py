"""Every recorded vLLM page: what the exporter makes of it against what the page and the engine's log say."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from .text import RECORDINGS, Text, explain

VERSION = "vllm-0.32.0"


@dataclass(frozen=True, slots=True)
class Model:
    """The hand sums of one recorded model.

    ``token_bytes``: one more token at long context, all GPUs.  ``device_share``:
    GPUs over which it is split.  ``block_bytes``: one block, all GPUs.
    ``max_sequences``: of 4,096 tokens.  ``one_group``: a block is ``block_size``
    tokens of every layer, so that used blocks are tokens.
    """

    token_bytes: int
    block_bytes: int
    max_sequences: int
    one_group: bool = True
    device_share: int = 1
    flags: tuple[str, ...] = ()


# Sequences: floor((blocks - 1 null block) / blocks of a sequence of 4,096 tokens).
MODELS = {
    # (K + V) x 2 heads x 32 x 2 bytes x 4 layers; 32 tokens a block; 299 / 128
    "llama-preemptions": Model(2 * 2 * 32 * 2 * 4, 32 * 1_024, 2),
    "llama_asc2": Model(2 * 2 * 32 * 2 * 4, 32 * 1_024, 2),
    # one byte an element; 599 / 128
    "llama_fp8": Model(2 * 2 * 32 * 1 * 4, 32 * 512, 4),
    # one head a GPU, both GPUs counted; 599 / 128
    "llama_tp2": Model(
        2 * 2 * 32 * 2 * 4, 32 * 1_024, 4, device_share=2, flags=("--tensor-parallel-size", "2")
    ),
    # heads of 64; 149 / 128
    "qwen3": Model(2 * 2 * 64 * 2 * 4, 32 * 2_048, 1),
    # All 4 layers forget beyond 256 tokens, so a token more costs nothing;
    # a window of 256 spans ceil(255 / 32) + 1 = 9 blocks; 299 / 9
    "mistral_sw": Model(0, 32 * 2 * 2 * 32 * 2 * 4, 33, one_group=False),
    # 3 of 6 layers keep all; a block is 3 layers' (one group's); 681 / (128 + 9)
    "gemma2": Model(2 * 2 * 32 * 2 * 3, 32 * 2 * 2 * 32 * 2 * 3, 4, one_group=False),
    # 2 of 4 layers keep all; a window of 128 spans ceil(127 / 32) + 1 = 5 blocks; 511 / (128 + 5)
    "gptoss": Model(2 * 2 * 64 * 2 * 2, 32 * 2 * 2 * 64 * 2 * 2, 3, one_group=False),
    # one latent of 512 + 64 a layer, 16 tokens a block; 454 / 256
    "deepseek_v2": Model((512 + 64) * 2 * 4, 16 * 4_608, 1),
    "deepseek_v3": Model((512 + 64) * 2 * 4, 16 * 4_608, 1),
}


@dataclass(frozen=True, slots=True)
class Hybrid:
    """The hand sums of a model with recurrent state (``state_bytes``: of one sequence, no padding)."""

    token_bytes: int
    state_bytes: int
    block_bytes: int
    max_sequences: int


# One Mamba 2 layer's state: convolution (4 - 1) x (512 + 2 x 64) x 2 bytes, SSM 16 x 32 x 64 in float32.
MAMBA2_STATE = 3 * (512 + 2 * 64) * 2 + 16 * 32 * 64 * 4
HYBRIDS = {
    # 4 such layers make one block, which is one sequence; 62 blocks less the null block
    "mamba2": Hybrid(0, 4 * MAMBA2_STATE, 4 * MAMBA2_STATE, 61),
    # 3 such layers and 1 of attention, (K + V) x 2 heads x 32 x 2 bytes; the engine's log raises the block
    # to 640 tokens and pads the state's page to it; 203 / (3 states + ceil(4,096 / 640) = 7 blocks)
    "nemotron_h_nopc": Hybrid(256, 3 * MAMBA2_STATE, 640 * 256, 20),
}
PAGES = [(name, page) for name in (*MODELS, *HYBRIDS) for page in ("idle.prom", "loaded.prom", "after.prom")]


def folder(name: str) -> Path:
    return RECORDINGS / f"{VERSION}-{name}"


def engine_page(name: str, page: str) -> Text:
    return Text((folder(name) / page).read_text())


def ours(capsys: pytest.CaptureFixture[str], name: str, page: str) -> Text:
    flags = MODELS[name].flags if name in MODELS else ()
    here = folder(name)
    return explain(capsys, ["--metrics", here / page, "--model-config", here / "config.json", *flags])


def config_label(page: Text, label: str) -> str:
    found = {s.labels[label] for s in page.all("vllm:cache_config_info")}
    assert len(found) == 1
    return found.pop()


def test_no_recording_is_left_out() -> None:
    """A new folder must get its hand sums here."""
    there = {str(p.relative_to(RECORDINGS)) for p in RECORDINGS.glob("vllm-*/*.prom")}
    assert there == {f"{VERSION}-{name}/{page}" for name, page in PAGES}


@pytest.mark.parametrize(("name", "page"), PAGES)
def test_what_the_engine_says_comes_out_once(
    capsys: pytest.CaptureFixture[str], name: str, page: str
) -> None:
    """Figures that need no arithmetic, read off the page by name."""
    said, got = engine_page(name, page), ours(capsys, name, page)
    rank = {"engine": "0", "model_name": said.all("vllm:num_preemptions_total")[0].labels["model_name"]}
    usage = said.maybe("vllm:kv_cache_usage_perc")
    if usage is None:
        # Two API servers: a TYPE line and no sample before the first step.
        assert (name, page) == ("llama_asc2", "idle.prom")
        for signal in ("usage_ratio", "used_blocks", "running_sequences", "waiting_sequences"):
            assert not got.all(f"kvcache_{signal}")
            assert got.reason(f"kvcache_{signal}") == "not_reported"
    else:
        assert got.one("kvcache_usage_ratio", **rank) == usage
        assert got.one("kvcache_running_sequences", **rank) == said.one("vllm:num_requests_running")
        assert got.one("kvcache_waiting_sequences", **rank) == said.one("vllm:num_requests_waiting")
    assert got.one("kvcache_preemptions_total", **rank) == said.one("vllm:num_preemptions_total")
    assert got.one("kvcache_max_model_len_tokens", **rank) == 4_096  # --max-model-len 4096 everywhere
    assert got.values("kvcache_requests_total", "outcome") == said.values(
        "vllm:request_success_total", "finished_reason"
    )
    assert got.one("kvcache_prefix_query_tokens_total", **rank) == said.one("vllm:prompt_tokens_total")
    assert got.values("kvcache_prefix_hit_tokens_total", "cache_source") == said.values(
        "vllm:prompt_tokens_cached_by_source_total", "source"
    )
    # The sources add up to the engine's own total.
    hits = sum(s.value for s in got.all("kvcache_prefix_hit_tokens_total"))
    assert hits == said.one("vllm:prompt_tokens_cached_total")
    assert got.one("kvcache_engine_up") == 1


@pytest.mark.parametrize(("name", "page"), PAGES)
def test_blocks_of_the_pool(capsys: pytest.CaptureFixture[str], name: str, page: str) -> None:
    """The engine divides a whole number of blocks by num_gpu_blocks - 1, so the product must be whole."""
    said, got = engine_page(name, page), ours(capsys, name, page)
    blocks = int(config_label(said, "num_gpu_blocks"))
    assert got.one("kvcache_capacity_blocks") == blocks
    usage = said.maybe("vllm:kv_cache_usage_perc")
    if usage is None:
        return
    exact = usage * (blocks - 1)
    assert abs(exact - round(exact)) < 1e-6
    assert got.one("kvcache_used_blocks") == round(exact)
    if name in HYBRIDS or not MODELS[name].one_group:
        assert not got.all("kvcache_used_tokens")
    else:
        block_tokens = int(config_label(said, "block_size"))
        assert got.one("kvcache_used_tokens") == round(exact) * block_tokens
        running = said.one("vllm:num_requests_running")
        per_sequence = got.maybe("kvcache_tokens_per_sequence")
        assert per_sequence == (round(exact) * block_tokens / running if running else None)


@pytest.mark.parametrize(("name", "page"), PAGES)
def test_capacity_is_what_the_log_says(capsys: pytest.CaptureFixture[str], name: str, page: str) -> None:
    """The engine's own log line "KV cache size: N tokens" is the oracle."""
    got = ours(capsys, name, page)
    if name == "mamba2":
        # The log has a token count even so: blocks of one state each times the longest context.
        assert not got.all("kvcache_capacity_tokens")
        assert got.reason("kvcache_capacity_tokens") == "attention_free"
        assert got.reason("kvcache_used_tokens") == "attention_free"
        return
    if name == "llama-preemptions":
        expected = 300 * 32  # no log kept; 300 blocks of 32 tokens
    else:
        log = (folder(name) / "engine-said.txt").read_text()
        match = re.search(r"KV cache size: ([\d,]+) tokens", log)
        assert match
        expected = int(match[1].replace(",", ""))
    assert got.one("kvcache_capacity_tokens") == expected


@pytest.mark.parametrize(("name", "page"), [(n, p) for n, p in PAGES if n in MODELS])
def test_bytes_by_hand(capsys: pytest.CaptureFixture[str], name: str, page: str) -> None:
    """Bytes of a token and of the pool, by the formulas written out above."""
    model, said, got = MODELS[name], engine_page(name, page), ours(capsys, name, page)
    blocks = int(config_label(said, "num_gpu_blocks"))
    assert got.one("kvcache_bytes_per_token") == model.token_bytes
    assert got.one("kvcache_device_bytes_per_token") == model.token_bytes / model.device_share
    assert got.one("kvcache_state_bytes_per_sequence") == 0
    assert got.one("kvcache_capacity_bytes") == blocks * model.block_bytes
    usage = said.maybe("vllm:kv_cache_usage_perc")
    if usage is not None:
        assert got.one("kvcache_used_bytes") == round(usage * (blocks - 1)) * model.block_bytes
    # 4,096 is both a tier and the longest context: one series, not two.
    assert got.values("kvcache_max_sequences", "context") == {"4096": model.max_sequences}
    assert got.one("kvcache_arithmetic_ratio") == 1


@pytest.mark.parametrize(("name", "page"), [(n, p) for n, p in PAGES if n in MODELS])
def test_the_pool_is_what_the_engine_was_given(
    capsys: pytest.CaptureFixture[str], name: str, page: str
) -> None:
    """kv_cache_memory_bytes of one GPU holds our pool, and one block more would not fit."""
    model, said, got = MODELS[name], engine_page(name, page), ours(capsys, name, page)
    given = int(config_label(said, "kv_cache_memory_bytes")) * model.device_share
    pool = got.one("kvcache_capacity_bytes")
    assert pool <= given < pool + model.block_bytes


@pytest.mark.parametrize(("name", "page"), [(n, p) for n, p in PAGES if n in HYBRIDS])
def test_models_with_state(capsys: pytest.CaptureFixture[str], name: str, page: str) -> None:
    """State beside or instead of attention: bytes to the byte, and no token figure where there is none."""
    model, got = HYBRIDS[name], ours(capsys, name, page)
    assert got.one("kvcache_bytes_per_token") == model.token_bytes
    assert got.one("kvcache_state_bytes_per_sequence") == model.state_bytes
    assert got.one("kvcache_capacity_bytes") == got.one("kvcache_capacity_blocks") * model.block_bytes
    assert got.one("kvcache_max_sequences", context="4096") == model.max_sequences
    assert got.one("kvcache_arithmetic_ratio") == 1
    tokens = "attention_free" if name == "mamba2" else "several_cache_groups"
    assert got.reason("kvcache_used_tokens") == tokens
    # Both ran without prefix caching.
    assert got.reason("kvcache_prefix_matchable_tokens") == "prefix_caching_off"


def test_preempted_requests_of_the_preemption_run(capsys: pytest.CaptureFixture[str]) -> None:
    """75 preemptions hit 58 of 286 requests.

    Buckets 1: 274, 2: 282, 3: 285, 4 and above: 286, so n2 = 8, n3 = 3, n4 = 1;
    n1 = 75 - 2 x 8 - 3 x 3 - 4 x 1 = 46; 46 + 8 + 3 + 1 = 58.
    """
    got = ours(capsys, "llama-preemptions", "after.prom")
    assert got.one("kvcache_preempted_requests_total") == 58
    assert got.one("kvcache_preempted_requests_lower_bound") == 0
    assert got.one("kvcache_preemptions_total") == 75


@pytest.mark.parametrize("name", ["llama_tp2"])
def test_tensor_parallelism_nobody_told(capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Without the flag one GPU's block looks twice its size: the engine's byte budget
    gives it away: the ratio says 2, and no bytes are published rather than double ones."""
    here = folder(name)
    got = explain(capsys, ["--metrics", here / "loaded.prom", "--model-config", here / "config.json"])
    assert got.one("kvcache_arithmetic_ratio") == 2
    for signal in ("bytes_per_token", "capacity_bytes", "used_bytes"):
        assert not got.all(f"kvcache_{signal}")
        assert got.reason(f"kvcache_{signal}") == "tensor_parallel_size"
    assert got.one("kvcache_capacity_tokens") == 19_200
    assert got.one("kvcache_max_sequences", context="4096") == 4


def test_info_endpoints_add_the_release(capsys: pytest.CaptureFixture[str]) -> None:
    """Saved answers, heads included, name the release and the GPUs."""
    here = folder("llama-preemptions")
    info = [here / "endpoints" / n for n in ("v1_models.txt", "version.txt", "server_info.json")]
    words: list[str | Path] = ["--metrics", here / "loaded.prom", "--model-config", here / "config.json"]
    got = explain(capsys, [*words, "--engine-info", *info])
    found = got.all("kvcache_engine_info")
    assert len(found) == 1
    labels = found[0].labels
    assert labels["version"] == "0.32.0"
    assert labels["parallel_source"] == "engine"
    assert labels["tensor_parallel_size"] == "1"
    assert not got.all("kvcache_exporter_input_assumed")
    assert not got.all("kvcache_exporter_input_contradiction")
    assert got.one("kvcache_arithmetic_ratio") == 1
