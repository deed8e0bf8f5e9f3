"""Draft layers a checkpoint brings along (multi-token prediction): cached under speculative decoding only.

How many the engine builds: vLLM 0.32.0 config/speculative.py ``hf_config_override``.
"""

from __future__ import annotations

from collections.abc import Callable

from exporter.kvmath.fields import Fields, bad
from exporter.kvmath.heads import Names, grouped
from exporter.kvmath.hybrids import nemotron_pattern
from exporter.kvmath.layers import Kind, LayerCache
from exporter.kvmath.mixed import mimo_v2_heads, step_window
from exporter.kvmath.sparse import v4_window
from exporter.kvmath.stack import Stack, attention

# The caches of all draft layers, none where the checkpoint has no draft layers.
DraftRule = Callable[[Fields, Names, Stack], tuple[LayerCache, ...]]

_LIMIT = 100  # draft layers; published models have one to seven


def _modules(fields: Fields, otherwise: int = 0, name: str = "num_nextn_predict_layers") -> int:
    count = fields.whole(name, otherwise)
    if count > _LIMIT:
        raise bad(f"{name}: above {_LIMIT}")
    return count


def none(fields: Fields, names: Names, stack: Stack) -> tuple[LayerCache, ...]:
    """No draft layers known for the family."""
    return ()


def like_the_last(fields: Fields, names: Names, stack: Stack) -> tuple[LayerCache, ...]:
    """DeepSeek V3, GLM 4.5, MiMo: decoder layers like the last, ``num_nextn_predict_layers`` of them."""
    return stack.layers[-1] * _modules(fields)


def like_the_widest(fields: Fields, names: Names, stack: Stack) -> tuple[LayerCache, ...]:
    """GLM 5: a draft layer always has an indexer of its own, though the last decoder layers share."""
    return max(stack.layers, key=len) * _modules(fields)


def full_layers(count_name: str) -> DraftRule:
    """Qwen3-Next and 3.5: full-attention layers, one where the field ``count_name`` is absent."""

    def rule(fields: Fields, names: Names, stack: Stack) -> tuple[LayerCache, ...]:
        full = next((c for own in stack.layers for c in own if c.kind is Kind.FULL), None)
        return (full,) * _modules(fields, 1, count_name) if full else ()

    return rule


def mimo_v2(fields: Fields, names: Names, stack: Stack) -> tuple[LayerCache, ...]:
    """MiMo V2 Flash: one window layer (a constant in vLLM 0.32.0 models/mimo_v2_mtp.py)."""
    return (mimo_v2_heads(fields, names)[1],)


def step(fields: Fields, names: Names, stack: Stack) -> tuple[LayerCache, ...]:
    """Step 3.5: the kinds ``layer_types`` names beyond the decoder's; unknown where it ends there."""
    layers, modules = len(stack.layers), _modules(fields)
    kinds = fields.raw("layer_types") or []
    here = kinds[layers : layers + modules] if isinstance(kinds, list) else []
    if len(here) < modules or not all(kind in ("sliding_attention", "full_attention") for kind in here):
        return ()
    heads = grouped(fields, names)
    return tuple(
        step_window(fields, heads) if kind == "sliding_attention" else attention(heads) for kind in here
    )


def deepseek_v4(fields: Fields, names: Names, stack: Stack) -> tuple[LayerCache, ...]:
    """DeepSeek V4: a window of records, nothing compressed."""
    return (v4_window(fields),) * _modules(fields)


def nemotron_h(fields: Fields, names: Names, stack: Stack) -> tuple[LayerCache, ...]:
    """Nemotron-H: the attention layers of ``mtp_hybrid_override_pattern`` (or ``mtp_layers_block_type``)."""
    kinds = nemotron_pattern(fields, "mtp_hybrid_override_pattern", "mtp_layers_block_type") or []
    full = next((c for own in stack.layers for c in own if c.kind is Kind.FULL), None)
    if full is None or "mamba" in kinds:
        return ()
    return (full,) * (kinds.count("attention") * _modules(fields))
