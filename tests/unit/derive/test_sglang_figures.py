"""SGLang: token pools, one or two of them."""

from __future__ import annotations

from typing import Any

import pytest

from exporter import catalogue as c
from exporter.engines.sample import NOT_REPORTED, EngineSample
from exporter.facts import Facts, Source
from exporter.kvmath.known import Reason

from .readouts import GPT_OSS, by, figure, read, sglang, told

BF16 = told(kv_cache_dtype="bfloat16")
QWEN3_NEXT = "data/kv/configs/Qwen__Qwen3-Next-80B-A3B-Instruct.json"
SPARSE = "data/kv/configs/deepseek-ai__DeepSeek-V3.2.json"
LLAMA_8B = "data/kv/configs/meta-llama__Llama-3.1-8B-Instruct.json"
POOL = 36_864  # bytes of one token in the 18 layers of either pool of gpt-oss


def test_one_pool() -> None:
    """1,024 bytes a token; 10,000 slots and one page of padding; 6,000 not in use."""
    got = read(sglang(), contexts=(500, 4_096))
    assert figure(got, c.BYTES_PER_TOKEN) == 1_024
    assert figure(got, c.CAPACITY_BYTES) == 10_001 * 1_024
    assert figure(got, c.USED_BYTES) == 4_000 * 1_024
    assert figure(got, c.CACHED_TOKENS) == 1_000
    assert figure(got, c.TOKENS_PER_SEQUENCE) == 1_000
    assert by(got, c.MAX_SEQUENCES, "context") == {"500": 20, "4096": 2, "8192": 1}
    assert by(got, c.FREE_SEQUENCES, "context") == {"500": 12, "4096": 1, "8192": 0}
    assert by(got, c.SEQUENCE_BYTES, "context") == {
        "500": 500 * 1_024,
        "4096": 4_096 * 1_024,
        "8192": 8_192 * 1_024,
    }


def test_pages() -> None:
    """Sequences take whole pages: 500 tokens are 8 pages of 64 = 512; used pages round up."""
    got = read(sglang(block_tokens=64, capacity_tokens=9_984), contexts=(500,))
    assert figure(got, c.CAPACITY_BLOCKS) == 156
    assert figure(got, c.USED_BLOCKS) == 63  # 4,000 / 64 = 62.5
    assert by(got, c.MAX_SEQUENCES, "context")["500"] == 9_984 // 512
    assert by(got, c.SEQUENCE_BYTES, "context")["500"] == 512 * 1_024
    assert figure(got, c.CAPACITY_BYTES) == (9_984 + 64) * 1_024


def test_the_engines_own_bytes_win_and_are_checked() -> None:
    """What the engine says of one GPU, for all GPUs; ours over it is the ratio."""
    told_bytes = 10_001 * 512  # tensor parallel 2: one head a GPU
    got = read(sglang(device_pool_bytes=told_bytes, tensor_ranks=2))
    assert figure(got, c.CAPACITY_BYTES) == 2 * told_bytes
    assert figure(got, c.ARITHMETIC_RATIO) == 1
    wrong = read(sglang(device_pool_bytes=told_bytes))
    assert figure(wrong, c.ARITHMETIC_RATIO) == pytest.approx(2, rel=1e-12)
    assert figure(read(sglang()), c.ARITHMETIC_RATIO) is Reason.NOT_REPORTED
    assert figure(read(sglang(device_pool_bytes=0)), c.ARITHMETIC_RATIO) is Reason.NOT_REPORTED


def test_capacity_from_the_info_endpoint() -> None:
    """Below 0.5.7 the page has no capacity; /get_server_info has it."""
    facts = {Source.ENGINE: Facts(max_total_num_tokens=10_000)}
    got = read(sglang(capacity_tokens=NOT_REPORTED), facts=facts)
    assert figure(got, c.CAPACITY_TOKENS) == 10_000
    assert figure(got, c.FREE_SEQUENCES, context="4096") == 1
    nobody = read(sglang(capacity_tokens=NOT_REPORTED))
    assert figure(nobody, c.CAPACITY_TOKENS) is Reason.MAX_TOTAL_NUM_TOKENS
    assert figure(nobody, c.MAX_SEQUENCES) is Reason.MAX_TOTAL_NUM_TOKENS


def test_more_used_than_an_info_endpoint_once_said() -> None:
    """The page moved on, the endpoint's answer is older: nothing is free, never less than nothing."""
    facts = {Source.ENGINE: Facts(max_total_num_tokens=3_000)}
    got = read(sglang(capacity_tokens=NOT_REPORTED), facts=facts)
    assert by(got, c.FREE_SEQUENCES, "context") == {"4096": 0, "8192": 0}


