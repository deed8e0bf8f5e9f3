"""SGLang's pools by hand, where its own configurator was not asked, and their properties."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.kvmath.known import Reason, Unavailable, known
from exporter.kvmath.layers import Kind, LayerCache, recurrent
from exporter.kvmath.model import ModelShape, read_model
from exporter.kvmath.parallel import Parallelism
from exporter.kvmath.sglang import TokenPools, sequence_tokens, token_pools
from exporter.kvmath.sglang_budget import PoolSizes, divide, sequences_in, states_each, window_share
from exporter.kvmath.states import mamba2

CONFIGS = Path(__file__).parents[2] / "data" / "kv" / "configs"
FULL = LayerCache(Kind.FULL, 8, 64, 64)
WINDOW = LayerCache(Kind.WINDOW, 8, 64, 64, 128)
LATENT = LayerCache(Kind.MLA, 1, 576, 0)
INDEX = LayerCache(Kind.INDEXER, 1, 128, 0, record_bytes=132)


def config(name: str, **changes: Any) -> ModelShape:
    shape = read_model({**json.loads((CONFIGS / f"{name}.json").read_text()), **changes})
    assert known(shape), shape
    return shape


def of(*layers: LayerCache, arch: str = "GptOssForCausalLM", model_type: str = "test") -> ModelShape:
    return ModelShape(model_type, (arch,), layers, 4096, "bfloat16", "", 64)


def pools(shape: ModelShape, dtype: str = "bfloat16", page: int = 1, **more: Any) -> TokenPools:
    found = token_pools(shape, dtype, page, more.pop("parallelism", Parallelism()), **more)
    assert known(found), found
    return found


def test_a_layer_without_a_cache_takes_slots_all_the_same() -> None:
    """Nemotron NAS has attention in 49 of 80 layers; SGLang's pool has 80 x 8 heads x 2 x 128 x 2 bytes
    (num_effective_layers). Its config class is the checkpoint's own code, so the engine was not asked."""
    assert pools(config("nvidia__Llama-3_3-Nemotron-Super-49B-v1")).bytes_per_token == 80 * 4_096


def test_qwen_without_its_interval() -> None:
    """Qwen 3.5 4B names its layers one by one: 8 full x 4 heads x 2 x 256 x 2 bytes, 24 states of a
    convolution of 3 x 8,192 in 16 bits and 32 x 128 x 128 in float32."""
    found = pools(config("Qwen__Qwen3.5-4B"))
    assert found.bytes_per_token == 8 * 4_096
    assert found.state_bytes == 24 * (3 * 8_192 * 2 + 32 * 128 * 128 * 4)


def test_states_are_float32_unless_told() -> None:
    """Nemotron-H's own mamba_ssm_cache_dtype SGLang doesn't read; Qwen 3.5's mamba_ssm_dtype it does."""
    nemotron = config("nvidia__NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", mamba_ssm_cache_dtype="bfloat16")
    conv, wide = 3 * (64 * 64 + 2 * 8 * 128) * 2, 64 * 64 * 128
    assert pools(nemotron).state_bytes == 23 * (conv + wide * 4)
    assert pools(nemotron, state_dtype="bfloat16").state_bytes == 23 * (conv + wide * 2)
    qwen = json.loads((CONFIGS / "Qwen__Qwen3.5-9B.json").read_text())
    qwen["text_config"]["mamba_ssm_dtype"] = "bfloat16"
    shape = read_model(qwen)
    assert known(shape)
    assert pools(shape).state_bytes == 24 * (3 * 8_192 + 32 * 128 * 128) * 2


def test_an_index_beside_a_shared_context() -> None:
    """Ranks that share a context divide the latents, but each keeps the index keys of all: a slot of one
    of two ranks takes 1,152 + 2 x 132 bytes, a token on 4 ranks 2 x 1,152 + 4 x 132."""
    shape = of(INDEX, LATENT, arch="DeepseekV32ForCausalLM")
    shape = ModelShape("deepseek_v32", shape.architectures, shape.layers, 4096, "", "", 64, (0, 0), 1)
    found = pools(shape, parallelism=Parallelism(4, 1, 2))
    assert found.full_token_bytes == 1_152 + 2 * 132
    assert found.bytes_per_token == 2 * 1_152 + 4 * 132
    assert found.device_bytes_per_token == (1_152 + 2 * 132) / 2
    assert found.granule_tokens == 2
    assert found.reported_pool_bytes(1_000) == (500 + 1) * found.full_token_bytes


