"""Which of SGLang's pools each cache of a model goes to.

SGLang 0.5.23 ``srt/configs/model_config.py`` (``is_hybrid_swa_model``,
``get_hybrid_layer_ids``, ``_derive_model_shapes``), ``srt/configs/hybrid_arch.py``,
``srt/model_executor/pool_configurator.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.layers import Kind, LayerCache
from exporter.kvmath.model import ModelShape

# is_hybrid_swa_model(), as far as the families read here go.
_WINDOW_POOL: Final = frozenset(
    {
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "GptOssForCausalLM",
        "Llama4ForConditionalGeneration",
        "MiMoV2FlashForCausalLM",
        "MiMoV2ForCausalLM",
        "Step3p5ForCausalLM",
        "Step3p7ForConditionalGeneration",
    }
)

# Architectures whose MLA models store the latent (_derive_model_shapes()); any other MLA model is either
# unknown to SGLang or stored some other way.
_LATENT: Final = frozenset(
    {
        "DeepseekV2ForCausalLM",
        "DeepseekV32ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekVL2ForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "GlmMoeDsaForCausalLM",
        "KimiK25ForConditionalGeneration",
        "KimiLinearForCausalLM",
        "KimiVLForConditionalGeneration",
        "LongcatFlashForCausalLM",
    }
)

# Config classes with a state pool (hybrid_arch.py).  SGLang has no model for the other families with states.
_STATES: Final = frozenset(
    {
        "falcon_h1",
        "falcon_mamba",
        "granitemoehybrid",
        "kimi_linear",
        "lfm2",
        "lfm2_moe",
        "mamba",
        "mamba2",
        "nemotron_h",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
    }
)

# Stored in another way than the config's fields say, model_type -> why.
_WITHHELD: Final = {
    "minicpm3": "SGLang stores the latent, vLLM K and V",
    "minimax_m3": "the index may keep values too (sparse_disable_index_value)",
    "t5": "no model of SGLang",
    "whisper": "SGLang's pool has layers for the encoder too",
}
_HEADS: Final = frozenset({Kind.FULL, Kind.WINDOW, Kind.CHUNK, Kind.CROSS})
_KNOWN: Final = _HEADS | {Kind.MLA, Kind.INDEXER, Kind.STATE}


@dataclass(frozen=True, slots=True)
class Roles:
    """Per decoder layer, what it adds to each pool.

    ``full`` and ``window``: caches that take a slot's bytes, ``index``: index keys
    beside them, ``states``.  All of ``full`` are alike, and so are all of ``window``.
    ``window_tokens`` is 0 without a separate window pool.
    """

    full: tuple[tuple[LayerCache, ...], ...]
    window: tuple[tuple[LayerCache, ...], ...]
    index: tuple[tuple[LayerCache, ...], ...]
    states: tuple[tuple[LayerCache, ...], ...]
    window_tokens: int

    @property
    def several_each(self) -> bool:
        """True where a decoder layer has two slot caches (LongCat Flash)."""
        return any(len(own) > 1 for own in self.full)


def roles(shape: ModelShape, window_pool: bool) -> Roles | Unavailable:
    """The pools of ``shape``; ``Unavailable(UNSUPPORTED_ATTENTION)`` names what is not covered."""
    if (problem := _stored_otherwise(shape)) is not None:
        return problem
    depth = shape.decoder_depth
    full: list[list[LayerCache]] = [[] for _ in range(depth)]
    window: list[list[LayerCache]] = [[] for _ in range(depth)]
    index: list[list[LayerCache]] = [[] for _ in range(depth)]
    states: list[list[LayerCache]] = [[] for _ in range(depth)]
    separate = window_pool and not _WINDOW_POOL.isdisjoint(shape.architectures)
    for number, layer in enumerate(shape.layers):
        recent = layer.kind in (Kind.WINDOW, Kind.CHUNK)
        into = window if separate and recent else full
        into = {Kind.STATE: states, Kind.INDEXER: index}.get(layer.kind, into)
        into[shape.depth(number)].append(layer)
    if not shape.has(Kind.STATE) and (problem := _fill(shape, full, window)) is not None:
        return problem
    found = Roles(_frozen(full), _frozen(window), _frozen(index), _frozen(states), _reach(window))
    return _uneven(shape, found) or found


def _stored_otherwise(shape: ModelShape) -> Unavailable | None:
    if shape.model_type in _WITHHELD:
        return _unsupported(shape, _WITHHELD[shape.model_type])
    kinds = {layer.kind for layer in shape.layers}
    if Kind.RECORD_WINDOW in kinds:
        return _unsupported(
            shape,
            "pools of records and rings that depend on --max-running-requests and the attention backend",
        )
    for kind in sorted(kinds - _KNOWN):
        return _unsupported(shape, f"{kind} layers")
    if Kind.STATE in kinds and shape.model_type not in _STATES:
        return _unsupported(shape, "no model of SGLang with a state pool")
    if Kind.MLA in kinds and _LATENT.isdisjoint(shape.architectures):
        return _unsupported(shape, "not an MLA architecture of SGLang")
    if Kind.INDEXER in kinds and Kind.MLA not in kinds:
        return _unsupported(shape, "indexers beside K and V")
    return None


def _fill(
    shape: ModelShape, full: list[list[LayerCache]], window: list[list[LayerCache]]
) -> Unavailable | None:
    """SGLang gives every decoder layer a cache, also those that read another's or keep nothing."""
    empty = [number for number, own in enumerate(full) if not own and not window[number]]
    if not empty:
        return None
    if any(window):
        return _unsupported(shape, "which pool the layers that share a cache are in is not known")
    one = next((own[0] for own in full if own), None)
    for number in empty:
        full[number] = [one] if one is not None else []
    return None


def _reach(window: list[list[LayerCache]]) -> int:
    return max((layer.window_tokens for own in window for layer in own), default=0)


def _uneven(shape: ModelShape, found: Roles) -> Unavailable | None:
    """SGLang has one geometry per pool; a model of several is not what it stores, or not served."""
    for pool in (found.full, found.window):
        geometries = {
            (layer.kind is Kind.MLA, layer.kv_heads, layer.k_dim, layer.v_dim)
            for own in pool
            for layer in own
        }
        if len(geometries) > 1:
            return _unsupported(shape, "layers of different heads in one pool")
    windows = {layer.window_tokens for own in found.window for layer in own}
    if len(windows) > 1:
        return _unsupported(shape, "windows of different lengths")
    if found.window_tokens and not any(found.full):
        # Then max_total_num_tokens counts window slots: no full pool to relate to.
        return _unsupported(shape, "a window pool without a full one")
    if "Llama4ForConditionalGeneration" in shape.architectures and found.window_tokens:
        local = [bool(own) for own in found.window]
        if local != [bool((number + 1) % 4) for number in range(len(local))]:
            # get_hybrid_layer_ids() does not read no_rope_layers.
            return _unsupported(shape, "no_rope_layers: SGLang takes every fourth layer as full")
    return None


def _frozen(lists: list[list[LayerCache]]) -> tuple[tuple[LayerCache, ...], ...]:
    return tuple(tuple(own) for own in lists)


def _unsupported(shape: ModelShape, why: str) -> Unavailable:
    return Unavailable(Reason.UNSUPPORTED_ATTENTION, f"{shape.model_type}: {why}")
