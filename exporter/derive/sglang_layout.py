"""Which layout an SGLang engine has, where several are possible, and how many sequences its pools hold."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from exporter.derive.inputs import Inputs
from exporter.derive.layouts import parallelism, speculation_problem, speculative_method
from exporter.engines.sample import EngineSample
from exporter.kvmath.known import Reason, Unavailable, known
from exporter.kvmath.overrides import Override
from exporter.kvmath.parallel import Parallelism
from exporter.kvmath.sglang import TokenPools, sequence_tokens, token_pools
from exporter.kvmath.sglang_budget import states_each, window_share


def pools_of(
    sample: EngineSample, inputs: Inputs, dtype: str | Unavailable, total: int | Unavailable
) -> TokenPools | Unavailable:
    """The pools with a cache of ``dtype``.

    Two things no page names: whether a sparse attention's fp8 latents carry scales,
    which its kernels decide, and whether windows have a pool of their own
    (--disable-hybrid-swa-memory).  The pool's bytes tell, where the engine reports
    them (0.5.18 on) and ``total`` is its token count; without them records of two
    sizes are not told apart (KV_CACHE_DTYPE), and a window pool is taken for there.
    """
    shape, page = inputs.model.shape, inputs.count("block_size", Reason.BLOCK_SIZE)
    if (override := inputs.model.override) is not None:
        return _set_by_hand(override, page, parallelism(inputs))
    if not known(shape):
        return shape
    if not known(dtype):
        return dtype
    if (problem := speculation_problem("sglang", inputs, shape)) is not None:
        return problem
    if not known(page):
        return page
    split = parallelism(inputs)
    states = inputs.text("state_dtype")
    method = speculative_method(inputs)
    first, raw, mixed = (
        token_pools(
            shape,
            dtype,
            page,
            split,
            window_pool=window_pool,
            raw_latent=raw_latent,
            state_dtype=states,
            speculative=method,
        )
        for window_pool, raw_latent in ((True, False), (True, True), (False, False))
    )
    candidates = [found for found in (first, raw, mixed) if known(found)]
    for found in candidates:
        if _agrees(sample, found, total):
            return found
    if known(first) and known(raw) and raw != first:
        return Unavailable(
            Reason.KV_CACHE_DTYPE,
            f"{dtype}: latents take {raw.full_token_bytes:,} or {first.full_token_bytes:,} bytes a token, "
            "by the sparse attention's kernels",
        )
    return first


def _set_by_hand(override: Override, page: int | Unavailable, split: Parallelism) -> TokenPools | Unavailable:
    """One pool of the tokens' bytes, shared alike by the replica's GPUs."""
    if (problem := override.problem) is not None:
        return problem
    if override.state_bytes_per_sequence or override.window_tokens:
        return Unavailable(Reason.SET_BY_HAND, "for SGLang only bytes_per_token can be set by hand")
    if not known(page):
        return page
    replica = math.ceil(override.bytes_per_token or 0)
    device = -(-replica // split.gpus)
    return TokenPools(
        page_tokens=page,
        full_token_bytes=device,
        window_token_bytes=0,
        window_tokens=0,
        replica_full_token_bytes=replica,
        replica_window_token_bytes=0,
        bytes_per_token=replica,
        device_bytes_per_token=replica / split.gpus,
        first_stage_bytes=(device, 0),
    )


def _agrees(sample: EngineSample, pools: TokenPools, total: int | Unavailable) -> bool:
    told, window = sample.device_pool_bytes, sample.window_capacity_tokens
    if not known(told) or not known(total):
        return False
    if pools.window_token_bytes:
        return known(window) and pools.reported_pool_bytes(total, window) == told
    return pools.reported_pool_bytes(total) == told


@dataclass(frozen=True, slots=True)
class Room:
    """Slots to be had: tokens, window tokens, states, and the sequences that have states already."""

    tokens: int
    window: int | Unavailable
    slots: int | Unavailable
    running: int | Unavailable = 0

    @classmethod
    def whole(cls, sample: EngineSample, total: int) -> Room:
        """An empty pool of this size."""
        return cls(total, sample.window_capacity_tokens, _some(sample.state_slots))

    @classmethod
    def left(cls, sample: EngineSample, total: int, used: int) -> Room:
        """What is not in use; what is only cached can be had."""
        window, taken = sample.window_capacity_tokens, sample.window_used_tokens
        if known(window):
            window = max(0, window - taken) if known(taken) else taken
        return cls(max(0, total - used), window, _some(sample.state_slots), sample.running_sequences)

    def stored_as(self, now: TokenPools, then: TokenPools) -> Room:
        """The same bytes of each token pool in slots of another size, padding pages in them."""
        page = now.page_tokens

        def slots(count: int, before: int, after: int) -> int:
            return max(0, (count + page) * before // after - page) // page * page

        window = self.window
        if known(window) and then.window_token_bytes:
            window = slots(window, now.window_token_bytes, then.window_token_bytes)
        if not then.full_token_bytes:
            return replace(self, window=window)
        rows = slots(self.tokens // now.context_ranks, now.full_token_bytes, then.full_token_bytes)
        return replace(self, tokens=rows * now.context_ranks, window=window)


def _some(slots: int | Unavailable) -> int | Unavailable:
    # The gauges read 0 before the first batch.
    return (
        slots if not known(slots) or slots else Unavailable(Reason.NO_TRAFFIC, "no state slots reported yet")
    )


def room_for(pools: TokenPools, room: Room, tokens: int, inputs: Inputs) -> int | Unavailable:
    """Sequences of ``tokens`` tokens that fit in ``room``; the pool that is full first decides.

    ``Unavailable(WINDOW_POOL)`` where that may be the window pool, of which a sequence
    longer than the window holds a share that varies; NOT_REPORTED where it is the state
    pool and nobody tells how many slots the engine sets aside for a sequence.
    """
    fit = room.tokens // sequence_tokens(tokens, pools.granule_tokens)
    if pools.window_token_bytes:
        if not known(room.window):
            return Unavailable(
                Reason.WINDOW_POOL, "the window pool's size is not reported (before 0.5.18) or not its use"
            )
        surely = room.window // window_share(pools, tokens)
        if tokens > pools.window_tokens and surely < fit:
            return Unavailable(
                Reason.WINDOW_POOL, "the window pool is the limit, and a sequence's share varies"
            )
        fit = min(fit, surely)
    if pools.state_bytes:
        slots, running = room.slots, room.running
        if not known(slots):
            return slots
        if not known(running):
            return running
        told = inputs.choices["tracking_states"].value
        fewest, most = states_each(
            inputs.flag("enable_prefix_caching"), told if isinstance(told, int) else None
        )
        at_least, at_most = (min(fit, max(0, slots // each - running)) for each in (most, fewest))
        if at_least != at_most:
            return Unavailable(
                Reason.NOT_REPORTED,
                f"a sequence takes {fewest} to {most} of {slots} states: --mamba-radix-cache-strategy",
            )
        fit = at_least
    return fit
