"""Before deploying: what fits beside the weights, for how many, at what floor of time and money.

Everything here is arithmetic on one GPU, the one that holds most; a replica's
GPUs are alike.  Blocks stand for whatever an engine hands out: vLLM's blocks,
SGLang's pages.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from exporter.kvmath.capacity import blocks_in, sequences_that_fit
from exporter.kvmath.cost import share_per_hour
from exporter.kvmath.known import Reason, Unavailable, known


class Layout(Protocol):
    """What the planner asks of an engine's layout, whichever engine it is."""

    @property
    def block_bytes(self) -> int:
        """One block on one GPU."""

    @property
    def replica_block_bytes(self) -> int:
        """One block on all GPUs of the replica, copies counted."""

    @property
    def reserved_blocks(self) -> int:
        """Blocks of the pool no sequence ever gets."""

    @property
    def device_bytes_per_token(self) -> float:
        """One token more of a long context, one GPU; 0 where nothing keeps every token."""

    @property
    def counts_tokens(self) -> bool:
        """True where one figure of tokens describes the pool: one group, and it keeps every token."""

    def group_blocks(self, tokens: int) -> tuple[int, ...]:
        """Blocks of every group that a running sequence of exactly ``tokens`` tokens holds."""

    def resident_bytes(self, tokens: int) -> int:
        """Bytes it holds then on one GPU, of all pools."""

    def peak_blocks(self, tokens: int) -> int:
        """The most blocks it holds at any length up to ``tokens``, prefill over."""

    def admission_blocks(self, tokens: int, in_flight_tokens: int) -> int:
        """Blocks set aside to admit it."""

    def prefix_blocks(self, tokens: int) -> int:
        """Whole blocks of a prefix of ``tokens`` tokens that sequences can share."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """One replica: its GPUs, what is in them beside the cache, and its price.

    ``memory_bytes`` and ``overhead_bytes`` of one GPU, ``weights_bytes`` of the
    checkpoint in all ``gpus`` together, ``price_per_hour`` in dollars for all of
    them.  ``utilization`` is the share of a GPU's memory the engine may use.
    """

    gpus: int
    memory_bytes: int
    utilization: float
    overhead_bytes: int
    weights_bytes: int | Unavailable
    bandwidth_bytes_per_second: int | Unavailable
    price_per_hour: float | Unavailable

    @property
    def usable_bytes(self) -> int:
        """What the engine may use of one GPU = floor(memory x utilisation)."""
        return math.floor(self.memory_bytes * self.utilization)

    @property
    def device_weights_bytes(self) -> int | Unavailable:
        """Weights on one GPU = ceil(weights / GPUs): an even split, copied norms and heads not counted."""
        return -(-self.weights_bytes // self.gpus) if known(self.weights_bytes) else self.weights_bytes

    @property
    def device_pool_bytes(self) -> int | Unavailable:
        """The cache's share of one GPU = usable - overhead - weights; below 0 where the weights don't fit."""
        weights = self.device_weights_bytes
        return self.usable_bytes - self.overhead_bytes - weights if known(weights) else weights


@dataclass(frozen=True, slots=True)
class Pool:
    """The cache's memory on one GPU, and in all GPUs of the replica."""

    device_bytes: int
    replica_bytes: int
    blocks: int
    usable_blocks: int
    live_tokens: int | Unavailable  # floor(bytes / bytes per token): tokens if none were rounded to blocks


@dataclass(frozen=True, slots=True)
class DecodeFloor:
    """Seconds one decode step takes at least: bytes that must be read over the memory bandwidth."""

    weights_seconds: float
    sequence_seconds: float
    sequences: int

    @property
    def cache_seconds(self) -> float:
        """The caches of all running sequences."""
        return self.sequences * self.sequence_seconds

    @property
    def seconds(self) -> float:
        """Weights and caches."""
        return self.weights_seconds + self.cache_seconds


@dataclass(frozen=True, slots=True)
class Sharing:
    """Sequences with one prompt prefix in common: its whole blocks are stored once."""

    prefix_tokens: int
    prefix_blocks: int
    own_blocks: int  # what each sequence adds, at its peak

    def blocks(self, sequences: int) -> int:
        """Blocks ``sequences`` of them hold together."""
        return self.prefix_blocks + sequences * self.own_blocks

    def fit(self, usable_blocks: int) -> int:
        """How many fit."""
        return max(0, usable_blocks - self.prefix_blocks) // self.own_blocks


@dataclass(frozen=True, slots=True)
class ContextPlan:
    """One context length.  Bytes and blocks of one sequence on one GPU."""

    tokens: int
    group_blocks: tuple[int, ...]
    resident_bytes: int
    peak_blocks: int
    peak_bytes: int
    admission_bytes: int
    fit: int | Unavailable
    sharing: Sharing
    fit_sharing: int | Unavailable
    cost_per_hour: float | Unavailable
    floor: DecodeFloor | Unavailable


def pool_of(deployment: Deployment, layout: Layout) -> Pool | Unavailable:
    """The pool beside the weights; empty where they don't fit."""
    free = deployment.device_pool_bytes
    if not known(free):
        return free
    device = max(0, free)
    blocks = blocks_in(device, layout.block_bytes)
    return Pool(
        device_bytes=device,
        replica_bytes=device * deployment.gpus,
        blocks=blocks,
        usable_blocks=max(0, blocks - layout.reserved_blocks),
        live_tokens=_live_tokens(device, layout),
    )