def test_without_a_config() -> None:
    """Sequences need only slots, where the page shows that no other pool stands beside them."""
    plain = read(sglang(several_pools=False), config=None)
    assert by(plain, c.MAX_SEQUENCES, "context") == {"4096": 2, "8192": 1}
    assert figure(plain, c.BYTES_PER_TOKEN) is Reason.MODEL_CONFIG
    for unsure in (True, None):
        got = read(sglang(several_pools=unsure), config=None)
        assert figure(got, c.MAX_SEQUENCES) is Reason.MODEL_CONFIG
        assert figure(got, c.CAPACITY_TOKENS) == 10_000


def test_speculative_decoding() -> None:
    """Draft layers share the pool."""
    got = read(sglang(speculative=True))
    for metric in (*c.TOKEN_COST, c.CAPACITY_BYTES, c.USED_BYTES, c.MAX_SEQUENCES, c.WHATIF_MAX_SEQUENCES):
        assert figure(got, metric) is Reason.SPECULATIVE_DECODING, metric.name
    assert figure(got, c.CAPACITY_TOKENS) == 10_000


def test_draft_layers_of_the_checkpoint() -> None:
    """DeepSeek V3.2 in bf16: 61 layers of 1,152 bytes and an index of 132, and the one it drafts with."""
    for method, layers in (("mtp", 62), ("ngram", 61)):
        facts = told(kv_cache_dtype="bfloat16", speculative=True, speculative_method=method)
        assert figure(read(sglang(), SPARSE, facts=facts), c.BYTES_PER_TOKEN) == layers * (1_152 + 132)


def test_whatif() -> None:
    """10,001 slots of 1,024 bytes are 20,002 of 512, one of them padding: 20,001 // 4,096 = 4."""
    got = read(sglang(), contexts=(4_096,))
    found = {
        (f.labels["context"], f.labels["kv_cache_dtype"]): f.value
        for f in got.figures
        if f.metric is c.WHATIF_MAX_SEQUENCES
    }
    assert found == {("4096", "fp8"): 4, ("8192", "fp8"): 2}


def test_whatif_of_next_to_nothing() -> None:
    """A pool of one page, its cache doubled: the padding page is all that is left, so 0 and not -1."""
    sample = sglang(block_tokens=64, capacity_tokens=0, used_tokens=0)
    got = read(sample, facts=told(kv_cache_dtype="fp8_e4m3"))
    assert set(by(got, c.WHATIF_MAX_SEQUENCES, "context").values()) == {0}


def test_a_window_pool_large_enough() -> None:
    """gpt-oss: 8,000 window slots hold 8,000 // 130 = 61 sequences (a window of 128, one token being
    filled and one not yet evicted), so the full pool's 10,000 // 4,096 = 2 is the limit."""
    got = read(sglang(window_capacity_tokens=8_000), GPT_OSS, facts=BF16)
    assert figure(got, c.BYTES_PER_TOKEN) == POOL
    assert by(got, c.MAX_SEQUENCES, "context") == {"4096": 2, "8192": 1}
    # Pools padded by a page each.
    assert figure(got, c.CAPACITY_BYTES) == POOL * 10_001 + POOL * 8_001
    # How much of the window pool is in use nobody says here, and 4,096 tokens hold a share that varies.
    for metric in (c.FREE_SEQUENCES, c.SEQUENCE_BYTES, c.USED_BYTES):
        assert figure(got, metric) is Reason.WINDOW_POOL, metric.name
    # An fp8 cache has twice the slots in both pools: 20,001 // 4,096 and 20,001 // 8,192.
    assert by(got, c.WHATIF_MAX_SEQUENCES, "context") == {"4096": 4, "8192": 2}


def test_a_window_pool_in_use() -> None:
    """4,000 of 10,000 tokens and 500 of 8,000 window slots are taken: the full pool has room for one of
    4,096, the window pool for 57. A sequence inside the window (100 of 128 tokens) holds 100 of each."""
    got = read(
        sglang(window_capacity_tokens=8_000, window_used_tokens=500),
        GPT_OSS,
        contexts=(100, 4_096),
        facts=BF16,
    )
    assert by(got, c.FREE_SEQUENCES, "context") == {"100": 60, "4096": 1, "8192": 0}
    assert figure(got, c.USED_BYTES) == POOL * 4_000 + POOL * 500
    assert by(got, c.SEQUENCE_BYTES, "context") == {"100": 100 * 2 * POOL}
    # 8,000 window slots are fewer than 10,000 tokens: 80 sequences of 100, not 100.
    assert by(got, c.MAX_SEQUENCES, "context")["100"] == 80


def test_a_window_pool_switched_off() -> None:
    """--disable-hybrid-swa-memory is on no page; the pool's bytes tell: 36 layers in one pool."""
    got = read(sglang(device_pool_bytes=2 * POOL * 10_001), GPT_OSS, facts=BF16)
    assert figure(got, c.BYTES_PER_TOKEN) == 2 * POOL
    assert figure(got, c.ARITHMETIC_RATIO) == 1
    assert figure(got, c.SEQUENCE_BYTES, context="4096") == 4_096 * 2 * POOL


