"""The engines' layouts under the one face the planner knows (:class:`exporter.kvmath.plan.Layout`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from exporter.kvmath.dtypes import resolve_cache_dtype
from exporter.kvmath.known import Reason, Unavailable, known
from exporter.kvmath.layers import EVERY_TOKEN, Kind
from exporter.kvmath.model import ModelShape
from exporter.kvmath.overrides import Override
from exporter.kvmath.parallel import Parallelism
from exporter.kvmath.sglang import TokenPools, sequence_tokens, token_pools
from exporter.kvmath.sglang_budget import (
    page_charge,
    states_charge,
    states_each,
    window_share,
    windows_charge,
)
from exporter.kvmath.sglang_formats import state_bytes
from exporter.kvmath.sglang_pools import roles
from exporter.kvmath.speculation import draft_problem
from exporter.kvmath.vllm import BlockLayout, block_layout, default_block_tokens
from exporter.kvmath.vllm_pages import stored_dtype


@dataclass(frozen=True, slots=True)
class Choices:
    """What decides a layout beside the model.  ``block_tokens`` 0: the engine's default; ``max_model_len``
    0: the config's; ``override``: figures set by hand, ``names`` of it empty for none."""

    engine: str
    kv_cache_dtype: str
    parallelism: Parallelism
    block_tokens: int = 0
    hybrid_manager: bool = True
    prefix_caching: bool = True
    speculative: str = ""
    max_model_len: int = 0
    override: Override = field(default_factory=Override)


@dataclass(frozen=True, slots=True)
class LayerRow:
    """Layers alike.  Bytes of one of them on all GPUs of the replica, copies counted, padding not."""

    count: int
    kind: Kind
    bytes_per_token: Fraction
    window_tokens: int
    state_bytes: int


