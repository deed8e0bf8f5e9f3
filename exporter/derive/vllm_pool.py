"""vLLM's block pool: blocks, tokens, bytes and sequences."""

from __future__ import annotations

from collections.abc import Sequence

from exporter import catalogue as c
from exporter.derive.inputs import Inputs
from exporter.derive.layouts import (
    SET_BY_HAND,
    WHATIF_DTYPES,
    admission_blocks,
    block_plan,
    budget_check,
    cache_dtype,
    disproved,
)
from exporter.derive.model_steps import show_model
from exporter.derive.readout import Notebook
from exporter.engines.sample import EngineSample
from exporter.facts import Source
from exporter.kvmath import capacity
from exporter.kvmath.dtypes import element_bytes
from exporter.kvmath.known import Reason, Unavailable, known
from exporter.kvmath.vllm import BlockLayout

# Above this the engine's two capacity figures are said to disagree.
SIZE_TOLERANCE = 0.01


class BlockPool:
    """Fills a notebook with the figures of one vLLM engine's pool."""

    def __init__(self, sample: EngineSample, inputs: Inputs, contexts: Sequence[int], out: Notebook) -> None:
        self.sample, self.inputs, self.contexts, self.out = sample, inputs, contexts, out
        self.dtype = cache_dtype(inputs)
        self.block_tokens = inputs.count("block_size", Reason.BLOCK_SIZE)
        self.check: float | Unavailable = Unavailable(Reason.NOT_REPORTED)
        self.layout = self._layout()
        self.one_group = self._one_full_group()
        blocks = sample.num_blocks
        self.usable = blocks - sample.null_blocks if known(blocks) else blocks
        self.used = self._used_blocks()

    def derive(self) -> None:
        self.out.put(c.CAPACITY_BLOCKS, self.sample.num_blocks)
        self.out.put(c.USED_BLOCKS, self.used)
        self._tokens()
        self._bytes()
        self._checks()
        self._sequences()
        self._whatif()
        self.out.put(
            c.CACHED_TOKENS, Unavailable(Reason.NOT_REPORTED, "vLLM does not tell how much is cached")
        )

    # -- what the pool is made of -------------------------------------------------

    def _layout(self) -> BlockLayout | Unavailable:
        show_model(self.inputs, self.dtype, self.out)
        layout = block_plan(self.sample, self.inputs, self.dtype)
        if not known(layout):
            self.out.show("cache layout", "config.json + cache dtype + parallelism", layout)
            return layout
        for number, group in enumerate(layout.groups, 1):
            self.out.show(
                f"cache group {number}, one GPU", group.description, f"{group.page_bytes:,}", "bytes a page"
            )
        self.out.show(
            "one block, one GPU", "largest group's layers x page", f"{layout.block_bytes:,}", "bytes"
        )
        self.check = budget_check(self.sample, layout)
        if known(self.check):
            self.out.show(
                "check: bytes of a block",
                f"floor({self.sample.device_pool_bytes:,} bytes given / {layout.block_bytes:,}) "
                f"against {self.sample.num_blocks} blocks",
                f"{self.check:.6g}",
            )
        return disproved(self.check, self.inputs) or layout

    def _one_full_group(self) -> bool | Unavailable:
        """Whether one block id stands for ``block_tokens`` tokens of every layer."""
        sample = self.sample
        if sample.attention_free:
            return Unavailable(Reason.ATTENTION_FREE, "the model keeps state, no tokens")
        if known(self.layout):
            return self.layout.single_full_group
        if known(sample.num_blocks) and known(self.block_tokens) and known(sample.capacity_tokens):
            # Without the config: the engine's own token figure is the proof.
            return sample.num_blocks * self.block_tokens == sample.capacity_tokens
        return self.layout

    def _used_blocks(self) -> int | Unavailable:
        usage = self.sample.usage_ratio
        if not known(usage):
            return usage
        if not known(self.usable):
            return self.usable
        used = capacity.used_blocks(usage, self.usable)
        null = f" - {self.sample.null_blocks} null block" if self.sample.null_blocks else ""
        self.out.show("used blocks", f"round({usage:.6g} x ({self.sample.num_blocks}{null}))", used, "blocks")
        return used

    # -- tokens ---------------------------------------------------------------------

    def _tokens(self) -> None:
        size = self._capacity_tokens()
        self.out.put(c.CAPACITY_TOKENS, size)
        told = known(self.sample.capacity_tokens)
        how = "the engine's own figure" if told else f"{self.sample.num_blocks} blocks x {self.block_tokens}"
        self.out.show("capacity", how if known(size) else "the engine's own figure", size, "tokens")
        used = self._used_tokens()
        self.out.put(c.USED_TOKENS, used)
        self.out.per_sequence(used, self.sample.running_sequences)

    def _used_tokens(self) -> int | Unavailable:
        if not known(self.used):
            return self.used
        if not known(self.one_group):
            return self.one_group
        if not self.one_group:
            return Unavailable(
                Reason.SEVERAL_CACHE_GROUPS, "blocks of windows or several groups are no token count"
            )
        if not known(self.block_tokens):
            return self.block_tokens
        self.out.show(
            "used",
            f"{self.used} blocks x {self.block_tokens} tokens",
            self.used * self.block_tokens,
            "tokens",
        )
        return self.used * self.block_tokens

    def _capacity_tokens(self) -> int | Unavailable:
        sample = self.sample
        if sample.attention_free:
            return Unavailable(Reason.ATTENTION_FREE, "the model keeps state, no tokens")
        size, concurrency = sample.capacity_tokens, sample.max_concurrency
        if known(size):
            told = self.inputs.choices["max_model_len"]
            if known(concurrency) and isinstance(told.value, int) and told.source is not Source.CONFIG:
                by_concurrency = concurrency * told.value
                if abs(size - by_concurrency) > SIZE_TOLERANCE * by_concurrency:
                    # Seen: a size that ignored cache groups. The concurrency is what admits requests.
                    self.out.disagree(
                        "kv_cache_size_tokens",
                        "kv_cache_max_concurrency",
                        "kv_cache_size_tokens",
                        f"{size:,} tokens against {concurrency:g} x {told.value:,}",
                    )
                    return round(by_concurrency)
            return size
        if not known(sample.num_blocks):
            return sample.num_blocks
        if not known(self.block_tokens):
            return self.block_tokens
        if not known(self.one_group):
            return self.one_group
        if self.one_group:
            return sample.num_blocks * self.block_tokens
        return Unavailable(Reason.SEVERAL_CACHE_GROUPS, "and the engine does not report its own figure")

    # -- bytes ------------------------------------------------------------------------

    def _bytes(self) -> None:
        out, layout, blocks = self.out, self.layout, self.sample.num_blocks
        if not known(layout):
            for metric in (*c.TOKEN_COST, c.CAPACITY_BYTES, c.USED_BYTES):
                out.put(metric, layout)
            return
        out.put(c.BYTES_PER_TOKEN, layout.bytes_per_token)
        out.put(c.DEVICE_BYTES_PER_TOKEN, layout.device_bytes_per_token)
        out.put(c.STATE_BYTES_PER_SEQUENCE, layout.state_bytes_per_sequence)
        out.show(
            "one more token at long context",
            "full-attention layers, all GPUs of the replica",
            f"{layout.bytes_per_token:,}",
            "bytes",
        )
        if layout.state_bytes_per_sequence:
            out.show(
                "recurrent state of a sequence",
                "all state layers, all GPUs of the replica, padding not counted",
                f"{layout.state_bytes_per_sequence:,}",
                "bytes",
            )
        block = layout.replica_block_bytes
        out.put(c.CAPACITY_BYTES, capacity.pool_bytes(blocks, block) if known(blocks) else blocks)
        out.put(c.USED_BYTES, capacity.pool_bytes(self.used, block) if known(self.used) else self.used)
        if known(blocks):
            out.show(
                "pool, all GPUs of the replica",
                f"{blocks:,} blocks x {block:,} bytes",
                f"{blocks * block:,}",
                "bytes",
            )

    def _checks(self) -> None:
        sample, layout, out = self.sample, self.layout, self.out
        checks = [self.check] if known(self.check) else []
        if not known(layout):
            out.put(c.ARITHMETIC_RATIO, checks[0] if checks else layout)
            return
        admission = admission_blocks(self.inputs, layout)
        if known(sample.max_concurrency) and known(sample.num_blocks) and known(admission):
            ours = capacity.concurrency(sample.num_blocks, admission)
            checks.append(ours / sample.max_concurrency)
            out.show(
                "check: concurrency at max_model_len",
                f"{sample.num_blocks} blocks / {admission} at admission = {ours:.6g}, "
                f"engine says {sample.max_concurrency:.6g}",
                f"{checks[-1]:.6g}",
            )
        nothing = Unavailable(Reason.NOT_REPORTED, "the engine reports nothing to compare with")
        out.put(c.ARITHMETIC_RATIO, max(checks, key=lambda one: abs(one - 1.0)) if checks else nothing)

    # -- sequences ----------------------------------------------------------------------

    def _blocks_of(self, context: int) -> int | Unavailable:
        """Blocks of one sequence of ``context`` tokens at its peak."""
        if known(self.layout):
            return self.layout.peak_blocks(context)
        if known(self.one_group) and known(self.block_tokens):
            if self.one_group:
                return -(-context // self.block_tokens)
            if self.layout.reason is Reason.MODEL_CONFIG:
                return Unavailable(
                    Reason.MODEL_CONFIG, "several cache groups, and no config.json to tell them apart"
                )
        return self.layout

    def _by_group(self, context: int, taken: int) -> str:
        """``137 = 128 + 9`` where the groups' own peaks come at one length."""
        if not known(self.layout) or len(self.layout.groups) < 2:
            return str(taken)
        parts = [group.peak_blocks(context) for group in self.layout.groups]
        return f"({taken} = {' + '.join(map(str, parts))})" if sum(parts) == taken else str(taken)

    def _sequences(self) -> None:
        out = self.out
        for context in self.contexts:
            taken, label = self._blocks_of(context), str(context)
            if not known(taken) or not known(self.usable):
                why = taken if not known(taken) else self.usable
                for metric in (c.MAX_SEQUENCES, c.FREE_SEQUENCES):
                    out.put(metric, why, context=label)
            else:
                fit = capacity.sequences_that_fit(self.usable, taken)
                out.put(c.MAX_SEQUENCES, fit, context=label)
                out.show(
                    f"sequences of {context:,} tokens",
                    f"floor({self.usable} usable blocks / {self._by_group(context, taken)})",
                    fit,
                    "sequences",
                )
                free = (
                    capacity.sequences_that_fit(max(0, self.usable - self.used), taken)
                    if known(self.used)
                    else self.used
                )
                out.put(c.FREE_SEQUENCES, free, context=label)
                if known(self.used):
                    out.show(
                        f"  of them still free at {context:,}",
                        f"floor(({self.usable} - {self.used} used) / {taken})",
                        free,
                        "sequences",
                    )
            if not known(self.layout):
                out.put(c.SEQUENCE_BYTES, self.layout)
            elif known(taken):
                size = taken * self.layout.replica_block_bytes
                out.put(c.SEQUENCE_BYTES, size, context=label)
                out.show(
                    f"one sequence of {context:,} tokens",
                    f"{taken} blocks at its peak x {self.layout.replica_block_bytes:,} bytes",
                    f"{size:,}",
                    "bytes",
                )

    def _whatif(self) -> None:
        layout, dtype, blocks = self.layout, self.dtype, self.sample.num_blocks
        if known(layout) and layout.overridden:
            layout = SET_BY_HAND
        if not known(layout) or not known(dtype) or not known(blocks):
            why = next(v for v in (layout, dtype, blocks) if isinstance(v, Unavailable))
            self.out.put(c.WHATIF_MAX_SEQUENCES, why)
            return
        pool = capacity.pool_bytes(blocks, layout.block_bytes)
        for other in WHATIF_DTYPES:
            if element_bytes(other) == element_bytes(dtype):
                continue
            changed = block_plan(self.sample, self.inputs, other)
            for context in self.contexts:
                fit = (
                    capacity.sequences_that_fit(
                        max(0, capacity.blocks_in(pool, changed.block_bytes) - self.sample.null_blocks),
                        changed.peak_blocks(context),
                    )
                    if known(changed)
                    else changed
                )
                self.out.put(c.WHATIF_MAX_SEQUENCES, fit, context=str(context), kv_cache_dtype=other)
                if known(changed):
                    self.out.show(
                        f"with a cache of {other}, {context:,} tokens",
                        f"the same {pool:,} bytes of one GPU in blocks of {changed.block_bytes:,}, "
                        f"{changed.peak_blocks(context)} a sequence",
                        fit,
                        "sequences",
                    )
