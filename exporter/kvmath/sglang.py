"""How SGLang lays the caches of a model out: pools of token slots, and of state slots.

Follows SGLang 0.5.23 ``srt/model_executor/pool_configurator.py`` and
``srt/mem_cache/kv_cache_configurator.py``.  A token slot holds one token in every
layer of its pool.  One pool keeps every token of every layer, windows or not,
except for a few architectures whose window layers get a pool of their own.  A
state slot holds the recurrent states of all layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Final

from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.layers import Kind, LayerCache
from exporter.kvmath.model import ModelShape
from exporter.kvmath.parallel import Parallelism, sglang_pipeline_stages, split_problem
from exporter.kvmath.sglang_formats import pool_bytes, state_bytes
from exporter.kvmath.sglang_pools import Roles, roles

# Speculative decoding without a draft model of its own.
_NO_DRAFTS: Final = frozenset({"", "ngram"})


@dataclass(frozen=True, slots=True)
class TokenPools:
    """The pools of a model and the bytes of a slot.

    ``page_tokens``: slots are handed out in pages of so many.
    ``full_token_bytes``: one slot in all layers of the full pool on one GPU,
    the one with the largest pipeline stage.  ``window_token_bytes``: the same
    for the separate window pool, 0 where there is none.  ``state_bytes``: one
    state slot, 0 without recurrent states.  ``replica_...``: summed over all GPUs of
    the replica, copied heads and latents counted.  ``bytes_per_token`` and
    ``device_bytes_per_token``: one token more of a long context, replica and largest
    GPU; the latter may be a fraction where ``context_ranks`` (decode context
    parallelism) share a token's slot.  ``first_stage_bytes``: a full and a window slot on
    a GPU of the first pipeline stage, whose pool the engine's page shows.
    """

    page_tokens: int
    full_token_bytes: int
    window_token_bytes: int
    window_tokens: int
    replica_full_token_bytes: int
    replica_window_token_bytes: int
    bytes_per_token: int
    device_bytes_per_token: float
    state_bytes: int = 0
    replica_state_bytes: int = 0
    context_ranks: int = 1
    first_stage_bytes: tuple[int, int] = (0, 0)

    @property
    def uniform(self) -> bool:
        """True where one pool holds everything: no windows apart, no states."""
        return self.window_token_bytes == 0 and self.state_bytes == 0

    @property
    def granule_tokens(self) -> int:
        """Tokens a sequence's slots are rounded up to: a page on every rank that shares the context."""
        return self.page_tokens * self.context_ranks

    def reported_pool_bytes(self, tokens: int, window_tokens: int = 0) -> int:
        """Bytes of the token pools on one GPU of the first stage, each with its padding page.

        ``tokens`` and ``window_tokens`` as the engine counts them: max_total_num_tokens
        counts the ranks that share a context together (0.5.23 ``logical_token_capacity``).
        This is what kv_cache_memory_usage_gb reports; states are not in it.
        """
        return self._pool(tokens, window_tokens, *self.first_stage_bytes)

    def replica_pool_bytes(self, tokens: int, window_tokens: int = 0) -> int:
        """The same on all GPUs of the replica, every stage with its own layers."""
        return self._pool(
            tokens, window_tokens, self.replica_full_token_bytes, self.replica_window_token_bytes
        )

    def _pool(self, tokens: int, window_tokens: int, full: int, window: int) -> int:
        size = full * (tokens // self.context_ranks + self.page_tokens)
        return size + window * (window_tokens + self.page_tokens) if window else size

    def replica_states_bytes(self, slots: int) -> int:
        """Bytes of a pool of ``slots`` state slots and its padding slot, all GPUs."""
        return self.replica_state_bytes * (slots + 1)


def sequence_tokens(tokens: int, page_tokens: int) -> int:
    """Slots a sequence of ``tokens`` tokens takes: rounded up to whole pages."""
    return -(-tokens // page_tokens) * page_tokens


def token_pools(
    shape: ModelShape,
    cache_dtype: str,
    page_tokens: int,
    parallelism: Parallelism,
    window_pool: bool = True,
    raw_latent: bool = False,
    state_dtype: str = "auto",
    speculative: str = "",
) -> TokenPools | Unavailable:
    """The pools of ``shape`` under SGLang.

    ``cache_dtype`` is resolved (not "auto"); ``page_tokens`` is the server's
    ``page_size``; ``window_pool`` is off under --disable-hybrid-swa-memory;
    ``raw_latent``: a sparse attention's fp8 latents without scales, as its TRT-LLM and
    TileLang kernels read them; ``state_dtype`` is --mamba-ssm-dtype; ``speculative``:
    "mtp" for draft layers out of the same checkpoint.

    ``Unavailable``: KV_CACHE_DTYPE, BLOCK_SIZE, TENSOR_PARALLEL_SIZE and
    PIPELINE_PARALLEL_SIZE for values that fit no engine, UNSUPPORTED_PARALLELISM
    for splits whose pools are not covered, UNSUPPORTED_ATTENTION for models SGLang
    stores in another way than their config says, SPECULATIVE_DECODING where the
    number of draft layers is not known.
    """
    found = split_problem(shape, parallelism) or roles(shape, window_pool)
    if isinstance(found, Unavailable):
        return found
    if page_tokens < 1:
        return Unavailable(Reason.BLOCK_SIZE, "page size below 1 token")
    if (problem := _split_problem(shape, found, parallelism)) is not None:
        return problem
    drafts = _draft_layers(shape, found, speculative)
    if isinstance(drafts, Unavailable):
        return drafts
    cells = []
    for stage in sglang_pipeline_stages(shape.decoder_depth, parallelism.pipeline):
        cell = _cell(shape, found, stage, cache_dtype, parallelism, raw_latent, state_dtype, drafts)
        if isinstance(cell, Unavailable):
            return cell
        cells.append(cell)
    full, window, state = (max(sizes) for sizes in zip(*cells, strict=True))
    all_full, all_window, all_state = (sum(sizes) * parallelism.tensor for sizes in zip(*cells, strict=True))
    shared = Fraction(full, parallelism.decode_context)
    return TokenPools(
        page_tokens=page_tokens,
        full_token_bytes=full,
        window_token_bytes=window,
        window_tokens=found.window_tokens,
        replica_full_token_bytes=all_full,
        replica_window_token_bytes=all_window,
        bytes_per_token=all_full // parallelism.decode_context,
        device_bytes_per_token=shared.numerator if shared.denominator == 1 else float(shared),
        state_bytes=state,
        replica_state_bytes=all_state,
        context_ranks=parallelism.decode_context,
        first_stage_bytes=cells[0][:2],
    )


def _split_problem(shape: ModelShape, found: Roles, parallelism: Parallelism) -> Unavailable | None:
    context = parallelism.decode_context
    if context < 1 or parallelism.tensor % context:
        return Unavailable(
            Reason.UNSUPPORTED_PARALLELISM,
            f"decode context parallelism: {parallelism.tensor} ranks, {context} share a context",
        )
    if context > 1 and (found.window_tokens or any(found.states)):
        return Unavailable(
            Reason.UNSUPPORTED_PARALLELISM, "decode context parallelism beside window or state pools"
        )
    if parallelism.pipeline > 1 and found.several_each:
        return Unavailable(
            Reason.UNSUPPORTED_PARALLELISM, f"pipeline stages of {shape.model_type}: several caches per layer"
        )
    return None


def _draft_layers(shape: ModelShape, found: Roles, speculative: str) -> int | Unavailable:
    """Draft layers that share the cell: those the target's own num_nextn_predict_layers counts.

    Families whose draft layers are like their decoder's name that field; for the others
    SGLang takes the number from elsewhere (0.5.23 ``spec_aux_hidden_state.py``).
    """
    if speculative in _NO_DRAFTS:
        return 0
    keys = [layer for layer in shape.draft_layers if layer.kind is not Kind.INDEXER]
    own = set(chain.from_iterable(found.full))
    if speculative != "mtp" or not keys or found.window_tokens or any(found.states) or not set(keys) <= own:
        return Unavailable(
            Reason.SPECULATIVE_DECODING, f"{speculative}: how many draft layers share the pool is not known"
        )
    return len(keys)


def _cell(
    shape: ModelShape,
    found: Roles,
    stage: range,
    cache_dtype: str,
    parallelism: Parallelism,
    raw_latent: bool,
    state_dtype: str,
    drafts: int,
) -> tuple[int, int, int] | Unavailable:
    """Bytes on one GPU of one stage: a full slot, a window slot, a state slot."""

    def here(role: tuple[tuple[LayerCache, ...], ...]) -> list[LayerCache]:
        return [layer for depth in stage for layer in role[depth]]

    context = parallelism.decode_context
    ranks = parallelism.tensor // context  # DCP ranks keep whole heads of every context-th token
    sparse = any(found.index)
    layers = here(found.full)
    full = pool_bytes(layers, cache_dtype, ranks, sparse, raw_latent)
    # Each window layer's scales are rounded by themselves.
    windows = here(found.window)
    window = pool_bytes(windows[:1], cache_dtype, parallelism.tensor)
    if isinstance(full, Unavailable):
        return full
    if isinstance(window, Unavailable):
        return window
    if found.window_tokens:
        one = pool_bytes(layers[:1], cache_dtype, parallelism.tensor)
        if isinstance(one, Unavailable):
            return one
        full = one * len(layers)
    states = 0
    for layer in here(found.states):
        if layer.state is None:
            continue
        state = state_bytes(layer.state, shape.model_type, parallelism.tensor, state_dtype)
        if isinstance(state, Unavailable):
            return state
        states += state
    # Every DCP rank holds the index keys of all tokens, the ones whose slots are elsewhere included.
    index = [layer.record_bytes for layer in here(found.index)]
    if drafts and layers:
        key = max((layer.record_bytes for own in found.index for layer in own), default=0)
        draft = full * drafts // len(layers) + key * drafts
        full += draft * (context if sparse else 1)
    return full + sum(index) * context, window * len(windows), states