@dataclass(frozen=True, slots=True)
class EngineLayout:
    """A layout, whichever engine made it, and how it came about."""

    engine: str
    cache_dtype: str
    block_tokens: int
    layers: tuple[LayerRow, ...]
    blocks: BlockLayout | TokenPools
    prefix_caching: bool = True

    # The members of kvmath.plan.Layout follow.

    @property
    def block_bytes(self) -> int:
        """One block or page on one GPU; of SGLang with what its other pools get for each page."""
        if isinstance(self.blocks, BlockLayout):
            return self.blocks.block_bytes
        return page_charge(self.blocks, self.blocks.full_token_bytes, self.blocks.window_token_bytes)

    @property
    def replica_block_bytes(self) -> int:
        """One block or page on all GPUs of the replica."""
        if isinstance(self.blocks, BlockLayout):
            return self.blocks.replica_block_bytes
        pools = self.blocks
        return page_charge(pools, pools.replica_full_token_bytes, pools.replica_window_token_bytes)

    @property
    def reserved_blocks(self) -> int:
        """vLLM keeps a null block of the pool, SGLang a state slot; its padding page comes on top."""
        if isinstance(self.blocks, BlockLayout):
            return 1
        return states_charge(self.blocks, 1, self.block_bytes)

    @property
    def bytes_per_token(self) -> float:
        """One token more of a long context, all GPUs of the replica, copies counted."""
        return self.blocks.bytes_per_token

    @property
    def device_bytes_per_token(self) -> float:
        """The same on one GPU."""
        return self.blocks.device_bytes_per_token

    @property
    def state_bytes_per_sequence(self) -> int:
        """Recurrent states of a sequence, all GPUs of the replica."""
        if isinstance(self.blocks, BlockLayout):
            return self.blocks.state_bytes_per_sequence
        return self.blocks.replica_state_bytes

    @property
    def counts_tokens(self) -> bool:
        """True where one group or pool keeps every token."""
        return self.blocks.single_full_group if isinstance(self.blocks, BlockLayout) else self.blocks.uniform

    def group_blocks(self, tokens: int) -> tuple[int, ...]:
        """Blocks of every group that a sequence of exactly ``tokens`` tokens holds."""
        if isinstance(self.blocks, BlockLayout):
            return tuple(group.resident_blocks(tokens) for group in self.blocks.groups)
        return (sequence_tokens(tokens, self.block_tokens) // self.block_tokens,)

    def resident_bytes(self, tokens: int) -> int:
        """Bytes of that on one GPU.  SGLang: its slots in every pool, of a window pool the most it may."""
        if isinstance(self.blocks, BlockLayout):
            return sum(self.group_blocks(tokens)) * self.block_bytes
        pools = self.blocks
        slots = sum(self.group_blocks(tokens)) * pools.page_tokens
        window = window_share(pools, tokens) * pools.window_token_bytes if pools.window_token_bytes else 0
        return slots * pools.full_token_bytes + window + pools.state_bytes

    def peak_blocks(self, tokens: int) -> int:
        """The most it holds up to there; of SGLang what it takes of the pool that is full first."""
        if isinstance(self.blocks, BlockLayout):
            return self.blocks.peak_blocks(tokens)
        pools, pages = self.blocks, sum(self.group_blocks(tokens))
        if pools.window_token_bytes:
            pages = max(pages, windows_charge(pools, tokens))
        # The most slots the engine sets aside for a sequence, which its radix cache's strategy decides.
        return max(pages, states_charge(pools, states_each(self.prefix_caching)[1], self.block_bytes))

    def admission_blocks(self, tokens: int, in_flight_tokens: int) -> int:
        """Blocks set aside to admit it; SGLang allocates as it goes."""
        if isinstance(self.blocks, BlockLayout):
            return self.blocks.admission_blocks(tokens, in_flight_tokens)
        return self.peak_blocks(tokens)

    def prefix_blocks(self, tokens: int) -> int:
        """Whole blocks of a prefix in the groups that keep every token.

        A window or a state at the prefix's end is shared only until a sequence
        moves on, so it is not counted as shared.
        """
        if isinstance(self.blocks, BlockLayout):
            return sum(tokens // group.span for group in self.blocks.groups if group.kind in EVERY_TOKEN)
        # Neither a window's slots nor a state's are shared, so a page with its charge for them is not.
        return tokens // self.block_tokens if self.blocks.uniform else 0


def engine_layout(shape: ModelShape | Unavailable, choices: Choices) -> EngineLayout | Unavailable:
    """The layout of ``shape`` under the engine asked for, or of the figures set by hand."""
    if choices.override.names:
        return _by_hand(choices)
    if not known(shape):
        return shape
    if (problem := draft_problem(choices.engine, choices.speculative, bool(shape.draft_layers))) is not None:
        return problem
    dtype = resolve_cache_dtype(choices.kv_cache_dtype, "auto", shape)
    if not known(dtype):
        return dtype
    return _vllm(shape, dtype, choices) if choices.engine == "vllm" else _sglang(shape, dtype, choices)


def _by_hand(choices: Choices) -> EngineLayout | Unavailable:
    # vLLM's blocks serve for SGLang too: a token's bytes are all there is to lay out.
    block = choices.block_tokens or (16 if choices.engine == "vllm" else 1)
    found = choices.override.layout(block, choices.parallelism, choices.prefix_caching)
    if not known(found):
        return found
    rows = _rows(found, choices.parallelism.gpus)
    return EngineLayout(choices.engine, "set by hand", found.block_tokens, rows, found)


def _vllm(shape: ModelShape, dtype: str, choices: Choices) -> EngineLayout | Unavailable:
    stored = stored_dtype(shape, dtype)
    if not known(stored):
        return stored
    length = choices.max_model_len or shape.max_position_tokens
    found = block_layout(
        shape,
        dtype,
        choices.block_tokens or default_block_tokens(shape, dtype),
        choices.parallelism,
        hybrid_manager=choices.hybrid_manager,
        prefix_caching=None if choices.prefix_caching else False,  # None: where the engine has it on
        speculative=choices.speculative,
        max_model_len=length if known(length) else 0,
    )
    if not known(found):
        return found
    return EngineLayout("vllm", stored, found.block_tokens, _rows(found, choices.parallelism.tensor), found)


def _rows(layout: BlockLayout, ranks: int) -> tuple[LayerRow, ...]:
    """Layers alike, from the groups; ``ranks`` GPUs each hold what one page holds."""
    alike: dict[tuple[Kind, Fraction, int, int], int] = {}
    for group in layout.groups:
        for part in group.parts:
            state = part.kind is Kind.STATE
            token = Fraction(0) if state else Fraction(part.data_bytes * ranks, group.span)
            # A group's window is that of its lead; layers that keep every token may lie beside it.
            window = 0 if part.kind in EVERY_TOKEN or state else group.window_tokens
            key = (part.kind, token, window, part.data_bytes * ranks if state else 0)
            alike[key] = alike.get(key, 0) + part.layers
    return tuple(LayerRow(count, *key) for key, count in alike.items())


def _sglang(shape: ModelShape, dtype: str, choices: Choices) -> EngineLayout | Unavailable:
    pools = token_pools(
        shape,
        dtype,
        choices.block_tokens or 1,
        choices.parallelism,
        window_pool=choices.hybrid_manager,
        speculative=choices.speculative,
    )
    if not known(pools):
        return pools
    if not pools.full_token_bytes:
        return Unavailable(Reason.ATTENTION_FREE, "SGLang limits token slots that take no bytes by a setting")
    rows = _slot_rows(shape, pools, choices)
    if not known(rows):
        return rows
    # A block is a page on every rank that shares a context.
    return EngineLayout("sglang", dtype, pools.granule_tokens, rows, pools, choices.prefix_caching)


def _slot_rows(shape: ModelShape, pools: TokenPools, choices: Choices) -> tuple[LayerRow, ...] | Unavailable:
    """The layers of every pool.  One without a window pool keeps windows in full, and has a slot for
    layers that own no cache."""
    found = roles(shape, choices.hybrid_manager)
    if not known(found):
        return found
    tensor = choices.parallelism.tensor
    kept = sum(len(own) for own in found.full)
    keys = [key.record_bytes for own in found.index for key in own]
    if choices.speculative == "mtp":
        drafts = sum(layer.kind is not Kind.INDEXER for layer in shape.draft_layers)
        kept, keys = kept + drafts, keys + keys[:1] * drafts
    index = sum(keys) * tensor
    kind = Kind.MLA if shape.has(Kind.MLA) else Kind.FULL
    rows = [LayerRow(kept, kind, Fraction(pools.bytes_per_token - index, kept), 0, 0)]
    if keys:
        rows.append(LayerRow(len(keys), Kind.INDEXER, Fraction(index, len(keys)), 0, 0))
    windows = [layer for own in found.window for layer in own]
    if windows:
        one = Fraction(pools.replica_window_token_bytes, len(windows))
        rows.append(LayerRow(len(windows), windows[0].kind, one, found.window_tokens, 0))
    alike: dict[int, int] = {}
    for state in (layer.state for own in found.states for layer in own if layer.state is not None):
        size = state_bytes(state, shape.model_type, tensor)
        if not known(size):
            return size
        alike[size] = alike.get(size, 0) + 1
    rows += [LayerRow(n, Kind.STATE, Fraction(0), 0, size * tensor) for size, n in alike.items()]
    return tuple(rows)
