"""The arithmetic, broken on purpose: each way names the checks that have to notice, and where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from exporter.derive import layouts, vllm_pool
from exporter.engines import detect
from exporter.engines.sample import EngineSample, PrefixCounts
from exporter.kvmath import blocks, capacity, sglang
from exporter.kvmath.known import known
from exporter.kvmath.layers import Kind
from exporter.kvmath.parallel import Parallelism

from . import claims
from .claims import Claim

Break = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One mistake, the scene that shows it and the claims that have to be red there."""

    name: str
    scene: str
    red: tuple[Claim, ...]
    do: Break


MUTANTS: list[Mutant] = []


def _mutant(scene: str, *red: Claim) -> Callable[[Break], Break]:
    def keep(do: Break) -> Break:
        MUTANTS.append(Mutant((do.__doc__ or "").rstrip("."), scene, red, do))
        return do

    return keep


def _every_sample(patch: pytest.MonkeyPatch, change: Callable[[EngineSample], EngineSample]) -> None:
    read = detect.samples

    def changed(*args: Any) -> Sequence[EngineSample]:
        return tuple(change(sample) for sample in read(*args))

    patch.setattr(detect, "samples", changed)


@_mutant("vllm-llama", claims.USED_BLOCKS, claims.USED_TOKENS, claims.USED_BYTES)
def block_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """One block more in use than there is."""
    right = capacity.used_blocks
    patch.setattr(capacity, "used_blocks", lambda usage, usable: right(usage, usable) + 1)


@_mutant("vllm-llama", claims.FITS_BY_HAND)
def peak_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """A sequence said to take one block more than it does."""
    right = blocks.CacheGroup.resident_blocks
    patch.setattr(blocks.CacheGroup, "resident_blocks", lambda self, tokens: right(self, tokens) + 1)


@_mutant("vllm-llama", claims.FITS_BY_HAND, claims.USED_BLOCKS)
def null_block_usable(patch: pytest.MonkeyPatch) -> None:
    """The null block counted as usable."""
    _every_sample(patch, lambda sample: replace(sample, null_blocks=0))


@_mutant("vllm-llama_fp8", claims.CAPACITY_BYTES, claims.TENSOR_BYTES, claims.BYTES_PER_TOKEN)
def wrong_dtype(patch: pytest.MonkeyPatch) -> None:
    """An fp8 cache taken for bfloat16."""
    patch.setattr(vllm_pool, "cache_dtype", lambda inputs: "bfloat16")


@_mutant("vllm-llama_fp8", claims.ARITHMETIC_RATIO)
def wrong_dtype_told(patch: pytest.MonkeyPatch) -> None:
    """An fp8 cache taken for bfloat16: the exporter's own check says so."""
    wrong_dtype(patch)


@_mutant("vllm-llama_tp2", claims.CAPACITY_BYTES, claims.TENSOR_BYTES, claims.BYTES_PER_TOKEN)
def tensor_parallelism_ignored(patch: pytest.MonkeyPatch) -> None:
    """Two ranks counted as one."""
    patch.setattr(layouts, "parallelism", lambda inputs: Parallelism(1, 1, 1))


@_mutant("vllm-gemma2", claims.FITS_BY_HAND)
def window_ignored(patch: pytest.MonkeyPatch) -> None:
    """Window layers said to keep every token."""
    right = blocks.CacheGroup._given_back

    def keeps(self: blocks.CacheGroup, tokens: int) -> int:
        return 0 if self.kind is Kind.WINDOW else right(self, tokens)

    patch.setattr(blocks.CacheGroup, "_given_back", keeps)


@_mutant("vllm-gemma2", claims.CAPACITY_BYTES, claims.TENSOR_BYTES, claims.USED_BYTES)
def groups_added_up(patch: pytest.MonkeyPatch) -> None:
    """A block said to take the bytes of all groups instead of one."""
    right = layouts.block_plan

    def all_groups(*args: Any) -> Any:
        layout = right(*args)
        if not known(layout):
            return layout
        many = len(layout.groups)
        return replace(layout, replica_block_bytes=layout.replica_block_bytes * many)

    patch.setattr(vllm_pool, "block_plan", all_groups)


@_mutant("vllm-gemma2", claims.USED_TOKENS)
def blocks_called_tokens(patch: pytest.MonkeyPatch) -> None:
    """Blocks times their size called tokens where a block is one group's."""
    patch.setattr(blocks.BlockLayout, "single_full_group", property(lambda self: True))


@_mutant("vllm-qwen3_next", claims.STATE_BYTES)
def states_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Recurrent states said to take nothing."""
    right = layouts.block_plan

    def stateless(*args: Any) -> Any:
        layout = right(*args)
        return replace(layout, state_bytes_per_sequence=0) if known(layout) else layout

    patch.setattr(vllm_pool, "block_plan", stateless)


@_mutant("vllm-qwen3_next", claims.FITS_BY_HAND)
def second_state_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The state that is kept while the next block begins, left out."""
    right = blocks.CacheGroup.resident_blocks

    def one(self: blocks.CacheGroup, tokens: int) -> int:
        return 1 if self.kind is Kind.STATE else right(self, tokens)

    patch.setattr(blocks.CacheGroup, "resident_blocks", one)


