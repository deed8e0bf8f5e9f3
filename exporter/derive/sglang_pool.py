"""SGLang's token pools: tokens, bytes and sequences."""

from __future__ import annotations

from collections.abc import Sequence

from exporter import catalogue as c
from exporter.derive.inputs import Inputs
from exporter.derive.layouts import WHATIF_DTYPES, cache_dtype, parallelism, pools_plan
from exporter.derive.readout import Notebook
from exporter.engines.sample import EngineSample
from exporter.kvmath import capacity
from exporter.kvmath.dtypes import element_bytes
from exporter.kvmath.known import Reason, Unavailable, known
from exporter.kvmath.sglang import TokenPools, sequence_tokens

# The engine's figure is a float in GiB: closer than this is equal.
EXACT = 1e-6


class TokenPool:
    """Fills a notebook with the figures of one SGLang rank's pools."""

    def __init__(self, sample: EngineSample, inputs: Inputs, contexts: Sequence[int], out: Notebook) -> None:
        self.sample, self.inputs, self.contexts, self.out = sample, inputs, contexts, out
        self.dtype = cache_dtype(inputs)
        self.pools = pools_plan(inputs, self.dtype)
        self.page = inputs.count("block_size", Reason.BLOCK_SIZE)
        self.used = sample.used_tokens
        # Releases before 0.5.7 say the capacity in /get_server_info only.
        told = sample.capacity_tokens
        self.total = (
            told if known(told) else inputs.count("max_total_num_tokens", Reason.MAX_TOTAL_NUM_TOKENS)
        )

    def derive(self) -> None:
        out = self.out
        out.put(c.CAPACITY_TOKENS, self.total)
        out.put(c.USED_TOKENS, self.used)
        out.put(c.CACHED_TOKENS, self.sample.cached_tokens)
        out.show("capacity", "the engine's max_total_num_tokens", self.total, "tokens")
        out.show("used", "capacity - available - evictable, as the engine says", self.used, "tokens")
        out.put(c.CAPACITY_BLOCKS, self._pages(self.total))
        out.put(c.USED_BLOCKS, self._pages(self.used))
        out.per_sequence(self.used, self.sample.running_sequences)
        self._bytes()
        self._check()
        self._sequences()
        self._whatif()

    def _pages(self, tokens: int | Unavailable) -> int | Unavailable:
        if not known(tokens):
            return tokens
        return -(-tokens // self.page) if known(self.page) else self.page

    # -- bytes ------------------------------------------------------------------------

    def _bytes(self) -> None:
        out, pools, gpus = self.out, self.pools, parallelism(self.inputs).gpus
        if known(pools):
            out.put(c.BYTES_PER_TOKEN, pools.bytes_per_token)
            out.put(c.DEVICE_BYTES_PER_TOKEN, pools.device_bytes_per_token)
            out.put(c.STATE_BYTES_PER_SEQUENCE, 0)
            out.show(
                "one more token at long context",
                f"all layers of the full pool, on {gpus} GPU(s)",
                f"{pools.bytes_per_token:,}",
                "bytes",
            )
        else:
            out.show("cache layout", "config.json + cache dtype + parallelism", pools)
            for metric in c.TOKEN_COST:
                out.put(metric, pools)
        told = self.sample.device_pool_bytes
        if known(told):
            out.put(c.CAPACITY_BYTES, told * gpus)
            out.show(
                "pool, all GPUs", f"the engine's {told:,} bytes x {gpus} GPU(s)", f"{told * gpus:,}", "bytes"
            )
        elif known(pools):
            out.put(
                c.CAPACITY_BYTES, self._pool(pools.replica_full_token_bytes, pools.replica_window_token_bytes)
            )
        else:
            out.put(c.CAPACITY_BYTES, pools)
        out.put(c.USED_BYTES, self._used_bytes())

    def _used_bytes(self) -> int | Unavailable:
        if not known(self.pools):
            return self.pools
        if not self.pools.uniform:
            return Unavailable(Reason.WINDOW_POOL, "how much of the window pool is used is another figure")
        return self.used * self.pools.replica_full_token_bytes if known(self.used) else self.used

    def _pool(self, full_token_bytes: int, window_token_bytes: int) -> int | Unavailable:
        """Bytes of both pools, each with its padding page."""
        if not known(self.total):
            return self.total
        if not known(self.page):
            return self.page
        size = full_token_bytes * (self.total + self.page)
        if not window_token_bytes:
            return size
        window = self.sample.window_capacity_tokens
        return size + window_token_bytes * (window + self.page) if known(window) else window

    def _check(self) -> None:
        told, pools = self.sample.device_pool_bytes, self.pools
        if not known(told) or not known(pools):
            why = pools if not known(pools) else told
            self.out.put(c.ARITHMETIC_RATIO, why if not known(why) else Unavailable(Reason.NOT_REPORTED))
            return
        ours = self._pool(pools.full_token_bytes, pools.window_token_bytes)
        if not known(ours) or not told:
            self.out.put(c.ARITHMETIC_RATIO, Unavailable(Reason.NOT_REPORTED, "the engine reports no pool"))
            return
        check = ours / told
        self.out.put(c.ARITHMETIC_RATIO, 1.0 if abs(check - 1.0) < EXACT else check)
        self.out.show(
            "check: bytes of the pool, one GPU", f"{ours:,} of ours / {told:,} of the engine", f"{check:.6g}"
        )

    # -- sequences ----------------------------------------------------------------------

    def _sequences(self) -> None:
        for context in self.contexts:
            label = str(context)
            fit, free = self._fit(context)
            self.out.put(c.MAX_SEQUENCES, fit, context=label)
            self.out.put(c.FREE_SEQUENCES, free, context=label)
            self.out.put(c.SEQUENCE_BYTES, self._sequence_bytes(context), context=label)

    def _sequence_bytes(self, context: int) -> int | Unavailable:
        if not known(self.pools):
            return self.pools
        if not self.pools.uniform:
            return Unavailable(Reason.WINDOW_POOL, "a sequence's share of the window pool varies")
        if not known(self.page):
            return self.page
        return sequence_tokens(context, self.page) * self.pools.replica_full_token_bytes

    def _fit(self, context: int) -> tuple[int | Unavailable, int | Unavailable]:
        """Sequences that fit the whole pool, and what is free of it."""
        pools, total, page = self.pools, self.total, self.page
        if not known(total) or not known(page):
            why = total if not known(total) else page
            return why, why
        # Without config.json the page itself can show that one pool holds everything.
        if not known(pools) and not (
            pools.reason is Reason.MODEL_CONFIG and self.sample.several_pools is False
        ):
            return pools, pools
        tokens = sequence_tokens(context, page)
        fit = capacity.sequences_that_fit(total, tokens)
        if known(pools) and not pools.uniform:
            limit = self._window_limit(pools, context, page)
            if not known(limit):
                return limit, limit
            varies = Unavailable(
                Reason.WINDOW_POOL, "the window pool is the limit, and a sequence's share varies"
            )
            return (fit if limit >= fit else varies), varies
        self.out.show(
            f"sequences of {context:,} tokens", f"floor({total:,} tokens / {tokens:,})", fit, "sequences"
        )
        free = (
            capacity.sequences_that_fit(max(0, total - self.used), tokens) if known(self.used) else self.used
        )
        return fit, free

    def _window_limit(self, pools: TokenPools, context: int, page: int) -> int | Unavailable:
        """Fewest sequences that the window pool holds: a window and the page being
        filled, rounded up, and one page not yet evicted (0.5.23
        mem_cache/common.py evicts whole pages behind the window)."""
        window = self.sample.window_capacity_tokens
        if not known(window):
            return Unavailable(
                Reason.WINDOW_POOL, "the window pool's capacity is not reported (before 0.5.18)"
            )
        held = sequence_tokens(max(pools.window_tokens, page), page) + 2 * page
        return capacity.sequences_that_fit(window, min(sequence_tokens(context, page), held))

    def _whatif(self) -> None:
        pools, dtype, total, page = self.pools, self.dtype, self.total, self.page
        if not known(pools) or not known(dtype) or not known(total) or not known(page):
            why = next(v for v in (pools, dtype, total, page) if isinstance(v, Unavailable))
            self.out.put(c.WHATIF_MAX_SEQUENCES, why)
            return
        if not pools.uniform:
            self.out.put(
                c.WHATIF_MAX_SEQUENCES, Unavailable(Reason.WINDOW_POOL, "two pools share the memory")
            )
            return
        budget = pools.full_token_bytes * (total + page)
        for other in WHATIF_DTYPES:
            changed = pools_plan(self.inputs, other)
            if element_bytes(other) == element_bytes(dtype):
                continue
            for context in self.contexts:
                fit: int | Unavailable
                if known(changed):
                    slots = capacity.blocks_in(budget, changed.full_token_bytes)
                    tokens = max(0, slots - page) // page * page
                    fit = capacity.sequences_that_fit(tokens, sequence_tokens(context, page))
                else:
                    fit = changed
                self.out.put(c.WHATIF_MAX_SEQUENCES, fit, context=str(context), kv_cache_dtype=other)
