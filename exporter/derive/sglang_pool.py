"""SGLang's token pools: tokens, bytes and sequences."""

from __future__ import annotations

from collections.abc import Sequence

from exporter import catalogue as c
from exporter.derive.inputs import Inputs
from exporter.derive.readout import Notebook
from exporter.derive.vllm_pool import WHATIF_DTYPES, parallelism
from exporter.engines.sample import EngineSample
from exporter.kvmath import capacity
from exporter.kvmath.dtypes import element_bytes, resolve_cache_dtype
from exporter.kvmath.known import Reason, Unavailable, known
from exporter.kvmath.sglang import TokenPools, sequence_tokens, token_pools

# How far the allocator's own rounding may move the engine's GiB figure.
EXACT = 1e-6


def derive(sample: EngineSample, inputs: Inputs, contexts: Sequence[int], out: Notebook) -> str | Unavailable:
    """Fill ``out``; returns the cache dtype in force."""
    dtype, pools = _layout(sample, inputs)
    total = sample.capacity_tokens
    if not known(total):
        # Releases before 0.5.7 say it in /get_server_info only.
        total = inputs.count("max_total_num_tokens", Reason.MAX_TOTAL_NUM_TOKENS)
    page = inputs.count("block_size", Reason.BLOCK_SIZE)
    used = sample.used_tokens
    out.put(c.CAPACITY_TOKENS, total)
    out.put(c.USED_TOKENS, used)
    out.put(c.CACHED_TOKENS, sample.cached_tokens)
    out.show("capacity", "the engine's max_total_num_tokens", total, "tokens")
    out.show("used", "capacity - available - evictable, as the engine says", used, "tokens")
    out.put(c.CAPACITY_BLOCKS, _pages(total, page))
    out.put(c.USED_BLOCKS, _pages(used, page))
    running = sample.running_sequences
    if known(used) and known(running):
        per_sequence = used / running if running else Unavailable(Reason.IDLE, "no sequence runs")
        out.put(c.TOKENS_PER_SEQUENCE, per_sequence)
    else:
        out.put(c.TOKENS_PER_SEQUENCE, used if not known(used) else running)

    _bytes(sample, inputs, pools, total, used, page, out)
    _sequences(sample, pools, total, used, page, contexts, out)
    _whatif(sample, inputs, pools, dtype, total, page, contexts, out)
    return dtype


def _layout(sample: EngineSample, inputs: Inputs) -> tuple[str | Unavailable, TokenPools | Unavailable]:
    shape = inputs.model.shape
    if not known(shape):
        return inputs.text("kv_cache_dtype"), shape
    dtype = resolve_cache_dtype(inputs.text("kv_cache_dtype"), inputs.text("dtype"), shape)
    return dtype, _plan(inputs, dtype)


def _plan(inputs: Inputs, dtype: str | Unavailable) -> TokenPools | Unavailable:
    shape = inputs.model.shape
    page = inputs.count("block_size", Reason.BLOCK_SIZE)
    if not known(shape):
        return shape
    if not known(dtype):
        return dtype
    if inputs.flag("speculative"):
        return Unavailable(Reason.SPECULATIVE_DECODING, "draft layers share the pool")
    if not known(page):
        return page
    return token_pools(shape, dtype, page, parallelism(inputs))


