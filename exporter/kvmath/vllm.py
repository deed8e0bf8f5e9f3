"""How vLLM lays the caches of a model out: groups of layers, pages, blocks.

Follows vLLM 0.32.0 ``v1/core/kv_cache_utils.py`` and ``v1/kv_cache_interface.py``.
A block holds ``block_tokens`` tokens in every layer of one group; all groups
draw block ids from one pool, so every group's block takes the bytes of the
largest group.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from exporter.kvmath.dtypes import element_bytes
from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.layers import Kind
from exporter.kvmath.model import ModelShape
from exporter.kvmath.parallel import Parallelism, pipeline_stages, rank_elements_per_token, split_problem

# The attention layers of vLLM 0.32.0 models/falcon.py are built without the cache settings and
# stay at the model's dtype whatever --kv-cache-dtype says.
_DEAF_TO_CACHE_DTYPE: Final = frozenset({"falcon", "RefinedWeb", "RefinedWebModel"})


def _blocks(tokens: int, block_tokens: int) -> int:
    return -(-tokens // block_tokens)


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers that share one block table.

    ``layers`` counts the whole model, not one pipeline stage; ``window_tokens``
    is 0 unless ``kind`` is WINDOW; ``page_bytes`` is one layer's share of one
    block on one GPU.
    """

    kind: Kind
    layers: int
    window_tokens: int
    block_tokens: int
    page_bytes: int

    def resident_blocks(self, tokens: int) -> int:
        """Blocks a running sequence of exactly ``tokens`` computed tokens holds, prefill over.

        ceil(L / B); a window group has given back the floor((L - W) / B) blocks
        that lie wholly before the window.
        """
        held = _blocks(tokens, self.block_tokens)
        if self.kind is Kind.WINDOW:
            held -= max(0, tokens - self.window_tokens) // self.block_tokens
        return held

    def peak_blocks(self, tokens: int) -> int:
        """The most blocks a sequence holds at any length up to ``tokens``, prefill over.

        A window starts anywhere in a block, so it touches up to
        ceil((W + B - 1) / B) of them: a length just short of a block boundary
        holds one more than the boundary itself.
        """
        if self.kind is Kind.WINDOW:
            tokens = min(tokens, self.window_tokens + self.block_tokens - 1)
        return _blocks(tokens, self.block_tokens)

    def admission_blocks(self, tokens: int, max_num_batched_tokens: int) -> int:
        """Blocks vLLM reserves to admit a sequence of up to ``tokens`` tokens.

        Full: ceil(L / B).  Window: ceil(min(W - 1 + batched, L) / B) + 1, for
        during prefill blocks before the window are given back one step late.
        ``max_num_batched_tokens`` is what may be in flight at once: with
        asynchronous scheduling or pipeline stages, steps overlap and the engine
        counts one batch for each (0.32.0 config/vllm.py ``max_in_flight_tokens``).
        """
        if self.kind is Kind.WINDOW:
            return (
                _blocks(min(self.window_tokens - 1 + max_num_batched_tokens, tokens), self.block_tokens) + 1
            )
        return _blocks(tokens, self.block_tokens)


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """The groups of a model and the bytes of a block.

    ``block_bytes``: one block on one GPU, the one with the largest pipeline
    stage.  ``replica_block_bytes``: one block id summed over all GPUs of the
    replica, copied heads and latents counted as often as they are stored.
    ``bytes_per_token``: one token more of a long context, all GPUs of the
    replica, copies counted: only layers stored for every token, so 0 where all
    layers are windowed.  ``device_bytes_per_token``: the same on one GPU, the
    largest stage.
    """

    groups: tuple[CacheGroup, ...]
    block_bytes: int
    replica_block_bytes: int
    bytes_per_token: int
    device_bytes_per_token: int

    @property
    def single_full_group(self) -> bool:
        """True where used blocks times block size counts tokens: one group that keeps every token."""
        return len(self.groups) == 1 and self.groups[0].kind is not Kind.WINDOW

    def resident_blocks(self, tokens: int) -> int:
        """Blocks a running sequence of exactly ``tokens`` tokens holds, all groups."""
        return sum(group.resident_blocks(tokens) for group in self.groups)

    def peak_blocks(self, tokens: int) -> int:
        """The most blocks a sequence holds at any length up to ``tokens``, prefill over, all groups.

        The sum of the groups' peaks, and reached: one token into a block every
        group is at its peak.
        """
        return sum(group.peak_blocks(tokens) for group in self.groups)

    def admission_blocks(self, tokens: int, max_num_batched_tokens: int) -> int:
        """Blocks vLLM reserves to admit a sequence of up to ``tokens`` tokens, all groups."""
        return sum(group.admission_blocks(tokens, max_num_batched_tokens) for group in self.groups)


@dataclass(frozen=True, slots=True)
class _StoredLayer:
    """A layer as vLLM stores it: what decides its group, and its page."""

    kind: Kind
    window_tokens: int
    page_bytes: int