@_mutant("vllm-llama", claims.CAPACITY_TOKENS, claims.CAPACITY_BLOCKS, claims.BLOCKS_BY_HAND)
def null_block_left_out(patch: pytest.MonkeyPatch) -> None:
    """The pool said to end before its null block."""

    def less(sample: EngineSample) -> EngineSample:
        tokens, count = sample.capacity_tokens, sample.num_blocks
        if not known(tokens) or not known(count):
            return sample
        return replace(sample, num_blocks=count - 1, capacity_tokens=tokens - 32)

    _every_sample(patch, less)


@_mutant("vllm-llama", claims.PREEMPTED_TOLD)
def events_called_requests(patch: pytest.MonkeyPatch) -> None:
    """Preemption events called requests, where some were hit twice."""
    _every_sample(patch, lambda sample: replace(sample, preempted_requests=sample.preemptions))


@_mutant("vllm-llama", claims.PREEMPTED_TOLD)
def preempted_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Some of the preempted requests not counted."""

    def fewer(sample: EngineSample) -> EngineSample:
        return replace(sample, preempted_requests=_times(sample.preempted_requests, 0.7))

    _every_sample(patch, fewer)


@_mutant("vllm-llama", claims.PREEMPTIONS, claims.FINISHED, claims.FINISHED_TOLD)
def counted_twice(patch: pytest.MonkeyPatch) -> None:
    """Every request and every preemption counted twice."""

    def twice(sample: EngineSample) -> EngineSample:
        requests = sample.requests
        doubled = {k: 2 * v for k, v in requests.items()} if known(requests) else requests
        return replace(sample, preemptions=_times(sample.preemptions, 2), requests=doubled)

    _every_sample(patch, twice)


@_mutant("vllm-llama", claims.PREFIX_QUERIES, claims.PREFIX_HITS_TOLD)
def lookups_counted_twice(patch: pytest.MonkeyPatch) -> None:
    """A preempted request's prompt looked up again, and counted again."""
    _every_sample(patch, _prefix_twice)


def _prefix_twice(sample: EngineSample) -> EngineSample:
    prefix = sample.prefix
    if not known(prefix):
        return sample
    return replace(
        sample,
        prefix=PrefixCounts(
            {k: 2 * v + 1 for k, v in prefix.query_tokens.items()},
            {k: 2 * v + 1 for k, v in prefix.hit_tokens.items()},
        ),
    )


@_mutant("vllm-llama", claims.RUNNING, claims.WAITING, claims.USAGE_RATIO, claims.FREE)
def gauges_mixed_up(patch: pytest.MonkeyPatch) -> None:
    """Running and waiting exchanged, usage as a percentage of what is free."""

    def mixed(sample: EngineSample) -> EngineSample:
        usage = sample.usage_ratio
        return replace(
            sample,
            running_sequences=sample.waiting_sequences,
            waiting_sequences=sample.running_sequences,
            usage_ratio=1 - usage if known(usage) else usage,
        )

    _every_sample(patch, mixed)


@_mutant("vllm-llama", claims.MAX_MODEL_LEN)
def length_of_the_config(patch: pytest.MonkeyPatch) -> None:
    """The config's longest context taken for what is served."""
    _every_sample(patch, lambda sample: replace(sample, max_model_len=8192))


@_mutant("sglang-llama-page64", claims.ARITHMETIC_RATIO)
def padding_page_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The page that padding writes into, left out."""
    patch.setattr(sglang.TokenPools, "_pool", lambda self, tokens, window_tokens, full, window: full * tokens)


@_mutant("sglang-llama-page64", claims.CAPACITY_BYTES, claims.BYTES_TOLD)
def gigabytes_for_gibibytes(patch: pytest.MonkeyPatch) -> None:
    """The engine's "gb", which are GiB, taken for 10^9 bytes."""

    def smaller(sample: EngineSample) -> EngineSample:
        return replace(sample, device_pool_bytes=_times(sample.device_pool_bytes, 1e9 / 2**30))

    _every_sample(patch, smaller)


@_mutant("sglang-llama", claims.USED_TOKENS, claims.POOL_SUM)
def cached_called_used(patch: pytest.MonkeyPatch) -> None:
    """Tokens that are only kept for reuse, called used."""

    def more(sample: EngineSample) -> EngineSample:
        return replace(sample, used_tokens=_times(sample.used_tokens, 1.05))

    _every_sample(patch, more)


@_mutant("sglang-llama", claims.PREEMPTIONS, claims.EVICTED)
def sglang_counted_twice(patch: pytest.MonkeyPatch) -> None:
    """Retractions and evictions counted twice."""

    def twice(sample: EngineSample) -> EngineSample:
        return replace(
            sample,
            preemptions=_times(sample.preemptions, 2),
            evicted_tokens=_times(sample.evicted_tokens, 2),
        )

    _every_sample(patch, twice)


def _times(value: Any, factor: float) -> Any:
    return round(value * factor) if known(value) else value