def _live_tokens(device_bytes: int, layout: Layout) -> int | Unavailable:
    if not layout.device_bytes_per_token:
        return Unavailable(Reason.ATTENTION_FREE, "no layer keeps every token")
    if not layout.counts_tokens:
        return Unavailable(Reason.SEVERAL_CACHE_GROUPS, "no single token count is true for several groups")
    return int(device_bytes // layout.device_bytes_per_token)


def sharing_of(layout: Layout, tokens: int, prefix_tokens: int) -> Sharing:
    """``tokens`` of context of which the first ``prefix_tokens`` are everybody's.

    The last token is always computed anew, so its block is never shared.
    """
    prefix = min(prefix_tokens, tokens - 1)
    blocks = layout.prefix_blocks(prefix) if prefix > 0 else 0
    return Sharing(prefix, blocks, max(1, layout.peak_blocks(tokens) - blocks))


def plan_context(
    layout: Layout,
    deployment: Deployment,
    pool: Pool | Unavailable,
    tokens: int,
    in_flight_tokens: int,
    prefix_tokens: int = 0,
    sequences: int = 0,
) -> ContextPlan:
    """What sequences of ``tokens`` tokens take and how many fit.

    ``sequences`` is how many the decode floor is computed for; 0: as many as fit.
    """
    groups = layout.group_blocks(tokens)
    resident = layout.resident_bytes(tokens)
    peak = layout.peak_blocks(tokens)
    sharing = sharing_of(layout, tokens, prefix_tokens)
    fit = sequences_that_fit(pool.usable_blocks, max(1, peak)) if known(pool) else pool
    fit_sharing = sharing.fit(pool.usable_blocks) if known(pool) else pool
    running = sequences or (fit_sharing if known(fit_sharing) else 0)
    return ContextPlan(
        tokens=tokens,
        group_blocks=groups,
        resident_bytes=resident,
        peak_blocks=peak,
        peak_bytes=peak * layout.block_bytes,
        admission_bytes=layout.admission_blocks(tokens, in_flight_tokens) * layout.block_bytes,
        fit=fit,
        sharing=sharing,
        fit_sharing=fit_sharing,
        cost_per_hour=_cost(deployment, pool, peak * layout.block_bytes),
        floor=decode_floor(deployment, resident, running),
    )


def _cost(deployment: Deployment, pool: Pool | Unavailable, sequence_bytes: int) -> float | Unavailable:
    price = deployment.price_per_hour
    if not known(price):
        return price
    if not known(pool):
        return pool
    if pool.device_bytes == 0:
        return Unavailable(Reason.OUT_OF_RANGE, "there is no pool to have a share of")
    return share_per_hour(price, sequence_bytes, pool.device_bytes)


def decode_floor(deployment: Deployment, resident_bytes: int, sequences: int) -> DecodeFloor | Unavailable:
    """The floor of a step that serves ``sequences`` with ``resident_bytes`` each on one GPU.

    Weights are read once for all of them, every cache once; GPUs work side by side.
    """
    weights, bandwidth = deployment.device_weights_bytes, deployment.bandwidth_bytes_per_second
    if not known(weights):
        return weights
    if not known(bandwidth):
        return bandwidth
    return DecodeFloor(weights / bandwidth, resident_bytes / bandwidth, sequences)


def longest_context(
    layout: Layout, usable_blocks: int, sequences: int, prefix_tokens: int, below: int
) -> int:
    """The longest context under ``below`` tokens at which ``sequences`` fit; 0 where none does."""

    def fits(tokens: int) -> bool:
        return sharing_of(layout, tokens, prefix_tokens).blocks(sequences) <= usable_blocks

    return _last(fits, 1, below - 1)


def longest_admitted(layout: Layout, blocks: int, in_flight_tokens: int, up_to: int) -> int:
    """The longest ``max_model_len`` up to ``up_to`` with which vLLM starts; 0 for none.

    It wants the admission size of one such sequence in the pool, null block
    included (0.32.0 v1/core/kv_cache_utils.py ``check_enough_kv_cache_memory``).
    """
    return _last(lambda tokens: layout.admission_blocks(tokens, in_flight_tokens) <= blocks, 1, up_to)


def shortest_prefix(layout: Layout, usable_blocks: int, sequences: int, tokens: int) -> int:
    """The shortest shared prefix with which ``sequences`` of ``tokens`` tokens fit; 0: none is enough."""

    def too_short(prefix: int) -> bool:
        return sharing_of(layout, tokens, prefix).blocks(sequences) > usable_blocks

    if too_short(tokens - 1):
        return 0
    return _last(too_short, 1, tokens - 1) + 1


def _last(true_up_to: Callable[[int], bool], first: int, last: int) -> int:
    """The largest n in first..last for which a condition that ends once still holds; first - 1 for none."""
    low, high = first - 1, last
    while low < high:
        middle = (low + high + 1) // 2
        if true_up_to(middle):
            low = middle
        else:
            high = middle - 1
    return low
