"""The engines' layouts under the one face the planner knows (:class:`exporter.kvmath.plan.Layout`)."""

from __future__ import annotations

from dataclasses import dataclass

from exporter.kvmath.dtypes import element_bytes, resolve_cache_dtype
from exporter.kvmath.known import Reason, Unavailable, known
from exporter.kvmath.layers import Kind
from exporter.kvmath.model import ModelShape
from exporter.kvmath.parallel import Parallelism, rank_elements_per_token
from exporter.kvmath.sglang import TokenPools, sequence_tokens, token_pools
from exporter.kvmath.vllm import BlockLayout, CacheGroup, block_layout

# Far beyond any context: a group that still grows there keeps every token.
_FAR = 2**40


@dataclass(frozen=True, slots=True)
class Choices:
    """What decides a layout beside the model.  ``block_tokens`` 0: the engine's default."""

    engine: str
    kv_cache_dtype: str
    parallelism: Parallelism
    block_tokens: int = 0
    hybrid_manager: bool = True
    prefix_caching: bool = True
    speculative: str = ""


@dataclass(frozen=True, slots=True)
class LayerRow:
    """Layers alike.  Bytes of one of them on all GPUs of the replica, copies counted."""

    count: int
    kind: str
    bytes_per_token: int
    window_tokens: int
    state_bytes: int


@dataclass(frozen=True, slots=True)
class EngineLayout:
    """A layout, whichever engine made it, and how it came about."""

    engine: str
    cache_dtype: str
    block_tokens: int
    layers: tuple[LayerRow, ...]
    vllm: BlockLayout | None
    sglang: TokenPools | None
    state_bytes_per_sequence: int = 0

    # The members of kvmath.plan.Layout follow.

    @property
    def block_bytes(self) -> int:
        """One block or page on one GPU."""
        if self.vllm is not None:
            return self.vllm.block_bytes
        return self._pools.full_token_bytes * self.block_tokens

    @property
    def replica_block_bytes(self) -> int:
        """One block or page on all GPUs of the replica."""
        if self.vllm is not None:
            return self.vllm.replica_block_bytes
        return self._pools.replica_full_token_bytes * self.block_tokens

    @property
    def reserved_blocks(self) -> int:
        """vLLM keeps one null block of the pool; SGLang's padding page is allocated on top of it."""
        return 1 if self.vllm is not None else 0

    @property
    def bytes_per_token(self) -> int:
        """One token more of a long context, all GPUs of the replica, copies counted."""
        return self.vllm.bytes_per_token if self.vllm is not None else self._pools.bytes_per_token

    @property
    def device_bytes_per_token(self) -> int:
        """The same on one GPU."""
        found = self.vllm if self.vllm is not None else self._pools
        return found.device_bytes_per_token

    @property
    def counts_tokens(self) -> bool:
        """True where one group or pool keeps every token."""
        return self.vllm.single_full_group if self.vllm is not None else True

    def group_blocks(self, tokens: int) -> tuple[int, ...]:
        """Blocks of every group that a sequence of exactly ``tokens`` tokens holds."""
        if self.vllm is not None:
            return tuple(group.resident_blocks(tokens) for group in self.vllm.groups)
        return (sequence_tokens(tokens, self.block_tokens) // self.block_tokens,)

    def peak_blocks(self, tokens: int) -> int:
        """The most it holds up to there."""
        return self.vllm.peak_blocks(tokens) if self.vllm is not None else sum(self.group_blocks(tokens))

    def admission_blocks(self, tokens: int, in_flight_tokens: int) -> int:
        """Blocks set aside to admit it; SGLang allocates as it goes."""
        if self.vllm is not None:
            return self.vllm.admission_blocks(tokens, in_flight_tokens)
        return sum(self.group_blocks(tokens))

    def prefix_blocks(self, tokens: int) -> int:
        """Whole blocks of a prefix in the groups that keep every token.

        A window or a state at the prefix's end is shared only until a sequence
        moves on, so it is not counted as shared.
        """
        if self.vllm is not None:
            return sum(_whole_blocks(g, tokens) for g in self.vllm.groups if _keeps_every_token(g))
        return tokens // self.block_tokens

    @property
    def _pools(self) -> TokenPools:
        assert self.sglang is not None  # noqa: S101  (one of the two is always there)
        return self.sglang


def _keeps_every_token(group: CacheGroup) -> bool:
    return group.peak_blocks(2 * _FAR) > group.peak_blocks(_FAR)


def _whole_blocks(group: CacheGroup, tokens: int) -> int:
    # ceil((n + 1) / B) - 1 = floor(n / B), whatever a group's block holds.
    return group.resident_blocks(tokens + 1) - 1


def default_block_tokens(engine: str, shape: ModelShape) -> int:
    """Tokens per block where nobody says: vLLM 16, 64 for its MLA backends on an H100; SGLang 1."""
    if engine == "sglang":
        return 1
    return 64 if any(layer.kind is Kind.MLA for layer in shape.layers) else 16


def engine_layout(shape: ModelShape, choices: Choices) -> EngineLayout | Unavailable:
    """The layout of ``shape`` under the engine asked for."""
    dtype = resolve_cache_dtype(choices.kv_cache_dtype, "auto", shape)
    if not known(dtype):
        return dtype
    if choices.speculative:
        return Unavailable(Reason.SPECULATIVE_DECODING, f"{choices.speculative}: draft layers share the pool")
    block = choices.block_tokens or default_block_tokens(choices.engine, shape)
    vllm = sglang = None
    if choices.engine == "vllm":
        found = block_layout(shape, dtype, block, choices.parallelism, hybrid_manager=choices.hybrid_manager)
        if not known(found):
            return found
        vllm = found
    else:
        pools = token_pools(shape, dtype, block, choices.parallelism)
        if not known(pools):
            return pools
        if not pools.uniform:
            return Unavailable(Reason.WINDOW_POOL, "SGLang's separate window pool is not planned yet")
        sglang = pools
    rows = _rows(shape, dtype, choices.parallelism)
    if not known(rows):
        return rows
    return EngineLayout(choices.engine, dtype, block, rows, vllm, sglang)


def _rows(shape: ModelShape, dtype: str, parallelism: Parallelism) -> tuple[LayerRow, ...] | Unavailable:
    size = element_bytes(dtype)
    if not known(size):
        return size
    rows: dict[tuple[str, int, int], int] = {}
    for layer in shape.layers:
        elements = rank_elements_per_token(layer, parallelism.tensor)
        if not known(elements):
            return elements
        key = (str(layer.kind), elements * size * parallelism.tensor, layer.window_tokens)
        rows[key] = rows.get(key, 0) + 1
    return tuple(LayerRow(count, kind, size, window, 0) for (kind, size, window), count in rows.items())
