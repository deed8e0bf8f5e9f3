"""What must hold for any model, GPU and traffic: rounding never makes room that isn't there."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.model import ModelShape, read_model
from exporter.kvmath.overrides import Override
from exporter.kvmath.parallel import Parallelism
from exporter.kvmath.plan import (
    Deployment,
    Pool,
    longest_context,
    plan_context,
    pool_of,
    sharing_of,
    shortest_prefix,
)
from exporter.planner.layouts import Choices, EngineLayout, engine_layout

CONFIGS = Path(__file__).parents[2] / "data" / "kv" / "configs"
# A cache of each make: full, windows, latent, chunks, states, indexer, compressed records, shared layers.
NAMES = (
    "meta-llama__Llama-3.1-8B-Instruct",
    "openai__gpt-oss-120b",
    "google__gemma-3-12b-it",
    "deepseek-ai__DeepSeek-V3",
    "deepseek-ai__DeepSeek-V3.2",
    "deepseek-ai__DeepSeek-V4-Flash",
    "meta-llama__Llama-4-Scout-17B-16E-Instruct",
    "Qwen__Qwen3-Next-80B-A3B-Instruct",
    "google__gemma-3n-E4B-it",
)
NO_PRICE = Unavailable(Reason.NOT_REPORTED)


def layout_of(name: str, **changes: object) -> EngineLayout:
    shape = read_model(json.loads((CONFIGS / f"{name}.json").read_text()))
    assert isinstance(shape, ModelShape), shape
    # DeepSeek V4 stores fp8 records and nothing else.
    dtype = changes.pop("kv_cache_dtype", "fp8" if "V4" in name else "auto")
    found = engine_layout(shape, Choices("vllm", str(dtype), Parallelism(), **changes))  # type: ignore[arg-type]
    assert isinstance(found, EngineLayout), found
    return found


LAYOUTS = {name: layout_of(name) for name in NAMES}
names = st.sampled_from(NAMES)
lengths = st.integers(1, 300_000)
memories = st.integers(10**9, 300 * 10**9)


def deployment(memory: int, weights: int = 0) -> Deployment:
    return Deployment(1, memory, 0.92, 0, weights, 3350 * 10**9, NO_PRICE)


def pool(name: str, memory: int) -> Pool:
    found = pool_of(deployment(memory), LAYOUTS[name])
    assert isinstance(found, Pool)
    return found


@given(name=names, tokens=lengths, memory=memories)
def test_what_fits_is_there(name: str, tokens: int, memory: int) -> None:
    """fit x peak never exceeds the pool, and one more would."""
    layout, room = LAYOUTS[name], pool(name, memory)
    plan = plan_context(layout, deployment(memory), room, tokens, 4096)
    assert isinstance(plan.fit, int)
    assert plan.fit * plan.peak_bytes <= room.device_bytes <= memory
    assert (plan.fit + 1) * plan.peak_blocks > room.usable_blocks
    assert plan.resident_bytes <= plan.peak_bytes


@given(name=names, shorter=lengths, longer=lengths, memory=memories)
def test_longer_never_fits_more(name: str, shorter: int, longer: int, memory: int) -> None:
    """The peak grows with the length, so the count falls."""
    shorter, longer = sorted((shorter, longer))
    plans = [
        plan_context(LAYOUTS[name], deployment(memory), pool(name, memory), tokens, 4096)
        for tokens in (shorter, longer)
    ]
    assert plans[0].peak_bytes <= plans[1].peak_bytes
    assert isinstance(plans[0].fit, int)
    assert isinstance(plans[1].fit, int)
    assert plans[0].fit >= plans[1].fit


@given(memory=memories, weights=st.integers(0, 10**12))
def test_weights_and_pool_are_the_usable_memory(memory: int, weights: int) -> None:
    """Nothing is lost, and a pool is never below zero."""
    machine = deployment(memory, weights)
    room = pool_of(machine, LAYOUTS[NAMES[0]])
    assert isinstance(room, Pool)
    assert room.device_bytes == max(0, machine.usable_bytes - weights)


@given(name=names, tokens=lengths, prefix=st.integers(0, 300_000), many=st.integers(1, 500))
def test_sharing_never_costs(name: str, tokens: int, prefix: int, many: int) -> None:
    """Together never takes more than apart, never less than one alone, and the last block stays one's own."""
    layout = LAYOUTS[name]
    sharing = sharing_of(layout, tokens, prefix)
    apart = many * layout.peak_blocks(tokens)
    assert layout.peak_blocks(tokens) <= sharing.blocks(many) <= apart
    assert sharing.own_blocks >= 1
    assert sharing.prefix_tokens < tokens


@given(name=names, tokens=st.integers(2, 300_000), many=st.integers(1, 500), memory=memories)
@settings(max_examples=60)
def test_remedies_are_sharp(name: str, tokens: int, many: int, memory: int) -> None:
    """The context cap and the prefix are enough, and one token less of help is not."""
    layout, room = LAYOUTS[name], pool(name, memory).usable_blocks
    cap = longest_context(layout, room, many, 0, tokens)
    assert cap == 0 or many * layout.peak_blocks(cap) <= room
    assert cap == tokens - 1 or many * layout.peak_blocks(cap + 1) > room
    if many * layout.peak_blocks(tokens) > room:
        prefix = shortest_prefix(layout, room, many, tokens)
        if prefix:
            assert sharing_of(layout, tokens, prefix).blocks(many) <= room
            assert sharing_of(layout, tokens, prefix - 1).blocks(many) > room


@given(name=names, tokens=lengths)
def test_windows_stored_in_full_take_no_less(name: str, tokens: int) -> None:
    """Without the hybrid manager nothing is given back; models that need it are refused."""
    shape = read_model(json.loads((CONFIGS / f"{name}.json").read_text()))
    assert isinstance(shape, ModelShape)
    choices = Choices("vllm", "fp8" if "V4" in name else "auto", Parallelism(), hybrid_manager=False)
    plain = engine_layout(shape, choices)
    if isinstance(plain, EngineLayout):
        # The last block may be larger than the groups' blocks together: compare what they hold.
        slack = plain.block_bytes
        assert plain.peak_blocks(tokens) * plain.block_bytes + slack >= sum(
            LAYOUTS[name].group_blocks(tokens)
        ) * LAYOUTS[name].block_bytes * (tokens > 20_000)


@given(per_token=st.integers(1, 10**7), tokens=lengths, block=st.integers(1, 256))
def test_by_hand(per_token: int, tokens: int, block: int) -> None:
    """A cache set by hand takes its bytes per token, rounded up to a block."""
    choices = Choices("vllm", "auto", Parallelism(), block, override=Override(bytes_per_token=per_token))
    found = engine_layout(Unavailable(Reason.UNSUPPORTED_ATTENTION), choices)
    assert isinstance(found, EngineLayout)
    taken = found.peak_blocks(tokens) * found.block_bytes
    assert per_token * tokens <= taken < per_token * (tokens + block)