def _pages(tokens: int | Unavailable, page: int | Unavailable) -> int | Unavailable:
    if not known(tokens):
        return tokens
    return -(-tokens // page) if known(page) else page


def _bytes(
    sample: EngineSample,
    inputs: Inputs,
    pools: TokenPools | Unavailable,
    total: int | Unavailable,
    used: int | Unavailable,
    page: int | Unavailable,
    out: Notebook,
) -> None:
    gpus = parallelism(inputs).gpus
    told, ours = sample.device_pool_bytes, _our_device_bytes(sample, pools, total, page)
    if known(pools):
        out.put(c.BYTES_PER_TOKEN, pools.bytes_per_token)
        out.put(c.DEVICE_BYTES_PER_TOKEN, pools.device_bytes_per_token)
        out.put(c.STATE_BYTES_PER_SEQUENCE, 0)
        out.show(
            "one more token at long context",
            f"all layers of the full pool x {gpus} GPUs",
            f"{pools.bytes_per_token:,}",
            "bytes",
        )
    else:
        for metric in (c.BYTES_PER_TOKEN, c.DEVICE_BYTES_PER_TOKEN, c.STATE_BYTES_PER_SEQUENCE):
            out.put(metric, pools)
    if known(told):
        out.put(c.CAPACITY_BYTES, told * gpus)
        out.show(
            "pool, all GPUs of the replica",
            f"the engine's {told:,} bytes x {gpus} GPUs",
            f"{told * gpus:,}",
            "bytes",
        )
    elif known(ours) and known(pools):
        out.put(c.CAPACITY_BYTES, _replica_bytes(sample, pools, total, page))
    else:
        out.put(c.CAPACITY_BYTES, ours if not known(ours) else told)

    if known(pools) and pools.uniform and known(used):
        out.put(c.USED_BYTES, used * pools.replica_full_token_bytes)
    elif known(pools) and not pools.uniform:
        out.put(
            c.USED_BYTES, Unavailable(Reason.WINDOW_POOL, "the window pool's use is not told in tokens here")
        )
    else:
        out.put(c.USED_BYTES, pools if not known(pools) else used)

    if known(told) and known(ours):
        check = ours / told
        out.put(c.ARITHMETIC_RATIO, 1.0 if abs(check - 1.0) < EXACT else check)
        out.show(
            "check: bytes of the pool, one GPU", f"{ours:,} of ours / {told:,} of the engine", f"{check:.6g}"
        )
    else:
        out.put(c.ARITHMETIC_RATIO, told if not known(told) else ours)


def _our_device_bytes(
    sample: EngineSample, pools: TokenPools | Unavailable, total: int | Unavailable, page: int | Unavailable
) -> int | Unavailable:
    if not known(pools):
        return pools
    if not known(total):
        return total
    if not known(page):
        return page
    size = pools.full_token_bytes * (total + page)
    if pools.uniform:
        return size
    window = sample.window_capacity_tokens
    return size + pools.window_token_bytes * (window + page) if known(window) else window


def _replica_bytes(
    sample: EngineSample, pools: TokenPools, total: int | Unavailable, page: int | Unavailable
) -> int | Unavailable:
    if not known(total) or not known(page):
        return Unavailable(Reason.MAX_TOTAL_NUM_TOKENS)
    size = pools.replica_full_token_bytes * (total + page)
    if pools.uniform:
        return size
    window = sample.window_capacity_tokens
    return size + pools.replica_window_token_bytes * (window + page) if known(window) else window


def _sequences(
    sample: EngineSample,
    pools: TokenPools | Unavailable,
    total: int | Unavailable,
    used: int | Unavailable,
    page: int | Unavailable,
    contexts: Sequence[int],
    out: Notebook,
) -> None:
    for context in contexts:
        if not known(page):
            break
        if not known(pools):
            out.put(c.SEQUENCE_BYTES, pools)
        elif pools.uniform:
            size = sequence_tokens(context, page) * pools.replica_full_token_bytes
            out.put(c.SEQUENCE_BYTES, size, context=str(context))
        else:
            out.put(c.SEQUENCE_BYTES, Unavailable(Reason.WINDOW_POOL, "its share of the window pool varies"))
    # Without config.json the page itself can show that one pool holds all.
    one_pool = (
        pools.uniform
        if known(pools)
        else sample.several_pools is False and pools.reason is Reason.MODEL_CONFIG
    )
    why = next((v for v in (total, page) if not known(v)), None)
    if why is None and not known(pools) and not one_pool:
        why = pools
    if why is not None or not known(total) or not known(page):
        assert isinstance(why, Unavailable)  # noqa: S101
        out.put(c.MAX_SEQUENCES, why)
        out.put(c.FREE_SEQUENCES, why)
        return
    for context in contexts:
        tokens = sequence_tokens(context, page)
        fit = capacity.sequences_that_fit(total, tokens)
        limit = _window_limit(sample, pools, context, page) if known(pools) and not pools.uniform else None
        if limit is not None and (not known(limit) or limit < fit):
            out.put(c.MAX_SEQUENCES, limit if not known(limit) else _window_bound())
            out.put(c.FREE_SEQUENCES, limit if not known(limit) else _window_bound())
            continue
        out.put(c.MAX_SEQUENCES, fit, context=str(context))
        out.show(
            f"sequences of {context:,} tokens", f"floor({total:,} tokens / {tokens:,})", fit, "sequences"
        )
        if not known(used):
            out.put(c.FREE_SEQUENCES, used)
        elif limit is not None:
            out.put(
                c.FREE_SEQUENCES,
                Unavailable(Reason.WINDOW_POOL, "what is free of the window pool is not told"),
            )
        else:
            out.put(c.FREE_SEQUENCES, capacity.sequences_that_fit(total - used, tokens), context=str(context))


def _window_bound() -> Unavailable:
    return Unavailable(
        Reason.WINDOW_POOL, "the window pool is the limit, and how much a sequence holds of it varies"
    )


def _window_limit(sample: EngineSample, pools: TokenPools, context: int, page: int) -> int | Unavailable:
    """A safe lower bound of what the window pool holds: the window and the page
    being filled, each rounded up, plus one page not yet evicted (0.5.23
    mem_cache/common.py evicts whole pages behind the window)."""
    window = sample.window_capacity_tokens
    if not known(window):
        return Unavailable(Reason.WINDOW_POOL, "the window pool's capacity is not reported (before 0.5.18)")
    held = min(
        sequence_tokens(context, page), sequence_tokens(max(pools.window_tokens, page), page) + 2 * page
    )
    return capacity.sequences_that_fit(window, held)


def _whatif(
    sample: EngineSample,
    inputs: Inputs,
    pools: TokenPools | Unavailable,
    dtype: str | Unavailable,
    total: int | Unavailable,
    page: int | Unavailable,
    contexts: Sequence[int],
    out: Notebook,
) -> None:
    if not known(pools) or not known(dtype) or not known(total) or not known(page):
        out.put(
            c.WHATIF_MAX_SEQUENCES, next(v for v in (pools, dtype, total, page) if isinstance(v, Unavailable))
        )
        return
    if not pools.uniform:
        out.put(c.WHATIF_MAX_SEQUENCES, _window_bound())
        return
    budget = pools.full_token_bytes * (total + page)
    for other in WHATIF_DTYPES:
        changed = _plan(inputs, other)
        if element_bytes(other) == element_bytes(dtype):
            continue
        if not known(changed):
            out.put(c.WHATIF_MAX_SEQUENCES, changed)
            continue
        tokens = (capacity.blocks_in(budget, changed.full_token_bytes) - page) // page * page
        for context in contexts:
            fit = capacity.sequences_that_fit(tokens, sequence_tokens(context, page))
            out.put(c.WHATIF_MAX_SEQUENCES, fit, context=str(context), kv_cache_dtype=other)