def block_layout(
    shape: ModelShape,
    cache_dtype: str,
    block_tokens: int,
    parallelism: Parallelism,
    hybrid_manager: bool = True,
) -> BlockLayout | Unavailable:
    """The layout of ``shape`` under vLLM.

    ``cache_dtype`` is resolved (not "auto"); ``block_tokens`` is what the engine
    reports; ``hybrid_manager`` is off under --disable-hybrid-kv-cache-manager.

    ``Unavailable``: KV_CACHE_DTYPE, BLOCK_SIZE, TENSOR_PARALLEL_SIZE and
    PIPELINE_PARALLEL_SIZE for values that fit no engine, UNSUPPORTED_PARALLELISM
    for decode context parallelism, UNSUPPORTED_ATTENTION for layers of different
    page sizes.
    """
    # "is not None": an Unavailable counts as false.
    if (problem := split_problem(shape, parallelism)) is not None:
        return problem
    if block_tokens < 1:
        return Unavailable(Reason.BLOCK_SIZE, "block size below 1 token")
    if shape.attention_heads % parallelism.tensor:
        return Unavailable(
            Reason.TENSOR_PARALLEL_SIZE,
            f"{shape.attention_heads} query heads do not spread over {parallelism.tensor} ranks",
        )
    size = element_bytes(cache_dtype)
    if isinstance(size, Unavailable):
        return size
    if size == 1 and shape.model_type in _DEAF_TO_CACHE_DTYPE:
        return Unavailable(Reason.KV_CACHE_DTYPE, f"{shape.model_type}: vLLM ignores --kv-cache-dtype")

    layers = _stored(shape, size * block_tokens, parallelism.tensor)
    if isinstance(layers, Unavailable):
        return layers
    if not hybrid_manager:
        layers = _promoted(layers)
    members = _groups(layers)
    if isinstance(members, Unavailable):
        return members

    stages = pipeline_stages(len(layers), parallelism.pipeline)
    blocks = [_stage_block_bytes(layers, members, stage) for stage in stages]
    tokens = [
        sum(layers[i].page_bytes for i in stage if layers[i].kind is not Kind.WINDOW) // block_tokens
        for stage in stages
    ]
    return BlockLayout(
        groups=tuple(
            CacheGroup(
                kind=layers[group[0]].kind,
                layers=len(group),
                window_tokens=layers[group[0]].window_tokens,
                block_tokens=block_tokens,
                page_bytes=layers[group[0]].page_bytes,
            )
            for group in members
        ),
        block_bytes=max(blocks),
        replica_block_bytes=sum(blocks) * parallelism.tensor,
        bytes_per_token=sum(tokens) * parallelism.tensor,
        device_bytes_per_token=max(tokens),
    )


def _stored(shape: ModelShape, bytes_per_element: int, tensor: int) -> list[_StoredLayer] | Unavailable:
    """Every layer with its page on one rank; ``bytes_per_element`` counts a whole block of tokens."""
    layers = []
    for layer in shape.layers:
        elements = rank_elements_per_token(layer, tensor)
        if isinstance(elements, Unavailable):
            return elements
        layers.append(_StoredLayer(layer.kind, layer.window_tokens, elements * bytes_per_element))
    return layers


def _promoted(layers: list[_StoredLayer]) -> list[_StoredLayer]:
    """Without the hybrid manager window layers are stored in full, if there are full layers beside them.

    (``unify_hybrid_kv_cache_specs``.)  A model that is all one window stays so.
    """
    if not any(layer.kind is Kind.FULL for layer in layers):
        return layers
    return [
        _StoredLayer(Kind.FULL, 0, layer.page_bytes) if layer.kind is Kind.WINDOW else layer
        for layer in layers
    ]


def _groups(layers: list[_StoredLayer]) -> list[list[int]] | Unavailable:
    """Layer numbers of every group (``_get_kv_cache_groups_uniform_page_size``).

    Layers alike go together.  Groups must be of one size, so the more numerous
    kind is split into groups as small as the rarer kind's, unless it is less
    than half as numerous again: then the rarer is padded up to it.  Layers are
    dealt out in turn, which spreads each group over the pipeline stages.
    """
    if len({layer.page_bytes for layer in layers}) > 1:
        return Unavailable(Reason.UNSUPPORTED_ATTENTION, "layers of different page sizes")
    alike: dict[_StoredLayer, list[int]] = {}
    for number, layer in enumerate(layers):
        alike.setdefault(layer, []).append(number)
    fewest, most = min(map(len, alike.values())), max(map(len, alike.values()))
    group_layers = most if most < fewest * 1.5 else fewest
    groups = []
    for numbers in alike.values():
        parts = -(-len(numbers) // group_layers)
        groups += [numbers[part::parts] for part in range(parts)]
    return groups


def _stage_block_bytes(layers: list[_StoredLayer], members: Iterable[list[int]], stage: range) -> int:
    """One block on one GPU of a stage: the largest group, of whose layers only the stage's are there."""
    return max(sum(layers[i].page_bytes for i in group if i in stage) for group in members)