def test_draft_layers() -> None:
    """DeepSeek V3.2: one layer more of 656 + 132 bytes beside 61 in fp8 (and 61 of its 62nd part)."""
    shape = config("deepseek-ai__DeepSeek-V3.2")
    assert pools(shape, "fp8_e4m3", speculative="mtp").bytes_per_token == 62 * (656 + 132)
    assert pools(shape, "fp8_e4m3", speculative="ngram").bytes_per_token == 61 * (656 + 132)


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("google__gemma-4-E2B", "layers that share a cache"),
        ("MiniMaxAI__MiniMax-M3", "sparse_disable_index_value"),
        ("MiniMaxAI__MiniMax-M1-80k", "no model of SGLang"),
        ("deepseek-ai__DeepSeek-V4-Flash", "max-running-requests"),
        ("openbmb__MiniCPM3-4B", "latent"),
        ("google-t5__t5-small", "no model of SGLang"),
    ],
)
def test_withheld(name: str, detail: str) -> None:
    """What is missing is named."""
    found = token_pools(config(name), "bfloat16", 1, Parallelism())
    assert isinstance(found, Unavailable)
    assert found.reason is Reason.UNSUPPORTED_ATTENTION
    assert detail in found.detail


@pytest.mark.parametrize(
    ("shape", "dtype", "more", "reason"),
    [
        (of(FULL), "nvfp4", {}, Reason.KV_CACHE_DTYPE),  # one or two layouts of scales, by the backend
        (of(LATENT, arch="DeepseekV3ForCausalLM"), "fp8_ds_mla", {}, Reason.KV_CACHE_DTYPE),
        (of(FULL), "bfloat16", {"speculative": "eagle"}, Reason.SPECULATIVE_DECODING),
        (of(FULL, WINDOW), "bfloat16", {"speculative": "mtp"}, Reason.SPECULATIVE_DECODING),
        (of(LayerCache(Kind.FULL, 4, 64, 64), FULL), "bfloat16", {}, Reason.UNSUPPORTED_ATTENTION),
        (
            of(FULL, WINDOW, LayerCache(Kind.WINDOW, 8, 64, 64, 64)),
            "bfloat16",
            {},
            Reason.UNSUPPORTED_ATTENTION,
        ),
        (of(FULL, INDEX), "bfloat16", {}, Reason.UNSUPPORTED_ATTENTION),
    ],
)
def test_settings_that_are_not_known(
    shape: ModelShape, dtype: str, more: dict[str, Any], reason: Reason
) -> None:
    """Each has a reason of its own."""
    found = token_pools(shape, dtype, 1, Parallelism(), **more)
    assert isinstance(found, Unavailable)
    assert found.reason is reason


@pytest.mark.parametrize("parallelism", [Parallelism(4, 1, 3), Parallelism(4, 1, 0), Parallelism(2, 1, 4)])
def test_contexts_shared_by_no_whole_group(parallelism: Parallelism) -> None:
    """Every group of ranks that share heads is as large as every other."""
    found = token_pools(of(FULL), "bfloat16", 1, parallelism)
    assert isinstance(found, Unavailable)
    assert found.reason is Reason.UNSUPPORTED_PARALLELISM


def test_llama_4_as_sglang_counts_its_layers() -> None:
    """Every fourth layer is full whatever no_rope_layers says, so another list is not laid out."""
    text = json.loads((CONFIGS / "meta-llama__Llama-4-Scout-17B-16E-Instruct.json").read_text())
    text["text_config"]["no_rope_layers"] = [1, 0] * 24
    shape = read_model(text)
    assert known(shape)
    found = token_pools(shape, "bfloat16", 1, Parallelism())
    assert isinstance(found, Unavailable)
    assert "no_rope_layers" in found.detail


def test_a_budget_with_states() -> None:
    """A state of 1,000 bytes, tokens of 10, 190,000 bytes: 0.9 / 1.9 of them = 90,000 are 90 slots, one of
    them padding; the other 100,000 bytes are 10,000 tokens."""
    shape = TokenPools(1, 10, 0, 0, 10, 0, 10, 10, 1_000, 1_000)
    sizes = divide(shape, 190_500)  # 500 more: 0.9 / 1.9 of it is no slot, so 50 tokens
    assert sizes == PoolSizes(10_050, 0, 89)
    assert divide(shape, 3_000) is None  # 1,421 bytes for states: the padding slot and nothing else
    assert sequences_in(PoolSizes(10_050, 0, 89), shape, 100, 3) == 29  # 89 // 3; 100 by tokens
    assert sequences_in(PoolSizes(10_050, 0, 89), shape, 1_000, 3) == 10  # by tokens
    assert [states_each(flag) for flag in (False, True, None)] == [(1, 1), (3, 5), (1, 5)]
    # Told how many are for tracking, nothing is left open but the radix cache.
    assert [states_each(flag, 1) for flag in (False, True, None)] == [(1, 1), (4, 4), (1, 4)]