def hybrid(**more: Any) -> EngineSample:
    """Qwen3-Next with 24 state slots, 4 of them in use by 2 sequences."""
    said = {"state_slots": 24, "used_state_slots": 4, "running_sequences": 2, "several_pools": True}
    return sglang(**{**said, **more})


def test_states() -> None:
    """Qwen3-Next: 12 full layers x 2 heads x 2 x 256 x 2 bytes = 24,576 a token; 36 gated delta nets keep
    a convolution of 3 x 8,192 in 16 bits and 32 x 128 x 128 in float32: 2,146,304 bytes each."""
    state = 36 * (3 * 8_192 * 2 + 32 * 128 * 128 * 4)
    got = read(hybrid(device_pool_bytes=24_576 * 10_001), QWEN3_NEXT, contexts=(100, 4_096), facts=BF16)
    assert state == 77_266_944
    assert figure(got, c.BYTES_PER_TOKEN) == 24_576
    assert figure(got, c.STATE_BYTES_PER_SEQUENCE) == state
    assert figure(got, c.ARITHMETIC_RATIO) == 1  # the engine's figure leaves the states out
    assert figure(got, c.CAPACITY_BYTES) == 24_576 * 10_001 + state * 25  # and one slot of padding
    assert figure(got, c.USED_BYTES) == 24_576 * 4_000 + state * 4
    assert figure(got, c.SEQUENCE_BYTES, context="4096") == 24_576 * 4_096 + state
    # Tokens decide: 10,000 // 4,096. With 100 tokens the slots do, 24 // 3 or 24 // 5: not told which.
    assert by(got, c.MAX_SEQUENCES, "context") == {"4096": 2, "8192": 1}
    assert by(got, c.FREE_SEQUENCES, "context") == {"4096": 1, "8192": 0}


def test_the_states_dtype_as_the_engine_was_told() -> None:
    """--mamba-ssm-dtype bfloat16: 36 x (3 x 8,192 + 32 x 128 x 128) x 2 bytes."""
    got = read(hybrid(), QWEN3_NEXT, facts=told(kv_cache_dtype="bfloat16", state_dtype="bfloat16"))
    assert figure(got, c.STATE_BYTES_PER_SEQUENCE) == 39_518_208


def test_slots_of_a_radix_cache() -> None:
    """Three a sequence and those it records states in: 24 // 3 = 8, with two more 24 // 5 = 4; 2 run."""
    for tracking, most in ((0, 8), (2, 4)):
        facts = told(kv_cache_dtype="bfloat16", enable_prefix_caching=True, tracking_states=tracking)
        got = read(hybrid(), QWEN3_NEXT, contexts=(100,), facts=facts)
        assert by(got, c.MAX_SEQUENCES, "context")["100"] == most
        assert by(got, c.FREE_SEQUENCES, "context")["100"] == most - 2


def test_slots_without_a_radix_cache() -> None:
    """Then a sequence takes one slot: 24 sequences although 100 of 100 tokens would fit, 22 more now."""
    facts = told(kv_cache_dtype="bfloat16", enable_prefix_caching=False)
    got = read(hybrid(), QWEN3_NEXT, contexts=(100,), facts=facts)
    assert by(got, c.MAX_SEQUENCES, "context") == {"100": 24, "8192": 1}
    assert by(got, c.FREE_SEQUENCES, "context") == {"100": 22, "8192": 0}


def test_slots_nobody_tells() -> None:
    """Before 0.5.12, and before the first batch, no gauge of the slots."""
    old = read(hybrid(state_slots=NOT_REPORTED, used_state_slots=NOT_REPORTED), QWEN3_NEXT, facts=BF16)
    for metric in (c.MAX_SEQUENCES, c.FREE_SEQUENCES, c.CAPACITY_BYTES, c.USED_BYTES):
        assert figure(old, metric) is Reason.NOT_REPORTED, metric.name
    early = read(hybrid(state_slots=0, used_state_slots=0), QWEN3_NEXT, facts=BF16)
    assert figure(early, c.MAX_SEQUENCES) is Reason.NO_TRAFFIC
    assert figure(early, c.BYTES_PER_TOKEN) == 24_576


def test_states_over_ranks() -> None:
    """Tensor parallel 4: 2 heads are stored twice, the state is divided: the replica keeps one of each."""
    got = read(hybrid(tensor_ranks=4), QWEN3_NEXT, facts=BF16)
    assert figure(got, c.BYTES_PER_TOKEN) == 2 * 24_576
    assert figure(got, c.DEVICE_BYTES_PER_TOKEN) == 12_288
    assert figure(got, c.STATE_BYTES_PER_SEQUENCE) == 77_266_944


