"""SGLang's pools of token and state slots: tokens, bytes and sequences."""

from __future__ import annotations

from collections.abc import Sequence

from exporter import catalogue as c
from exporter.derive.inputs import Inputs
from exporter.derive.layouts import SET_BY_HAND, WHATIF_DTYPES, cache_dtype, disproved, parallelism
from exporter.derive.model_steps import show_model
from exporter.derive.readout import Notebook
from exporter.derive.sglang_layout import Room, pools_of, room_for
from exporter.engines.sample import EngineSample
from exporter.kvmath import capacity
from exporter.kvmath.known import Reason, Unavailable, known
from exporter.kvmath.sglang import TokenPools, sequence_tokens

# The engine's figure is a float in GiB: closer than this is equal.
EXACT = 1e-6


class TokenPool:
    """Fills a notebook with the figures of one SGLang rank's pools."""

    def __init__(self, sample: EngineSample, inputs: Inputs, contexts: Sequence[int], out: Notebook) -> None:
        self.sample, self.inputs, self.contexts, self.out = sample, inputs, contexts, out
        self.dtype = cache_dtype(inputs)
        self.page = inputs.count("block_size", Reason.BLOCK_SIZE)
        self.used = sample.used_tokens
        # Releases before 0.5.7 say the capacity in /get_server_info only.
        told = sample.capacity_tokens
        self.total = (
            told if known(told) else inputs.count("max_total_num_tokens", Reason.MAX_TOTAL_NUM_TOKENS)
        )
        show_model(inputs, self.dtype, out)
        self.pools = pools_of(sample, inputs, self.dtype, self.total)
        self.check = self._check()
        # What the engine's own figure disproves is not published; the ratio is.
        self.pools = disproved(self.check, inputs) or self.pools

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
            out.put(c.STATE_BYTES_PER_SEQUENCE, pools.replica_state_bytes)
            out.show(
                "one more token at long context",
                f"all layers of the full pool, on {gpus} GPU(s)",
                f"{pools.bytes_per_token:,}",
                "bytes",
            )
            if pools.replica_state_bytes:
                out.show(
                    "recurrent states of a sequence",
                    "convolution in 16 bits, the rest as --mamba-ssm-dtype or config.json says, else float32",
                    f"{pools.replica_state_bytes:,}",
                    "bytes",
                )
        else:
            out.show("cache layout", "config.json + cache dtype + parallelism", pools)
            for metric in c.TOKEN_COST:
                out.put(metric, pools)
        out.put(c.CAPACITY_BYTES, self._capacity_bytes(gpus, self.check == 1.0))
        out.put(c.USED_BYTES, self._used_bytes())
        out.put(c.ARITHMETIC_RATIO, self.check)

    def _capacity_bytes(self, gpus: int, checked: bool) -> int | Unavailable:
        """All pools on all GPUs: the token pools as the engine says, and the states beside them.

        Without config.json nobody knows what a state takes: then it is what the engine says.
        """
        told, pools = self.sample.device_pool_bytes, self.pools
        tokens: int | Unavailable
        if known(pools) and checked and parallelism(self.inputs).pipeline > 1:
            # The engine shows its first stage, and later ones may have a layer more.
            tokens = self._pool(pools, replica=True)
        elif known(told):
            tokens = told * gpus
            self.out.show(
                "token pools, all GPUs",
                f"the engine's {told:,} bytes x {gpus} GPU(s)",
                f"{told * gpus:,}",
                "bytes",
            )
        elif known(pools):
            tokens = self._pool(pools, replica=True)
        else:
            return pools
        if known(pools) and pools.state_bytes:
            slots = self.sample.state_slots
            if not known(slots):
                return slots
            return tokens + pools.replica_states_bytes(slots) if known(tokens) else tokens
        return tokens

    def _used_bytes(self) -> int | Unavailable:
        """Slots in use x their bytes, pool by pool."""
        pools, window, states = self.pools, self.sample.window_used_tokens, self.sample.used_state_slots
        if not known(pools):
            return pools
        if not known(self.used):
            return self.used
        total = self.used * pools.bytes_per_token
        if pools.window_token_bytes:
            if not known(window):
                return Unavailable(Reason.WINDOW_POOL, "how much of the window pool is used is not reported")
            total += window * pools.replica_window_token_bytes
        if pools.state_bytes:
            if not known(states):
                return states
            total += states * pools.replica_state_bytes
        return total

    def _pool(self, pools: TokenPools, replica: bool = False) -> int | Unavailable:
        """Bytes of the token pools, each with its padding page."""
        window = self.sample.window_capacity_tokens if pools.window_token_bytes else 0
        if not known(self.total):
            return self.total
        if not known(window):
            return window
        size = pools.replica_pool_bytes if replica else pools.reported_pool_bytes
        return size(self.total, window)

    def _check(self) -> float | Unavailable:
        told, pools = self.sample.device_pool_bytes, self.pools
        if not known(pools):
            return pools
        if not known(told):
            return told
        ours = self._pool(pools)
        if not known(ours) or not told:
            return Unavailable(Reason.NOT_REPORTED, "the engine reports no pool")
        check = ours / told
        self.out.show(
            "check: bytes of the pool, one GPU", f"{ours:,} of ours / {told:,} of the engine", f"{check:.6g}"
        )
        return 1.0 if abs(check - 1.0) < EXACT else check

    # -- sequences ----------------------------------------------------------------------

    def _sequences(self) -> None:
        for context in self.contexts:
            label = str(context)
            fit, free = self._fit(context)
            self.out.put(c.MAX_SEQUENCES, fit, context=label)
            self.out.put(c.FREE_SEQUENCES, free, context=label)
            self.out.put(c.SEQUENCE_BYTES, self._sequence_bytes(context), context=label)

    def _sequence_bytes(self, context: int) -> int | Unavailable:
        """Its token slots and its own state; what the radix cache keeps for reuse is not the sequence's."""
        pools = self.pools
        if not known(pools):
            return pools
        size = (
            sequence_tokens(context, pools.granule_tokens) * pools.bytes_per_token + pools.replica_state_bytes
        )
        if not pools.window_token_bytes:
            return size
        if context > pools.window_tokens:
            return Unavailable(Reason.WINDOW_POOL, "a sequence's share of the window pool varies")
        return size + sequence_tokens(context, pools.page_tokens) * pools.replica_window_token_bytes

    def _fit(self, context: int) -> tuple[int | Unavailable, int | Unavailable]:
        """Sequences that fit the whole pool, and what is free of it."""
        pools, total, page = self.pools, self.total, self.page
        if not known(total) or not known(page):
            why = total if not known(total) else page
            return why, why
        if not known(pools):
            # Without config.json the page itself can show that one pool holds everything.
            if pools.reason is not Reason.MODEL_CONFIG or self.sample.several_pools is not False:
                return pools, pools
            each = sequence_tokens(context, page)
            free = max(0, total - self.used) // each if known(self.used) else self.used
            return capacity.sequences_that_fit(total, each), free
        fit = room_for(pools, Room.whole(self.sample, total), context, self.inputs)
        if known(fit):
            each = sequence_tokens(context, pools.granule_tokens)
            self.out.show(
                f"sequences of {context:,} tokens",
                f"floor({total:,} tokens / {each:,})" + ("" if pools.uniform else ", other pools as well"),
                fit,
                "sequences",
            )
        if not known(self.used):
            return fit, self.used
        return fit, room_for(pools, Room.left(self.sample, total, self.used), context, self.inputs)

    def _whatif(self) -> None:
        pools: TokenPools | Unavailable = self.pools
        dtype, total, page = self.dtype, self.total, self.page
        if self.inputs.model.override is not None:
            pools = SET_BY_HAND
        if not known(pools) or not known(dtype) or not known(total) or not known(page):
            why = next(v for v in (pools, dtype, total, page) if isinstance(v, Unavailable))
            self.out.put(c.WHATIF_MAX_SEQUENCES, why)
            return
        if not pools.full_token_bytes:
            self.out.put(
                c.WHATIF_MAX_SEQUENCES, Unavailable(Reason.ATTENTION_FREE, "states have their own dtype")
            )
            return
        for other in WHATIF_DTYPES:
            changed = pools_of(self.sample, self.inputs, other, Unavailable(Reason.NOT_REPORTED))
            if known(changed) and changed.full_token_bytes == pools.full_token_bytes:
                continue
            for context in self.contexts:
                fit: int | Unavailable
                if known(changed):
                    room = Room.whole(self.sample, total).stored_as(pools, changed)
                    fit = room_for(changed, room, context, self.inputs)
                else:
                    fit = changed
                self.out.put(c.WHATIF_MAX_SEQUENCES, fit, context=str(context), kv_cache_dtype=other)