def test_states_alone_have_no_budget_of_tokens() -> None:
    """Pure Mamba: its token slots take no bytes."""
    state = recurrent(mamba2(8, 64, 1, 128, 4, 512))
    found = pools(of(state, arch="Mamba2ForCausalLM", model_type="mamba2"))
    assert (found.full_token_bytes, found.bytes_per_token) == (0, 0)
    assert found.state_bytes == 3 * (512 + 2 * 128) * 2 + 8 * 64 * 128 * 4
    assert divide(found, 10**9) is None


def test_a_budget_with_windows() -> None:
    """gpt-oss: 36,864 bytes of each pool, 0.8 window slots per token: 10^9 / 66,355.2 = 15,070 tokens and
    12,056 window slots; 92 sequences of 130 slots hold 11,960 of them, 115 sequences of 131 tokens."""
    found = pools(config("openai__gpt-oss-120b"))
    assert divide(found, 10**9) == PoolSizes(15_070, 12_056, 0)
    assert window_share(found, 131_072) == 130
    assert window_share(found, 50) == 50
    assert sequences_in(PoolSizes(15_070, 12_056, 0), found, 131, 1) == 92  # 12,056 // 130
    assert sequences_in(PoolSizes(15_070, 12_056, 0), found, 1_000, 1) == 15
    # 1,024 tokens of 0.5 are 512 window slots.
    assert divide(found, 1_024 * 36_864 * 3 // 2, window_ratio=0.5) == PoolSizes(1_024, 512, 0)


LAYERS = st.lists(st.sampled_from([FULL, WINDOW]), min_size=1, max_size=24).filter(lambda own: FULL in own)


@settings(deadline=None)
@given(layers=LAYERS, tensor=st.sampled_from([1, 2, 4, 8, 16]), budget=st.integers(10**6, 10**11))
def test_pools_of_a_budget(layers: list[LayerCache], tensor: int, budget: int) -> None:
    """What is made of a budget fits it; fp8 holds no fewer; more ranks hold no fewer and never more than
    n times as many bytes a token; without a window pool each token takes at least as much."""
    shape = of(*layers)
    one = pools(shape)
    found = pools(shape, parallelism=Parallelism(tensor))
    assert found.full_token_bytes * tensor >= one.full_token_bytes
    assert found.bytes_per_token >= one.bytes_per_token
    assert pools(shape, window_pool=False).bytes_per_token >= one.bytes_per_token
    sizes, small = divide(found, budget), divide(pools(shape, "fp8", parallelism=Parallelism(tensor)), budget)
    if sizes is None:
        return
    held = sizes.full_tokens * found.full_token_bytes + sizes.window_tokens * found.window_token_bytes
    assert held <= budget
    assert small is not None
    assert small.full_tokens >= sizes.full_tokens
    assert small.window_tokens >= sizes.window_tokens


@settings(deadline=None)
@given(
    tokens=st.integers(1, 10**6),
    more=st.integers(0, 1_000),
    page=st.sampled_from([1, 16, 64]),
    slots=st.integers(0, 10**6),
)
def test_sequences_of_a_pool(tokens: int, more: int, page: int, slots: int) -> None:
    """A longer sequence never fits more often; what fits takes no more than there is; a window's share is
    the whole of a sequence inside the window, and no more of a longer one."""
    found = pools(of(FULL, WINDOW), page=page)
    sizes = PoolSizes(slots, slots // 2, 0)
    fit = sequences_in(sizes, found, tokens, 1)
    assert fit >= sequences_in(sizes, found, tokens + more, 1)
    assert fit * sequence_tokens(tokens, page) <= slots
    assert fit * window_share(found, tokens) <= slots // 2
    assert (
        window_share(found, tokens)
        <= window_share(found, tokens + more)
        <= sequence_tokens(tokens + more, page)
    )
    if tokens <= 128:
        assert window_share(found, tokens) == sequence_tokens(tokens, page)