def test_latents_of_a_sparse_attention_in_fp8() -> None:
    """DeepSeek V3.2: 61 x (656 or 576, and 132 of index): which, only the pool's bytes tell."""
    facts = told(kv_cache_dtype="fp8_e4m3")
    for size in (61 * (656 + 132), 61 * (576 + 132)):
        got = read(sglang(device_pool_bytes=size * 10_001), SPARSE, facts=facts)
        assert figure(got, c.BYTES_PER_TOKEN) == size
        assert figure(got, c.ARITHMETIC_RATIO) == 1
    assert figure(read(sglang(), SPARSE, facts=facts), c.BYTES_PER_TOKEN) is Reason.KV_CACHE_DTYPE
    plain = read(sglang(), SPARSE, facts=BF16)
    assert figure(plain, c.BYTES_PER_TOKEN) == 61 * (1_152 + 132)


def test_stages_of_unequal_depth() -> None:
    """4 layers on 3 stages are 1, 1 and 2; the page shows the first, 256 bytes a token."""
    facts = told(pipeline_parallel_size=3)
    got = read(sglang(device_pool_bytes=256 * 10_001), facts=facts)
    assert figure(got, c.ARITHMETIC_RATIO) == 1
    assert figure(got, c.DEVICE_BYTES_PER_TOKEN) == 512
    assert figure(got, c.CAPACITY_BYTES) == 1_024 * 10_001


def test_ranks_that_share_a_context() -> None:
    """Llama 3.1 8B on 8 ranks of which 2 share a context: 4 groups of 2 heads, so a rank's slot takes
    32 x 2 heads x 2 x 128 x 2 bytes and each token is on half of the ranks: 131,072 bytes in all. The
    engine counts the tokens of both; a sequence takes whole pages on both."""
    facts = told(tensor_parallel_size=8, decode_context_parallel_size=2, block_size=64)
    got = read(sglang(block_tokens=64, capacity_tokens=9_984), LLAMA_8B, contexts=(4_096,), facts=facts)
    assert figure(got, c.BYTES_PER_TOKEN) == 131_072
    assert figure(got, c.DEVICE_BYTES_PER_TOKEN) == 16_384
    assert figure(got, c.CAPACITY_BYTES) == 8 * 32_768 * (9_984 // 2 + 64)
    assert figure(got, c.SEQUENCE_BYTES, context="4096") == 4_096 * 131_072


def test_a_window_pool_that_is_the_limit() -> None:
    """200 window slots surely hold one sequence of 130, and the full pool two of 4,096: how many is not
    known. At 8,192 the full pool holds one, and so does the window pool."""
    got = read(sglang(window_capacity_tokens=200), GPT_OSS, facts=BF16)
    assert by(got, c.MAX_SEQUENCES, "context") == {"8192": 1}
    # Two of 130 are 260 slots; with one slot less only one is sure.
    enough = read(sglang(window_capacity_tokens=260), GPT_OSS, facts=BF16)
    assert by(enough, c.MAX_SEQUENCES, "context") == {"4096": 2, "8192": 1}
    short = read(sglang(window_capacity_tokens=259), GPT_OSS, facts=BF16)
    assert by(short, c.MAX_SEQUENCES, "context") == {"8192": 1}
    tiny = read(sglang(window_capacity_tokens=100), GPT_OSS, facts=BF16)
    assert figure(tiny, c.MAX_SEQUENCES) is Reason.WINDOW_POOL


def test_a_window_pool_of_unknown_size() -> None:
    """Before 0.5.18 the window pool's capacity is not on the page."""
    got = read(sglang(), GPT_OSS, facts=BF16)
    assert figure(got, c.MAX_SEQUENCES) is Reason.WINDOW_POOL
    assert figure(got, c.FREE_SEQUENCES) is Reason.WINDOW_POOL
    assert figure(got, c.CAPACITY_BYTES) is Reason.NOT_REPORTED
    assert figure(got, c.BYTES_PER_TOKEN) == POOL


def test_both_pools_are_checked_against_the_engines_bytes() -> None:
    """kv_cache_memory_usage_gb covers both."""
    both = POOL * 10_001 + POOL * 8_001
    got = read(sglang(window_capacity_tokens=8_000, device_pool_bytes=both), GPT_OSS, facts=BF16)
    assert figure(got, c.ARITHMETIC_RATIO) == 1
    assert figure(got, c.CAPACITY_BYTES) == both


def test_the_shared_entry_has_counters_only() -> None:
    """What several ranks count together has no pool, and misses nothing."""
    got = read(sglang(whole_server=True, requests={"finished": 3.0}))
    assert {f.metric for f in got.figures} == {c.REQUESTS}
    assert not got.missing
    assert not got.info
